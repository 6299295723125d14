"""Random views of a batch, drawn on the device for all examples at once.

Images: the recipe of SimCLR and SupCon: random resized crop, horizontal flip, colour jitter, gray.
Against torchvision's transforms, which work image by image: a crop wider or higher than the image
is cut to it instead of drawn again, the jitter's four steps keep one order, and hue turns colours
around the gray axis of RGB instead of HSV's circle.

Signals: noise on every number and a factor for every channel (Um et al. 2017, arXiv 1706.00527).
Rows of a table: noise on every column. Tokens: words that become padding.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedhet.data.inputs import IMAGE, SIGNAL, TABLE

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
    """Return a random crop of the image with a black margin, flipped or not; (B, h, w, c) uint8.

    The margins are an eighth of the sides: 4 pixels at 32.
    """
    count, high, wide = images.shape[:3]
    down, across = high // 8, wide // 8
    device = images.device
    if high == wide:
        shape = (2, count, 1)
        tops, lefts = torch.randint(0, 2 * down + 1, shape, generator=generator, device=device)
    else:
        tops, lefts = (
            torch.randint(0, 2 * margin + 1, (count, 1), generator=generator, device=device)
            for margin in (down, across)
        )
    flipped = torch.randint(0, 2, (count, 1), generator=generator, device=device) == 1
    steps = torch.arange(wide, device=device)
    rows = tops + torch.arange(high, device=device)
    columns = lefts + torch.where(flipped, wide - 1 - steps, steps)
    padded = F.pad(images, (0, 0, across, across, down, down))
    return _pixels(padded, rows, columns)


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
    count, _, high, wide = images.shape
    device = images.device
    draws = torch.rand(8, count, 1, generator=generator, device=device)
    rows, columns = torch.arange(high, device=device), torch.arange(wide, device=device)
    area = (0.04 + 0.16 * draws[0]) * high * wide
    ratio = torch.exp((2 * draws[1] - 1) * math.log(2.0))
    tall = (area * ratio).sqrt().round().clamp(max=high)
    broad = (area / ratio).sqrt().round().clamp(max=wide)
    top = (draws[2] * (high - tall + 1)).floor()
    left = (draws[3] * (wide - broad + 1)).floor()
    inside = ((rows >= top) & (rows < top + tall))[:, :, None]
    inside = inside & ((columns >= left) & (columns < left + broad))[:, None, :]
    erased = (draws[4] < 0.5)[:, :, None] & inside
    down, across = high // 8, wide // 8
    flipped = torch.where(draws[5] < 0.5, wide - 1 - columns, columns)  # (B, w)
    pixels = _pixels(images.permute(0, 2, 3, 1), rows[None], flipped)
    pixels = pixels.masked_fill(erased[..., None], 0.0)
    padded = F.pad(pixels, (0, 0, across, across, down, down))
    tops = (draws[6] * (2 * down + 1)).long() + rows
    lefts = (draws[7] * (2 * across + 1)).long() + columns
    return _pixels(padded, tops, lefts).permute(0, 3, 1, 2)


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
