"""Labels alone as a data set, and its partition."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from fedhet.config.schema import RunConfig
from fedhet.data.inputs import Content, Inputs
from fedhet.data.partition import Partition, make_partition


def partition(
    labels: Any, kind: str, clients: int = 0, *, names: Sequence[str] = (), **keys: Any
) -> Partition:
    """Partition labels (n,); ``paths``, ``sites``, ``groups`` and such are the data's own."""
    own = {one.name for one in fields(Content)} & keys.keys()
    about = {key: keys.pop(key) for key in own}
    classes = tuple(names) or tuple(str(label) for label in range(int(np.max(labels)) + 1))
    data = Content(Inputs.image(32), np.asarray(labels, np.int64), classes, **about)
    return make_partition(data, RunConfig(partition=kind, clients=clients, **keys))
