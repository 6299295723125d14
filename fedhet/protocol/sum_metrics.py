"""Metrics in a summed vector: each as a sum, with the number of clients that have it.

Entries are in units that keep them within 1, so that no ``sum-range`` is too small for them. What
is not in here is not told at all. That holds for FLOPs: a server knows what an image costs each
architecture, so that the sum of FLOPs and the sum of images are two equations in the numbers of
images of its clients; with one client of an architecture of its own they give its number away.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedhet.protocol.contribution import Vector
from fedhet.schema import RunConfig

LARGEST_LOSS = 32.0  # a loss beyond counts as this much
IMAGES = "images"


@dataclass(frozen=True)
class Mean:
    """A mean over those clients that have the number."""

    mean: float
    number: int


@dataclass(frozen=True)
class MetricLayout:
    """Which metrics ride at the end of a vector, in order, and the unit of each."""

    units: Mapping[str, float]

    @classmethod
    def of(cls, config: RunConfig, ranges: Mapping[str, tuple[float, float]]) -> Self:
        """The layout of a run; ``ranges`` are the method's ``metric_ranges``.

        Nothing with ``sum-metrics: false``.
        """
        if not config.sum_metrics:
            return cls({})
        ours = {
            "test_accuracy": 100.0,
            "val_accuracy": 100.0,
            "train_loss": LARGEST_LOSS,
            IMAGES: float(config.max_images),
        }
        own = {name: max(map(abs, ranges[name]), default=0.0) or 1.0 for name in sorted(ranges)}
        return cls(ours | own)

    @property
    def length(self) -> int:
        """Entries at the end of a vector."""
        return 2 * len(self.units)

    def vector(self, numbers: Mapping[str, float], images: int) -> Vector:
        """A client's entries (length,): values in their units, zero where it has none, then ones.

        A number that is not finite counts as none.
        """
        known = {**numbers, IMAGES: float(images)}
        found = np.zeros((2, len(self.units)))
        for i, (name, unit) in enumerate(self.units.items()):
            value = known.get(name, math.nan)
            if math.isfinite(value):
                found[:, i] = min(max(value / unit, -1.0), 1.0), 1.0
        return found.ravel()

    def read(self, total: Vector, least: int = 1) -> dict[str, Mean]:
        """Means out of a sum (length,) of entries.

        Without those that fewer than ``least`` clients have.
        """
        values, numbers = np.reshape(total, (2, -1))
        counts = np.rint(numbers).astype(np.int64).tolist()
        return {
            name: Mean(float(value) * unit / count, count)
            for (name, unit), value, count in zip(self.units.items(), values, counts, strict=True)
            if count >= max(least, 1)
        }
