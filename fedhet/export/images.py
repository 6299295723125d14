"""Image files that somebody names on the command line: found, decoded, in batches."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedhet.data.images import SCAN, Losses, Shape, Unread, decode_all, is_image
from fedhet.errors import UserError
from fedhet.training.loop import EVALUATION_BATCH

_NAMED = 20


def find_images(places: Iterable[Path]) -> list[str]:
    """The files that are named and the image files below the folders that are, each once.

    A folder's files come sorted; hidden ones and other kinds of file are passed over. Raises
    UserError for a path that does not exist or cannot be listed.
    """
    found: dict[str, None] = {}
    for place in places:
        if place.is_dir():
            found |= dict.fromkeys(_below(place))
        elif place.exists():
            found[str(place)] = None
        else:
            raise UserError(f"images: '{place}': no such file or folder")
    return list(found)


def _below(folder: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise UserError(f"images: '{error.filename}' cannot be read: {error.strerror}") from error

    for root, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and is_image(name):
                yield os.path.join(root, name)


@dataclass
class ImageFiles:
    """Image files in order; :meth:`batches` fills ``unreadable`` and ``lost`` on its way.

    ``window`` is the range of values that a model of scans was trained on, whose images are
    float32; one of 8 bits is stretched to it.
    """

    paths: Sequence[str]
    shape: Shape
    window: tuple[float, float] | None = None
    unreadable: list[str] = field(default_factory=list)
    lost: Losses = field(default_factory=Losses)

    def batches(self, length: int = EVALUATION_BATCH) -> Iterator[tuple[list[str], Tensor]]:
        """Paths and images (B, ...) as they are stored, of the readable files, at most ``length`` at a time.

        Only one batch is in memory, so that a folder may be larger than it.
        """  # noqa: E501
        paths: list[str] = []
        images = []
        scans = self.window is not None
        pixels = decode_all(Path(), list(self.paths), self.shape, self.lost, scans=scans)
        for path, image in zip(self.paths, pixels, strict=True):
            if isinstance(image, Unread):
                self.unreadable.append(image.name(path))
                continue
            if self.window is not None and not self.lost.flags[-1] & SCAN:
                image = self.window[0] + image * ((self.window[1] - self.window[0]) / 255.0)  # noqa: PLW2901
            paths.append(path)
            images.append(image)
            if len(paths) == length:
                yield paths, torch.from_numpy(np.stack(images))
                paths, images = [], []
        if paths:
            yield paths, torch.from_numpy(np.stack(images))

    def complaint(self) -> str:
        """One line that names the unreadable files."""
        named = ", ".join(self.unreadable[:_NAMED])
        more = len(self.unreadable) - _NAMED
        rest = f" and {more} more" if more > 0 else ""
        return f"left out {len(self.unreadable)} files that are not readable images: {named}{rest}"
