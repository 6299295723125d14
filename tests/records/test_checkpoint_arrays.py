"""Arrays of a checkpoint that its method could not take: named by ``verify``, refused by resume."""

import numpy as np
import pytest

from fedhet.cli.app import execute
from fedhet.config.registry import METHODS
from fedhet.engines import session
from fedhet.records.ledger import Checkpoint, load_checkpoint, save_checkpoint
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


NOISED_SUM = {
    "secure_sum": "unmasked", "sum_owners": 1, "max_images": 100, "dp_clip": 1.0,
    "dp_epsilon": 8.0, "dp_delta": 1e-5,
}  # fmt: skip
KINDS = {rule: {"aggregation": rule} for rule in ("median", "trimmed-mean")} | {"sum": NOISED_SUM}
HONEST = {
    f"{name}, {kind}": {"method": name, **keys}
    for name, method in METHODS.items()
    for kind, keys in KINDS.items()
    if (not method.strategy.not_summed if kind == "sum" else kind in method.strategy.aggregations)
}


@pytest.mark.parametrize("case", HONEST)
def test_what_an_honest_round_leaves_is_sound(case, tmp_path):
    folder, _ = simulate(small(tmp_path, rounds=2, engine="inline", clients=4, **HONEST[case]))
    assert not session.verify(folder.path)[1].findings


def not_finite(arrays, name):
    return {**arrays, name: arrays[name] * np.float32(np.nan)}


@pytest.mark.parametrize(
    ("case", "name", "change", "said"),
    [
        ("fd", "vectors", not_finite, "holds NaN"),
        ("fedmrl", "", not_finite, "holds NaN"),
    ],
)
def test_numbers_that_no_round_leaves_are_found(case, name, change, said, tmp_path):
    folder, _ = simulate(small(tmp_path, rounds=2, engine="inline", **CASES[case]))
    kept = load_checkpoint(folder.checkpoint)
    name = next(key for key in kept.arrays if key.startswith(name))
    save_checkpoint(folder.checkpoint, Checkpoint(change(kept.arrays, name), kept.meta))
    (found,) = session.verify(folder.path)[1].findings
    assert said in found.text
