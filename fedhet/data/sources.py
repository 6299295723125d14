"""The sources by name, and those that are arrays: digits, torchvision's data sets, synthetic."""

import hashlib
import inspect
import re
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedhet import plugins
from fedhet.data.folder import open_image_folder
from fedhet.data.source import Indices, Listing, Pixels, Source, Unread, to_pixels
from fedhet.errors import UserError, brief, nearest
from fedhet.rng import generator

TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion-mnist": "FashionMNIST"}
NAMES = ("digits", *TORCHVISION, "image-folder", "synthetic")
_SYNTHETIC = re.compile(r"synthetic(?::(\d{1,9})(?:x(\d{1,4}))?)?")
_SYNTHETIC_CHUNK = 2048
_BLOBS = 4


def find_source(name: str, *, data_path: str, seed: int, downloads: Path) -> Source:
    """Return the source called ``name``; ``downloads`` is where torchvision puts files by default.

    Raises:
        UserError: unknown name, or a data path that does not exist.

    """
    if name == "digits":
        return Digits()
    if name in TORCHVISION:
        return Torchvision(name, Path(data_path).expanduser() if data_path else downloads)
    if name == "image-folder":
        return open_image_folder(data_path)
    if name.startswith("synthetic"):
        return _synthetic(name, seed)
    if plugins.is_own("dataset", name):
        return Own(name, data_path)
    known = [*NAMES, *plugins.installed("dataset")]
    raise UserError(
        f"dataset {name!r} is unknown{plugins.hint('dataset', name, known)}; allowed: "
        f"{', '.join(known)} or your own module:load"
    )


def _select(
    source: str, own: Sequence[str], labels: Indices, wanted: tuple[str, ...]
) -> tuple[Indices, Indices]:
    """Find the images whose class is wanted: indices ``(m,)`` and new labels ``(m,)``.

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


@dataclass(frozen=True)
class _Arrays:
    """Images in memory: ``images`` (n, h, w) or (n, h, w, 3) uint8, ``labels`` (n,) int64."""

    images: Pixels
    labels: Indices
    classes: tuple[str, ...]

    def listing(self, source: str, image_size: int, classes: tuple[str, ...]) -> Listing:
        kept, labels = _select(source, self.classes, self.labels, classes)
        pixels = (to_pixels(Image.fromarray(self.images[i]), image_size) for i in kept)
        paths = tuple(str(i) for i in kept)
        return Listing(classes or self.classes, paths, labels, pixels)


@dataclass(frozen=True)
class Own:
    """A user's own function: ``load(data_path)`` -> images, labels, class names.

    Images are uint8 (n, h, w, 3) or (n, h, w), labels (n,) whole numbers from 0, one name per
    class.
    """

    name: str
    data_path: str

    def fingerprint(self) -> list[object]:
        """The code of the function's module, and when and how large its data path is."""
        source = sys.modules[self._load().__module__].__file__
        code = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
        path = Path(self.data_path).expanduser()
        stat = path.stat() if self.data_path and path.exists() else None
        when = [stat.st_mtime_ns, stat.st_size] if stat else []
        return ["own", self.name, code, self.data_path, when]

    def listing(self, image_size: int, classes: tuple[str, ...]) -> Listing:
        """Call the function and check what it returns; UserError, one line, if that is wrong."""
        load = self._load()
        try:
            images, labels, names = load(self.data_path)
            images, labels = np.asarray(images), np.asarray(labels)
            own = tuple(str(name) for name in names)
        except Exception as error:
            raise UserError(
                f"dataset {self.name!r}: load({self.data_path!r}) must return images, labels and "
                f"class names: {brief(error)}"
            ) from error
        _check_arrays(self.name, images, labels, own)
        return _Arrays(images, labels.astype(np.int64), own).listing(self.name, image_size, classes)

    def _load(self) -> Callable[[str], Any]:
        load: Callable[[str], Any] = plugins.load("dataset", self.name)
        if not inspect.isroutine(load):
            raise UserError(
                f"dataset {self.name!r} is a {type(load).__name__}, must be a function "
                "load(data_path)"
            )
        return load


def _check_arrays(
    name: str, images: npt.NDArray[Any], labels: npt.NDArray[Any], classes: tuple[str, ...]
) -> None:
    """UserError for arrays that are no labelled images."""
    fits = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] == 3)  # noqa: PLR2004
    if images.dtype != np.uint8 or not fits or not len(images):
        raise UserError(
            f"dataset {name!r}: images are {images.dtype}{list(images.shape)}, must be uint8 "
            "(n, h, w, 3) or (n, h, w)"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise UserError(
            f"dataset {name!r}: labels are {labels.dtype}{list(labels.shape)}, must be whole "
            f"numbers of shape [{len(images)}]"
        )
    if not classes or len(set(classes)) < len(classes) or not all(classes):
        raise UserError(f"dataset {name!r}: class names must be texts, each another")
    if labels.min() < 0 or labels.max() >= len(classes):
        raise UserError(
            f"dataset {name!r}: labels go from {labels.min()} to {labels.max()}, and there are "
            f"{len(classes)} class names"
        )


class Digits:
    """scikit-learn's own 1,797 scanned digits of 8 x 8 (UCI "Optical Recognition", test part)."""

    def fingerprint(self) -> list[object]:
        """Constant: the images come with scikit-learn."""
        return ["digits"]

    def listing(self, image_size: int, classes: tuple[str, ...]) -> Listing:
        """All 1,797 images, grey values 0..16 stretched to 0..255."""
        # Imported here because the import costs more than opening the cache does.
        from sklearn.datasets import load_digits  # noqa: PLC0415

        raw, labels = load_digits(return_X_y=True)
        images = np.rint(raw.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        names = tuple(str(digit) for digit in range(10))
        return _Arrays(images, labels.astype(np.int64), names).listing(
            "digits", image_size, classes
        )


@dataclass(frozen=True)
class Torchvision:
    """A data set that torchvision downloads and checks; train images first, then test images."""

    name: str
    root: Path

    def fingerprint(self) -> list[object]:
        """Return the name alone: torchvision checks the files against their published hash."""
        return [self.name]

    def listing(self, image_size: int, classes: tuple[str, ...]) -> Listing:
        """Pool the train and the test images.

        Raises:
            UserError: the download failed or the folder cannot be written.

        """
        # Imported here because the import costs more than opening the cache does.
        from torchvision import datasets  # noqa: PLC0415

        make = getattr(datasets, TORCHVISION[self.name])
        existed = self.root.exists()
        try:
            parts = [make(str(self.root), train=train, download=True) for train in (True, False)]
        except Exception as error:
            if not existed:
                shutil.rmtree(self.root, ignore_errors=True)
            raise UserError(
                f"dataset {self.name}: download into {self.root} failed ({brief(error)}); put "
                "torchvision's files there by hand, or use dataset=image-folder data-path=FOLDER"
            ) from error
        images = np.concatenate([np.asarray(part.data, dtype=np.uint8) for part in parts])
        labels = np.concatenate([np.asarray(part.targets, dtype=np.int64) for part in parts])
        return _Arrays(images, labels, tuple(parts[0].classes)).listing(
            self.name, image_size, classes
        )


def _synthetic(name: str, seed: int) -> "Synthetic":
    match = _SYNTHETIC.fullmatch(name)
    images = int(match[1] or 6000) if match else 0
    classes = int(match[2] or 10) if match else 0
    if classes < 2 or images < classes:
        raise UserError(
            f"dataset {name!r}: expected synthetic, synthetic:IMAGES or synthetic:IMAGESxCLASSES "
            "with at least 2 classes and no fewer images than classes, such as synthetic:60000x100"
        )
    return Synthetic(images, classes, seed)


@dataclass(frozen=True)
class Synthetic:
    """Seeded blobs for benchmarks and tests: a fixed pattern per class plus noise per image."""

    images: int
    num_classes: int
    seed: int

    def fingerprint(self) -> list[object]:
        """Size and seed."""
        return ["synthetic", self.images, self.num_classes, self.seed]

    def extent(self) -> tuple[int, int]:
        """Images and classes."""
        return self.images, self.num_classes

    def listing(self, image_size: int, classes: tuple[str, ...]) -> Listing:
        """Image i belongs to class i mod C, so every class has the same number within one."""
        names = tuple(f"class-{label}" for label in range(self.num_classes))
        labels = np.arange(self.images, dtype=np.int64) % self.num_classes
        kept, new_labels = _select("synthetic", names, labels, classes)
        pixels = self._draw(labels[kept], image_size)
        return Listing(classes or names, tuple(str(i) for i in kept), new_labels, pixels)

    def _patterns(self, size: int) -> Pixels:
        """(C, size, size, 3) uint8 in 0..135, the same scene at every size."""
        rng = generator(self.seed, "synthetic-patterns")
        shape = (self.num_classes, _BLOBS)
        centre, width = rng.uniform(0, 1, (*shape, 2)), rng.uniform(0.08, 0.25, shape)
        colour = rng.uniform(0, 1, (*shape, 3))
        axis = (np.arange(size) + 0.5) / size
        scale = -0.5 / width[..., None] ** 2
        rows = np.exp((axis - centre[..., :1]) ** 2 * scale)
        columns = np.exp((axis - centre[..., 1:]) ** 2 * scale)
        scene = np.einsum("kby,kbx,kbc->kyxc", rows, columns, colour, optimize=True)
        patterns: Pixels = (135 * np.minimum(scene, 1)).astype(np.uint8)
        return patterns

    def _draw(self, labels: Indices, size: int) -> Generator[Pixels | Unread, None, None]:
        """Pattern, a brightness 0..40 per image and noise 0..80 per value: at most 255."""
        patterns = self._patterns(size)
        for chunk, start in enumerate(range(0, len(labels), _SYNTHETIC_CHUNK)):
            rng = generator(self.seed, "synthetic-noise", round_=chunk)
            wanted = labels[start : start + _SYNTHETIC_CHUNK]
            images = rng.integers(0, 81, (len(wanted), size, size, 3), dtype=np.uint8)
            images += patterns[wanted]
            images += rng.integers(0, 41, (len(wanted), 1, 1, 1), dtype=np.uint8)
            yield from images
