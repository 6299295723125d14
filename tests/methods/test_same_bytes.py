"""Image runs end with the bytes that they ended with before there were other kinds of examples.

Arithmetic differs between processors in its last bits, so whole hashes are compared on the kind of
processor that they were recorded on. What a change of the code may move and last bits cannot (the
initial weights, who owns which image, names and shapes of the private state) is compared
everywhere: with a learning rate that moves no weight the states are those of the start.
"""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedhet.records.environment import processor
from fedhet.testing import simulate, small

TORCH, MAKE = "2.14", "AMD EPYC (family 26, model 2)"  # that these were recorded with
RUNS = {  # run_sha256; AVX2 and AVX512 give the same
    "fedssa": "64968e918b81c755502335e1d553ea694eed697c46bda3553827283a4e341914",
    "fml": "8306fb976d20cd4e1876aa7a26df85151b57e240e4af011e995720bc5b082a64",
}
STARTS = {  # SHA-256 of the names and shapes of all states, and the sum of the weights' magnitudes
    "fedssa": ("dc571e12277177e7405cb92f16a01f05f9aeab3c138012a3bfa615b47a603f66", 27237.11183),
    "fml": ("a4e1cccc0fe5c8bd3b00431be7894a706aaf8a7f3e971a8a0c5e23466f2782d6", 49704.98710),
}


def run(tmp_path, method, **changes):
    values = {"models": ["cnn-4", "cnn-5"], "image_size": 16} | changes
    return simulate(small(tmp_path, method=method, **values))[0]


@pytest.mark.parametrize("method", RUNS)
def test_a_run_of_images_has_its_old_hash(tmp_path, method):
    kinds = [f"x86_64, {MAKE}, {vectors}" for vectors in ("AVX2", "AVX512")]
    if processor() not in kinds or not torch.__version__.startswith(TORCH):
        pytest.skip(f"recorded with torch {TORCH} on {MAKE}; this is {processor()}")
    folder = run(tmp_path, method)
    assert json.loads(folder.summary.read_text())["run_sha256"] == RUNS[method]


@pytest.mark.parametrize("method", STARTS)
def test_states_begin_as_they_always_did(tmp_path, method):
    folder = run(tmp_path, method, rounds=1, lr=1e-30, momentum=0.0)
    names, size = hashlib.sha256(), 0.0
    for path in sorted(folder.path.glob("state/*/*/*.safetensors")):
        for name, array in sorted(load_file(path).items()):
            names.update(f"{path.parent.name} {name} {array.dtype} {array.shape}\n".encode())
            if not name.startswith("metrics/"):
                size += float(np.abs(array.astype(np.float64)).sum())
    assert names.hexdigest() == STARTS[method][0]
    assert size == pytest.approx(STARTS[method][1], rel=1e-6)
