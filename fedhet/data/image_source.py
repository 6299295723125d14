"""What every source of images hands to the cache: names, labels and a stream of pixels.

Of other kinds of examples it is a :class:`fedhet.data.data_file.Stream`.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedhet.errors import UserError, nearest

if TYPE_CHECKING:
    from fedhet.data.data_file import Stream

Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Shape = tuple[int, int, int]  # of a stored image: height, width, channels (3, or 1 for grey)
SQUASHED, SHORTENED = 1, 2  # what an image may lose
_BYTE_MODES = ("1", "L", "P", "LA", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")


@dataclass(frozen=True)
class Unread:
    """A file that gave no image; ``reason`` is empty where it simply is none."""

    reason: str = ""

    def name(self, path: str) -> str:
        """The path, with the reason where there is one."""
        return f"{path} ({self.reason})" if self.reason else path


@dataclass
class Losses:
    """How many images lost something on their way, counted while they are read."""

    squashed: int = 0
    shortened: int = 0

    def add(self, lost: int) -> None:
        """What :func:`losses` says of one image."""
        self.squashed += bool(lost & SQUASHED)
        self.shortened += bool(lost & SHORTENED)

    def lines(self, shape: Shape) -> list[str]:
        """For the user; none where nothing was lost."""
        found = []
        if self.squashed:
            size = f"{shape[1]} x {shape[0]}"
            found.append(f"{self.squashed} images of other proportions were squashed to {size}")
        if self.shortened:
            found.append(f"{self.shortened} images of more than 8 bits a channel were cut to 8")
        return found


@dataclass(frozen=True)
class Listing:
    """The images of one source, in their final order.

    ``images`` yields one uint8 array of the asked shape per path, or :class:`Unread` with the
    reason, and counts in ``losses``;
    ``labels`` is ``(n,)`` int64 into ``classes``. ``ignored`` names the files that were not tried.
    With ``keep_empty`` a class without images keeps its label: the caller named the classes.
    ``sites`` (n,) index into ``site_names``, the clients that the source itself names; else (0,).
    """

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: Indices
    images: Generator[Pixels | Unread, None, None]
    ignored: tuple[str, ...] = ()
    keep_empty: bool = True
    sites: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    site_names: tuple[str, ...] = ()
    losses: Losses = field(default_factory=Losses)


def select(
    source: str, own: Sequence[str], labels: Indices, wanted: tuple[str, ...]
) -> tuple[Indices, Indices]:
    """Find the examples whose class is wanted: indices ``(m,)`` and new labels ``(m,)``.

    Raises:
        UserError: a wanted class that the source does not have.

    """
    new_label = np.full(len(own), -1, dtype=np.int64)
    for label, name in enumerate(wanted or own):
        if name not in own:
            raise UserError(f"classes: dataset {source} has no class {name!r}{nearest(name, own)}")
        new_label[list(own).index(name)] = label
    kept = np.flatnonzero(new_label[labels] >= 0)
    return kept, new_label[labels[kept]]


class Source(Protocol):
    """Where examples come from."""

    def fingerprint(self) -> list[object]:
        """JSON-able values that change whenever the examples would; cheap, none is read."""

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> "Listing | Stream":
        """All examples, images of that ``shape``.

        ``classes`` empty means the source's own.

        Raises:
            UserError: the source cannot be opened, or does not fit ``classes``.

        """


def to_pixels(image: Image.Image, shape: Shape) -> Pixels:
    """Any image as uint8 of that shape, resized bilinearly without keeping the aspect."""
    high, wide, channels = shape
    if image.mode == "I" or image.mode.startswith("I;16"):
        # Pillow's own conversion clips 16-bit grey at 255, which turns scans white.
        values = np.asarray(image).clip(0, 65535)
        image = Image.fromarray((values >> 8).astype(np.uint8))
    mode = "RGB" if channels == 3 else "L"  # noqa: PLR2004
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (wide, high):
        image = image.resize((wide, high), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8).reshape(shape)


def losses(image: Image.Image, shape: Shape) -> int:
    """``SQUASHED`` where the width would be another if it were kept in proportion, ``SHORTENED``.

    To be asked before the image is decoded: what Pillow makes of a file has 8 bits in any case.
    """
    off = image.width * shape[0] - image.height * shape[1]
    deep = image.mode not in _BYTE_MODES or ";16" in str(getattr(image, "tile", ""))
    return SQUASHED * (abs(off) >= image.height) | SHORTENED * deep
