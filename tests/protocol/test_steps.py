"""How long a step of an upload may be, worked out by hand, and what liars make of the bound."""

import numpy as np
import pytest

from fedhet.protocol.checks import check_arrays, long_steps, size
from fedhet.protocol.payload import Empty, HeaderRows


def left_out(start: float, *lengths: float, noise: float = 0.0) -> list[int]:
    """Who is left out of a round of these steps, at ten times the usual."""
    named = {str(k): length for k, length in enumerate(lengths)}
    return [int(k) for k in long_steps(named, start, 10.0, noise)]


@pytest.mark.parametrize(("start", "lengths", "out"), [
    (1.0, [3.0, 29.0, 31.0], [2]),  # the lower median, in which the start votes
    (1.0, [3.0, 1.0, 9.0, 11.0, 31.0], [4]),
    (0.0, [0.0, 0.0, 0.0, 5.0], []),  # who does not move does not vote
    (0.0, [0.01, 0.02, 1.9, 2.1], [3]),  # nothing to start from: ten times as free
    (50.0, [0.1, 0.1, 0.1, 49.0, 51.0], [4]),  # nobody is left out for less than the start
    (0.0, [], []),
])  # fmt: skip
def test_a_step_far_beyond_the_usual_is_left_out(start, lengths, out):
    assert left_out(start, *lengths) == out
    assert left_out(start, *lengths, noise=100.0) == []
    assert not long_steps({"0": 1.0, "1": 1e9}, start, 0.0, 0.0)


@pytest.mark.parametrize("honest", range(6))
def test_one_huge_step_is_left_out_of_a_first_round_with_any_number_of_others(honest):
    assert left_out(1.0, *[0.5] * honest, 500.0) == [honest]
    assert left_out(0.0, *[0.5] * honest, 500.0) == ([honest] if honest else [])


def test_the_length_is_the_root_mean_square_of_the_difference():
    sent = HeaderRows(np.array([1, 4]), np.ones((2, 3), np.float32), np.zeros(2, np.float32))
    came = HeaderRows(sent.classes, np.full((2, 3), 3, np.float32), np.full(2, 4, np.float32))
    assert check_arrays(came, sent, 1e4) == pytest.approx(np.sqrt((6 * 4 + 2 * 16) / 8))
    assert check_arrays(came, None, 1e4) == pytest.approx(np.sqrt((6 * 9 + 2 * 16) / 8))
    unusable = HeaderRows(sent.classes, sent.weight * np.nan, sent.bias)
    assert check_arrays(came, unusable, 1e4) == check_arrays(came, None, 1e4)
    assert size(came.flat) == check_arrays(came, None, 1e4)
    assert size([np.array([1, 2])]) == 0.0 == check_arrays(Empty(), Empty(), 1e4)
