"""A data set of one's own: `dataset=shapes:load`.

`load(data_path)` returns images uint8 (n, h, w, 3) or (n, h, w), labels (n,) from 0, class names.
It is called once; then the images come from fedhet's cache, until this file or the size or time of
`data-path` changes.
"""

import numpy as np
from numpy.typing import NDArray

CLASSES = ("disc", "square", "cross", "ring")
SIZE, PER_CLASS = 24, 90


def load(data_path: str) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]:
    """Four shapes of random place, size and brightness on noise; `data-path` is not needed."""
    del data_path
    rng = np.random.default_rng(7)
    labels = np.repeat(np.arange(len(CLASSES)), PER_CLASS)
    images = rng.integers(0, 70, (len(labels), SIZE, SIZE), dtype=np.uint8)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for image, label in zip(images, labels, strict=True):
        y, x, r = *rng.uniform(8, SIZE - 8, 2), rng.uniform(4, 7)
        near, wide = np.hypot(rows - y, columns - x), np.maximum(abs(rows - y), abs(columns - x))
        thin = np.minimum(abs(rows - y), abs(columns - x))
        shape = (near < r, wide < r, (wide < r) & (thin < 1.5), abs(near - r) < 1.5)[label]
        image[shape] += rng.integers(80, 180, dtype=np.uint8)
    return images, labels, CLASSES
