"""Optional noise on what a client uploads: the Gaussian mechanism, on the client itself.

As Flower's ``LocalDpMod`` with ``sensitivity = clipping_norm``: the update is clipped to the L2
norm S (``dp-clip``) and N(0, sigma^2) is added to every float, with
sigma = S sqrt(2 ln(1.25 / delta)) / epsilon. That mod itself does not fit: it treats integer
arrays such as class ids like floats, needs the same arrays in both directions, divides by the
norm of an update that may be zero, and draws from NumPy's global generator.

(epsilon, delta) hold for one upload, for epsilon <= 1, against replacing the update by none;
over T rounds they add up.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedhet.protocol.payload import Array
from fedhet.rng import generator
from fedhet.schema import RunConfig


def sigma(config: RunConfig) -> float:
    """Standard deviation of the noise; 0 if the configuration asks for none."""
    if not config.dp_clip:
        return 0.0
    return config.dp_clip * math.sqrt(2 * math.log(1.25 / config.dp_delta)) / config.dp_epsilon


def noise_source(
    config: RunConfig, client: str, round_: int, *, simulated: bool
) -> np.random.Generator:
    """Where the noise comes from.

    In a simulation it repeats like every other random number. In a deployment the server knows
    the run's seed and could subtract noise that was drawn from it: there the operating system's
    entropy is used, and the bytes of such a run cannot be repeated.
    """
    return generator(config.seed, "dp", client, round_) if simulated else np.random.default_rng()


def privatise(
    upload: Sequence[Array], received: Sequence[Array], config: RunConfig, rng: np.random.Generator
) -> list[Array]:
    """The upload with its update clipped and noised; integer arrays stay as they are.

    The update is the upload minus what was received if both hold the same arrays for the same
    classes, else the upload itself.
    """
    base = received if _comparable(upload, received) else [np.zeros_like(a) for a in upload]
    floats = [i for i, array in enumerate(upload) if np.issubdtype(array.dtype, np.floating)]
    updates = {i: upload[i].astype(np.float64) - base[i] for i in floats}
    norm = math.sqrt(sum(float(np.square(update).sum()) for update in updates.values()))
    scale = min(1.0, config.dp_clip / norm) if norm > 0 else 1.0
    noised = list(upload)
    for i, update in updates.items():
        noise = rng.normal(0.0, sigma(config), update.shape)
        noised[i] = (base[i] + scale * update + noise).astype(upload[i].dtype)
    return noised


def _comparable(upload: Sequence[Array], received: Sequence[Array]) -> bool:
    """Same shapes and dtypes, and equal integers: a row must belong to the same class."""
    return len(upload) == len(received) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and (np.issubdtype(a.dtype, np.floating) or np.array_equal(a, b))
        for a, b in zip(upload, received, strict=True)
    )
