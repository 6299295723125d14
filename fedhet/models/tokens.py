"""Models for tokens (B, l) int64, 0 for padding: words alone, convolutions, recurrent, attention.

Joulin et al. 2017 (arXiv 1607.01759) for fasttext, Kim 2014 (arXiv 1408.5882) for textcnn; logistic
is a linear map of the mean word. A text without any word is read as one padding token.
"""

import torch
from torch import nn
from torch.nn.functional import relu

from fedhet.data.inputs import Inputs
from fedhet.models.base import SplitModel
from fedhet.models.names import TRANSFORMER_NAMES, TRANSFORMERS_OF_HEADS

_EMBEDDING, _HIDDEN = 64, 64
_KERNELS, _FILTERS = (3, 5, 7), 64
_HEADS, _FORWARD, _DROPOUT = 4, 128, 0.1
_LAYERS = {name: (count, _HEADS) for count, name in enumerate(TRANSFORMER_NAMES, start=1)}
for _name in TRANSFORMERS_OF_HEADS:
    _layers, _heads = _name.removeprefix("transformer-").split("x")
    _LAYERS[_name] = (int(_layers), int(_heads))


class TokenModel(SplitModel):
    """Embedding, then what a subclass makes of the words, fc with ReLU, ``head``."""

    def __init__(self, inputs: Inputs, classes: int, d: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(inputs.vocabulary, _EMBEDDING, padding_idx=0)
        self.fc = nn.Linear(width, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the tokens ``(B, l)``."""
        words = x != 0
        return relu(self.fc(self.read(self.embedding(x), words)))

    def read(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """One vector (B, width) of embedded tokens (B, l, e); ``words`` (B, l) are no padding."""
        return _mean(x, words)


def _mean(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """The mean (B, w) over the words of (B, l, w)."""
    weights = words.to(x.dtype).unsqueeze(2)
    return (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class Logistic(SplitModel):
    """The mean of the words' vectors, d numbers each, is the representation; ``head``."""

    def __init__(self, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(inputs.vocabulary, d, padding_idx=0)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)`` of the tokens ``(B, l)``."""
        return _mean(self.embedding(x), x != 0)


class TextCNN(TokenModel):
    """Convolutions of three widths, each's largest answer over the text."""

    def __init__(self, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__(inputs, classes, d, _FILTERS * len(_KERNELS))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(_EMBEDDING, _FILTERS, kernel, padding=kernel // 2) for kernel in _KERNELS
        )

    def read(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """See :meth:`TokenModel.read`."""
        x = x.transpose(1, 2)
        return torch.cat([relu(layer(x)).amax(dim=2) for layer in self.convolutions], dim=1)


class RecurrentText(TokenModel):
    """LSTM, LSTM in both directions, or GRU; the mean of the outputs at words."""

    def __init__(self, kind: str, inputs: Inputs, classes: int, d: int) -> None:
        both = kind == "bilstm"
        super().__init__(inputs, classes, d, _HIDDEN * (1 + both))
        layer = nn.GRU if kind == "gru" else nn.LSTM
        self.recurrent = layer(_EMBEDDING, _HIDDEN, batch_first=True, bidirectional=both)

    def read(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """See :meth:`TokenModel.read`."""
        return _mean(self.recurrent(x)[0], words)


class Transformer(TokenModel):
    """Encoder layers over words and learnt positions; the mean of the outputs at words."""

    def __init__(self, layers: int, heads: int, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__(inputs, classes, d, _EMBEDDING)
        self.position = nn.Parameter(0.02 * torch.randn(inputs.shape[0], _EMBEDDING))
        layer = nn.TransformerEncoderLayer(_EMBEDDING, heads, _FORWARD, _DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def read(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """See :meth:`TokenModel.read`."""
        hidden = ~words
        hidden[:, 0] = False  # a text without words must attend to something
        return _mean(self.encoder(x + self.position, src_key_padding_mask=hidden), words)


def token_model(name: str, inputs: Inputs, classes: int, d: int) -> SplitModel:
    """One of those that :mod:`fedhet.models.names` lists for tokens."""
    if name == "fasttext":
        return TokenModel(inputs, classes, d, _EMBEDDING)
    if name == "textcnn":
        return TextCNN(inputs, classes, d)
    if name == "logistic":
        return Logistic(inputs, classes, d)
    if name in _LAYERS:
        return Transformer(*_LAYERS[name], inputs, classes, d)
    return RecurrentText(name, inputs, classes, d)
