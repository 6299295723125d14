"""Randomness: one generator per (seed, purpose, client, round), never a global one.

Every random number of a run comes from here, so that the number of actors, the order of replies
and the kind of runtime cannot change it. Torch initialisers and dropout insist on torch's global
generator; :func:`torch_seeded` seeds that one inside ``fork_rng`` and puts it back.
"""

import functools
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

from fedhet.lazy import torch


def _entropy(seed: int, purpose: str, client: str, round_: int) -> list[int]:
    """Words for a SeedSequence; texts are hashed so that any client id is allowed."""
    digest = hashlib.sha256(f"{purpose}\0{client}".encode()).digest()
    return [seed, round_, *np.frombuffer(digest[:16], dtype="<u4").tolist()]


def generator(seed: int, purpose: str, client: str = "", round_: int = 0) -> np.random.Generator:
    """Return NumPy's generator for ``seed``, ``purpose``, ``client`` and round ``round_``."""
    return np.random.default_rng(np.random.SeedSequence(_entropy(seed, purpose, client, round_)))


def torch_seed(seed: int, purpose: str, client: str = "", round_: int = 0) -> int:
    """Return a 63-bit seed for torch, from the same stream as :func:`generator`."""
    words = np.random.SeedSequence(_entropy(seed, purpose, client, round_)).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1


@contextmanager
def torch_seeded(seed: int, purpose: str, client: str = "", round_: int = 0) -> Iterator[None]:
    """Seed torch's global generators for the body, and restore them afterwards.

    ``seed``, ``purpose``, ``client`` and round ``round_`` are those of :func:`torch_seed`.
    """
    # A process that has not used a GPU yet draws nothing on it in the body.
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        number = torch_seed(seed, purpose, client, round_)
        # `torch.manual_seed` also queues a call, with a traceback, for each kind of device that
        # is not in use: more work than the seeding.
        torch.default_generator.manual_seed(number)
        if devices:
            torch.cuda.manual_seed_all(number)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch, so that the bits depend on no setting, on the server nor on a client."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def one_blas_thread() -> AbstractContextManager[object]:
    """One thread for NumPy's products, for the same last bits: from now on, or in the context."""
    limited: AbstractContextManager[object] = _pools().limit(limits=1, user_api="blas")
    return limited


_pools = functools.cache(ThreadpoolController)  # looking for libraries takes milliseconds
