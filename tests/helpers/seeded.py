"""Seeded examples of signals, tables and texts, as an object that a run is given."""

from contextlib import ExitStack

import numpy as np

from fedhet import plugins
from fedhet.data.inputs import SIGNAL, TABLE
from fedhet.data.objects import understand
from fedhet.data.sources import Data

SHAPES = {SIGNAL: (2, 16), TABLE: (5,)}
LENGTH, VOCABULARY = 12, 40  # of texts
_HELD = ExitStack()  # for the rest of the process


def seeded(kind, count, classes=3, shape=()):
    """The name of noise around a pattern for each class, or of words that a class prefers."""
    rng, labels = np.random.default_rng(0), np.arange(count) % classes
    if kind in SHAPES:
        shape = shape or SHAPES[kind]
        x = rng.normal(size=(classes, *shape))[labels] + rng.normal(size=(count, *shape))
        if kind == TABLE:
            x[rng.random(x.shape) < 0.05] = np.nan
        x, vocabulary = x.astype(np.float32), 0
    else:
        x = 1 + labels[:, None] + classes * rng.integers(0, 12, (count, LENGTH))
        x[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, (count, 1))] = 0
        vocabulary = VOCABULARY
    names = [f"class-{label}" for label in range(classes)]
    given = understand(Data(x, labels, names, kind, vocabulary=vocabulary), ())
    _HELD.enter_context(plugins.giving({given.name: given}))
    return given.name
