"""Whole runs on a real GPU, where there is one: what the stand-ins of the other tests cannot show.

A run of two rounds on the GPU repeats itself to the byte, with CUDA graphs and without, resumed and
in worker processes, and is close to the same run on the CPU.
"""

import logging
import os
import warnings

import numpy as np
import pytest
import torch
from helpers.products import ANY, FIVE, SHORT
from helpers.programs import python
from helpers.tiny import run_by_name
from test_same_bytes import KINDS

from fedhet.testing import cut_and_resume, simulate, small
from fedhet.training import loop

if not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

ALL = [("images", method) for method in ANY] + [(kind, method) for kind in KINDS for method in FIVE]
FEW = {"local_epochs": 5, "batch_size": 8, "representation": 32}  # enough steps for a graph
VARIANTS = {
    "adam": {"optimizer": "adam", "lr": 1e-3}, "clipped": {"grad_clip": 0.5},
    "augmented": {"augment": "crop-flip"}, "cosine": {"lr_schedule": "cosine"},
    "bf16": {"precision": "bf16"}, "tf32": {"precision": "tf32"},
    "noise": {"method": "lg_fedavg", "dp_clip": 2.0, "dp_epsilon": 8.0, "dp_delta": 1e-5},
    "masked": {"method": "lg_fedavg", "secure_sum": "masked", "clients": 5, "sum_threshold": 4},
    "torchvision": {"models": ["resnet18"]},
}  # fmt: skip


def config_of(folder, kind, method, **changes):
    folder.mkdir(exist_ok=True)
    images = {"models": ["cnn-4", "cnn-5"], "image_size": 16}
    data = KINDS[kind](folder) | {"partition": "iid"} if kind in KINDS else images
    short = SHORT.get(method, {}) | {"device": "cuda"}
    return small(folder, **{"method": method} | FEW | data | short | changes)


def summary(config):
    return simulate(config)[0].read_summary()


@pytest.mark.parametrize(("kind", "method"), ALL)
def test_a_run_repeats_itself_with_graphs_and_without(tmp_path, caplog, monkeypatch, kind, method):
    caplog.set_level(logging.WARNING, logger="fedhet")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = summary(config_of(tmp_path / "a", kind, method))
    again = summary(config_of(tmp_path / "b", kind, method))
    assert not found["failures"]
    assert found["run_sha256"] == again["run_sha256"]
    assert "stays eager" not in caplog.text
    assert not [str(one.message) for one in said if "determinis" in str(one.message)]
    monkeypatch.setattr(loop, "WORTH_IT", 1 << 30)
    assert found["run_sha256"] == summary(config_of(tmp_path / "c", kind, method))["run_sha256"]


@pytest.mark.parametrize(("kind", "method"), ALL)
def test_a_run_is_close_to_the_cpus(tmp_path, kind, method):
    on_gpu, on_cpu = (
        simulate(config_of(tmp_path / device, kind, method, device=device))[0]
        for device in ("cuda", "cpu")
    )
    here, there = ([line["train_loss"] for line in run.read_rounds()] for run in (on_gpu, on_cpu))
    drawn = method == "fedclassavg"  # views of its images are drawn on the device
    assert np.allclose(here, there, rtol=0.05 if drawn else 0.02), (here, there)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_repeat_themselves(tmp_path, caplog, variant):
    changes = {"method": "fedssa"} | VARIANTS[variant]
    runs = [summary(config_of(tmp_path / n, "images", **changes)) for n in "ab"]
    assert not runs[0]["failures"]
    assert runs[0]["run_sha256"] == runs[1]["run_sha256"]
    assert "stays eager" not in caplog.text


def test_a_resumed_run_and_worker_processes_end_with_the_same_bytes(tmp_path):
    whole = summary(config_of(tmp_path / "a", "images", "fedssa"))
    cut = cut_and_resume(config_of(tmp_path / "b", "images", "fedssa"), 2).read_summary()
    elsewhere = config_of(tmp_path / "c", "images", "fedssa", engine="processes", actors=2)
    workers = run_by_name(elsewhere)
    assert whole["run_sha256"] == cut["run_sha256"] == workers["run_sha256"]


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
    monkeypatch.setattr("fedhet.training.loop.train", watched)
    summary(config_of(tmp_path, "images", "fedmrl"))
    assert waits
    assert max(map(len, waits)) <= FEW["local_epochs"] + 1, waits[0]


def test_a_run_on_the_cpu_leaves_the_gpu_alone(tmp_path):
    code = (
        "import sys, torch; from pathlib import Path; from fedhet.testing import simulate, small\n"
        "found = simulate(small(Path(sys.argv[1]), device='cpu'))[0].read_summary()\n"
        "print(found['run_sha256'], torch.cuda.is_initialized())"
    )
    hashes = []
    for hidden in ({}, {"CUDA_VISIBLE_DEVICES": ""}):
        done = python("-c", code, tmp_path / str(len(hashes)), env={**os.environ, **hidden})
        digest, used = done.stdout.split()[-2:]
        assert used == "False"
        hashes.append(digest)
    assert hashes[0] == hashes[1]
