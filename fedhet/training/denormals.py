"""Arithmetic without denormal numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_denormals() -> Iterator[None]:
    """Numbers below 1e-38 count as zero meanwhile, in this thread.

    Once a client's loss is close to zero its gradients are full of them, and a CPU multiplies them
    many times slower than others. Whatever computes with a client's model does it in here, or its
    last bits could be others than the run's. Afterwards it is as it was before.
    """
    smallest = torch.full((1,), torch.finfo(torch.float32).tiny)
    before = bool((smallest / 2 == 0).all())
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
