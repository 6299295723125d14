"""The presets of signals, tables and texts run as they are on files of their form."""

from pathlib import Path

import numpy as np
import pytest

from fedhet.config import load_config
from fedhet.runtime import preflight
from fedhet.testing import simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def motions(path):
    rng = np.random.default_rng(0)
    labels = np.array(["walk", "sit", "stand"])[np.arange(120) % 3]
    x = (1000 * rng.normal(size=(120, 6, 32))).astype(np.int16)
    who = np.array(["s01", "s02"])[np.arange(120) // 60]
    np.savez_compressed(path, x=x, y=labels, subject=who, device=np.array(["ph", "wa"] * 60))


def patients(path):
    rows = "".join(
        f"{'ab'[k % 2]},{40 + k % 30},{'' if k % 5 else 1.5},{k % 5}\n" for k in range(99)
    )
    path.write_text("hospital,age,ca,num\n" + rows)


def news(path):
    words = ["oil bank", "goal match", "atom star", "war peace"]
    rows = "".join(f'"{words[k % 4]}, {k}",{"wxyz"[k % 4]}\n' for k in range(400))
    path.write_text("text,label\n" + rows)


@pytest.mark.parametrize(
    ("name", "write", "file", "clients"),
    [
        ("signals", motions, "d.npz", 4), ("table", patients, "d.csv", 2),
        ("texts", news, "d.csv", 10),
    ],
)  # fmt: skip
def test_a_preset_runs_as_it_is(tmp_path, name, write, file, clients):
    write(tmp_path / file)
    own = [f"data-path={tmp_path / file}", "rounds=1", f"out={tmp_path}", "engine=inline"]
    config = preflight.resolve_clients(load_config(EXAMPLES / f"{name}.yaml", own))
    assert config.clients == clients
    preflight.check_simulation(config)
    folder, _ = simulate(config)
    (record,) = folder.read_rounds()
    assert record["replied"] == clients and not record["failures"]
