"""The discrete Gaussian sampler against its probabilities."""

from fractions import Fraction

import numpy as np
import pytest

from fedhet.sums.noise import RandomBits, discrete_gaussian

SEED = bytes(range(32))


@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_draws_follow_their_probabilities(sigma: int) -> None:
    from scipy import stats  # late: a second, which every worker would take to collect

    draws = discrete_gaussian(sigma, 100_000, RandomBits(SEED))
    values = np.arange(-20 * sigma, 20 * sigma + 1)
    weight = np.exp(-(values**2) / (2 * sigma**2))
    expected = 100_000 * weight / weight.sum()
    often = expected >= 5
    counts = np.array([(draws == v).sum() for v in values])
    found = [*counts[often], counts[~often].sum() + 100_000 - counts.sum()]
    wanted = [*expected[often], expected[~often].sum()]
    assert stats.chisquare(found, wanted, sum_check=False).pvalue > 1e-4


def test_a_coin_that_53_bits_do_not_decide_falls_by_further_ones() -> None:
    """A third begins with the same bits as numbers on both sides of it."""
    source = RandomBits(SEED)
    third = Fraction(1, 3)
    bits = (2**53) // 3
    fell = [source._settle(bits, third) for _ in range(3000)]
    share = (third - Fraction(bits, 2**53)) * 2**53
    assert np.mean(fell) == pytest.approx(float(share), abs=0.05)
    assert source._settle(bits - 1, third) and not source._settle(bits + 1, third)


@pytest.mark.parametrize("sigma", [0, 2**26 + 1])
def test_a_width_that_floats_do_not_carry_is_refused(sigma: int) -> None:
    with pytest.raises(ValueError, match="steps"):
        discrete_gaussian(sigma, 1, RandomBits(SEED))
