"""The modules that a process keeps between clients."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedhet.site import state


@contextmanager
def forgotten() -> Iterator[None]:
    """Forget the modules that are built within this block."""
    kept = dict(state._BUILT)
    try:
        yield
    finally:
        state._BUILT.clear()
        state._BUILT.update(kept)
