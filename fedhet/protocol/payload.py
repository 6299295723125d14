"""What crosses the wire: frozen dataclasses of named arrays, one per direction of a method.

Class ids, masks and counts travel as integers, so that floats are what the papers count.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Self, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Fields that say what they hold: a client refuses another dtype before it looks at the values.
Float32 = Annotated[Array, np.dtype(np.float32)]
Int64 = Annotated[Array, np.dtype(np.int64)]


def rest() -> Any:
    """Return the last field of a payload, for all arrays that are left, as a tuple."""
    return field(metadata={"rest": True})


def blank(shape: Sequence[int], dtype: Any = np.float32) -> Array:
    """Return zeros of a ``shape`` () or (n, ...) and ``dtype``, in the memory of one."""
    return np.broadcast_to(np.zeros((), dtype=dtype), tuple(shape))


@dataclass(frozen=True)
class Payload:
    """Base of all payloads; fields are arrays, the last one may be :func:`rest`."""

    @property
    def flat(self) -> list[Array]:
        """Its own arrays (n, ...), of its dtypes, in field order: to read, not to keep."""
        arrays: list[Array] = []
        for one in fields(self):
            value = getattr(self, one.name)
            arrays.extend(value if "rest" in one.metadata else (value,))
        return arrays

    def to_ndarrays(self) -> list[Array]:
        """Return copies (n, ...), C-contiguous, of the same dtypes, in field order."""
        return [np.array(array, order="C", copy=True) for array in self.flat]

    @classmethod
    def from_ndarrays(cls, arrays: Sequence[Array]) -> Self:
        """Return the payload of ``arrays`` (n, ...); ValueError for another number, any dtype."""
        single = sum("rest" not in one.metadata for one in fields(cls))
        varies = single < len(fields(cls))
        if len(arrays) < single or (len(arrays) > single and not varies):
            raise ValueError(f"{cls.__name__} holds {single} arrays, got {len(arrays)}")
        return cls(*arrays[:single], *([tuple(arrays[single:])] if varies else []))

    def dtypes(self) -> list[np.dtype[Any] | None]:
        """Return what its class declares of each of its arrays, in order; None: any dtype."""
        hints, declared = dict[str, Any](), list[np.dtype[Any] | None]()
        with contextlib.suppress(NameError):  # of a class inside a function, say
            hints = get_type_hints(type(self), include_extras=True)
        for one in fields(self):
            hint, rest = hints.get(one.name), "rest" in one.metadata
            marks = get_args(get_args(hint)[0] if hint and rest else hint)
            dtype = next((mark for mark in marks if isinstance(mark, np.dtype)), None)
            declared += [dtype] * (len(getattr(self, one.name)) if rest else 1)
        return declared

    def since(self, sent: "Payload") -> Self:
        """Return the step from what was sent, which has the same arrays: floats subtracted."""
        pairs = zip(self.flat, sent.flat, strict=True)
        return self.from_ndarrays([a - b if a.dtype.kind == "f" else a for a, b in pairs])

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
    """Header rows of some classes: ids (S,) int64, weight (S, d), bias (S,) float32."""

    classes: Int64
    weight: Float32
    bias: Float32

    def since(self, sent: Payload) -> Self:
        """Return the step from the rows of the same classes."""
        assert isinstance(sent, HeaderRows)
        rows = np.searchsorted(sent.classes, self.classes)
        return super().since(HeaderRows(self.classes, sent.weight[rows], sent.bias[rows]))


@dataclass(frozen=True)
class ModelArrays(Payload):
    """All arrays of a shared model, in the order of ``fedhet.models.networks.exchanged``."""

    tensors: tuple[Float32, ...] = rest()


@dataclass(frozen=True)
class Adapters(Payload):
    """LoRA's A (r, n) and B (m, r) of each layer, or A alone; the digest of their network."""

    digest: Int64
    tensors: tuple[Float32, ...] = rest()


@dataclass(frozen=True)
class ClassVectors(Payload):
    """One vector per class: ids (S,) int64, images behind each (S,) int64, vectors (S, w) f32."""

    classes: Int64
    counts: Int64
    vectors: Float32


@dataclass(frozen=True)
class LowRank(Payload):
    """One entry per parameter of a shared model; see :mod:`fedhet.strategies.fedkd`.

    ranks (L,) int64: r > 0 is an update as three tensors U (m, r), S (r,), V (r, n) float32, 0 an
    update of zeros without a tensor, -1 a dense update, -2 the parameter itself.
    """

    ranks: Int64
    tensors: tuple[Float32, ...] = rest()
