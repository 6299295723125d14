"""Every statistic against numbers worked out by hand."""

import numpy as np
import pytest

from fedhet.reports.statistics import (
    at_compute,
    course,
    holm,
    shares,
    signed_rank,
    t_interval,
    to_target,
    two_level_bootstrap,
)

ROUNDS = [
    {"round": r, "test_accuracy_mean": a, "uplink_floats": 10, "downlink_floats": 5,
     "train_flops": 100.0}
    for r, a in enumerate((20.0, None, 50.0, 45.0, 60.0), start=1)
]  # fmt: skip


def test_t_interval_by_hand():
    # mean 3, s = sqrt(2.5), s / sqrt(5) = 0.7071; t(0.975, 4) = 2.7764: 3 +- 1.9633
    found = t_interval([1, 2, 3, 4, 5])
    assert found.mean == 3 and found.blocks == 5
    assert found.low == pytest.approx(1.0368, abs=1e-4)
    assert found.high == pytest.approx(4.9632, abs=1e-4)
    assert found.half == pytest.approx(1.9632, abs=1e-4)
    assert found.holds(4.9) and not found.holds(5.0)


def test_one_block_has_no_interval():
    found = t_interval([7.0])
    assert (found.mean, found.low, found.high, found.half) == (7.0, None, None, None)
    assert found.holds(7.0) is None
    assert two_level_bootstrap([[1.0, 3.0]]).low is None


def test_two_blocks_have_the_widest_t():
    # t(0.975, 1) = 12.7062; s = sqrt(2), half = 12.7062 * sqrt(2) / sqrt(2)
    assert t_interval([0.0, 2.0]).half == pytest.approx(12.7062, abs=1e-4)


def test_bootstrap_of_constant_clients_resamples_blocks_alone():
    # Three blocks 0, 3, 6: a mean of three draws lies on {0, 1, ..., 6}; P(0) = P(6) = 1 / 27 is
    # more than 2.5 %, so that the percentiles are the ends.
    found = two_level_bootstrap([[0.0] * 4, [3.0] * 4, [6.0] * 4])
    assert (found.mean, found.low, found.high) == (3.0, 0.0, 6.0)


def test_bootstrap_of_equal_blocks_resamples_clients_within():
    # Two blocks of clients 0 and 1. The variance of a draw's mean: two blocks, two clients each,
    # are four fair coins: mean 0.5, and P(0) = P(1) = 1 / 16 > 2.5 %.
    found = two_level_bootstrap([[0.0, 1.0], [0.0, 1.0]])
    assert (found.mean, found.low, found.high) == (0.5, 0.0, 1.0)
    many = two_level_bootstrap([np.tile([0.0, 1.0], 200), np.tile([0.0, 1.0], 200)])
    # 800 coins: standard error 0.5 / sqrt(800) = 0.01768, times 1.96
    assert many.half == pytest.approx(0.03465, abs=0.002)


def test_bootstrap_repeats_by_its_seed_and_weighs_blocks_equally():
    blocks = [[1.0, 2.0, 4.0], [0.0, 5.0]]
    assert two_level_bootstrap(blocks) == two_level_bootstrap(blocks)
    many = np.random.default_rng(0).normal(size=(3, 50))
    assert two_level_bootstrap(many) != two_level_bootstrap(many, seed=1)
    assert two_level_bootstrap(blocks).mean == pytest.approx((7 / 3 + 2.5) / 2)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # all five positive: the rank sum of the negatives is 0, 2 / 2^5
        ([1, 2, 3, 4, 5], 0.0625),
        # ranks of the negatives: {1}; sums <= 1 are {} and {1}: 2 * 2 / 2^6
        ([-1, 2, 3, 4, 5, 6], 0.0625),
        ([1, 2, 3, 4, 5, 6], 0.03125),
        # a zero is dropped: as five
        ([0, 1, 2, 3, 4, 5], 0.0625),
        ([0, 0, 0, 0, 0], 1.0),
    ],
)
def test_signed_rank_by_hand(differences, p):
    assert signed_rank(differences) == pytest.approx(p)


def test_four_blocks_are_not_tested():
    assert signed_rank([1, 2, 3, 4]) is None


def test_holm_by_hand():
    # sorted .01 .02 .04: times 3, 2, 1; .04 stays, and nothing may be below what is before it
    assert holm([0.04, None, 0.01, 0.02]) == pytest.approx([0.04, None, 0.03, 0.04])
    # .01 * 3 = .03, .04 * 2 = .08, .05 * 1 = .05 -> .08
    assert holm([0.05, 0.01, 0.04]) == pytest.approx([0.08, 0.03, 0.08])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_shares_leave_ties_out_of_both():
    assert shares([1.0, 2.0, -1.0, 0.0]) == (50.0, 25.0)


def test_course_adds_up_both_directions_and_skips_unevaluated_rounds():
    spent = course(ROUNDS)
    assert [s.round for s in spent] == [1, 3, 4, 5]
    assert [s.floats for s in spent] == [15, 45, 60, 75]
    assert [s.flops for s in spent] == [100, 300, 400, 500]


def test_a_target_is_reached_the_first_time():
    spent = to_target(ROUNDS, 50.0)
    assert spent is not None and (spent.round, spent.floats, spent.flops) == (3, 45, 300)
    assert to_target(ROUNDS, 60.1) is None


def test_equal_compute_takes_the_last_round_that_fits():
    assert at_compute(ROUNDS, 99.0) is None
    for flops, round_, accuracy in ((100, 1, 20.0), (299, 1, 20.0), (450, 4, 45.0), (1e9, 5, 60.0)):
        spent = at_compute(ROUNDS, flops)
        assert spent is not None and (spent.round, spent.accuracy) == (round_, accuracy)
