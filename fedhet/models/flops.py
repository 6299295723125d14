"""FLOPs by torch's own formulas: multiply-adds x 2 of convolutions and matrix products.

Biases, ReLU, pooling and normalisation count as zero (``torch.utils.flop_counter``).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedhet.models.base import untouched


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up torch's formula of every operation that runs inside ``with``.

    torch's ``FlopCounterMode`` adds the same formulas per module, and imports torch's compiler for
    it: a second of CPU, which a deployed client would pay with every message.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # there is no compiler to hide from

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Run the operation and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=out)
        return out


def forward_flops(model: nn.Module, image_size: int) -> int:
    """FLOPs of one forward of one image ``(1, 3, s, s)``; the model is left as it was."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.zeros(1, 3, image_size, image_size, device=device)
    counter = FlopCounter()
    with untouched(model), counter:
        model(x)
    return counter.total


def training_flops(step: Callable[[], torch.Tensor]) -> int:
    """FLOPs of ``step()``, which returns a scalar loss, and of its backward.

    Both really run: gradients are added and BatchNorm's buffers move, so give it a step on copies.
    """
    counter = FlopCounter()
    with counter:
        torch.autograd.backward(step())
    return counter.total
