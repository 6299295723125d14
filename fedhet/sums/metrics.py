"""Metrics as a part of a summed vector: the server learns their means, and whose they are not.

Every client of a run has the same entries, whether it has the number or not; what it lacks counts
zero times. Each number is brought within ``sum-range``: accuracies as shares of 1, a method's own
by its declared range, losses cut off at it. Counts of images are too large for that, and are summed
in two parts, which give the exact sum.

FLOPs are not summed. A server knows what an image costs each architecture, so that the sum of FLOPs
and that of images are two equations in its clients' numbers of images: a client with an
architecture of its own would have told its number. ``train_flops`` of such a run is null.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedhet.sums.contribution import Vector

ACCURACIES = ("test_accuracy", "val_accuracy", "test_accuracy_before", "val_accuracy_before")
LOSS = "train_loss"
SPENT = "epsilon_spent"  # what its uploads have cost a client: told beside the sum, no secret
WIDE = ("train_images",)
BITS = 20  # of the lower part of a wide number
HIGH = 2.0**-10  # what one of the higher part counts


@dataclass(frozen=True)
class Summed:
    """A mean over clients, and how many of them have the number."""

    mean: float
    clients: int


class SumMetrics:
    """The entries of a run; ``own`` are the ranges of its method's metrics, by name."""

    def __init__(self, largest: float, own: Mapping[str, tuple[float, float]]) -> None:
        self.largest = largest
        bounds = {name: max(map(abs, pair)) for name, pair in sorted(own.items())}
        self.scales = dict.fromkeys(ACCURACIES, 100.0) | {LOSS: 1.0}
        self.scales |= {name: max(1.0, bound / largest) for name, bound in bounds.items()}

    def __len__(self) -> int:
        return 2 * len(self.scales) + 2 * len(WIDE)

    def vector(self, metrics: Mapping[str, float]) -> Vector:
        """Of one client: each number with a one, or two zeros; then the wide ones."""
        found: list[float] = []
        for name, scale in self.scales.items():
            value = metrics.get(name, math.nan) / scale
            there = math.isfinite(value)
            cut = min(max(value, -self.largest), self.largest) if there else 0.0
            found += [cut, float(there)]
        lower = self.largest / 2**BITS
        for name in WIDE:
            whole = round(metrics.get(name, 0.0))
            high, low = divmod(min(whole, int(self.largest / HIGH) << BITS), 1 << BITS)
            found += [high * HIGH, low * lower]
        return np.array(found)

    def means(self, total: Vector, clients: int, least: int = 1) -> dict[str, Summed]:
        """Inverse of :meth:`vector` for the sum of so many clients'.

        Nothing of what fewer than ``least`` of them have.
        """
        found: dict[str, Summed] = {}
        place = 0
        for name, scale in self.scales.items():
            count = round(float(total[place + 1]))
            if count >= max(1, least):
                found[name] = Summed(float(total[place]) * scale / count, count)
            place += 2
        lower = self.largest / 2**BITS
        for name in WIDE:
            whole = float(total[place]) / HIGH * 2**BITS + float(total[place + 1]) / lower
            found[name] = Summed(whole / clients, clients)
            place += 2
        return found
