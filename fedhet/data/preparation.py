"""From stored examples to what a model gets: fitted on a client's own train split, nowhere else.

Images of 8 bits need nothing fitted. What is fitted are buffers of a module, kept with the client's
private state and carried by ``fedhet export``; none of it ever crosses the wire.
"""

import torch
from torch import Tensor, nn

from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Inputs

OUTSIDE = 0.001  # share of a scan's values that may lie beyond either end of the range in use
SAMPLE = 4_000_000  # values from which that range is taken
LIMIT = 10.0  # deviations: a table's number beyond counts as this, whatever a small split suggests


def normalise(images: Tensor) -> Tensor:
    """Turn uint8 (B, h, w, c) into float32 (B, c, h, w) in [-1, 1], channels last in memory."""
    return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


def as_they_are(examples: Tensor) -> Tensor:
    """Return what a model gets already."""
    return examples


class Preparation(nn.Module):
    """Stored examples (B, ...) to a model's inputs (B, *shape).

    As it stands nothing is fitted: images of 8 bits become [-1, 1], channels first, and token ids
    int64, as an embedding wants them.
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.inputs = inputs

    def fit(self, examples: Tensor) -> None:
        """Take what is needed from a train split (n, ...)."""

    def forward(self, examples: Tensor) -> Tensor:
        """Return a model's inputs."""
        return examples.long() if self.inputs.kind == TOKENS else normalise(examples)


class ChannelPreparation(Preparation):
    """Signals, and images of 8 bits, standardised by channel: mean and deviation of the split.

    They are (c, 1) of signals and (c,) of images; a channel that never changes is centred only.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self.images = inputs.kind == IMAGE
        self.scale = 255.0 if self.images else inputs.scale
        shape = (inputs.channels, *[1] * (not self.images))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("deviation", torch.ones(shape))

    def fit(self, examples: Tensor) -> None:
        """Take moments in float64, piece by piece: n may be large."""
        channels = examples.flatten(1, 2).mT if self.images else examples  # (n, c, t)
        total = torch.zeros(channels.shape[1], dtype=torch.float64, device=examples.device)
        square, count = total.clone(), 0
        for part in torch.split(channels, 256):
            values = part.double() / self.scale
            total += values.sum(dim=(0, 2))
            square += values.square().sum(dim=(0, 2))
            count += values.shape[0] * values.shape[2]
        mean = total / max(1, count)
        self.mean.copy_(mean.view_as(self.mean))
        variance = square / max(1, count) - mean.square()
        self.deviation.copy_(_deviation(mean, variance).view_as(self.mean))

    def forward(self, examples: Tensor) -> Tensor:
        """Turn (B, c, t) or uint8 (B, h, w, c) into float32, channels first."""
        scaled = (examples.float() / self.scale - self.mean) / self.deviation
        return scaled.permute(0, 3, 1, 2) if self.images else scaled


class ScanPreparation(Preparation):
    """Scans of more than 8 bits: the range in use becomes [-1, 1], and what is beyond is cut off.

    ``low`` and ``high`` () are the ``OUTSIDE`` quantiles of the train split, or the run's window.
    """

    low: Tensor
    high: Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        low, high = inputs.window or (0.0, 65535.0)
        self.register_buffer("low", torch.tensor(float(low)))
        self.register_buffer("high", torch.tensor(float(high)))

    def fit(self, examples: Tensor) -> None:
        """Take quantiles of a sample of the values: single pixels do not decide."""
        if self.inputs.window:
            return
        values = examples.flatten()
        values = values[:: max(1, len(values) // SAMPLE)].double().sort().values
        ends = [round(share * (len(values) - 1)) for share in (OUTSIDE, 1 - OUTSIDE)]
        low, high = values[ends[0]], values[ends[1]]
        if high <= low:
            low, high = values[0], values[-1]
        self.low.copy_(low)
        self.high.copy_(high if high > low else low + 1.0)

    def forward(self, examples: Tensor) -> Tensor:
        """Turn float32 (B, h, w, 1) into (B, c, h, w)."""
        scaled = (examples.float() - self.low) / (self.high - self.low)
        found = scaled.clamp(0.0, 1.0).mul(2.0).sub(1.0).permute(0, 3, 1, 2)
        return found.expand(-1, self.inputs.channels, -1, -1).contiguous()


class TablePreparation(Preparation):
    """Plain columns: standardised with the median for a gap, then one that says so; then one-hot.

    Median, mean and deviation (f,) of the train split. A category that is missing is all zeros.
    """

    median: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        values = dict(inputs.categories)
        self.plain = [i for i, name in enumerate(inputs.columns) if name not in values]
        self.coded = [
            (i, len(values[name])) for i, name in enumerate(inputs.columns) if name in values
        ]
        for name, start in (("median", 0.0), ("mean", 0.0), ("deviation", 1.0)):
            self.register_buffer(name, torch.full((len(self.plain),), start))

    def fit(self, examples: Tensor) -> None:
        """Take medians, means and deviations; a column that never changes is centred only."""
        numbers = examples[:, self.plain].double()
        known = ~numbers.isnan()
        # On the CPU: CUDA has no deterministic kernel for the indices that come with it.
        median = numbers.cpu().nanmedian(dim=0).values.nan_to_num(0.0).to(numbers.device)
        filled = torch.where(known, numbers, median)
        mean = filled.mean(dim=0)
        self.median.copy_(median)
        self.mean.copy_(mean)
        self.deviation.copy_(_deviation(mean, (filled - mean).square().mean(dim=0)))

    def forward(self, examples: Tensor) -> Tensor:
        """Return (B, f'): numbers, gaps, categories."""
        numbers = examples[:, self.plain]
        gaps = numbers.isnan()
        filled = torch.where(gaps, self.median, numbers)
        parts = [((filled - self.mean) / self.deviation).clamp(-LIMIT, LIMIT), gaps.float()]
        for column, count in self.coded:
            choices = torch.arange(count, device=examples.device)
            parts.append((examples[:, column, None] == choices).float())
        return torch.cat(parts, dim=1)


def preparation(inputs: Inputs) -> Preparation:
    """Return the preparation of a kind, not fitted."""
    if inputs.scan:
        return ScanPreparation(inputs)
    if inputs.kind == SIGNAL or inputs.standardised:
        return ChannelPreparation(inputs)
    return (TablePreparation if inputs.kind == TABLE else Preparation)(inputs)


def _deviation(mean: Tensor, variance: Tensor) -> Tensor:
    """Return the standard deviation; 1 where it is nothing beside the mean."""
    deviation = variance.clamp(min=0.0).sqrt()
    return torch.where(
        deviation > 1e-6 * mean.abs().clamp(min=1e-6), deviation, torch.ones_like(deviation)
    )
