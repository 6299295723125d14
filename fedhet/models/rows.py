"""Models for rows of a table (B, f): perceptrons of five sizes, a residual one, attention.

The last two after Gorishniy et al. 2021 (arXiv 2106.11959), in small: theirs are tuned by data set.
"""

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
_WIDTH, _HIDDEN, _BLOCKS, _DROPOUT = 128, 256, 3, 0.1  # of the residual network
_TOKEN, _HEADS, _FORWARD, _LAYERS = 64, 4, 128, 3  # of the transformer


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


class TableResNet(SplitModel):
    """A linear map, blocks of BatchNorm and two linear maps beside the identity, fc, ``head``."""

    def __init__(self, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs.shape[0], _WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(_WIDTH), nn.Linear(_WIDTH, _HIDDEN), nn.ReLU(),
                nn.Dropout(_DROPOUT), nn.Linear(_HIDDEN, _WIDTH),
            )
            for _ in range(_BLOCKS)
        )  # fmt: skip
        self.norm = nn.BatchNorm1d(_WIDTH)
        self.fc = nn.Linear(_WIDTH, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the rows ``(B, f)``."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return relu(self.fc(relu(self.norm(x))))


class ColumnTokens(nn.Module):
    """One vector per column of a table, and one that is no column's and reads the others.

    What a model gets of a column is a number and whether it is missing, or a category's values
    (``TablePreparation``). Its vector is a linear map of those, of its own, with a bias.
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        counts = [len(values) for _, values in inputs.categories]
        self.plain = len(inputs.columns) - len(counts)
        self.sizes = [2 * self.plain, *counts]
        bound = _TOKEN**-0.5
        self.weight = nn.Parameter(torch.empty(inputs.shape[0], _TOKEN).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(len(inputs.columns), _TOKEN).uniform_(-bound, bound))
        self.reader = nn.Parameter(torch.empty(1, 1, _TOKEN).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Vectors (B, 1 + columns, e) of rows (B, f)."""
        plain, *coded = torch.split(x, self.sizes, dim=1)
        own, *weights = torch.split(self.weight, self.sizes)
        both = (plain.unsqueeze(2) * own).reshape(len(x), 2, self.plain, _TOKEN)  # numbers, gaps
        choices = [one @ weight for one, weight in zip(coded, weights, strict=True)]
        columns = torch.cat([both.sum(dim=1), *(one.unsqueeze(1) for one in choices)], dim=1)
        return torch.cat([self.reader.expand(len(x), -1, -1), columns + self.bias], dim=1)


class FTTransformer(SplitModel):
    """Encoder layers over a vector per column; what the one that is none has read, fc, ``head``."""

    def __init__(self, inputs: Inputs, classes: int, d: int) -> None:
        super().__init__()
        self.tokens = ColumnTokens(inputs)
        layer = nn.TransformerEncoderLayer(
            _TOKEN, _HEADS, _FORWARD, _DROPOUT, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, _LAYERS, norm=nn.LayerNorm(_TOKEN), enable_nested_tensor=False
        )
        self.fc = nn.Linear(_TOKEN, d)
        self.head = nn.Linear(d, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Representations ``(B, d)``, after the ReLU, of the rows ``(B, f)``."""
        return relu(self.fc(self.encoder(self.tokens(x))[:, 0]))


def table_model(name: str, inputs: Inputs, classes: int, d: int) -> SplitModel:
    """One of those that :mod:`fedhet.models.names` lists for tables."""
    if name == "resnet-table":
        return TableResNet(inputs, classes, d)
    if name == "ft-transformer":
        return FTTransformer(inputs, classes, d)
    return MLP(name, inputs, classes, d)
