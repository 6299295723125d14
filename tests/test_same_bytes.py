"""Runs end with the ``run_sha256`` recorded on commit e1588e1, in ``test_same_bytes.json``.

Arithmetic differs between processors in its last bits, so the hashes are kept by processor and
version of torch, and compared where there are some for this machine. ``python
tests/test_same_bytes.py`` prints those of the machine that it runs on: to record another one, run
it on a commit whose hashes are known to be right. After a change that is to move results do the
same, and say in CHANGELOG which runs have other bytes. What a change of the code may move and last
bits cannot (the initial weights, who owns which example, names and shapes of the private state) is
compared everywhere: with a learning rate that moves no weight the states are those of the start.
"""

import contextlib
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.patched import without_masks
from helpers.pretrained import bert, texts
from helpers.products import ANY, FIVE, SHORT
from safetensors.numpy import load_file, save_file

from fedhet.records.run_folder import processor
from fedhet.testing import cut_and_resume, simulate, small

KNOWN = Path(__file__).with_suffix(".json")
IMAGES = {"models": ["cnn-4", "cnn-5"], "image_size": 16, "representation": 32}
ROWS = {"batch_size": 8, "representation": 16, "partition": "iid"}


def table(folder):
    """120 patients of three hospitals: numbers with gaps, a category, three classes."""
    rows = "".join(
        f"{'abc'[k % 3]},{'fm'[k * k % 2]},{30 + k * 7 % 41},{'' if k % 5 == 0 else k % 9 / 4},"
        f"{(k * 7 % 41 // 14 + k % 2) % 3}\n"
        for k in range(120)
    )
    (folder / "p.csv").write_text("hospital,sex,age,ca,num\n" + rows)
    return {
        "dataset": "table", "data_path": str(folder / "p.csv"), "target": "num",
        "site": "hospital", "partition": "natural", "categories": {"sex": ["f", "m"]},
        "models": ["mlp-5", "resnet-table"],
    }  # fmt: skip


def signals(folder):
    """120 windows of two channels and 16 steps, of three subjects."""
    draws = np.random.default_rng(7)
    y = np.arange(120) % 3
    x = (draws.integers(-900, 900, size=(120, 2, 16)) + 300 * y[:, None, None]).astype(np.int16)
    np.savez(folder / "s.npz", x=x, y=y, subject=np.arange(120) // 40)
    return {
        "dataset": "signals", "data_path": str(folder / "s.npz"), "site": "subject",
        "partition": "natural", "models": ["conv1d-5", "gru"],
    }  # fmt: skip


def adapters(folder):
    """Those sentences, and one small BERT with adapters of two ranks; its weights are ours."""
    network, draws = bert(folder / "bert"), np.random.default_rng(7)
    weights = dict(sorted(load_file(network / "model.safetensors").items()))
    drawn = {k: 0.1 * draws.normal(size=v.shape).astype(v.dtype) for k, v in weights.items()}
    save_file(drawn, network / "model.safetensors", metadata={"format": "pt"})
    return texts(folder) | {"models": [f"hf:{network} lora={rank}" for rank in (1, 3)]}


KINDS = {"table": table, "signals": signals,
         "texts": lambda folder: texts(folder) | {"models": ["fasttext", "gru"]}}  # fmt: skip
MADE = KINDS | {"adapters": adapters}
SUMS = {"clients": 5, "max_images": 100, "sum_threshold": 4, "models": ["cnn-5"]}
NOISE = {"dp_clip": 2.0, "dp_epsilon": 8.0, "dp_delta": 1e-5}
CASES = {
    **{f"images/{m}": {"method": m, **IMAGES, **SHORT.get(m, {})} for m in ANY},
    **{f"{k}/{m}": {"method": m, **ROWS, **SHORT.get(m, {})} for k in KINDS for m in FIVE},
    "adapters/hetlora": {"method": "hetlora", **ROWS},
    "resumed": {"method": "fedssa", **IMAGES},
    "masked": {"method": "lg_fedavg", "secure_sum": "masked", **SUMS},
    "unmasked": {"method": "lg_fedavg", "secure_sum": "masked", **SUMS},
    "masked/fedmrl": {"method": "fedmrl", "secure_sum": "masked", **SUMS, "d1": 8},
    "noise": {"method": "lg_fedavg", **IMAGES, **NOISE},
    "masked/noise": {"method": "lg_fedavg", "secure_sum": "masked", **SUMS, **NOISE},
}


def run_of(case, folder):
    """The run folder of a case."""
    kind = case.partition("/")[0]
    data = MADE[kind](folder) if kind in MADE else {}
    config = small(folder, **CASES[case] | data)
    with without_masks() if case == "unmasked" else contextlib.nullcontext():
        return cut_and_resume(config, 2) if case == "resumed" else simulate(config)[0]


def machine():
    """Processor, its vector instructions and torch: what decides the last bits of a sum."""
    return f"{processor()}, torch {'.'.join(torch.__version__.split('.')[:2])}"


@pytest.mark.parametrize("case", CASES)
def test_a_run_ends_with_its_recorded_hash(tmp_path, case):
    known = json.loads(KNOWN.read_text())
    if machine() not in known:
        pytest.skip(f"no hashes recorded for {machine()}; there are: {', '.join(known)}")
    if case not in known[machine()]:
        pytest.skip(f"recorded elsewhere, not for {machine()}")
    assert run_of(case, tmp_path).read_summary()["run_sha256"] == known[machine()][case]


def test_resuming_and_masks_change_no_byte():
    for hashes in json.loads(KNOWN.read_text()).values():
        assert hashes["resumed"] == hashes["images/fedssa"]
        assert hashes["masked"] == hashes["unmasked"]


STARTS = {  # SHA-256 of the names and shapes of all states, and the sum of the weights' magnitudes
    "fedssa": ("dc571e12277177e7405cb92f16a01f05f9aeab3c138012a3bfa615b47a603f66", 27237.11183),
    "fml": ("a4e1cccc0fe5c8bd3b00431be7894a706aaf8a7f3e971a8a0c5e23466f2782d6", 49704.98710),
}


@pytest.mark.parametrize("method", STARTS)
def test_states_begin_as_they_always_did(tmp_path, method):
    keys = {"models": ["cnn-4", "cnn-5"], "image_size": 16, "rounds": 1}
    folder = simulate(small(tmp_path, method=method, **keys, lr=1e-30, momentum=0.0))[0]
    names, size = hashlib.sha256(), 0.0
    for path in sorted(folder.path.glob("state/*/*/*.safetensors")):
        for name, array in sorted(load_file(path).items()):
            names.update(f"{path.parent.name} {name} {array.dtype} {array.shape}\n".encode())
            if not name.startswith("metrics/"):
                size += float(np.abs(array.astype(np.float64)).sum())
    assert names.hexdigest() == STARTS[method][0]
    assert size == pytest.approx(STARTS[method][1], rel=1e-6)


def main():
    """Print the hashes of this machine."""
    torch.set_num_threads(1)
    found = {}
    for case in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case] = run_of(case, Path(folder)).read_summary()["run_sha256"]
            print(case, found[case], file=sys.stderr)
    print(json.dumps({machine(): found}, indent=1))


if __name__ == "__main__":
    main()
