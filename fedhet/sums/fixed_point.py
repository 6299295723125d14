"""Vectors as words of 32 bits: fixed point, summed modulo 2^32, exactly and in any order."""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Vector = NDArray[np.float64]

SUM_BITS = 30  # a sum of all clients stays below this power of two: a sign and a spare bit


class RangeError(ValueError):
    """An entry that is not finite, or larger than the range that was agreed."""


def fraction_bits(clients: int, largest: float) -> int:
    """Bits after the point: the most for which ``clients`` entries of size ``largest`` fit.

    The largest f with clients x largest x 2^f < 2^30. Raises ValueError if not even whole numbers
    fit.
    """
    limit = 2.0**SUM_BITS
    bits = -1
    while clients * largest * 2.0 ** (bits + 1) < limit:
        bits += 1
    if bits < 0:
        raise ValueError(f"{clients} clients with entries up to {largest:g} do not fit 32 bits")
    return bits


def grid(vector: Vector, bits: int, largest: float) -> NDArray[np.int64]:
    """Entries (L,) float64 in steps of 2^-bits, rounded half to even, as integers.

    Raises RangeError, which names no value, for an entry beyond ``largest`` or not finite.
    """
    if not np.isfinite(vector).all() or (np.abs(vector) > largest).any():
        raise RangeError(f"an entry is not finite, or beyond sum-range={largest:g}")
    steps: NDArray[np.int64] = np.rint(np.ldexp(vector, bits)).astype(np.int64)
    return steps


def to_words(steps: NDArray[np.int64]) -> Words:
    """Whole steps as words: modulo 2^32."""
    return steps.astype(np.uint32)  # NumPy's conversion keeps the low bits


def from_words(words: Words, bits: int) -> Vector:
    """Words (L,) uint32 of a sum as float64: two's complement, divided by 2^bits."""
    return np.ldexp(words.view(np.int32).astype(np.float64), -bits)


def check_total(total: Vector, clients: int, largest: float) -> None:
    """RangeError for a sum that ``clients`` vectors cannot give: masks were left in it.

    So it looks when clients were sent different payloads, or one of them lied about a seed.
    """
    if (np.abs(total) > clients * largest).any():
        raise RangeError(f"the sum has entries beyond {clients} x sum-range={largest:g}")
