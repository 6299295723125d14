"""What a block of a test goes without: modules kept between clients, and masks of sums."""

from contextlib import contextmanager

import numpy as np
import pytest

from fedhet.site import state
from fedhet.training.loop import Recent


@contextmanager
def forgotten():
    """Forget the modules that are built within this block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_BUILT", Recent(64))
        yield


@contextmanager
def without_masks():
    """Let every mask that is drawn within this block be zeros: words travel in the clear."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedhet.sums.masks.stream", lambda _, n: np.zeros(n, np.uint32))
        yield
