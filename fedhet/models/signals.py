"""Models for signals (B, c, t): convolutions over time of five sizes, and recurrent ones."""

import torch
from torch import nn
from torch.nn.functional import avg_pool1d, max_pool1d, relu

from fedhet.data.inputs import Inputs
from fedhet.models.base import SplitModel

_KERNEL, _POOL, _SEGMENTS, _HIDDEN = 5, 2, 8, 64
_WIDTHS = {  # name: (channels of the first convolution, of the second, stride of the first)
    "conv1d-1": (32, 64, 1),
    "conv1d-2": (32, 64, 2),
    "conv1d-3": (16, 32, 1),
    "conv1d-4": (16, 32, 2),
    "conv1d-5": (8, 16, 2),
}


class Conv1d(SplitModel):
    """Two convolutions with ReLU and max-pool, means of up to eight stretches of time, fc, head."""

    def __init__(self, name: str, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__()
        first, second, stride = _WIDTHS[name]
        middle = _KERNEL // 2
        self.conv1 = nn.Conv1d(inputs.channels, first, _KERNEL, stride, middle)
        self.conv2 = nn.Conv1d(first, second, _KERNEL, 1, middle)
        with torch.no_grad():
            width = self._over_time(torch.zeros(1, *inputs.shape)).shape[1]
        self.fc = nn.Linear(width, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the signals ``(B, c, t)``."""
        return relu(self.fc(self._over_time(x)))

    def _over_time(self, x: torch.Tensor) -> torch.Tensor:
        x = _pooled(relu(self.conv1(x)))
        x = _pooled(relu(self.conv2(x)))
        # Plain pooling with a width that fits: adaptive pooling has no fixed bits on a GPU.
        width = -(-x.shape[2] // _SEGMENTS)
        return avg_pool1d(x, width, ceil_mode=True).flatten(1)


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return max_pool1d(x, _POOL) if x.shape[2] >= _POOL else x


class RecurrentSignal(SplitModel):
    """An LSTM or a GRU over time, the mean of its outputs, fc, head."""

    def __init__(self, kind: str, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__()
        layer = nn.LSTM if kind == "lstm" else nn.GRU
        self.recurrent = layer(inputs.channels, _HIDDEN, batch_first=True)
        self.fc = nn.Linear(_HIDDEN, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the signals ``(B, c, t)``."""
        outputs, _ = self.recurrent(x.transpose(1, 2))
        return relu(self.fc(outputs.mean(dim=1)))


def signal_model(name: str, inputs: Inputs, classes: int, d: int) -> SplitModel:
    """One of those that :mod:`fedhet.models.names` lists for signals."""
    make = Conv1d if name in _WIDTHS else RecurrentSignal
    return make(name, inputs, classes, d)
