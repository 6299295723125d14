"""Arrays of a checkpoint that its method could not take: named by ``verify``, refused by resume."""

import numpy as np
import pytest

from fedhet.cli.app import execute
from fedhet.records.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedhet.registry import METHODS
from fedhet.runtime import session
from fedhet.testing import simulate, small

OPTIONS = {
    "fd, summed": {"method": "fd", "secure_sum": "unmasked"},
    "fedkd, compressed down": {"method": "fedkd", "compress_down": True},
}
CASES = {name: {"method": name} for name in METHODS} | OPTIONS


def shorter(arrays, name):
    """One column less: a length of its own is what some arrays have."""
    return {**arrays, name: arrays[name][..., :-1]}


def doubled(arrays, name):
    wider = np.float64 if arrays[name].dtype == np.float32 else np.int32
    return {**arrays, name: arrays[name].astype(wider)}


def renamed(arrays, name):
    return {("x" if key == name else key): array for key, array in arrays.items()}


@pytest.mark.parametrize("case", CASES)
def test_arrays_that_a_method_cannot_take_are_found(case, tmp_path):
    method = CASES[case]["method"]
    folder, _ = simulate(small(tmp_path, rounds=2, engine="inline", **CASES[case]))
    kept = load_checkpoint(folder.checkpoint)
    assert kept is not None
    assert not session.verify(folder.path)[1].findings
    for name in list(kept.arrays)[:3] + list(kept.arrays)[-3:]:
        for change in (shorter, doubled, renamed) if kept.arrays[name].ndim else (doubled, renamed):
            save_checkpoint(folder.checkpoint, Checkpoint(change(kept.arrays, name), kept.meta))
            found = session.verify(folder.path)[1].findings
            assert any(str(folder.checkpoint) in f.text for f in found), (change, name)
    if kept.arrays and not METHODS[method].strategy.plans_rounds:
        assert execute(["resume", str(folder.path), "rounds=3"]) == 3


@pytest.mark.parametrize("label", [-1, 10**6])
def test_a_label_of_no_class_is_found(label, tmp_path):
    folder, _ = simulate(small(tmp_path, rounds=2, engine="inline", method="fd"))
    kept = load_checkpoint(folder.checkpoint)
    labels = np.full_like(kept.arrays["labels"], label)
    save_checkpoint(folder.checkpoint, Checkpoint({**kept.arrays, "labels": labels}, kept.meta))
    (found,) = session.verify(folder.path)[1].findings
    assert "a label is none of" in found.text
