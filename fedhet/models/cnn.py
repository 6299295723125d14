"""CNN-1 ... CNN-5: the five heterogeneous models of FedSSA, FedMRL and pFedES.

conv1, conv2 (5x5, no padding, each with ReLU and 2x2 max-pool), fc1 - ReLU, fc2 - ReLU, head (the
papers' fc3). The variants differ in conv2's filters and fc1's width. Parameters at 10 (100)
classes, 32 x 32 images and d = 500: CNN-1 2,621,558 (2,666,648), CNN-2 1,815,142 (1,860,232),
CNN-3 1,320,558 (1,365,648), CNN-4 1,060,358 (1,105,448), CNN-5 670,058 (715,148), as in the papers'
size tables except CNN-4 (4.04 MiB, 3.81 printed). FedMRL's small model is CNN-5 with d = d1.
"""

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

from fedhet.errors import UserError
from fedhet.models.base import SplitModel
from fedhet.models.names import CNN_NAMES

_KERNEL, _POOL = 5, 2
_CONV1 = 16
_WIDTHS = {  # name: (filters of conv2, width of fc1)
    "cnn-1": (32, 2000),
    "cnn-2": (16, 2000),
    "cnn-3": (32, 1000),
    "cnn-4": (32, 800),
    "cnn-5": (32, 500),
}
_SMALLEST_IMAGE = 16  # leaves conv2's pooled output one pixel


class CNN(SplitModel):
    """Two convolutions, two hidden layers and ``head``; see the module's text."""

    def __init__(
        self, filters: int, hidden: int, classes: int, d: int, shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        channels, *sides = shape
        high, wide = (((side - _KERNEL + 1) // _POOL - _KERNEL + 1) // _POOL for side in sides)
        self.conv1 = nn.Conv2d(channels, _CONV1, _KERNEL)
        self.conv2 = nn.Conv2d(_CONV1, filters, _KERNEL)
        self.fc1 = nn.Linear(filters * high * wide, hidden)
        self.fc2 = nn.Linear(hidden, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after fc2's ReLU, of the images ``(B, c, h, w)``."""
        # max(relu(x)) = relu(max(x)), gradients included: pooling first saves 3 ReLUs in 4.
        x = relu(max_pool2d(self.conv1(x), _POOL))
        x = relu(max_pool2d(self.conv2(x), _POOL))
        return relu(self.fc2(relu(self.fc1(x.flatten(1)))))


def cnn(
    variant: str, classes: int, d: int = 500, image_size: int = 32,
    shape: tuple[int, ...] | None = None,
) -> CNN:  # fmt: skip
    """Build one of ``CNN_NAMES`` with torch's default initialisation (global generator).

    Args:
        variant: ``cnn-1`` ... ``cnn-5``.
        classes: C, outputs of ``head``.
        d: representation dimension, the width of fc2.
        image_size: s, height and width of the input in pixels; fc1's input follows from it.
        shape: (channels, height, width), for those that are not (3, s, s).

    Raises:
        UserError: unknown variant, or an image too small for the two convolutions (s < 16).

    """
    if variant not in _WIDTHS:
        raise UserError(f"model {variant!r} is not one of {', '.join(CNN_NAMES)}")
    shape = shape or (3, image_size, image_size)
    if min(shape[1:]) < _SMALLEST_IMAGE:
        raise UserError(
            f"model {variant!r}: image-size is {min(shape[1:])}, must be at least {_SMALLEST_IMAGE}"
        )
    filters, hidden = _WIDTHS[variant]
    return CNN(filters, hidden, classes, d, shape)
