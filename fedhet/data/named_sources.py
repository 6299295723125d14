"""The sources by name, and those that others bring: scikit-learn's digits, torchvision's sets."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedhet import plugins
from fedhet.data.data_file import Reading
from fedhet.data.folder import open_image_folder
from fedhet.data.hub import Hub
from fedhet.data.image_source import Listing, Shape, Source, select
from fedhet.data.inputs import SYNTHETIC, is_hub
from fedhet.data.signals import open_signals
from fedhet.data.synthetic import synthetic
from fedhet.data.table import open_table
from fedhet.data.texts import open_texts
from fedhet.data.user_function import Own, image_listing
from fedhet.errors import UserError, brief

TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion-mnist": "FashionMNIST"}
FILES: dict[str, Callable[[str, Reading], Source]] = {
    "table": open_table,
    "signals": open_signals,
    "texts": open_texts,
}
NAMES = ("digits", *TORCHVISION, "image-folder", *FILES, "synthetic", *SYNTHETIC)


def find_source(
    name: str, *, data_path: str, seed: int, downloads: Path, reading: Reading = Reading()  # noqa: B008
) -> Source:  # fmt: skip
    """Return the source called ``name``; ``downloads`` is where torchvision puts files by default.

    ``reading`` says which column of a file is what.

    Raises:
        UserError: unknown name, or a data path that does not exist.

    """
    if name == "digits":
        return Digits()
    if name in TORCHVISION:
        return Torchvision(name, Path(data_path).expanduser() if data_path else downloads)
    if name == "image-folder":
        return open_image_folder(data_path)
    if name in FILES or is_hub(name):
        return FILES[name](data_path, reading) if name in FILES else Hub(name, data_path, reading)
    if name.startswith("synthetic"):
        return synthetic(name, seed)
    if plugins.is_own("dataset", name):
        return Own(name, data_path)
    known = [*NAMES, *plugins.installed("dataset")]
    raise UserError(
        f"dataset {name!r} is unknown{plugins.hint('dataset', name, known)}; allowed: "
        f"{', '.join(known)}, hf:NAME or your own module:load"
    )


class Digits:
    """scikit-learn's own 1,797 scanned digits of 8 x 8 (UCI "Optical Recognition", test part)."""

    def fingerprint(self) -> list[object]:
        """Constant: the images come with scikit-learn."""
        return ["digits"]

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Listing:
        """All 1,797 images, grey values 0..16 stretched to 0..255."""
        # Imported here because the import costs more than opening the cache does.
        from sklearn.datasets import load_digits  # noqa: PLC0415

        raw, labels = load_digits(return_X_y=True)
        images = np.rint(raw.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        names = tuple(str(digit) for digit in range(10))
        kept, labels = select("digits", names, labels.astype(np.int64), classes)
        return image_listing(images, kept, labels, classes or names, shape)


@dataclass(frozen=True)
class Torchvision:
    """A data set that torchvision downloads and checks; train images first, then test images."""

    name: str
    root: Path

    def fingerprint(self) -> list[object]:
        """Return the name alone: torchvision checks the files against their published hash."""
        return [self.name]

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Listing:
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
        names = tuple(parts[0].classes)
        kept, labels = select(self.name, names, labels, classes)
        return image_listing(images, kept, labels, classes or names, shape)
