"""Dataset ``hf:NAME``: what Flower's users load with flwr-datasets, or a local copy of it.

``hf:NAME subset=S split=train+test`` is loaded by flwr-datasets; the split is ``train`` unless
another is named. With ``data-path`` the data comes from that folder instead: one that
``save_to_disk`` wrote, or any that ``datasets.load_dataset`` reads; then nothing is downloaded.
``target`` names the class (needed unless one column alone is a ``ClassLabel``), ``site`` the
client. With ``text`` these are texts, with a column of images they are images, and else rows.
"""

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedhet.data.images import (
    Listing,
    Losses,
    Pixels,
    Shape,
    Unread,
    losses,
    to_pixels,
)
from fedhet.data.inputs import HUB, Inputs
from fedhet.data.labels import Form, Keys, Reading, Stream, need
from fedhet.data.rows import Chunk, arrow_column, as_numbers
from fedhet.data.table import Table, Texts
from fedhet.errors import UserError, brief

_ROWS = 4096

_HUB_WORDS = ("subset", "split")


@dataclass(frozen=True)
class Hub:
    """A data set of Hugging Face's ``datasets``."""

    name: str
    data_path: str
    reading: Reading

    def fingerprint(self) -> list[object]:
        """The name, and size and time of the local copy's files; the hub's are taken as fixed."""
        files: list[object] = []
        if self.data_path:
            root = Path(self.data_path).expanduser()
            found = sorted(path for path in root.rglob("*") if path.is_file())
            files = [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in found]
        return ["hub", self.name, self.data_path, files, repr(self.reading)]

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Listing | Stream:
        """What the data set is: texts, images or rows."""
        data = self._load()
        file = HubFile(data, f"dataset '{self.name}'")
        reading = replace(self.reading, target=self.reading.target or file.label())
        if reading.text:
            return Texts((), reading).rows(file, classes)
        image = file.image()
        if image:
            return _images(file, image, reading, shape, classes)
        return Table((), reading).rows(file, classes)

    def _load(self) -> Any:
        name, *words = self.name.removeprefix(HUB).split() or [""]
        given = dict(word.partition("=")[::2] for word in words)
        if not name or set(given) - set(_HUB_WORDS) or not all(given.values()):
            raise UserError(
                f"dataset '{self.name}' must be written hf:NAME, and then subset=... or split=..."
            )
        try:
            datasets: Any = import_module("datasets")
            flower: Any = import_module("flwr_datasets")
        except ImportError as error:
            raise UserError(
                f"dataset '{self.name}' needs flwr-datasets: pip install 'fedhet[hf]' "
                f"({brief(error)})"
            ) from error
        datasets.disable_progress_bars()
        splits = given.get("split", "train").split("+")
        try:
            if self.data_path:
                path = Path(self.data_path).expanduser()
                if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
                    found = datasets.load_from_disk(str(path))
                    if isinstance(found, datasets.Dataset):  # of one split, which has no name
                        return found
                    return datasets.concatenate_datasets([found[split] for split in splits])
                name = str(path)
            whole = flower.FederatedDataset(
                dataset=name, subset=given.get("subset"), partitioners={}, shuffle=False
            )
            return datasets.concatenate_datasets([whole.load_split(split) for split in splits])
        except Exception as error:  # of the hub, the network, the files: nearly every kind
            where = self.data_path or "the hub"
            raise UserError(
                f"dataset '{self.name}' cannot be loaded from {where}: {brief(error)}; data-path="
                "FOLDER names a local copy"
            ) from error


class HubFile:
    """The columns and rows of a ``datasets.Dataset``; class labels are their names."""

    def __init__(self, data: Any, where: str) -> None:
        self.data, self.where, self.form = data, where, Form()
        self.columns: list[str] = list(data.column_names)
        self.index: tuple[str, ...] = ()
        self.found: tuple[str, ...] = ()

    def label(self) -> str:
        """The one column that is a ClassLabel; UserError if there are several or none."""
        found = [name for name, kind in self.data.features.items() if hasattr(kind, "int2str")]
        if len(found) != 1:
            raise UserError(
                f"target: '' is not allowed: {self.where} has {len(found)} columns of class "
                f"labels; name one of {', '.join(self.columns[:10])}"
            )
        return str(found[0])

    def image(self) -> str:
        """The first column of images; empty if there is none."""
        kinds = self.data.features.items()
        return next((name for name, kind in kinds if type(kind).__name__ == "Image"), "")

    def chunks(self, texts: Collection[str], numbers: Collection[str]) -> Iterator[Chunk]:
        """Those columns of the rows, numbered from 0."""
        wanted = list(dict.fromkeys((*texts, *numbers)))
        part = self.data.select_columns(wanted).with_format("arrow")
        for start in range(0, len(part), _ROWS):
            table = part[start : start + _ROWS].combine_chunks()
            made = {name: self._column(name, table.column(name), name in texts) for name in wanted}
            yield Chunk(pd.DataFrame(made), start, self)
        if not len(part):
            raise UserError(f"{self.where}: no row in it")

    def _column(self, name: str, column: Any, as_text: bool) -> pd.Series:  # noqa: FBT001
        """A column; class labels are their names."""
        known = getattr(self.data.features[name], "names", None)
        if known is None:
            return arrow_column(column.combine_chunks(), as_text, self.form)
        names = [
            "" if v is None or not 0 <= v < len(known) else known[v] for v in column.to_pylist()
        ]
        texts = pd.Series(names, dtype="str")
        return texts if as_text else as_numbers(texts, self.form)

    def place(self, row: int) -> str:
        """Rows are numbered from 0."""
        return f"row {row}"


def _images(
    file: HubFile, image: str, reading: Reading, shape: Shape, classes: tuple[str, ...]
) -> Listing:
    """Images, decoded one by one; of labels and sites everything is read at once."""
    need(file.columns, [reading.target], "target", file.where)
    need(file.columns, reading.site, "site", file.where)
    keys = Keys(reading, classes)
    kept = [keys.add(chunk) for chunk in file.chunks(keys.columns(), ())]
    found = keys.content(Inputs.image(shape[:2], grey=shape[2] == 1))
    places = np.flatnonzero(np.concatenate(kept))
    paths = tuple(str(index) for index in places)
    lost = Losses()
    images = _decoded(file.data.select_columns([image]).select(places), image, shape, lost)
    return Listing(
        found.classes, paths, found.labels, images, sites=found.sites,
        site_names=found.site_names, losses=lost, notes=found.notes,
    )  # fmt: skip


def _decoded(
    data: Any, image: str, shape: Shape, lost: Losses
) -> Generator[Pixels | Unread, None, None]:
    for index in range(len(data)):
        try:
            found = data[index][image]
            less = losses(found, shape)
            pixels = to_pixels(found, shape)
            lost.flags.append(less)
            yield pixels
        except Exception as error:  # decoders raise nearly every kind
            yield Unread(brief(error))
