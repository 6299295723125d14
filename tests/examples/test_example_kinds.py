"""The presets of signals, tables and texts run as they are, and with models of one's own."""

import numpy as np
import pytest

from fedhet.cli.app import execute
from fedhet.config.load import build_config, load_config
from fedhet.engines import session
from fedhet.site.local_data import load_partition
from fedhet.testing import simulate


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


def test_the_preset_of_signals_runs_as_it_is(examples, tmp_path):
    """Those of tables and texts run below, with models of one's own."""
    motions(tmp_path / "d.npz")
    own = [f"data-path={tmp_path / 'd.npz'}", "rounds=1", f"out={tmp_path}", "engine=inline"]
    own += ["site=subject,device", "partition=natural", "clients=0"]
    preset = examples.parent / "configs" / "kinds" / "signals.yaml"
    config = session.resolve_clients(load_config(preset, own))
    assert config.clients == 4
    session.check_simulation(config)
    (record,) = simulate(config)[0].read_rounds()
    assert record["replied"] == 4 and not record["failures"]


@pytest.mark.parametrize(
    ("module", "factories", "preset", "write"),
    [
        ("own_rows", ["own_rows:deep", "own_rows:wide"], "table", patients),
        ("own_words", ["own_words:make"], "texts", news),
    ],
)
def test_models_of_ones_own_as_a_user_runs_them(
    here, examples, tmp_path, capsys, module, factories, preset, write
):
    """In the folder of the module, with the command that stands in it; beside one of ours too."""
    command = f"fedhet run kinds/{preset} data-path=FILE.csv models={','.join(factories)}"
    assert command in (examples / f"{module}.py").read_text()
    write(tmp_path / "d.csv")
    words = command.replace("FILE.csv", str(tmp_path / "d.csv")).split()[1:]
    quick = ["rounds=1", "engine=inline", "representation=24", f"out={tmp_path}"]
    quick += ["clients=2", "local-epochs=1"] + ["target=num"] * (preset == "table")
    assert execute([*words, "name=own", *quick]) == 0, capsys.readouterr().err
    rows = [line.split(",") for line in (tmp_path / "own/clients.csv").read_text().splitlines()]
    assert {row[2] for row in rows[1:]} == set(factories)
    ours = {"table": "mlp-5", "texts": "textcnn"}[preset]
    mixed = [*words[:-1], f"models={factories[0]},{ours}", "method=fedavg", f"small-model={ours}"]
    assert execute([*mixed, "name=mixed", *quick]) == 0, capsys.readouterr().err


OWN = {"partition": "natural", "rounds": 3, "engine": "inline", "lr": 0.05, "representation": 32}


@pytest.mark.parametrize(
    ("module", "models", "clients"),
    [("own_table", ["@table-5"], 3), ("own_signals", ["conv1d-5", "conv1d-4"], 6)],
)
def test_what_data_of_ones_own_invent_can_be_learned(here, tmp_path, module, models, clients):
    """By the commands of docs/how-to/own-model.md."""
    values = {"dataset": f"{module}:load", "models": models, "out": str(tmp_path)}
    config = session.resolve_clients(build_config(OWN | values))
    assert config.clients == clients
    assert simulate(config)[0].read_rounds()[-1]["test_accuracy_mean"] > 60


def test_a_table_of_ones_own(here, tmp_path):
    config = build_config(OWN | {"dataset": "own_table:load"})
    data, partition = load_partition(config, 0)
    assert partition.ids == ("a", "b", "c") and data.inputs.shape == (7,)
    assert np.isnan(data.examples[:, 1]).sum() == 35
    (tmp_path / "own.csv").write_text(
        "clinic,age,pressure,smokes,outcome\n" + "x,50,,once,ill\ny,40,120,never,well\n" * 9
    )
    config = config.model_copy(update={"data_path": str(tmp_path / "own.csv")})
    assert load_partition(config, 0)[1].ids == ("x", "y")
