"""The arithmetic of comparisons: intervals, tests, costs. Plain numbers in, plain numbers out.

A block is a pair of partition and seed that all methods share: the unit of replication. Clients
of one block are not independent runs, so no interval here takes them for such.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]

LEVEL = 0.95
ENOUGH = 5  # blocks (or settings) below which numbers are descriptive and nothing is tested
DRAWS = 2_000  # an end moves by a fiftieth of the interval with another seed
_EXACT = 50  # differences up to which the signed-rank distribution is counted out
_AT_ONCE = 4_000_000  # client draws held in memory


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval; ``low`` and ``high`` are None for a single block."""

    mean: float
    low: float | None
    high: float | None
    blocks: int

    @property
    def half(self) -> float | None:
        """Half the width."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def beyond(self, least: float, most: float) -> bool:
        """Whether it reaches below ``least`` or above ``most``, where no value can be."""
        return self.low is not None and self.high is not None and (
            self.low < least or self.high > most
        )  # fmt: skip

    def holds(self, value: float) -> bool | None:
        """Whether ``value`` lies in the interval; None where there is none."""
        if self.low is None or self.high is None:
            return None
        return self.low <= value <= self.high


def t_interval(values: Sequence[float]) -> Interval:
    """Mean of independent blocks with Student's t interval."""
    data = np.asarray(values, dtype=np.float64)
    mean, count = float(data.mean()), len(data)
    if count < 2:
        return Interval(mean, None, None, count)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * data.std(ddof=1) / np.sqrt(count))
    return Interval(mean, mean - half, mean + half, count)


def two_level_bootstrap(
    blocks: Sequence[Sequence[float]], *, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Mean over blocks of the mean over clients, with a percentile interval.

    ``blocks`` holds one number per client and block, such as a paired difference. Every draw takes
    blocks with replacement, then clients of each taken block with replacement. A single block
    leaves only the clients' part of the variability: its interval says nothing of other partitions
    or seeds, and is therefore not given.
    """
    data = [np.asarray(block, dtype=np.float64) for block in blocks]
    mean = float(np.mean([block.mean() for block in data]))
    if len(data) < 2:
        return Interval(mean, None, None, len(data))
    rng = np.random.default_rng(seed)
    taken = rng.integers(len(data), size=(draws, len(data)))
    means = np.empty(taken.shape)
    for number, block in enumerate(data):
        slots = np.flatnonzero(taken == number)
        for part in np.array_split(slots, 1 + slots.size * block.size // _AT_ONCE):
            chosen = rng.integers(block.size, size=(part.size, block.size))
            means.flat[part] = block.take(chosen).mean(axis=1)
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(means.mean(axis=1), [tail, 100 - tail])
    return Interval(mean, float(low), float(high), len(data))


def chance(blocks: Sequence[Sequence[float]]) -> float | None:
    """Standard error of one block's mean over clients (root mean square over the blocks).

    None where a block has one client only. What the clients share, such as a model that all of
    them train, comes on top of it.
    """
    if any(len(block) < 2 for block in blocks):
        return None
    squares = [np.var(block, ddof=1) / len(block) for block in blocks]
    return float(np.sqrt(np.mean(squares)))


def signed_rank(differences: Sequence[float]) -> float | None:
    """Two-sided p of Wilcoxon's signed-rank test; None below :data:`ENOUGH` differences.

    Differences of zero are dropped (Wilcoxon's own way); if all are zero, p = 1. Exact up to 50
    differences without ties.
    """
    data = np.asarray(differences, dtype=np.float64)
    if len(data) < ENOUGH:
        return None
    data = data[data != 0]
    if not len(data):
        return 1.0
    sizes = np.abs(data)
    if len(data) > _EXACT or len(np.unique(sizes)) < len(sizes):
        from scipy.stats import wilcoxon  # noqa: PLC0415  (takes half a second to import)

        return float(wilcoxon(data).pvalue)
    ranks = sizes.argsort().argsort() + 1
    below = int(ranks[data < 0].sum())
    ways = np.ones(1)  # of every sum of ranks with a sign
    for rank in range(1, len(data) + 1):
        ways = np.concatenate([ways, np.zeros(rank)]) + np.concatenate([np.zeros(rank), ways])
    tail = ways[: min(below, len(ways) - 1 - below) + 1].sum() / ways.sum()
    return min(1.0, 2.0 * float(tail))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment of those p values that are there, in their order."""
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        adjusted[i] = highest
    return adjusted


def shares(differences: Sequence[float]) -> tuple[float, float]:
    """Percent of clients that improve and percent that lose; the rest are equal."""
    data = np.asarray(differences, dtype=np.float64)
    return 100.0 * float((data > 0).mean()), 100.0 * float((data < 0).mean())


@dataclass(frozen=True)
class Spent:
    """What the rounds up to and including ``round`` cost: all clients together."""

    round: int
    floats: float
    flops: float
    accuracy: float


def course(rounds: Sequence[Mapping[str, Any]]) -> list[Spent]:
    """The evaluated rounds with their mean test accuracy and what was spent until then.

    Floats are those of accepted uploads and of what was sent down; FLOPs are of training.
    """
    floats = flops = 0.0
    spent = []
    for record in rounds:
        floats += record["uplink_floats"] + record["downlink_floats"]
        flops += record["train_flops"] or 0.0
        accuracy = record.get("test_accuracy_mean")
        if accuracy is not None:
            spent.append(Spent(record["round"], floats, flops, accuracy))
    return spent


def to_target(rounds: Sequence[Mapping[str, Any]], target: float) -> Spent | None:
    """The first evaluated round whose mean test accuracy reaches ``target``; None: never."""
    return next((spent for spent in course(rounds) if spent.accuracy >= target), None)


def at_compute(rounds: Sequence[Mapping[str, Any]], flops: float) -> Spent | None:
    """The last evaluated round within a budget of training FLOPs; None: not even the first."""
    affordable = [spent for spent in course(rounds) if spent.flops <= flops * (1 + 1e-9)]
    return affordable[-1] if affordable else None
