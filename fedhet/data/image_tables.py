"""Images that a table lists, by file names or as bytes: a CSV beside its photographs, Parquet."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from fedhet.data.describe import Unclear, describe
from fedhet.data.formats import ROW_SUFFIXES, beside, find_files
from fedhet.data.images import (
    FORMATS,
    MAX_DEPTH,
    Decoded,
    decode_all,
    decoded,
    files_below,
    image_stream,
    is_image,
)
from fedhet.data.inputs import Inputs, Reading, Source, Stream, file_stats, listed
from fedhet.data.keys import Keys, need
from fedhet.data.rows import RowFile, open_rows
from fedhet.errors import UserError, brief

_SAMPLE = 200  # values by which a column is known to hold images


def image_table(data_path: str, reading: Reading) -> Source:
    """Return the images of a table: files in its folder or below, or bytes in its cells."""
    paths = find_files("image-folder", data_path, ROW_SUFFIXES)
    files = _images_below(paths[0].parent)
    stats = file_stats([*paths, *(paths[0].parent / name for name in files)])

    def stream(image: Inputs, classes: tuple[str, ...]) -> Stream:
        file = open_rows(paths, reading.form)
        file.found += [line for line in beside(data_path, paths) if not files]
        return images_of(file, paths[0].parent, reading, image, classes)

    return Source(["image-table", *stats, repr(reading)], stream)


def _images_below(root: Path) -> list[str]:
    return sorted(filter(is_image, files_below(root, "data-path", MAX_DEPTH)))


def _parts(cell: str) -> tuple[str, ...]:
    return PurePosixPath(cell.strip().replace("\\", "/")).parts


class _Names:
    """Image files by how a table may name them: path, name, or either without its ending."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files: dict[tuple[str, ...], set[str]] = {}
        for file in files:
            parts = _parts(file)
            for ending in (parts[-1], PurePosixPath(parts[-1]).stem):
                for start in range(len(parts)):
                    key = (*parts[start:-1], ending)
                    self._files.setdefault(key, set()).add(file)

    def find(self, cell: str) -> str:
        """Return the file that a cell names, empty for none; UserError if it may be several."""
        parts = _parts(cell)
        for start in range(len(parts)):
            files = self._files.get(parts[start:], set())
            if len(files) > 1:
                raise UserError(f"image: '{cell}' may be {listed(sorted(files), 3)}: give its path")
            if files:
                return min(files)
        return ""


def _is_embedded(value: Any) -> bool:
    inner = value.get("bytes", value.get("path")) if isinstance(value, Mapping) else value
    return isinstance(inner, bytes) or isinstance(value, Mapping) and isinstance(inner, str)


def _kinds(file: RowFile, root: Path) -> dict[str, bool]:
    """Return the columns that hold images, by the first rows, and whether as bytes."""
    head = next(file.raw(file.columns), None)
    if head is None:
        return {}
    texts = [name for name in file.columns if head[name].dtype.kind not in "iufb"]
    names = _Names(_images_below(root)) if texts else None
    kinds = {}
    for name in texts:
        values = head[name].dropna().head(_SAMPLE)
        embedded = bool(len(values)) and all(map(_is_embedded, values))
        if embedded or (names and len(values) and _names_images(names, values)):
            kinds[name] = embedded
    return kinds


def _names_images(names: _Names, values: Any) -> bool:
    """Return whether most values name images that are there, or one, and most end as images do."""
    try:
        share = float(np.mean([bool(names.find(str(value))) for value in values]))
    except UserError:  # such a name occurs twice
        return True
    endings = np.mean([is_image(str(value)) for value in values])
    return share > 0.5 or (share > 0 and bool(endings > 0.5))  # noqa: PLR2004


def image_column(file: RowFile, root: Path, reading: Reading) -> str:
    """Return the column of the images, empty for none; Unclear if there are several."""
    if reading.image:
        need(file, [reading.image], "image")
        return reading.image
    kinds = [name for name in _kinds(file, root) if name not in reading.taken]
    if len(kinds) > 1:
        raise Unclear("image", f"several columns name images: {listed(kinds)}", kinds)
    return kinds[0] if kinds else ""


def images_of(
    file: RowFile, root: Path, reading: Reading, image: Inputs, classes: tuple[str, ...]
) -> Stream:
    """Return the images of the rows that have a label, in the order of the rows."""
    column = image_column(file, root, reading)
    if not column:
        raise UserError(f"image: {file.where} has no column of file names or bytes of images")
    reading = replace(reading, image=column)
    if not reading.target:
        description = describe(file, reading)
        description.need_target()
        reading = description.reading
    embedded, names = _kinds(file, root).get(column, False), _images_below(root)
    index, keys = _Names(names), Keys(reading, classes)
    texts = keys.columns(file)
    chosen: list[str] = []
    missing: list[str] = []
    rows, count = [], 0
    for part, frame in file.chunks(texts if embedded else [*texts, column], ()):
        if embedded:
            there = np.ones(len(frame), dtype=bool)
        else:
            files = [index.find(cell) for cell in frame[column]]
            there = np.array([bool(one) for one in files], dtype=bool)
            missing += frame[column][~there].tolist()
        kept = np.flatnonzero(there)[keys.add(part, frame[there])]
        rows.append(kept + count)
        chosen += [str(k + count) if embedded else files[k] for k in kept]
        count += len(frame)
    left = [*texts, column, *reading.ignore, *file.index]
    unused = [name for name in file.columns if name not in left]
    used = {*chosen}
    others = [] if embedded else [name for name in names if name not in used]
    notes = [
        f"images by column '{column}' (image)",
        f"columns that are not read: {listed(unused)}" if unused else "", file.said,
    ]  # fmt: skip
    warnings = [
        f"{len(missing):,} rows name no image that is there: {listed(missing, 5)}"
        if missing
        else "",
        f"{len(others):,} images are in no row that is used: {listed(others, 5)}" if others else "",
    ]
    content = replace(keys.content(image, warnings, notes), paths=tuple(chosen))
    if embedded:
        pictures = _of_cells(file, column, np.concatenate(rows), root, image)
    else:
        pictures = decode_all(root, chosen, image.image_shape, scans=image.scan)
    return (yield from image_stream(content, pictures))


def _of_cells(
    file: RowFile, column: str, rows: Any, root: Path, image: Inputs
) -> Iterator[Decoded]:
    """Yield the images in the cells of those rows."""
    wanted, row = set(rows.tolist()), 0
    for frame in file.raw([column]):
        for value in frame[column]:
            if row in wanted:
                yield _cell(value, root, image)
            row += 1


def _cell(value: Any, root: Path, image: Inputs) -> Decoded:
    """Return one image; decoders raise nearly every exception."""
    try:
        data = value.get("bytes") or (root / value["path"]) if isinstance(value, Mapping) else value
        source = io.BytesIO(data) if isinstance(data, bytes) else data
        with Image.open(source, formats=FORMATS) as picture:
            return decoded(picture, image.image_shape, scans=image.scan)
    except Exception as error:
        return Decoded(None, reason=brief(error))
