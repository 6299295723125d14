"""How long a step of an upload may be, worked out by hand, and what liars make of the bound."""

import numpy as np
import pytest

from fedhet.protocol.checks import StepLimits, check_arrays, size
from fedhet.protocol.payload import Empty, HeaderRows


def run_with(start: float, ratio: float = 10.0) -> StepLimits:
    steps = StepLimits(ratio)
    steps.start = start
    return steps


def left_out(steps: StepLimits, *lengths: float) -> list[int]:
    """Who is left out of a round of these steps; the others are remembered."""
    named = {str(k): length for k, length in enumerate(lengths)}
    odd = steps.outliers(named)
    steps.accept([length for k, length in named.items() if k not in odd])
    return [int(k) for k in odd]


def test_the_usual_step_is_the_lower_median_and_nothing_does_not_vote():
    steps = run_with(0.0)
    assert steps.usual() == 0.0
    assert steps.usual([3.0, 1.0, 2.0]) == 2.0
    assert steps.usual([4.0, 3.0, 2.0, 1.0]) == 2.0
    assert steps.usual([0.0, 0.0, 0.0, 5.0]) == 5.0
    steps.accept([0.0, 1.0, 9.0, 2.0])
    steps.accept([])
    assert steps.medians == [2.0]
    assert steps.usual([9.0]) == 2.0  # of an even number the lower one
    assert run_with(1.0).usual([3.0, 4.0]) == 3.0  # the start votes


@pytest.mark.parametrize("honest", range(6))
def test_one_huge_step_is_left_out_of_a_first_round_with_any_number_of_others(honest):
    assert left_out(run_with(1.0), *[0.5] * honest, 500.0) == [honest]
    nothing_to_start_from = left_out(run_with(0.0), *[0.5] * honest, 500.0)
    assert nothing_to_start_from == ([honest] if honest else [])


def test_the_length_is_the_root_mean_square_of_the_difference():
    sent = HeaderRows(np.array([1, 4]), np.ones((2, 3), np.float32), np.zeros(2, np.float32))
    came = HeaderRows(sent.classes, np.full((2, 3), 3, np.float32), np.full(2, 4, np.float32))
    assert check_arrays(came, sent, 1e4) == pytest.approx(np.sqrt((6 * 4 + 2 * 16) / 8))
    assert check_arrays(came, None, 1e4) == pytest.approx(np.sqrt((6 * 9 + 2 * 16) / 8))
    unusable = HeaderRows(sent.classes, sent.weight * np.nan, sent.bias)
    assert check_arrays(came, unusable, 1e4) == check_arrays(came, None, 1e4)
    assert size(came.flat) == check_arrays(came, None, 1e4)
    assert size([np.array([1, 2])]) == 0.0 == check_arrays(Empty(), Empty(), 1e4)
