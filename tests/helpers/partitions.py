"""Labels alone as a data set, and its partition."""

from dataclasses import fields

import numpy as np

from fedhet.config.schema import RunConfig
from fedhet.data.inputs import Content, Inputs
from fedhet.data.partition import make_partition


def partition(labels, kind, clients=0, *, names=(), **keys):
    """Partition labels (n,); ``paths``, ``sites``, ``groups`` and such are the data's own."""
    own = {one.name for one in fields(Content)} & keys.keys()
    about = {key: keys.pop(key) for key in own}
    classes = tuple(names) or tuple(str(label) for label in range(int(np.max(labels)) + 1))
    data = Content(Inputs.image(32), np.asarray(labels, np.int64), classes, **about)
    return make_partition(data, RunConfig(partition=kind, clients=clients, **keys))
