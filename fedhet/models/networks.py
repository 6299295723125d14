"""What every method may expect of a model, and the networks that have names of ours.

Images: CNN-1 to CNN-5, the five heterogeneous models of FedSSA, FedMRL and pFedES. conv1 and conv2
(5x5, no padding, each with ReLU and 2x2 max-pool), fc1 - ReLU, fc2 - ReLU, head (the papers' fc3).
They differ in conv2's filters and fc1's width. Parameters at 10 classes, 32 x 32 images, d = 500:
2,621,558, 1,815,142, 1,320,558, 1,060,358, 670,058, as in the papers' size tables except CNN-4
(4.04 MiB, 3.81 printed). FedMRL's small model is CNN-5 with d = d1.

Signals (B, c, t): Inception is one network of InceptionTime (Ismail Fawaz et al. 2020, arXiv
1909.04939), whose ensemble is five. Tables (B, f): the residual network and the transformer follow
Gorishniy et al. 2021 (arXiv 2106.11959) in small. Tokens (B, l) int64, 0 for padding: Joulin et al.
2017 (arXiv 1607.01759) for fasttext, Kim 2014 (arXiv 1408.5882) for textcnn. A text without any
word is read as one padding token.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, max_pool1d, max_pool2d, relu
from torch.nn.modules.batchnorm import _BatchNorm

from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Inputs
from fedhet.errors import UserError
from fedhet.models import names


class SplitModel(nn.Module):
    """A classifier cut in two: ``forward(x) = head(features(x))``; ``head`` has a bias.

    A user's own model has these parts and need not inherit: never test for it by ``isinstance``.
    """

    head: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """Return representations ``(B, d)`` float32 of inputs ``(B, ...)``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, C)`` of inputs ``(B, ...)``."""
        return cast("Tensor", self.head(self.features(x)))


def exchanged(module: nn.Module) -> dict[str, Tensor]:
    """Return what is sent of a whole module by name, in a fixed order, all floating point.

    Its parameters, then BatchNorm's running means and variances, without its count of batches.
    """
    arrays: dict[str, Tensor] = dict(module.named_parameters())
    for prefix, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            buffers = layer.named_buffers(prefix, recurse=False)
            arrays |= {name: one for name, one in buffers if one.is_floating_point()}
    return arrays


class Beside(nn.Module):
    """x + W x + b: a linear map of rows (B, f) beside the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, rows: Tensor) -> Tensor:
        """Return enhanced rows (B, f)."""
        return rows + cast("Tensor", self.map(rows))


@contextmanager
def still_statistics(model: nn.Module) -> Iterator[None]:
    """Run the body so that BatchNorm uses a batch's own statistics and does not remember them.

    For images that inference never sees. Layers in eval mode stay as they are.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run the body with ``model`` in eval mode and without gradients, then put everything back.

    That is each module's training flag, and buffers, which a module may write even in eval mode.
    Not ``inference_mode``: a tensor that is cached in there could not be trained with later.
    """
    training = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, flag in training.items():
            module.training = flag
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


class Network(SplitModel):
    """Layers that a subclass adds, then ``fc`` with ReLU, and ``head``."""

    def __init__(self, inputs: Inputs, classes: int, d: int, size: Any = None) -> None:
        super().__init__()
        self.fc = nn.Linear(self._add(inputs, size), d)
        self.head = nn.Linear(d, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the representations ``(B, d)``, after the ReLU, of inputs ``(B, ...)``."""
        return relu(self.fc(self._body(x)))

    def _add(self, inputs: Inputs, size: Any) -> int:
        """Add layers of a ``size``, as the tables below have it; return the width of the body."""
        raise NotImplementedError

    def _body(self, x: Tensor) -> Any:
        """Return one vector (B, width) of each input of ``x``."""
        raise NotImplementedError


# --- images ------------------------------------------------------------------------------

_KERNEL, _POOL, _CONV1 = 5, 2, 16
_CNN = ((32, 2000), (16, 2000), (32, 1000), (32, 800), (32, 500))  # filters of conv2, width of fc1
_SMALLEST_IMAGE = 16  # leaves conv2's pooled output one pixel


class CNN(SplitModel):
    """Two convolutions, two hidden layers and ``head``; UserError for a side below 16 pixels."""

    def __init__(self, inputs: Inputs, classes: int, d: int, size: tuple[int, int]) -> None:
        super().__init__()
        channels, *sides = inputs.shape
        if min(sides) < _SMALLEST_IMAGE:
            raise UserError(f"image-size: {min(sides)} is not allowed: at least {_SMALLEST_IMAGE}")
        filters, hidden = size
        high, wide = (((side - _KERNEL + 1) // _POOL - _KERNEL + 1) // _POOL for side in sides)
        self.conv1 = nn.Conv2d(channels, _CONV1, _KERNEL)
        self.conv2 = nn.Conv2d(_CONV1, filters, _KERNEL)
        self.fc1 = nn.Linear(filters * high * wide, hidden)
        self.fc2 = nn.Linear(hidden, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the representations ``(B, d)``, after fc2's ReLU, of images ``(B, c, h, w)``."""
        # max(relu(x)) = relu(max(x)), gradients included: pooling first saves 3 ReLUs in 4.
        x = relu(max_pool2d(self.conv1(x), _POOL))
        x = relu(max_pool2d(self.conv2(x), _POOL))
        return relu(self.fc2(relu(self.fc1(x.flatten(1)))))


# --- signals -----------------------------------------------------------------------------

_SEGMENTS, _HIDDEN = 8, 64
# Channels of the first convolution, of the second, stride of the first.
_CONV1D = ((32, 64, 1), (32, 64, 2), (16, 32, 1), (16, 32, 2), (8, 16, 2))
_LENGTHS, _INCEPTION_FILTERS, _INCEPTION_BLOCKS = (39, 19, 9), 32, 2
_INCEPTION_WIDTH = _INCEPTION_FILTERS * (len(_LENGTHS) + 1)


class Conv1d(Network):
    """Two convolutions with ReLU and max-pool, means of up to eight stretches of time, fc, head."""

    def _add(self, inputs: Inputs, size: tuple[int, int, int]) -> int:
        first, second, stride = size
        middle = _KERNEL // 2
        self.conv1 = nn.Conv1d(inputs.channels, first, _KERNEL, stride, middle)
        self.conv2 = nn.Conv1d(first, second, _KERNEL, 1, middle)
        with torch.no_grad():
            return self._body(torch.zeros(1, *inputs.shape)).shape[1]

    def _body(self, x: Tensor) -> Tensor:
        for layer in (self.conv1, self.conv2):
            x = relu(layer(x))
            x = max_pool1d(x, _POOL) if x.shape[2] >= _POOL else x
        # Plain pooling with a width that fits: adaptive pooling has no fixed bits on a GPU.
        width = -(-x.shape[2] // _SEGMENTS)
        return avg_pool1d(x, width, ceil_mode=True).flatten(1)


class InceptionModule(nn.Module):
    """Convolutions of three lengths behind a bottleneck and a pooled one, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = _INCEPTION_FILTERS if channels > 1 else 1
        self.bottleneck = nn.Conv1d(channels, narrow, 1, bias=False) if narrow > 1 else None
        self.convolutions = nn.ModuleList(
            nn.Conv1d(narrow, _INCEPTION_FILTERS, kernel, padding=kernel // 2, bias=False)
            for kernel in _LENGTHS
        )
        self.pooled = nn.Conv1d(channels, _INCEPTION_FILTERS, 1, bias=False)
        self.norm = nn.BatchNorm1d(_INCEPTION_WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return signals (B, 4 x 32, t), after the ReLU, of signals (B, c, t)."""
        narrow = x if self.bottleneck is None else self.bottleneck(x)
        beside = self.pooled(max_pool1d(x, 3, stride=1, padding=1))
        answers = torch.cat([*(layer(narrow) for layer in self.convolutions), beside], dim=1)
        return relu(self.norm(answers))


class Inception(Network):
    """Two blocks of three Inception modules beside a shortcut, the mean over time, fc, head."""

    def _add(self, inputs: Inputs, size: None) -> int:
        wide = _INCEPTION_WIDTH
        widths = (inputs.channels, *[wide] * (_INCEPTION_BLOCKS - 1))
        self.blocks = nn.ModuleList(
            nn.Sequential(*map(InceptionModule, (width, wide, wide))) for width in widths
        )
        self.shortcuts = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, wide, 1, bias=False), nn.BatchNorm1d(wide))
            for width in widths
        )
        return wide

    def _body(self, x: Tensor) -> Tensor:
        for block, shortcut in zip(self.blocks, self.shortcuts, strict=True):
            x = relu(block(x) + shortcut(x))
        return x.mean(dim=2)


class RecurrentSignal(Network):
    """An LSTM or a GRU over time, the mean of its outputs, fc, head."""

    def _add(self, inputs: Inputs, size: type[nn.LSTM | nn.GRU]) -> int:
        self.recurrent = size(inputs.channels, _HIDDEN, batch_first=True)
        return _HIDDEN

    def _body(self, x: Tensor) -> Any:
        return self.recurrent(x.transpose(1, 2))[0].mean(dim=1)


# --- tables ------------------------------------------------------------------------------

_MLP = ((512, 256, 256), (256, 256), (256,), (128,), (64,))
_ROW, _ROW_HIDDEN, _ROW_BLOCKS = 128, 256, 3  # of the residual network
_COLUMN, _COLUMN_LAYERS = 64, 3  # of the transformer
_HEADS, _FORWARD, _DROPOUT = 4, 128, 0.1  # of all transformers, and of the residual network


class MLP(SplitModel):
    """Hidden layers, the representation, ``head``; a ReLU after each but the last."""

    def __init__(self, inputs: Inputs, classes: int, d: int, size: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(nn.Linear, (inputs.shape[0], *size), (*size, d)))
        self.head = nn.Linear(d, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the representations ``(B, d)``, after the ReLU, of rows ``(B, f)``."""
        for layer in self.layers:
            x = relu(layer(x))
        return x


class TableResNet(Network):
    """A linear map, blocks of BatchNorm and two linear maps beside the identity, fc, ``head``."""

    def _add(self, inputs: Inputs, size: None) -> int:
        self.first = nn.Linear(inputs.shape[0], _ROW)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(_ROW), nn.Linear(_ROW, _ROW_HIDDEN), nn.ReLU(),
                nn.Dropout(_DROPOUT), nn.Linear(_ROW_HIDDEN, _ROW),
            )
            for _ in range(_ROW_BLOCKS)
        )  # fmt: skip
        self.norm = nn.BatchNorm1d(_ROW)
        return _ROW

    def _body(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return relu(self.norm(x))


class ColumnTokens(nn.Module):
    """One vector per column of a table, and one that is no column's and reads the others.

    A column's vector is a linear map of its own, with a bias, of what TablePreparation gives.
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        counts = [len(values) for _, values in inputs.categories]
        self.plain = len(inputs.columns) - len(counts)
        self.sizes = [2 * self.plain, *counts]
        bound = _COLUMN**-0.5
        self.weight = nn.Parameter(torch.empty(inputs.shape[0], _COLUMN).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(len(inputs.columns), _COLUMN).uniform_(-bound, bound))
        self.reader = nn.Parameter(torch.empty(1, 1, _COLUMN).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors (B, 1 + columns, e) of rows (B, f)."""
        plain, *coded = torch.split(x, self.sizes, dim=1)
        own, *weights = torch.split(self.weight, self.sizes)
        both = (plain.unsqueeze(2) * own).reshape(len(x), 2, self.plain, _COLUMN)  # numbers, gaps
        choices = [one @ weight for one, weight in zip(coded, weights, strict=True)]
        columns = torch.cat([both.sum(dim=1), *(one.unsqueeze(1) for one in choices)], dim=1)
        return torch.cat([self.reader.expand(len(x), -1, -1), columns + self.bias], dim=1)


class FTTransformer(Network):
    """Encoder layers over a vector per column; what the one that is none has read, fc, ``head``."""

    def _add(self, inputs: Inputs, size: None) -> int:
        self.tokens = ColumnTokens(inputs)
        layer = nn.TransformerEncoderLayer(
            _COLUMN, _HEADS, _FORWARD, _DROPOUT, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, _COLUMN_LAYERS, norm=nn.LayerNorm(_COLUMN), enable_nested_tensor=False
        )
        return _COLUMN

    def _body(self, x: Tensor) -> Any:
        return self.encoder(self.tokens(x))[:, 0]


# --- tokens ------------------------------------------------------------------------------

_EMBEDDING = 64
_KERNELS, _FILTERS = (3, 5, 7), 64
_RECURRENT = ("lstm", "bilstm", "gru")


class TokenModel(Network):
    """Embedding, then what a subclass makes of the words, fc, ``head``."""

    def _add(self, inputs: Inputs, size: int | None) -> int:
        self.length = inputs.shape[0]
        self.embedding = nn.Embedding(inputs.vocabulary, _EMBEDDING, padding_idx=0)
        return size or _EMBEDDING  # what :meth:`_read` returns

    def _body(self, x: Tensor) -> Tensor:
        x = x[:, : self.length]  # behind may stand ids of a tokenizer
        return self._read(self.embedding(x), x != 0)

    def _read(self, x: Tensor, words: Tensor) -> Tensor:
        """Return a vector (B, width) of embedded tokens (B, l, e); ``words`` (B, l): no padding."""
        return _mean(x, words)


def _mean(x: Tensor, words: Tensor) -> Tensor:
    """Return the mean (B, w) over the words of (B, l, w)."""
    weights = words.to(x.dtype).unsqueeze(2)
    return (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class TextCNN(TokenModel):
    """Convolutions of three widths, each's largest answer over the text."""

    def __init__(self, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__(inputs, classes, d, _FILTERS * len(_KERNELS))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(_EMBEDDING, _FILTERS, kernel, padding=kernel // 2) for kernel in _KERNELS
        )

    def _read(self, x: Tensor, words: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        return torch.cat([relu(layer(x)).amax(dim=2) for layer in self.convolutions], dim=1)


class RecurrentText(TokenModel):
    """LSTM, LSTM in both directions, or GRU; the mean of the outputs at words."""

    def __init__(self, inputs: Inputs, classes: int, d: int, size: str) -> None:
        both = size == "bilstm"
        super().__init__(inputs, classes, d, _HIDDEN * (1 + both))
        layer = nn.GRU if size == "gru" else nn.LSTM
        self.recurrent = layer(_EMBEDDING, _HIDDEN, batch_first=True, bidirectional=both)

    def _read(self, x: Tensor, words: Tensor) -> Tensor:
        return _mean(self.recurrent(x)[0], words)


class Transformer(TokenModel):
    """Encoder layers over words and learnt positions; the mean of the outputs at words."""

    def __init__(self, inputs: Inputs, classes: int, d: int, size: int) -> None:
        super().__init__(inputs, classes, d)
        self.position = nn.Parameter(0.02 * torch.randn(inputs.shape[0], _EMBEDDING))
        layer = nn.TransformerEncoderLayer(_EMBEDDING, _HEADS, _FORWARD, _DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, size, enable_nested_tensor=False)

    def _read(self, x: Tensor, words: Tensor) -> Tensor:
        hidden = ~words
        hidden[:, 0] = False  # a text without words must attend to something
        return _mean(self.encoder(x + self.position, src_key_padding_mask=hidden), words)


def _each(make: Callable[..., SplitModel], known: Sequence[str], *sizes: Any) -> dict[str, Any]:
    return {name: partial(make, size=size) for name, size in zip(known, sizes, strict=True)}


NETWORKS: dict[str, dict[str, Callable[[Inputs, int, int], SplitModel]]] = {  # of inputs, C and d
    IMAGE: _each(CNN, names.CNN_NAMES, *_CNN),
    SIGNAL: _each(Conv1d, names.CONV1D_NAMES, *_CONV1D)
    | _each(RecurrentSignal, ("lstm", "gru"), nn.LSTM, nn.GRU)
    | {"inception-time": Inception},
    TABLE: _each(MLP, names.MLP_NAMES, *_MLP)
    | {"resnet-table": TableResNet, "ft-transformer": FTTransformer},
    TOKENS: {"fasttext": TokenModel, "textcnn": TextCNN}
    | _each(RecurrentText, _RECURRENT, *_RECURRENT)
    | _each(Transformer, names.TRANSFORMER_NAMES, *range(1, 6)),
}
