"""Masks change no byte of any method, with no key of the sums set but `secure-sum`."""

import pytest
from helpers.products import short
from summed_runs import sha

from fedhet.config.registry import METHODS
from fedhet.testing import simulate, small

FIVE = ("fedssa", "fedproto", "fedmrl", "fd", "pfedafm")  # by default; the others by mark
SUMMED = [name for name, method in METHODS.items() if not method.strategy.not_summed]


@pytest.mark.parametrize(
    "method", [m if m in FIVE else pytest.param(m, marks=pytest.mark.matrix) for m in SUMMED]
)
def test_masked_and_unmasked_runs_have_the_same_bytes_at_the_defaults(tmp_path, method):
    """Of three clients, each with all four classes."""
    runs = []
    for mode in ("unmasked", "masked"):
        values = {"method": method, "secure_sum": mode, "name": mode, "classes_per_client": 4}
        runs.append(simulate(small(tmp_path, **values, **short(method)))[0])
    for folder in runs:
        assert [(r["replied"], r["failures"]) for r in folder.read_rounds()] == [(3, [])] * 2
    assert sha(runs[0]) == sha(runs[1])


def test_thirteen_methods_can_be_summed():
    assert len(SUMMED) == 13
