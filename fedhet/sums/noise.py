"""Discrete Gaussian noise, sampled exactly: the shares of noise that make up a sum's.

Canonne, Kamath, Steinke 2020 (arXiv 2004.00010), algorithms 1 to 3, for whole vectors at a time.
Their coins have rational probabilities: a coin falls by 53 random bits held against a float, and
where those could be rounded the other way (one time in 2^40), by whole numbers and more bits.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

Steps = NDArray[np.int64]
Coins = NDArray[np.bool_]
Exact = Callable[[int], Fraction]  # the probability of the coin at an index

DOUBT = 2.0**-40  # far above the rounding of a few float operations with values up to 1
LARGEST = 2**26  # sigma, in steps: squares of larger ones lose bits in a float


class RandomBits:
    """Random bits: the ChaCha20 key stream of 32 bytes, the operating system's or a seed's."""

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` words of 64 bits."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), "<u8").astype(np.uint64)

    def below(self, bound: int, count: int) -> Steps:
        """Return uniform integers 0 <= n < bound (at most 2^32)."""
        room, draws = np.uint64(2**64 // bound * bound - 1), self.words(count)
        while (over := draws > room).any():
            draws[over] = self.words(int(over.sum()))
        return (draws % np.uint64(bound)).astype(np.int64)

    def coins(self, chance: NDArray[np.float64], exact: Exact) -> Coins:
        """Return coins of these chances in [0, 1]; ``exact`` says them without rounding."""
        bits = self.words(chance.size) >> np.uint64(11)
        uniform = bits.astype(np.float64) * 2.0**-53  # what further bits add is below 2^-53
        fell: Coins = uniform < chance
        for index in np.flatnonzero(np.abs(uniform - chance) < DOUBT):
            fell[index] = self._settle(int(bits[index]), exact(int(index)))
        return fell

    def _settle(self, bits: int, chance: Fraction) -> bool:
        """Return whether a number that begins with these 53 bits is below ``chance``."""
        length = 53
        while True:
            low, high = Fraction(bits, 1 << length), Fraction(bits + 1, 1 << length)
            if high <= chance or low >= chance:
                return high <= chance
            bits, length = bits << 64 | int(self.words(1)[0]), length + 64


def discrete_gaussian(sigma: int, count: int, source: RandomBits) -> Steps:
    """Return ``count`` draws (L,) int64 with P(x) proportional to exp(-x^2 / (2 sigma^2)).

    ``sigma`` is a whole number of steps, 1 to 2^26; ValueError otherwise.
    """
    if not 1 <= sigma <= LARGEST:
        raise ValueError(f"sigma of {sigma} steps: 1 to {LARGEST} are allowed")
    scale, square, draws = sigma + 1, sigma * sigma, np.zeros(0, np.int64)
    while draws.size < count:  # algorithm 3 keeps about every second draw of a discrete Laplace
        drawn = _discrete_laplace(scale, 2 * (count - draws.size) + 16, source)
        away = np.abs(drawn).astype(np.float64) - square / scale

        def exponent(index: int, drawn: Steps = drawn) -> Fraction:
            distance = abs(int(drawn[index])) * scale - square
            return Fraction(distance * distance, 2 * square * scale * scale)

        kept = _exp_coins(away * away / (2.0 * square), exponent, source)
        draws = np.concatenate([draws, drawn[kept]])
    return draws[:count]


def _discrete_laplace(scale: int, count: int, source: RandomBits) -> Steps:
    """Return draws with P(x) proportional to exp(-|x| / scale), by algorithm 2."""
    offset = source.below(scale, count)
    offset = offset[_exp_coins(offset / scale, lambda i: Fraction(int(offset[i]), scale), source)]
    size = offset + scale * _successes(offset.size, source)
    negative = source.below(2, size.size) == 1
    proper = ~negative | (size > 0)  # zero must not come twice
    signed: Steps = np.where(negative, -size, size)[proper]
    return signed


def _exp_coins(exponent: NDArray[np.float64], exact: Exact, source: RandomBits) -> Coins:
    """Return coins with chance exp(-exponent), by algorithm 1, for exponents >= 0."""
    whole = np.floor(exponent)
    for index in np.flatnonzero(np.abs(exponent - np.rint(exponent)) < DOUBT * (1 + exponent)):
        whole[index] = exact(int(index)).__floor__()
    fell = _successes(exponent.size, source) >= whole
    active = np.flatnonzero(fell)
    rest = np.clip(exponent[active] - whole[active], 0.0, 1.0)
    at = active.tolist()
    fell[active] = _fraction_coins(rest, lambda i: exact(at[i]) - int(whole[at[i]]), source)
    return fell


def _successes(count: int, source: RandomBits) -> Steps:
    """Return how often coins with chance exp(-1) fall before one does not."""
    found, active = np.zeros(count, np.int64), np.arange(count)
    while active.size:
        active = active[_fraction_coins(np.ones(active.size), lambda _: Fraction(1), source)]
        found[active] += 1
    return found


def _fraction_coins(exponent: NDArray[np.float64], exact: Exact, source: RandomBits) -> Coins:
    """Return coins with chance exp(-exponent) for exponents in [0, 1]."""
    fell = np.zeros(exponent.size, np.bool_)
    active, number = np.arange(exponent.size), 1
    while active.size:

        def chance(i: int, active: Steps = active, number: int = number) -> Fraction:
            return exact(int(active[i])) / number

        again = source.coins(exponent[active] / number, chance)
        fell[active[~again]] = number % 2 == 1
        active, number = active[again], number + 1
    return fell
