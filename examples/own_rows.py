"""MLPs of one's own for tables: `models=own_rows:deep,own_rows:wide`, beside ours or alone.

fedhet run kinds/table data-path=FILE.csv models=own_rows:deep,own_rows:wide
"""

from torch import Tensor, nn

from fedhet import Inputs


class Rows(nn.Module):
    """Hidden layers of any widths, the representation, a header."""

    def __init__(self, widths: list[int], classes: int, d: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip(widths, [*widths[1:], d], strict=True):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(d, classes)

    def features(self, x: Tensor) -> Tensor:
        """Representations (B, d) of rows (B, f)."""
        found: Tensor = self.body(x)
        return found


def deep(*, classes: int, d: int, inputs: Inputs) -> nn.Module:
    """Three narrow layers; `inputs.shape` is (f,), what the prepared columns make."""
    return Rows([inputs.shape[0], 64, 64, 64], classes, d)


def wide(*, classes: int, d: int, inputs: Inputs) -> nn.Module:
    """One wide layer."""
    return Rows([inputs.shape[0], 256], classes, d)
