"""Image files that somebody names on the command line: found, decoded, in batches."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedhet.data.decode import decode_all
from fedhet.data.folder import SUFFIXES
from fedhet.data.image_source import Losses, Shape, Unread
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
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                yield os.path.join(root, name)


@dataclass
class ImageFiles:
    """Image files in order; :meth:`batches` fills ``unreadable`` and ``lost`` on its way."""

    paths: Sequence[str]
    shape: Shape
    unreadable: list[str] = field(default_factory=list)
    lost: Losses = field(default_factory=Losses)

    def batches(self, length: int = EVALUATION_BATCH) -> Iterator[tuple[list[str], Tensor]]:
        """Paths and images (B, *shape) uint8 of the readable files, at most ``length`` at a time.

        Only one batch is in memory, so that a folder may be larger than it.
        """
        paths: list[str] = []
        images = []
        pixels = decode_all(Path(), list(self.paths), self.shape, self.lost)
        for path, image in zip(self.paths, pixels, strict=True):
            if isinstance(image, Unread):
                self.unreadable.append(image.name(path))
                continue
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
        return f"left out what is no readable image ({len(self.unreadable)}): {named}{rest}"
