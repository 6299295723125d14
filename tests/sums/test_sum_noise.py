"""Noise for the sum: what each client adds, what a sum has of it, what it costs."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhet.config.registry import find_method
from fedhet.errors import UserError
from fedhet.protocol.messages import Instruction
from fedhet.protocol.payload import HeaderRows
from fedhet.rng import generator
from fedhet.site.privacy import Budget, clipped, noise_multiplier, share_steps, spent
from fedhet.site.state import FileStore
from fedhet.sums.client import Member, SumProtection
from fedhet.sums.masks import Cohort, SumTerms, grid
from fedhet.sums.noise import RandomBits, discrete_gaussian
from fedhet.testing import make_client, simulate, small

DP = {"dp_clip": 1.0, "dp_epsilon": 8.0, "dp_delta": 1e-5, "rounds": 4}
BITS, LENGTH = 20, 20_000
EVERYBODY = ("0", "1", "2")


def summed(tmp_path, **changes):
    values = {"secure_sum": "masked", "sum_owners": 1, "image_size": 16}
    return small(tmp_path, **(DP | values | changes))


def opened(store, config, **how):
    budget = Budget(store, config, "0", **how)
    budget.check(1, 0)
    return budget


def part_of(tmp_path, config):
    client = make_client(config, 0, tmp_path / "s")
    strategy, setup = find_method(config.method).strategy, client.setup
    what = Instruction("run", round=1, classes=tuple(setup.classes))
    member = Member(setup.store, "run", "0", SumTerms(config.sum_min, config.sum_threshold))
    member.introduce(dict.fromkeys(EVERYBODY, member.key(None)), None)
    cohort = Cohort(EVERYBODY, 1, 3)
    return client, SumProtection(setup.data, config, strategy, what, cohort, b"", member)


@pytest.mark.parametrize("members", [3, 5, 6])
def test_any_sum_that_can_be_had_has_the_noise_of_the_run(tmp_path, members):
    config = summed(tmp_path, clients=members)
    least = SumTerms(config.sum_min, config.sum_threshold).fewest(members)
    steps, names = share_steps(config, LENGTH, BITS, least), "abcdef"[:members]
    accounts = [opened(FileStore(tmp_path / n, sync=False), config) for n in names]
    shares = [one.share(np.zeros(LENGTH), steps, 1, attempt=1) for one in accounts]
    wanted = (2.0**BITS + math.sqrt(LENGTH) / 2) * noise_multiplier(config)  # dp-clip is 1
    for gone in range(members - least + 1):
        for alive in combinations(shares, members - gone):
            width = np.std(np.sum(alive, axis=0))
            assert width == pytest.approx(wanted * math.sqrt(len(alive) / least), rel=0.03)
    assert least * steps**2 >= wanted**2 > 0.999 * least * (steps - 1) ** 2  # no more than is due


@given(st.integers(0, 2**32), st.integers(1, 400), st.floats(0.01, 4.0), st.integers(0, 12))
def test_rounding_moves_a_vector_no_further_than_the_sensitivity_says(seed, length, clip, bits):
    random = np.random.default_rng(seed)
    vector = clipped(random.normal(size=length) * 10.0 ** random.integers(-3, 2), clip)
    moved = np.linalg.norm(grid(vector, bits, 64.0).astype(np.float64)) * 2.0**-bits
    assert moved <= clip + math.sqrt(length) / 2 * 2.0**-bits + 1e-9


def test_a_vector_is_clipped_and_its_counts_are_not(tmp_path):
    config = summed(tmp_path, representation=8)
    client, part = part_of(tmp_path, config)
    client.round = 1
    ids = client.seen()
    sent = HeaderRows(np.arange(4), np.full((4, 8), 5, np.float32), np.full(4, 2, np.float32))
    rows = sent.weight[ids] + np.float32(3)
    upload = HeaderRows(ids, rows, sent.bias[ids])  # a step of 3 in 16 entries: a norm of 12
    budget = opened(client.setup.store, config, simulated=True)
    assert part.protect(upload, sent, 1, budget).flat == []
    header, owners = np.zeros((4, 9)), np.isin(np.arange(4), ids).astype(np.int64)
    header[ids, :8] = 3 / 12
    steps = np.concatenate(part._steps)
    # fraction bits of three clients with entries up to 64: 3 x 64 x 2^22 < 2^30
    bits = RandomBits(generator(0, "dp", "0", 1).bytes(32))
    noise = discrete_gaussian(share_steps(config, 36, 22, 3), 36, bits)
    np.testing.assert_array_equal(steps[:36], grid(header.ravel(), 22, 64.0) + noise)
    np.testing.assert_array_equal(steps[36:], owners * 2**22)


def test_the_same_update_again_is_free_and_another_share_is_not(tmp_path):
    config, store = summed(tmp_path), FileStore(tmp_path / "s", sync=False)
    update = np.ones(2000)

    def share(steps, vector=update, attempt=1):
        return opened(store, config).share(vector, steps, 1, attempt=attempt)

    # Another is one of a larger cohort, of another update, or once more, without somebody: the
    # difference of the sums then has fresh noise of all the others.
    other = update + 1e-3
    before = share(1000)
    assert (share(1000) == before).all()
    for again in (share(900), share(900, other), share(900, other, 2)):
        assert abs(np.corrcoef(before, again)[0, 1]) < 0.1
        before = again
    assert Budget(store, config, "0").epsilon == spent(4, 4, 8.0, 1e-5)


SEED = bytes(range(32))


@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_draws_follow_their_probabilities(sigma: int) -> None:
    from scipy import stats  # late: a second, which every worker would take to collect

    draws = discrete_gaussian(sigma, 100_000, RandomBits(SEED))
    values = np.arange(-20 * sigma, 20 * sigma + 1)
    weight = np.exp(-(values**2) / (2 * sigma**2))
    expected = 100_000 * weight / weight.sum()
    often, counts = expected >= 5, np.array([(draws == v).sum() for v in values])
    found = [*counts[often], 100_000 - counts[often].sum()]
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


def test_noise_that_words_or_floats_do_not_carry_is_refused(tmp_path) -> None:
    for sigma in (0, 2**26 + 1):
        with pytest.raises(ValueError, match="steps"):
            discrete_gaussian(sigma, 1, RandomBits(SEED))
    with pytest.raises(UserError, match="^sum-range: 2 is too small .* at least .* is needed"):
        share_steps(summed(tmp_path, sum_range=2.0), LENGTH, BITS, 3)


def test_a_run_with_noise_for_its_sums(tmp_path):
    config = summed(tmp_path, method="fedproto", rounds=2, dp_epsilon=20.0)
    told = simulate(config)[0].read_summary()
    assert told["failures"] == [] and told["privacy"]["noise_of"] == "sum"
    assert told["privacy"]["epsilon_spent"] == pytest.approx(dict.fromkeys("012", 20.0))
    assert told["test_accuracy_mean"] is not None
