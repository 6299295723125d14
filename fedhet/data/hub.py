"""Dataset ``hf:NAME``: what Flower's users load with flwr-datasets, from the hub or a local copy.

``hf:NAME subset=S split=train+test``; the split is ``train`` unless another is named. With
``data-path`` the data comes from that folder instead: one that ``save_to_disk`` wrote, or any that
``datasets.load_dataset`` reads, such as Parquet files; then nothing is downloaded. ``target``
names the class (needed unless one column alone is a ``ClassLabel``), ``site`` the client. With
``text`` these are texts, with a column of images they are images, and else rows of a table.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fedhet.data.data_file import Classes, Reading, Sites, Stream, need
from fedhet.data.image_source import Listing, Losses, Pixels, Shape, Unread, losses, to_pixels
from fedhet.data.inputs import HUB
from fedhet.data.table import Table, keys
from fedhet.data.texts import Texts
from fedhet.errors import UserError, brief
from fedhet.reading.arrow import kind_of_type, numbers_of
from fedhet.reading.columns import CHUNK, Numbers, Piece, check_names
from fedhet.reading.columns import Texts as TextColumn

_WORDS = ("subset", "split")


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
        if not name or set(given) - set(_WORDS) or not all(given.values()):
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
        self.data, self.where = data, where
        self.columns: list[str] = list(data.column_names)
        check_names(self.columns, where, "columns are known by their names")

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

    def pieces(self, texts: Sequence[str], numbers: Sequence[str] = ()) -> Iterator[Piece]:
        """Those columns of the rows, numbered from 0."""
        wanted = list(dict.fromkeys((*texts, *numbers)))
        kinds = {name: self._kind(name) for name in wanted}
        part = self.data.select_columns(wanted).with_format("arrow")
        for start in range(0, len(part), CHUNK):
            table = part[start : start + CHUNK].combine_chunks()
            columns: dict[str, TextColumn | Numbers] = {}
            for name in wanted:
                column = table.column(name)
                if name in numbers and kinds[name] == "number":
                    columns[name] = numbers_of(column)
                else:
                    columns[name] = self._named(name, column)
            yield Piece(columns, range(start, start + table.num_rows), self.where, "row")
        if not len(part):
            raise UserError(f"{self.where}: no row in it")

    def _kind(self, name: str) -> str:
        kind = kind_of_type(self.data.features.arrow_schema.field(name).type)
        if kind not in ("number", "text"):
            raise UserError(
                f"{self.where} column {name!r}: {kind} is neither numbers nor texts: name it in "
                "ignore"
            )
        return kind

    def _named(self, name: str, column: Any) -> list[str]:
        feature = self.data.features[name]
        if hasattr(feature, "int2str"):
            known = feature.names
            values = column.to_pylist()
            return ["" if v is None or not 0 <= v < len(known) else known[v] for v in values]
        return ["" if value is None else str(value) for value in column.to_pylist()]


def _images(
    file: HubFile, image: str, reading: Reading, shape: Shape, classes: tuple[str, ...]
) -> Listing:
    """Images, decoded one by one; of labels and sites everything is read at once."""
    need(file.columns, [reading.target], "target", file.where)
    need(file.columns, reading.site, "site", file.where)
    targets, sites = Classes(reading, classes), Sites()
    for piece in file.pieces(keys(reading, [])):
        targets.add(piece.texts(reading.target), piece.at(reading.target))
        if reading.site:
            columns = [piece.texts(name) for name in reading.site]
            sites.add(list(zip(*columns, strict=True)), piece.at(", ".join(reading.site)))
    labels, names = targets.done()
    owners, site_names = sites.done()
    paths = tuple(str(index) for index in range(len(labels)))
    lost = Losses()
    images = _decoded(file.data.select_columns([image]), image, shape, lost)
    return Listing(
        names, paths, labels, images, sites=owners, site_names=site_names, losses=lost
    )  # fmt: skip


def _decoded(
    data: Any, image: str, shape: Shape, lost: Losses
) -> Generator[Pixels | Unread, None, None]:
    for index in range(len(data)):
        try:
            found = data[index][image]
            pixels, less = to_pixels(found, shape), losses(found, shape)
            lost.add(less)
            yield pixels
        except Exception as error:  # decoders raise nearly every kind
            yield Unread(brief(error))
