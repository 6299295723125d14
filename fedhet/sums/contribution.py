"""What one client adds to a sum: a flat vector, and what of its own it is made from."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import RunConfig
from fedhet.protocol.payload import Array, Payload

Vector = NDArray[np.float64]  # (L,), the same L for every client of a run


class Method(Protocol):
    """What of a method's strategy a client needs for a sum: see ``MethodStrategy``."""

    sums_updates: bool

    def contribution(self, upload: Payload, own: "Own") -> Vector:
        """What one client adds."""

    def counts_at_end(self, own: "Own") -> int:
        """How many of its entries, at the end, no noise covers."""


@dataclass(frozen=True)
class Own:
    """What a client knows of itself and of the run when it makes its contribution.

    ``seen`` are the ids of its classes, ascending, and ``images`` its training images of each.
    ``told`` are the classes that have owners enough (``sum-owners``) for their rows to be summed;
    None where nobody has counted them, or the method sends no rows of classes.
    """

    config: RunConfig
    classes: int
    seen: tuple[int, ...]
    images: tuple[int, ...]
    told: frozenset[int] | None = None

    @property
    def weight(self) -> float:
        """w_k: training images in units of ``max-images``; 1 with ``weighting: uniform``."""
        uniform = self.config.weighting == "uniform"
        return 1.0 if uniform else sum(self.images) / self.config.max_images

    def tells(self, classes: Array) -> Array:
        """Of which of these class ids (M,) rows may be summed: (M,) bool."""
        if self.told is None:
            return np.ones(len(classes), dtype=np.bool_)
        return np.isin(classes, sorted(self.told))


def ownership(own: Own) -> Vector:
    """C ones and zeros: which classes this client has, of which only the sum is learned."""
    found = np.zeros(own.classes)
    found[list(own.seen)] = 1.0
    return found


def enough(total: Vector, least: int) -> frozenset[int]:
    """Classes with at least ``least`` owners by the sum (C,) of :func:`ownership`."""
    return frozenset(np.flatnonzero(np.rint(total) >= least).tolist())


def too_few(owners: Vector, least: int) -> int:
    """How many classes somebody has, and fewer than ``least`` by a sum (C,) of owners."""
    rounded = np.rint(owners)
    return int(((rounded > 0) & (rounded < least)).sum())


def about_few(few: int, classes: int, least: int) -> str:
    """A line about :func:`too_few` of so many classes that somebody has; empty if it is none."""
    if not few:
        return ""
    line = (
        f"{few} of {classes} classes have fewer than sum-owners={least} owners, and their rows are "
        "in no sum and stay as they are"
    )
    if few < classes:
        return line
    return (
        f"{line}: nothing is shared. Give a class more owners (classes-per-client, more clients), "
        "or take a smaller sum-owners, with which a sum tells more of each (docs/privacy.md)"
    )
