"""A model of one's own: `models=tiny_net:make`, alone or with others, `models=cnn-5,tiny_net:make`.

Any module with `features` (B, 3, s, s) -> (B, d) and a `head`, nn.Linear(d, C) with bias, will do.
Its first layer is fixed: what a factory freezes stays frozen, whatever a method trains.
"""

import torch
from torch import nn


class TinyNet(nn.Module):
    """A fixed random convolution, a trained one, mean pooling, and a header."""

    def __init__(self, classes: int, d: int) -> None:
        super().__init__()
        self.fixed = nn.Conv2d(3, 16, 5, stride=2).requires_grad_(requires_grad=False)
        self.body = nn.Sequential(
            nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(128, d), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations (B, d)."""
        representations: torch.Tensor = self.body(self.fixed(x))
        return representations


def make(*, classes: int, d: int, image_size: int) -> nn.Module:
    """Build the network; fedhet calls this inside a seeded context."""
    del image_size  # the pooling takes any
    return TinyNet(classes, d)
