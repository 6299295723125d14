"""FLOPs by torch's own counter: multiply-adds x 2 of convolutions and matrix products.

Biases, ReLU, pooling and normalisation count as zero (``torch.utils.flop_counter``).
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedhet.models.base import untouched


def forward_flops(model: nn.Module, image_size: int) -> int:
    """FLOPs of one forward of one image ``(1, 3, s, s)``; the model is left as it was."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.zeros(1, 3, image_size, image_size, device=device)
    with untouched(model), FlopCounterMode(display=False) as counter:
        model(x)
    return int(counter.get_total_flops())


def training_flops(step: Callable[[], torch.Tensor]) -> int:
    """FLOPs of ``step()``, which returns a scalar loss, and of its backward.

    Both really run: gradients are added and BatchNorm's buffers move, so give it a step on copies.
    """
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(step())
    return int(counter.get_total_flops())
