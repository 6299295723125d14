"""Models for rows of a table (B, f): perceptrons of five depths and widths."""

import torch
from torch import nn
from torch.nn.functional import relu

from fedhet.data.inputs import Inputs
from fedhet.models.base import SplitModel

_WIDTHS: dict[str, tuple[int, ...]] = {
    "mlp-1": (512, 256, 256),
    "mlp-2": (256, 256),
    "mlp-3": (256,),
    "mlp-4": (128,),
    "mlp-5": (64,),
}


class MLP(SplitModel):
    """Hidden layers, the representation, ``head``; a ReLU after each but the last."""

    def __init__(self, name: str, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__()
        widths = (inputs.shape[0], *_WIDTHS[name], d)
        pairs = zip(widths, widths[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the rows ``(B, f)``."""
        for layer in self.layers:
            x = relu(layer(x))
        return x
