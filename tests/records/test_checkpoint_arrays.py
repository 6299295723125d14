"""Arrays of a checkpoint that its method could not take: named by ``verify``, refused by resume."""

import numpy as np
import pytest
from helpers.products import ANY, FIVE, short

from fedhet.cli.app import execute
from fedhet.config.registry import METHODS
from fedhet.engines import session
from fedhet.records.ledger import Checkpoint, load_checkpoint, save_checkpoint
from fedhet.testing import simulate, small

OPTIONS = {"fedkd, compressed down": {"method": "fedkd", "compress_down": True}}
CASES = {name: {"method": name} for name in ANY} | OPTIONS
TINY = {"dataset": "synthetic:90x3", "image_size": 16, "representation": 16, "engine": "inline"}


def by_default(cases, *names):
    """One of each mechanism by default; the others by mark."""
    return [c if c in names else pytest.param(c, marks=pytest.mark.matrix) for c in cases]


def shorter(arrays, name):
    """One column less: a length of its own is what some arrays have."""
    return {**arrays, name: arrays[name][..., :-1]}


def doubled(arrays, name):
    wider = np.float64 if arrays[name].dtype == np.float32 else np.int32
    return {**arrays, name: arrays[name].astype(wider)}


def renamed(arrays, name):
    return {("x" if key == name else key): array for key, array in arrays.items()}


def not_finite(arrays, name):
    return {**arrays, name: arrays[name] * np.float32(np.nan)}


@pytest.mark.parametrize("case", by_default(CASES, *FIVE, "fd, summed"))
def test_arrays_that_a_method_cannot_take_are_found(case, tmp_path):
    method = CASES[case]["method"]
    folder, _ = simulate(small(tmp_path, **TINY, **short(method) | CASES[case], rounds=1))
    kept = load_checkpoint(folder.checkpoint)
    assert kept is not None
    assert not session.verify(folder.path)[1].findings
    for name in dict.fromkeys([*list(kept.arrays)[:1], *list(kept.arrays)[-2:]]):
        for change in (shorter, doubled, renamed) if kept.arrays[name].ndim else (doubled, renamed):
            save_checkpoint(folder.checkpoint, Checkpoint(change(kept.arrays, name), kept.meta))
            found = session.verify(folder.path)[1].findings
            assert any(str(folder.checkpoint) in text for text in found), (change, name)
    if kept.arrays and not METHODS[method].strategy.plans_rounds:
        assert execute(["resume", str(folder.path), "rounds=2"]) == 3
    if case == "fedmrl":
        name = next(iter(kept.arrays))
        save_checkpoint(folder.checkpoint, Checkpoint(not_finite(kept.arrays, name), kept.meta))
        (found,) = session.verify(folder.path)[1].findings
        assert "holds NaN" in found


NOISED_SUM = {
    "secure_sum": "masked", "sum_owners": 1, "max_images": 100, "dp_clip": 1.0,
    "dp_epsilon": 8.0, "dp_delta": 1e-5,
}  # fmt: skip
KINDS = {rule: {"aggregation": rule} for rule in ("median", "trimmed-mean")} | {"sum": NOISED_SUM}
HONEST = {
    f"{name}, {kind}": {"method": name, **keys}
    for name, method in METHODS.items()
    for kind, keys in KINDS.items()
    if (not method.strategy.not_summed if kind == "sum" else kind in method.strategy.aggregations)
}


SOUND = by_default(HONEST, "fedssa, median", "fedmrl, trimmed-mean", "fedproto, sum")


@pytest.mark.parametrize("case", SOUND)
def test_what_an_honest_round_leaves_is_sound(case, tmp_path):
    keys = TINY | short(HONEST[case]["method"]) | HONEST[case]
    folder, _ = simulate(small(tmp_path, **keys, clients=4))
    assert not session.verify(folder.path)[1].findings
