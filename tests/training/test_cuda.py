"""Whole runs on a real GPU, where there is one: what the stand-ins of the other tests cannot show.

A run of two rounds on the GPU repeats itself to the byte, with CUDA graphs and without, resumed and
in worker processes, and is close to the same run on the CPU.
"""

import logging
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from test_same_bytes import CASES, KINDS

import fedhet
from fedhet.testing import cut_and_resume, simulate, small
from fedhet.training import loop

if not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

SHORT = {"local_epochs": 5, "batch_size": 8, "representation": 32}  # enough steps for a graph
VARIANTS = {
    "adam": {"optimizer": "adam", "lr": 1e-3}, "clipped": {"grad_clip": 0.5},
    "augmented": {"augment": "crop-flip"}, "cosine": {"lr_schedule": "cosine"},
    "bf16": {"precision": "bf16"}, "tf32": {"precision": "tf32"},
    "torchvision": {"models": ["resnet18"]},
}  # fmt: skip
PLAIN = [case for case in CASES if case.partition("/")[0] in ("images", *KINDS)]
FEDSSA = "images/fedssa"


def config_of(folder, case, **changes):
    """A case of ``test_same_bytes.py``, or a variant of FedSSA on images."""
    folder.mkdir(exist_ok=True)
    kind = case.partition("/")[0]
    data = KINDS[kind](folder) if kind in KINDS else {}
    own = CASES[FEDSSA] | VARIANTS[case] if case in VARIANTS else CASES[case]
    return small(folder, **own | data | SHORT | {"device": "cuda"} | changes)


def summary(config):
    return simulate(config)[0].read_summary()


@pytest.mark.parametrize("case", [*PLAIN, *VARIANTS, "noise", "masked"])
def test_a_run_repeats_itself_with_graphs_and_without(tmp_path, caplog, monkeypatch, case):
    caplog.set_level(logging.WARNING, logger="fedhet")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = summary(config_of(tmp_path / "a", case))
    again = summary(config_of(tmp_path / "b", case))
    assert not found["failures"]
    assert found["run_sha256"] == again["run_sha256"]
    assert "stays eager" not in caplog.text
    assert not [str(one.message) for one in said if "determinis" in str(one.message)]
    if case in PLAIN:
        monkeypatch.setattr(loop, "WORTH_IT", 1 << 30)
        assert found["run_sha256"] == summary(config_of(tmp_path / "c", case))["run_sha256"]


@pytest.mark.parametrize("case", PLAIN)
def test_a_run_is_close_to_the_cpus(tmp_path, case):
    here, there = (
        [line["train_loss"] for line in simulate(config)[0].read_rounds()]
        for config in (config_of(tmp_path / name, case, device=name) for name in ("cuda", "cpu"))
    )
    drawn = case.endswith("fedclassavg")  # views of its images are drawn on the device
    assert np.allclose(here, there, rtol=0.05 if drawn else 0.02), (here, there)


def test_resumed_and_in_worker_processes_it_ends_with_the_same_bytes(tmp_path):
    whole = summary(config_of(tmp_path / "a", FEDSSA))["run_sha256"]
    cut = cut_and_resume(config_of(tmp_path / "b", FEDSSA), 2)
    assert cut.read_summary()["run_sha256"] == whole
    config = config_of(tmp_path / "c", FEDSSA, engine="processes", actors=2)
    keys = config.model_dump(by_alias=True, exclude_unset=True)
    keys = {key.replace("-", "_"): value for key, value in keys.items()}
    assert fedhet.run(progress=False, **keys).summary["run_sha256"] == whole


def test_training_waits_for_the_device_once_an_epoch_at_most(tmp_path, monkeypatch):
    waits = []
    train = loop.train

    def watched(*args):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                return train(*args)
            finally:
                torch.cuda.set_sync_debug_mode("default")
                waits.append([f"{one.filename}:{one.lineno}" for one in said])

    monkeypatch.setattr(loop, "WORTH_IT", 1 << 30)
    monkeypatch.setattr("fedhet.clients.base.train", watched)
    summary(config_of(tmp_path, "images/fedmrl"))
    assert waits
    assert max(map(len, waits)) <= SHORT["local_epochs"] + 1, waits[0]


def test_a_run_on_the_cpu_leaves_the_gpu_alone(tmp_path):
    code = (
        "import sys, torch; from pathlib import Path; from fedhet.testing import simulate, small\n"
        "found = simulate(small(Path(sys.argv[1]), device='cpu'))[0].read_summary()\n"
        "print(found['run_sha256'], torch.cuda.is_initialized())"
    )
    hashes = []
    for hidden in ({}, {"CUDA_VISIBLE_DEVICES": ""}):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / str(len(hashes)))], check=True,
            capture_output=True, text=True, env={**os.environ, **hidden},
        )  # fmt: skip
        digest, used = done.stdout.split()[-2:]
        assert used == "False"
        hashes.append(digest)
    assert hashes[0] == hashes[1]
