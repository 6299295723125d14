"""The rules that combine uploads.

``trimmed-mean`` and ``median`` are those of Yin, Chen, Ramchandran and Bartlett 2018,
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (arXiv 1803.01498),
definitions 1 and 2: coordinate by coordinate and without weights. Of m values the trimmed mean
leaves out the floor(trim * m) largest and as many smallest, so that m < 1 / trim values are not
trimmed at all: choose ``trim`` by the fewest clients that share a class.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedhet.protocol.payload import Array

CHUNK = 1 << 20  # values that are sorted at a time
ROBUST = ("mean", "trimmed-mean", "median")


@dataclass(frozen=True)
class Rule:
    """The rule by which a run combines its uploads."""

    name: str = "mean"
    trim: float = 0.0
    max_weight: float = 1.0

    def middle(self, values: Sequence[Array]) -> Array:
        """Return the trimmed mean or median over m arrays of one shape, float64."""
        m, rows = len(values), np.stack(values)
        cut = (m - 1) // 2 if self.name == "median" else int(self.trim * m + 1e-9)
        pieces = np.array_split(rows.reshape(m, -1), 1 + rows.size // CHUNK, axis=1)
        kept = (np.sort(piece, axis=0)[cut : m - cut] for piece in pieces)
        middles = [piece.mean(axis=0, dtype=np.float64) for piece in kept]
        return np.concatenate(middles).reshape(rows.shape[1:])


MEAN = Rule()


def capped(sizes: Array, cap: float, groups: Array | None = None) -> Array:
    """Return shares of ``sizes`` (M,) in the sum of their group, none above ``cap``, float64.

    What is cut off goes to the others of the group in proportion. In a group of fewer than
    1 / cap members nobody can be below the cap: all get the same.
    """
    if groups is None:
        groups = np.zeros(len(sizes), dtype=np.int64)
    limit = np.maximum(cap, 1 / np.maximum(np.bincount(groups), 1))[groups]
    shares = sizes / np.bincount(groups, sizes)[groups]
    full = np.zeros(len(sizes), dtype=bool)
    while (over := ~full & (shares > limit * (1 + 1e-12))).any():
        full |= over
        room = 1 - np.bincount(groups, np.where(full, limit, 0.0))[groups]
        loose = np.bincount(groups, np.where(full, 0.0, sizes))[groups]
        shares = np.where(full, limit, sizes * room / np.where(loose > 0, loose, 1.0))
    return np.asarray(shares)
