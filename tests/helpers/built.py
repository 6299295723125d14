"""The modules that a process keeps between clients."""

from contextlib import contextmanager

from fedhet.site import state
from fedhet.training.loop import Recent


@contextmanager
def forgotten():
    """Forget the modules that are built within this block."""
    kept, state._BUILT = state._BUILT, Recent(64)
    try:
        yield
    finally:
        state._BUILT = kept
