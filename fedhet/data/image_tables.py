"""Images that a table lists, by file names or as bytes: a CSV beside its photographs, Parquet."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedhet.data.describe import Unclear, describe
from fedhet.data.formats import ROW_SUFFIXES, beside, find_files
from fedhet.data.images import (
    MAX_DEPTH,
    Decoded,
    decode,
    decode_all,
    files_below,
    image_stream,
    is_image,
)  # fmt: skip
from fedhet.data.inputs import Inputs, Reading, Source, Stream, file_stats, listed
from fedhet.data.keys import Keys, need
from fedhet.data.rows import RowFile, open_rows
from fedhet.errors import UserError

_SAMPLE = 200  # values by which a column is known to hold images


def image_table(data_path: str, reading: Reading) -> Source:
    """Return the images of a table: files in its folder or below, or bytes in its cells."""
    paths = find_files("image-folder", data_path, ROW_SUFFIXES)
    root = paths[0].parent
    files = _images_below(root)

    def stream(image: Inputs, classes: tuple[str, ...]) -> Stream:
        file = open_rows(paths, reading.form)
        file.found += [] if files else beside(data_path, paths)
        return images_of(file, root, reading, image, classes)

    stats = file_stats([*paths, *(root / name for name in files)])
    return Source(["image-table", *stats, repr(reading)], stream)


def _images_below(root: Path) -> list[str]:
    return sorted(filter(is_image, files_below(root, "data-path", MAX_DEPTH)))


def _parts(cell: str) -> tuple[str, ...]:
    return PurePosixPath(cell.strip().replace("\\", "/")).parts


class _Names:
    """Image files by how a table may name them: path, name, or either without its ending."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> list[str]:
        """All images below the root, which are looked for only if a column may name them."""
        return _images_below(self.root)

    @cached_property
    def _named(self) -> dict[tuple[str, ...], set[str]]:
        named: dict[tuple[str, ...], set[str]] = {}
        for file in self.files:
            *above, name = _parts(file)
            for ending in (name, PurePosixPath(name).stem):
                for start in range(len(above) + 1):
                    named.setdefault((*above[start:], ending), set()).add(file)
        return named

    def find(self, cell: str) -> set[str]:
        """Return the files that a cell may name, by the longest end of its path that does."""
        parts = _parts(cell)
        ends = (self._named.get(parts[start:]) for start in range(len(parts)))
        return next(filter(None, ends), set())

    def one(self, cell: str) -> str:
        """Return the file that a cell names, empty for none; UserError if it may be several."""
        files = sorted(self.find(cell))
        if len(files) > 1:
            raise UserError(f"image: '{cell}' may be {listed(files, 3)}: give its path")
        return "".join(files)


def _is_embedded(value: Any) -> bool:
    inner = value.get("bytes", value.get("path")) if isinstance(value, Mapping) else value
    return isinstance(inner, bytes) or isinstance(value, Mapping) and isinstance(inner, str)


def _kinds(file: RowFile, names: _Names) -> dict[str, bool]:
    """Return the columns that hold images, by the first rows, and whether as bytes."""
    kinds: dict[str, bool] = {}
    if (head := next(file.raw(file.columns), None)) is None:
        return kinds
    for column in file.columns:
        values = [] if head[column].dtype.kind in "iufb" else head[column].dropna().head(_SAMPLE)
        if not len(values):
            continue
        if all(map(_is_embedded, values)):
            kinds[column] = True
            continue
        share = np.mean([bool(names.find(str(value))) for value in values])
        endings = np.mean([is_image(str(value)) for value in values])
        if share > 0.5 or (share and endings > 0.5):  # noqa: PLR2004
            kinds[column] = False
    return kinds


def image_column(
    file: RowFile, root: Path, reading: Reading, names: _Names | None = None
) -> tuple[str, bool]:
    """Return the column of the images, empty for none, and whether they are bytes in its cells.

    Raise Unclear if there are several.
    """
    if reading.image:
        need(file, [reading.image], "image")
    kinds = _kinds(file, names or _Names(root))
    columns = [name for name in kinds if name not in reading.taken]
    if len(columns) > 1 and not reading.image:
        raise Unclear("image", f"several columns name images: {listed(columns)}", columns)
    column = reading.image or "".join(columns)
    return column, kinds.get(column, False)


def images_of(
    file: RowFile, root: Path, reading: Reading, image: Inputs, classes: tuple[str, ...]
) -> Stream:
    """Return the images of the rows that have a label, in the order of the rows."""
    index = _Names(root)
    column, embedded = image_column(file, root, reading, index)
    if not column:
        raise UserError(f"image: {file.where} has no column of file names or bytes of images")
    reading = replace(reading, image=column)
    if not reading.target:
        description = describe(file, reading)
        description.need_target()
        reading = description.reading
    keys = Keys(reading, classes)
    texts = keys.columns(file)
    chosen, missing, count = list[str](), list[str](), 0
    for part, frame in file.chunks(texts if embedded else [*texts, column], ()):
        files = np.arange(count, count + len(frame)).astype(str)
        if not embedded:
            files = np.array([index.one(cell) for cell in frame[column]], dtype=object)
            missing += frame[column][files == ""].tolist()
        there = files != ""
        chosen += files[there][keys.add(part, frame[there])].tolist()
        count += len(frame)
    left = {*texts, column, *reading.ignore, *file.index}
    unused = listed([name for name in file.columns if name not in left])
    said = f"columns that are not read: {unused}" if unused else ""
    warnings = []
    if missing:
        line = f"{len(missing):,} rows name no image that is there: {listed(missing, 5)}"
        warnings.append(line)
    if others := [] if embedded else sorted({*index.files}.difference(chosen)):
        line = f"{len(others):,} images are in no row that is used: {listed(others, 5)}"
        warnings.append(line)
    content = keys.content(
        image, warnings, [f"images by column '{column}' (image)", said, file.said]
    )
    if embedded:
        pictures = _of_cells(file, column, {*map(int, chosen)}, root, image)
    else:
        pictures = decode_all(root, chosen, image.image_shape, scans=image.scan)
    return (yield from image_stream(replace(content, paths=tuple(chosen)), pictures))


def _of_cells(
    file: RowFile, column: str, wanted: set[int], root: Path, image: Inputs
) -> Iterator[Decoded]:
    """Yield the images in the cells of those rows."""

    def read(cell: Any) -> bytes:
        struct = isinstance(cell, Mapping)
        inner = cell.get("bytes") or root / cell["path"] if struct else cell
        return inner if isinstance(inner, bytes) else Path(inner).read_bytes()

    cells = (value for frame in file.raw([column]) for value in frame[column])
    for cell in (value for row, value in enumerate(cells) if row in wanted):
        yield decode(partial(read, cell), image.image_shape, scans=image.scan)
