"""A transformer of one's own for texts: `models=own_words:make`, beside ours or alone.

fedhet run kinds/texts data-path=FILE.csv models=own_words:make
"""

import torch
from torch import Tensor, nn

from fedhet import Inputs


class Words(nn.Module):
    """Learnt words and positions, encoder layers, the first place as the representation."""

    def __init__(self, length: int, vocabulary: int, classes: int, d: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, 32, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(length, 32))
        layer = nn.TransformerEncoderLayer(32, nhead=2, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.Linear(32, d), nn.ReLU())
        self.head = nn.Linear(d, classes)

    def features(self, x: Tensor) -> Tensor:
        """Representations (B, d) of tokens (B, l) int64, of which 0 is padding."""
        padding = x == 0
        padding[:, 0] = False  # a text without words must attend to something
        read = self.encoder(self.words(x) + self.places, src_key_padding_mask=padding)
        found: Tensor = self.out(read[:, 0])
        return found


def make(*, classes: int, d: int, inputs: Inputs) -> nn.Module:
    """`inputs.shape` is (l,), the words that are kept; `inputs.vocabulary` counts their ids."""
    return Words(inputs.shape[0], inputs.vocabulary, classes, d)
