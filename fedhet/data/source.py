"""What every source of images hands to the cache: names, labels and a stream of pixels.

Of other kinds of examples it is a :class:`fedhet.data.reading.Stream`.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedhet.errors import UserError, nearest

if TYPE_CHECKING:
    from fedhet.data.reading import Stream

Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Unread:
    """A file that gave no image; ``reason`` is empty where it simply is none."""

    reason: str = ""

    def name(self, path: str) -> str:
        """The path, with the reason where there is one."""
        return f"{path} ({self.reason})" if self.reason else path


@dataclass(frozen=True)
class Listing:
    """The images of one source, in their final order.

    ``images`` yields one ``(s, s, 3)`` uint8 array per path, or :class:`Unread` with the reason;
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
    warnings: tuple[str, ...] = ()


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

    def listing(self, image_size: int, classes: tuple[str, ...]) -> "Listing | Stream":
        """All examples, images as ``(image_size, image_size, 3)``.

        ``classes`` empty means the source's own.

        Raises:
            UserError: the source cannot be opened, or does not fit ``classes``.

        """


def to_pixels(image: Image.Image, size: int) -> Pixels:
    """Any image as RGB ``(size, size, 3)`` uint8, resized bilinearly without keeping the aspect."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        # Pillow's own conversion clips 16-bit grey at 255, which turns scans white.
        wide = np.asarray(image).clip(0, 65535)
        image = Image.fromarray((wide >> 8).astype(np.uint8))
    if image.mode != "RGB":
        image = image.convert("RGB")
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8)
