"""How far uploads go from what the server sent, held against how far everybody's go.

A *step* is the difference between what came and what was sent, or the upload itself where nothing
was sent to start from; its *length* is the root mean square of its values, so that two header rows
and twenty have one measure. A step is too long beyond ``max-update-ratio`` times the median of this
round's and of earlier rounds' accepted ones, in which a minority has no say. Of an even number the
lower middle is taken; steps of length 0 do not vote.

Two things keep honest clients in. What began with a size of its own (parameters) may always move by
as much as that was in the first round: who has a hundred times the images walks farther. And what
starts from nothing (mean representations) differs between architectures and grows in training:
``SPREAD`` times more is left to it. What clients add as noise has a known size, and is nobody's
fault. The start votes as well, so that one liar and one honest client
are told apart in round 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedhet.protocol.payload import Array

SPREAD = 10.0  # honest representations were seen at 12 times the median: FedGH, synthetic:800x20
REMEMBERED = 1000  # rounds; the first ones, so that no slow drift carries the median along


def size(arrays: Sequence[Array]) -> float:
    """Root mean square of all floating point values; 0 if there are none."""
    floats = [a.ravel() for a in arrays if np.issubdtype(a.dtype, np.floating)]
    count = sum(a.size for a in floats)
    total = sum(float(np.square(a, dtype=np.float64).sum()) for a in floats)
    return math.sqrt(total / count) if count else 0.0


class Steps:
    """What the steps of a run usually are."""

    def __init__(self, ratio: float, noise: float = 0.0) -> None:
        self.ratio = ratio  # 0: no step is too long
        self.noise = noise  # standard deviation of what clients add to every float (dp-clip)
        self.start: float | None = None  # size of what the first round's steps started from
        self.medians: list[float] = []  # of the accepted steps of earlier rounds

    def usual(self, lengths: Sequence[float] = ()) -> float:
        """Lower median of these lengths, of earlier rounds' medians and of the start; or 0."""
        known = sorted(x for x in (*lengths, *self.medians, self.start or 0.0) if x > 0)
        return known[(len(known) - 1) // 2] if known else 0.0

    def limit(self, lengths: Sequence[float]) -> float:
        """The longest step that counts in a round of these; 0 where nothing is known."""
        times = self.ratio if self.start else self.ratio * SPREAD
        return max(times * self.usual(lengths), self.start or 0.0, self.ratio * self.noise)

    def odd(self, lengths: Mapping[str, float]) -> dict[str, str]:
        """Reasons by client, for steps that are too long."""
        usual, limit = self.usual(list(lengths.values())), self.limit(list(lengths.values()))
        if not limit or not self.ratio:
            return {}
        free = "" if self.start else f" x {SPREAD:g} for representations"
        return {
            client: f"its update is {length / usual:.4g} times the median of this round's and "
            f"earlier ones, above max-update-ratio={self.ratio:g}{free}"
            for client, length in lengths.items()
            if length > limit
        }

    def accept(self, lengths: Sequence[float]) -> None:
        """Remember a round by the lower median of its accepted steps."""
        moved = sorted(x for x in lengths if x > 0)
        if moved and len(self.medians) < REMEMBERED:
            self.medians.append(moved[(len(moved) - 1) // 2])

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"start": self.start, "medians": self.medians}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Inverse of :meth:`dump`; a checkpoint from before there was any of this has nothing."""
        start = kept.get("start")
        self.start = None if start is None else float(start)
        self.medians = [float(length) for length in kept.get("medians", ())]
