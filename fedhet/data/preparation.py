"""From stored examples to what a model gets: fitted on a client's own train split, nowhere else.

Images of 8 bits need nothing fitted. What is fitted are buffers of a module, kept with the client's
private state and carried by ``fedhet export``; none of it ever crosses the wire.

Training may take random views of a batch, drawn on the device for all examples at once. Images: the
recipe of SimCLR and SupCon: random resized crop, horizontal flip, colour jitter, gray. Other than
in torchvision's transforms, a crop wider or higher than the image is cut to it, the jitter's four
steps keep one order, and hue turns colours around the gray axis of RGB. Signals: noise on every
number and a factor for every channel (Um et al. 2017, arXiv 1706.00527). Rows of a table: noise on
every column. Tokens: words that become padding.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedhet.data.inputs import IMAGE, SIGNAL, TABLE, TOKENS, Inputs

OUTSIDE = 0.001  # share of a scan's values that may lie beyond either end of the range in use
SAMPLE = 4_000_000  # values from which that range is taken
LIMIT = 10.0  # deviations: a table's number beyond counts as this, whatever a small split suggests


def normalise(images: Tensor) -> Tensor:
    """Turn uint8 (B, h, w, c) into float32 (B, c, h, w) in [-1, 1], channels last in memory."""
    return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


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
        square, count = total.clone(), max(1, channels.shape[0] * channels.shape[2])
        for part in torch.split(channels, 256):
            values = part.double() / self.scale
            total += values.sum(dim=(0, 2))
            square += values.square().sum(dim=(0, 2))
        mean = total / count
        self.mean.copy_(mean.view_as(self.mean))
        deviation = _deviation(mean, square / count - mean.square())
        self.deviation.copy_(deviation.view_as(self.mean))

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
        low, high = (values[round(x * (len(values) - 1))] for x in (OUTSIDE, 1 - OUTSIDE))
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
        self.coded = [(i, len(values[n])) for i, n in enumerate(inputs.columns) if n in values]
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
    small = 1e-6 * mean.abs().clamp(min=1e-6)
    return torch.where(deviation > small, deviation, torch.ones_like(deviation))


# --- random views ----------------------------------------------------------------

SMALLEST_AREA = 0.2  # of a crop, as a share of the image
LARGEST_RATIO = 4 / 3  # width : height of a crop; the smallest is its inverse
JITTER = 0.4  # largest change of brightness, contrast and saturation
HUE = 0.1  # largest turn of the hue, in full turns
JITTER_SHARE, GRAY_SHARE = 0.8, 0.2  # images that are jittered, images that become gray
NOISE, SCALING = 0.05, 0.1  # deviations of a signal's noise and factors; it has deviation 1
ROW_NOISE = 0.1  # deviation of the noise on a row's columns, which have deviation 1
DROPPED = 0.1  # share of the words that become padding
_LUMA = (0.2989, 0.587, 0.114)  # of red, green and blue in gray


def crop_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return crops of uint8 (B, h, w, c) with a black margin of an eighth, flipped at random."""
    (count, high, wide), device = images.shape[:3], images.device
    down, across = high // 8, wide // 8
    tops, lefts, flipped = (
        torch.randint(0, places, (count, 1), generator=generator, device=device)
        for places in (2 * down + 1, 2 * across + 1, 2)
    )
    steps = torch.arange(wide, device=device)
    columns = lefts + torch.where(flipped == 1, wide - 1 - steps, steps)
    padded = F.pad(images, (0, 0, across, across, down, down))
    return _pixels(padded, tops + torch.arange(high, device=device), columns)


def _pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels of images (B, h, w, c) at rows (B, h') and columns (B, w')."""
    each = torch.arange(len(images), device=images.device)[:, None, None]
    return images[each, rows[:, :, None], columns[:, None, :]]


def flip_erase_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return each prepared image (B, c, h, w) flipped, erased and cropped, in this order.

    Flip with probability 0.5; with probability 0.5 a rectangle becomes 0 (area 0.04 to 0.2 of the
    image, height : width 0.5 to 2, log-uniform: random erasing, Zhong et al. 2017, arXiv
    1708.04896; one that does not fit is cut to the image); a crop with a margin of an eighth of the
    sides, of zeros.
    """
    (count, _, high, wide), device = images.shape, images.device
    draws = torch.rand(8, count, 1, generator=generator, device=device)
    down, across = high // 8, wide // 8
    # The place of every row and column of the result in the flipped image, without its margin.
    rows = (draws[6] * (2 * down + 1)).long() - down + torch.arange(high, device=device)
    columns = (draws[7] * (2 * across + 1)).long() - across + torch.arange(wide, device=device)
    area = (0.04 + 0.16 * draws[0]) * high * wide
    ratio = torch.exp((2 * draws[1] - 1) * math.log(2.0))
    tall = (area * ratio).sqrt().round().clamp(max=high)
    broad = (area / ratio).sqrt().round().clamp(max=wide)
    top = (draws[2] * (high - tall + 1)).floor()
    left = (draws[3] * (wide - broad + 1)).floor()
    within = (rows >= top) & (rows < top + tall) & (draws[4] < 0.5)
    erased = within[:, :, None] & ((columns >= left) & (columns < left + broad))[:, None, :]
    columns = torch.where(draws[5] < 0.5, wide - 1 - columns, columns)
    padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, across, across, down, down))
    views = _pixels(padded, rows + down, columns + across).masked_fill(erased[..., None], 0.0)
    return views.permute(0, 3, 1, 2)


def two_views(inputs: Tensor, generator: torch.Generator, kind: str = IMAGE) -> Tensor:
    """Return two views of every example, (2B, ...) of (B, ...), first views first."""
    draw = {IMAGE: view, SIGNAL: jitter_scale, TABLE: row_noise}.get(kind, word_dropout)
    return draw(torch.cat([inputs, inputs]), generator)


def jitter_scale(signals: Tensor, generator: torch.Generator) -> Tensor:
    """Return signals (B, c, t), each channel times N(1, 0.1), plus N(0, 0.05) everywhere."""
    device = signals.device
    factors = torch.randn(*signals.shape[:2], 1, generator=generator, device=device)
    noise = torch.randn(signals.shape, generator=generator, device=device)
    return signals * (1 + SCALING * factors) + NOISE * noise


AUGMENTATIONS = {  # by the values of `augment`
    "crop-flip": crop_flip, "jitter-scale": jitter_scale, "flip-erase-crop": flip_erase_crop,
}  # fmt: skip


def row_noise(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Return standardised rows (B, f) plus N(0, 0.1)."""
    return rows + ROW_NOISE * torch.randn(rows.shape, generator=generator, device=rows.device)


def word_dropout(tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Return tokens (B, l) with a random tenth replaced by padding."""
    draws = torch.rand(tokens.shape, generator=generator, device=tokens.device)
    return torch.where(draws < DROPPED, 0, tokens)


def view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random view of every image (B, 3, s, s) in [-1, 1]; same shape and range."""
    draws = torch.rand(11, len(images), generator=generator, device=images.device)
    pixels = crop(images, draws[:5]).add(1).div(2).clamp(0, 1)
    changes = draws[5:].view(6, -1, 1, 1, 1)
    pixels = torch.where(changes[0] < JITTER_SHARE, jitter(pixels, changes[1:5]), pixels)
    pixels = torch.where(changes[5] < GRAY_SHARE, _gray(pixels), pixels)
    return pixels.mul(2).sub(1).contiguous(memory_format=torch.channels_last)


def crop(images: Tensor, draws: Tensor) -> Tensor:
    """Return a random part of every image, flipped or not, at full size; draws (5, B) in [0, 1)."""
    area = SMALLEST_AREA + (1 - SMALLEST_AREA) * draws[0]
    ratio = torch.exp((2 * draws[1] - 1) * math.log(LARGEST_RATIO))
    width = (area * ratio).sqrt().clamp(max=1)
    height = (area / ratio).sqrt().clamp(max=1)
    x, y = (2 * draws[2] - 1) * (1 - width), (2 * draws[3] - 1) * (1 - height)
    width = torch.where(draws[4] < 0.5, -width, width)
    high, wide = images.shape[-2:]
    across = (2 * torch.arange(wide, device=images.device) + 1) / wide - 1
    down = (2 * torch.arange(high, device=images.device) + 1) / high - 1
    columns = (x[:, None] + width[:, None] * across)[:, None, :].expand(-1, high, wide)
    rows = (y[:, None] + height[:, None] * down)[:, :, None].expand(-1, high, wide)
    grid = torch.stack([columns, rows], dim=3)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter(pixels: Tensor, draws: Tensor) -> Tensor:
    """Change brightness, contrast, saturation, hue of pixels in [0, 1]; draws (4, B, 1, 1, 1)."""
    scales = 1 + JITTER * (2 * draws[:3] - 1)
    pixels = (scales[0] * pixels).clamp(0, 1)
    mean = _gray(pixels).mean(dim=(2, 3), keepdim=True)
    pixels = torch.lerp(mean, pixels, scales[1]).clamp(0, 1)
    pixels = torch.lerp(_gray(pixels), pixels, scales[2]).clamp(0, 1)
    angle = 2 * math.pi * HUE * (2 * draws[3] - 1)
    # Rodrigues' rotation around k = (1, 1, 1) / sqrt(3): k (k . p) is the mean of p's channels.
    across = (pixels.roll(1, dims=1) - pixels.roll(-1, dims=1)) / math.sqrt(3)
    grey = pixels.mean(dim=1, keepdim=True)
    turned = angle.cos() * pixels + angle.sin() * across + (1 - angle.cos()) * grey
    return turned.clamp(0, 1)


def _gray(pixels: Tensor) -> Tensor:
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels[:, :1], pixels[:, 1:2], pixels[:, 2:]
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue).expand_as(pixels)
