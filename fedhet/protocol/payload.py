"""What crosses the wire: frozen dataclasses of named arrays, one per direction of a method.

A payload becomes a list of arrays and comes back from one; it knows its floats and its bytes.
Class ids, masks and counts travel as integers, so that floats are what the papers count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def rest() -> Any:
    """The last field of a payload that holds however many arrays are left, as a tuple."""
    return field(metadata={"rest": True})


@dataclass(frozen=True)
class Payload:
    """Base of all payloads; fields are arrays, the last one may be :func:`rest`."""

    @property
    def flat(self) -> list[Array]:
        """Its own arrays in field order: to read, not to change or to keep."""
        arrays: list[Array] = []
        for one in fields(self):
            value = getattr(self, one.name)
            arrays.extend(value if "rest" in one.metadata else (value,))
        return arrays

    def to_ndarrays(self) -> list[Array]:
        """Arrays in field order, C-contiguous copies that share no memory with a model."""
        return [np.array(array, order="C", copy=True) for array in self.flat]

    @classmethod
    def from_ndarrays(cls, arrays: Sequence[Array]) -> Self:
        """Inverse of :meth:`to_ndarrays`; ValueError if the number of arrays does not fit."""
        own = fields(cls)
        single = [one for one in own if "rest" not in one.metadata]
        if len(arrays) < len(single) or (len(arrays) > len(single) and len(single) == len(own)):
            raise ValueError(f"{cls.__name__} holds {len(single)} arrays, got {len(arrays)}")
        if len(single) == len(own):
            return cls(*arrays)
        values: list[Any] = [*arrays[: len(single)], tuple(arrays[len(single) :])]
        return cls(*values)

    def sealed(self) -> Self:
        """The payload after noise: what a reader relies on being zero is zero again."""
        return self

    def began(self, sent: Self) -> Self:
        """Of what was sent, with equal shapes, that from which this upload's values went on."""
        return sent

    @property
    def values(self) -> int:
        """How many floats of an upload say something: all of them."""
        return self.floats

    @property
    def floats(self) -> int:
        """Number of floating point values, as the papers count parameters."""
        return sum(a.size for a in self.flat if np.issubdtype(a.dtype, np.floating))

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, integers included."""
        return sum(a.nbytes for a in self.flat)


@dataclass(frozen=True)
class Empty(Payload):
    """Nothing (Standalone)."""


@dataclass(frozen=True)
class HeaderRows(Payload):
    """Header rows of some classes: ids (S,) int64, weight (S, d), bias (S,) or (0,) float32."""

    classes: Array
    weight: Array
    bias: Array


@dataclass(frozen=True)
class MaskedHeader(Payload):
    """A whole header, zero where mask (C,) int8 is 0 (FedSSA section 4.3, Privacy)."""

    mask: Array
    weight: Array
    bias: Array

    def sealed(self) -> Self:
        """Zero outside the mask."""
        mask = self.mask.astype(self.weight.dtype)
        bias = self.bias * mask if self.bias.size else self.bias
        return replace(self, weight=self.weight * mask[:, None], bias=bias)

    def began(self, sent: Self) -> Self:
        """The same rows; the others are zero in an upload."""
        return replace(sent, mask=self.mask).sealed()

    @property
    def values(self) -> int:
        """Those of the rows inside the mask."""
        return int(np.count_nonzero(self.mask)) * self.floats // max(1, len(self.mask))


@dataclass(frozen=True)
class ModelArrays(Payload):
    """All parameters of a shared model, in the order of ``module.parameters()``."""

    tensors: tuple[Array, ...] = rest()


@dataclass(frozen=True)
class ClassVectors(Payload):
    """One vector per class: ids (S,) int64, images behind each (S,) int64, vectors (S, w) f32."""

    classes: Array
    counts: Array
    vectors: Array


@dataclass(frozen=True)
class LowRank(Payload):
    """One entry per parameter of a shared model; see :mod:`fedhet.protocol.low_rank`.

    ranks (L,) int64: r > 0 is an update as three tensors U (m, r), S (r,), V (r, n) float32, 0 an
    update of zeros without a tensor, -1 a dense update, -2 the parameter itself.
    """

    ranks: Array
    tensors: tuple[Array, ...] = rest()
