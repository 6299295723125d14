"""Optional noise on what a client uploads, and what it costs: the Gaussian mechanism.

Per upload the update is clipped to the L2 norm S (``dp-clip``) and N(0, sigma^2) is added to every
float, on the client itself. Flower's ``LocalDpMod`` clips in the same way but does not fit: it
treats integer arrays such as class ids like floats, needs the same arrays in both directions,
divides by the norm of an update that may be zero, draws from NumPy's global generator, and its
sigma = S sqrt(2 ln(1.25 / delta)) / epsilon holds for epsilon <= 1 only.

``dp-epsilon`` and ``dp-delta`` are the budget of all that one client uploads in a run. T uploads
with noise sigma each are together as private as one with mu = sqrt(T) S / sigma (Gaussian
differential privacy; Dong, Roth, Su 2019, arXiv 1905.02383, corollary 3.3), exactly, also where an
upload depends on what was uploaded before; and a Gaussian mechanism of that mu is
(epsilon, delta)-private exactly for the delta of Balle and Wang 2018, arXiv 1805.06530, theorem 8.
A client can be asked in every round, so sigma is chosen for T = ``rounds``, whatever ``fraction``
is; that sampling makes a client's part in a round uncertain (amplification) is not counted.

With ``secure-sum`` the noise is on the sum: each of at least m clients whose vectors are in it adds
a share of sigma / sqrt(m), so that any sum that can be had carries sigma at least. A share is whole
steps of the words' grid, a discrete Gaussian (Kairouz, Liu, Steinke 2021, arXiv 2102.06387); at a
width of thousands of steps sums of them differ from a discrete Gaussian by e^-1000 and less, and
the account is the one above. Rounding to the grid moves a vector of L entries by up to sqrt(L) / 2
steps, which the sensitivity has on top of ``dp-clip``.

Protected is the update against being replaced by none (sensitivity S); between two updates that
are both there the distance may be 2 S, and mu is twice as large.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from fedhet.config.schema import RunConfig
from fedhet.errors import UserError
from fedhet.protocol.payload import Array
from fedhet.sums.contribution import Vector

TAIL = 8.0  # standard deviations of noise that an entry has room for


def log_delta(epsilon: float, mu: float) -> float:
    """Logarithm of delta of a Gaussian mechanism with sensitivity / sigma = ``mu`` at ``epsilon``.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), by logarithms: both terms
    overflow or vanish where epsilon is in the hundreds.
    """
    first = _log_phi(mu / 2 - epsilon / mu)
    second = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def _log_phi(x: float) -> float:
    """Logarithm of the standard normal distribution function."""
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for which a Gaussian mechanism of ``mu`` is (epsilon, delta)-private."""
    if mu == 0 or log_delta(0.0, mu) <= math.log(delta):
        return 0.0
    high = 1.0
    while log_delta(high, mu) > math.log(delta):
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if log_delta(middle, mu) > math.log(delta) else (low, middle)
    return high


@lru_cache(maxsize=16)
def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu of a Gaussian mechanism that is (epsilon, delta)-private."""
    high = 1.0
    while log_delta(epsilon, high) <= math.log(delta):
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        within = log_delta(epsilon, middle) <= math.log(delta)
        low, high = (middle, high) if within else (low, middle)
    return low


def noise_multiplier(config: RunConfig) -> float:
    """Noise per unit of clipping, sigma / S, that ``rounds`` uploads need; 0 without noise."""
    if not config.dp_clip:
        return 0.0
    return math.sqrt(config.rounds) / mu_of(config.dp_epsilon, config.dp_delta)


def sigma(config: RunConfig) -> float:
    """Standard deviation of the noise on every float of an upload; 0 without noise."""
    return config.dp_clip * noise_multiplier(config)


def sum_sigma(config: RunConfig, entries: int, bits: int) -> float:
    """Standard deviation of the noise on a sum of vectors of so many noised entries.

    ``bits`` are those after the point of a word. Sensitivity is dp-clip and the rounding.
    """
    rounding = math.sqrt(entries) / 2 * 2.0**-bits
    return (config.dp_clip + rounding) * noise_multiplier(config)


def share_steps(config: RunConfig, entries: int, bits: int, least: int) -> int:
    """Standard deviation of one client's share, steps of 2^-bits: of sums of ``least`` clients.

    A whole number, rounded up. UserError if its noise does not fit into words.
    """
    share = sum_sigma(config, entries, bits) / math.sqrt(least)
    needed = config.dp_clip + TAIL * share
    if needed > config.sum_range:
        raise UserError(
            f"sum-range: {config.sum_range:g} is too small for the noise of dp-epsilon="
            f"{config.dp_epsilon:g}, whose shares have a standard deviation of {share:.4g}: "
            f"{needed:.4g} would do"
        )
    return math.ceil(math.ldexp(share, bits))


@lru_cache(maxsize=1024)
def epsilon_spent(config: RunConfig, uploads: int) -> float:
    """What so many uploads of one client have cost together, at ``dp-delta``."""
    return epsilon_of(math.sqrt(uploads) / noise_multiplier(config), config.dp_delta)


def has_floats(arrays: Sequence[Array]) -> bool:
    """Whether there is anything that noise is added to."""
    return any(np.issubdtype(array.dtype, np.floating) and array.size for array in arrays)


def privatise(
    upload: Sequence[Array], received: Sequence[Array], config: RunConfig, rng: np.random.Generator
) -> list[Array]:
    """The upload with its update clipped and noised; integer arrays stay as they are.

    The update is the upload minus what was received if both hold the same arrays for the same
    classes, else the upload itself. Raises ValueError for NaN or infinity, which no clip bounds.
    """
    base = received if _comparable(upload, received) else [np.zeros_like(a) for a in upload]
    floats = [i for i, array in enumerate(upload) if np.issubdtype(array.dtype, np.floating)]
    updates = {i: upload[i].astype(np.float64) - base[i] for i in floats}
    norm = math.sqrt(sum(float(np.square(update).sum()) for update in updates.values()))
    if not math.isfinite(norm):
        raise ValueError("the update holds NaN or infinity and is not uploaded")
    scale = min(1.0, config.dp_clip / norm) if norm > 0 else 1.0
    noised = list(upload)
    for i, update in updates.items():
        noise = rng.normal(0.0, sigma(config), update.shape)
        noised[i] = (base[i] + scale * update + noise).astype(upload[i].dtype)
    return noised


def clipped(vector: Vector, length: float) -> Vector:
    """A vector (L,) float64 scaled to an L2 norm of at most ``length``.

    ValueError for NaN or infinity, which no clip bounds.
    """
    norm = float(np.linalg.norm(vector))
    if not math.isfinite(norm):
        raise ValueError("the update holds NaN or infinity and is not uploaded")
    return vector * min(1.0, length / norm) if norm > 0 else vector


def _comparable(upload: Sequence[Array], received: Sequence[Array]) -> bool:
    """Same shapes and dtypes, and equal integers: a row must belong to the same class."""
    return len(upload) == len(received) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and (np.issubdtype(a.dtype, np.floating) or np.array_equal(a, b))
        for a, b in zip(upload, received, strict=True)
    )
