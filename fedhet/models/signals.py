"""Models for signals (B, c, t): convolutions over time, recurrent layers, an Inception network.

HARCNN is what HtFLlib takes for motion sensors: one to three convolutions without a fixed length.
Inception is one network of InceptionTime (Ismail Fawaz et al. 2020, arXiv 1909.04939), whose
ensemble is five of them.
"""

import torch
from torch import nn
from torch.nn.functional import avg_pool1d, max_pool1d, relu

from fedhet.data.inputs import Inputs
from fedhet.models.base import SplitModel
from fedhet.models.names import HARCNN_NAMES

_KERNEL, _POOL, _SEGMENTS, _HIDDEN = 5, 2, 8, 64
_WIDTHS = {  # name: (channels of the first convolution, of the second, stride of the first)
    "conv1d-1": (32, 64, 1),
    "conv1d-2": (32, 64, 2),
    "conv1d-3": (16, 32, 1),
    "conv1d-4": (16, 32, 2),
    "conv1d-5": (8, 16, 2),
}
_HAR_KERNELS, _HAR_WIDTHS, _HAR_HIDDEN = {1: 9, 2: 9, 3: 5}, (32, 64, 128), 1024
_HAR = {
    name: (int(name[len("harcnn-")]), int(name[-1])) for name in HARCNN_NAMES
}  # (convolutions, stride)
_KERNELS, _FILTERS, _BLOCKS = (39, 19, 9), 32, 2
_INCEPTION_WIDTH = _FILTERS * (len(_KERNELS) + 1)


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


class HARCNN(SplitModel):
    """One to three convolutions, each with ReLU and max-pool, then 1,024, fc, head."""

    def __init__(self, layers: int, stride: int, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__()
        kernel = _HAR_KERNELS[layers]
        widths = (inputs.channels, *_HAR_WIDTHS[:layers])
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, kernel, stride, kernel // 2)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        with torch.no_grad():
            width = self._over_time(torch.zeros(1, *inputs.shape)).shape[1]
        self.hidden = nn.Linear(width, _HAR_HIDDEN)
        self.fc = nn.Linear(_HAR_HIDDEN, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the signals ``(B, c, t)``."""
        return relu(self.fc(relu(self.hidden(self._over_time(x)))))

    def _over_time(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.convolutions:
            x = _pooled(relu(layer(x)))
        return x.flatten(1)


class InceptionModule(nn.Module):
    """Convolutions of three lengths behind a bottleneck and a pooled one, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = _FILTERS if channels > 1 else 1
        self.bottleneck = nn.Conv1d(channels, narrow, 1, bias=False) if narrow > 1 else None
        self.convolutions = nn.ModuleList(
            nn.Conv1d(narrow, _FILTERS, kernel, padding=kernel // 2, bias=False)
            for kernel in _KERNELS
        )
        self.pooled = nn.Conv1d(channels, _FILTERS, 1, bias=False)
        self.norm = nn.BatchNorm1d(_INCEPTION_WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Signals (B, 4 x 32, t), after the ReLU, of signals (B, c, t)."""
        narrow = x if self.bottleneck is None else self.bottleneck(x)
        beside = self.pooled(max_pool1d(x, 3, stride=1, padding=1))
        found = torch.cat([*(layer(narrow) for layer in self.convolutions), beside], dim=1)
        return relu(self.norm(found))


class Inception(SplitModel):
    """Two blocks of three Inception modules beside a shortcut, the mean over time, fc, head."""

    def __init__(self, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__()
        widths = (inputs.channels, *[_INCEPTION_WIDTH] * (_BLOCKS - 1))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                InceptionModule(width),
                InceptionModule(_INCEPTION_WIDTH),
                InceptionModule(_INCEPTION_WIDTH),
            )
            for width in widths
        )
        self.shortcuts = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, _INCEPTION_WIDTH, 1, bias=False), nn.BatchNorm1d(_INCEPTION_WIDTH)
            )
            for width in widths
        )
        self.fc = nn.Linear(_INCEPTION_WIDTH, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the signals ``(B, c, t)``."""
        for block, shortcut in zip(self.blocks, self.shortcuts, strict=True):
            x = relu(block(x) + shortcut(x))
        return relu(self.fc(x.mean(dim=2)))


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
    if name in _HAR:
        return HARCNN(*_HAR[name], inputs, classes, d)
    if name == "inception-time":
        return Inception(inputs, classes, d)
    make = Conv1d if name in _WIDTHS else RecurrentSignal
    return make(name, inputs, classes, d)
