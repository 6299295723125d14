"""Images of folders, zips and tables, decoded on all cores, and what they lose on their way.

A table lists them by file names or as bytes: a CSV beside its photographs, Parquet.
"""
# ruff: noqa: PLC0415  (pandas, for images that a table lists: a second)

from __future__ import annotations

import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fedhet.data import inputs as kinds
from fedhet.data.inputs import Content, Inputs, Reading, Source, Stream, listed
from fedhet.errors import UserError, brief
from fedhet.files import cpus

if TYPE_CHECKING:
    from fedhet.data.rows import RowFile

Pixels = npt.NDArray[Any]  # uint8 (h, w, c), or float32 (h, w, 1) of scans
SQUASHED, SHORTENED, SCAN, TURNED, CLEAR = 1, 2, 4, 8, 16  # what is said of an image
_NOTES = {
    CLEAR: "transparent images were laid on white",
    TURNED: "photographs were turned upright, as their EXIF says",
}
SUFFIXES = frozenset({
    ".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm",
})  # fmt: skip
# Others are not opened, whatever a file is called: Pillow would run Ghostscript for some.
FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_BYTE_MODES = ("1", "L", "P", "LA", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")
_SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "eval"})
MAX_DEPTH = 4  # of a walk: a wrong path such as / must have an end
_MAX_WORKERS, _PIECE = 16, 128
_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_ORIENTATION = 0x0112  # in EXIF


@dataclass(frozen=True)
class Decoded:
    """An image as it is stored, and flags of what is said of it; no pixels: no readable image."""

    pixels: Pixels | None
    flags: int = 0


def losses(flags: Collection[int], inputs: Inputs, bad: Sequence[str], most: int = 5) -> list[str]:
    """Return lines about what images with these flags lost, and about the ``bad`` files."""
    _, high, wide = inputs.shape
    lines = _counted(flags, {
        SQUASHED: f"images of other proportions were squashed to {wide} x {high}",
        SHORTENED | SCAN * (not inputs.scan): "images of more than 8 bits a channel were cut to 8",
    })  # fmt: skip
    no = f"ignored {len(bad)} files that are not readable images: {listed(bad, most)}"
    return [*lines, no] if bad else lines


def _counted(flags: Collection[int], texts: Mapping[int, str]) -> list[str]:
    counts = {text: sum(bool(one & flag) for one in flags) for flag, text in texts.items()}
    return [f"{count} {text}" for text, count in counts.items() if count]


def image_stream(
    about: Content, decode: Callable[[Inputs], Iterator[Decoded]], ignored: Sequence[str] = (), *,
    keep_empty: bool = True,
) -> Stream:  # fmt: skip
    """Return the images that can be read; ``about`` is the content if all can.

    ``decode`` reads them anew at each call. ``ignored`` names files that were not tried. With
    ``keep_empty`` a class without images keeps its label: the caller named the classes. Raise
    UserError if none can be read, or some are scans of more than 8 bits and others not.
    """
    first = next((one for one in decode(about.inputs) if one.pixels is not None), Decoded(None))
    scan, flags, bad = first.flags & SCAN, dict[int, int](), list(ignored)
    inputs, low, high = replace(about.inputs, scan=about.inputs.scan or bool(scan)), np.inf, -np.inf
    for index, image in enumerate(decode(inputs)):
        if image.pixels is None:
            bad.append(about.paths[index])
            continue
        if image.flags & SCAN != scan:
            one = f"'{about.paths[index]}' has {'8 bits' if scan else 'more than 8 bits'}"
            raise UserError(f"data-path: {one}, unlike images before it: save all in one depth")
        if scan:
            low, high = min(low, image.pixels.min()), max(high, image.pixels.max())
        flags[index] = image.flags
        yield image.pixels[None]
    if not (kept := [*flags]):
        raise UserError(f"data-path: of {len(bad)} files none is an image ({listed(bad, 5)})")
    notes = [*about.notes]
    if scan:
        once = "once resized: every client scales them by its own range (window=LOW,HIGH fixes it)"
        notes.append(f"{len(kept)} images of more than 8 bits, values {low:g} to {high:g} {once}")
    warnings, labels = losses(flags.values(), inputs, bad), about.labels[kept]
    there = np.unique(labels) if not keep_empty else np.arange(len(about.classes))
    if gone := [name for label, name in enumerate(about.classes) if label not in there]:
        text = f"dropped {len(gone)} classes without a readable image: {listed(gone, 5)}"
        warnings.insert(0, text)
    by_row = {k: getattr(about, k) for k in ("sites", "groups", "times", "tests")}
    return replace(
        about, inputs=inputs, labels=np.searchsorted(there, labels),
        classes=tuple(about.classes[k] for k in there), paths=tuple(about.paths[k] for k in kept),
        notes=(*notes, *_counted(flags.values(), _NOTES)),
        warnings=(*about.warnings, *warnings),
        **{name: rows[kept] if len(rows) else rows for name, rows in by_row.items()},
    )  # fmt: skip


def is_scan(image: Image.Image) -> bool:
    """Return whether it has one channel of more than 8 bits: 16 or 32 bits, signed, or float."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def to_pixels(image: Image.Image, inputs: Inputs) -> Pixels:
    """Return any image as it is stored: uint8 (h, w, c), resized bilinearly without its aspect.

    Scans: float32 (h, w, 1) of their own values; an image of 8 bits becomes grey, 0 to 255.
    """
    channels, high, wide = inputs.shape
    mode = "F" if inputs.scan else "RGB" if channels == 3 else "L"
    if inputs.scan:
        values = np.asarray(image if is_scan(image) else image.convert("L"), dtype=np.float32)
        finite = np.isfinite(values)
        image = Image.fromarray(np.where(finite, values, values[finite].min()))
    elif is_scan(image):  # Pillow's own conversion clips at 255, which turns scans white
        shortened = np.asarray(image).clip(0, 65535).astype(np.int32) >> 8
        image = Image.fromarray(shortened.astype(np.uint8))
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (wide, high):
        image = image.resize((wide, high), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(high, wide, -1)


def decoded(image: Image.Image, inputs: Inputs) -> Decoded:
    """Return an image that Pillow has opened, turned upright as its EXIF says."""
    # Asked before it is decoded: what Pillow makes of a file of colours has 8 bits.
    deep = image.mode not in _BYTE_MODES or ";16" in str(getattr(image, "tile", ""))
    flags = SCAN if is_scan(image) else SHORTENED * deep
    exif = "exif" in image.info or image.format == "TIFF"
    if exif and image.getexif().get(_ORIENTATION, 1) > 1:
        image, flags = ImageOps.exif_transpose(image), flags | TURNED
    if image.mode in _ALPHA or "transparency" in image.info:
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema()[0] != 255:  # noqa: PLR2004
            white = Image.new("RGBA", rgba.size, "white")
            image, flags = Image.alpha_composite(white, rgba).convert("RGB"), flags | CLEAR
    _, high, wide = inputs.shape
    flags |= SQUASHED * (abs(image.width * high - image.height * wide) >= image.height)
    return Decoded(to_pixels(image, inputs), flags)


def decode(read: Callable[[], bytes], inputs: Inputs) -> Decoded:
    """Return the image in the bytes of a file, if any: decoders raise nearly every exception."""
    try:
        with Image.open(io.BytesIO(read()), formats=FORMATS) as image:
            return decoded(image, inputs)
    except Exception:
        return Decoded(None)


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip for reading; UserError for what is none."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError) as error:
        raise UserError(f"data-path {path}: no folder and no zip file: {brief(error)}") from error


def decode_all(root: Path, names: Sequence[str], inputs: Inputs) -> Iterator[Decoded]:
    """Yield the image of each name as it is stored.

    Names are below ``root``, a folder or a zip. Threads decode, so that it works in every process
    (a daemon may have no children): Pillow decodes and resizes without the interpreter's lock.
    """
    with nullcontext() if root.is_dir() else open_zip(root) as archive:
        read = archive.read if archive else lambda name: (root / name).read_bytes()
        with ThreadPoolExecutor(min(_MAX_WORKERS, cpus())) as pool:
            for start in range(0, len(names), _PIECE):  # memory stays bounded
                reads = [partial(read, name) for name in names[start : start + _PIECE]]
                yield from pool.map(partial(decode, inputs=inputs), reads)


# --- folders ----------------------------------------------------------------


def image_folder(data_path: str, group: Sequence[str] = ()) -> Source:
    """Return the folder of class folders, or the zip of one, at ``data_path``.

    ``group`` is a pattern of the paths such as ``{group}_*.png``. Raise UserError if there is no
    such folder, or if most images are of other levels.
    """
    path, pattern = kinds.existing("image-folder", data_path), ",".join(group)
    paths, folders, ignored, prefix, level = _scan(path)

    def stream(image: Inputs, classes: tuple[str, ...]) -> Stream:
        names = classes or folders
        label_of = {name: label for label, name in enumerate(names)}
        if other := [folder for folder in folders if folder not in label_of]:
            what = f"folder {other[0]!r} is none of them ({path})"
            raise UserError(f"classes: {listed(names)}: {what}")
        pairs = sorted((label_of[name.split("/")[level]], name) for name in paths)
        labels, order = zip(*pairs, strict=True)
        groups, by = (groups_of(order, pattern), pattern) if pattern else _alike(order)
        notes = [f"{groups.max() + 1:,} groups by {pattern}"] if pattern else []
        owners = [name.split("/")[0] for name in order] if level else []
        sites = sorted({*owners})
        if level:
            by_folder = f"{len(sites)} sites by folder (partition=natural): {listed(sites)}"
            notes += [by_folder, *kinds.listed_ids(sites)]
        about = Content(
            image, np.array(labels, dtype=np.int64), names, paths=order, notes=tuple(notes),
            groups=groups, group_by=by, grouped=bool(pattern),
            sites=np.searchsorted(sites, owners).astype(np.int32), site_names=kinds.safe_ids(sites),
        )  # fmt: skip
        inside = [prefix + name for name in order]
        decoding = partial(decode_all, path, inside)
        return image_stream(about, decoding, ignored, keep_empty=bool(classes))

    stats = kinds.file_stats([path / name for name in paths] if path.is_dir() else [path])
    key: list[object] = ["image-folder", str(path), folders, ignored, stats, *group]
    return Source(key, stream, len(paths))


_SIGNS = {
    "{group}": "(?P<group>[^/]+?)",
    "{folder}": "(?P<folder>.*)",
    "{suffix}": r"(?:(?<=\d)(?:[ _-]?[A-Za-z]|[ _-][A-Za-z]*\d+))?",
    "*": "[^/]*",
    "?": "[^/]",
}
_FEWEST, _LARGEST, _SHARE = 5, 50, 0.01  # groups, their mean size, images that share theirs


def groups_of(paths: Sequence[str], pattern: str) -> npt.NDArray[np.int32]:
    """Return equal codes (n,) for paths whose ends have the same ``{group}``; UserError: no match.

    ``*`` is any text and ``?`` any sign within a name; ``{group}`` is as short as it can be.
    ``{suffix}`` is a last letter or number after a digit, such as the ``b`` of ``00043b`` and the
    ``_2`` of ``scan_12_2``, or nothing; ``{folder}``, the folders above, is part of the group.
    """
    if pattern.count("{group}") != 1:
        raise UserError(f"group: '{pattern}' must have one {{group}}, such as {{group}}_*.png")
    parts = re.split(r"(\{group\}|\{folder\}|\{suffix\}|\*|\?)", pattern)
    ends = re.compile("(^|.*/)" + "".join(_SIGNS.get(one) or re.escape(one) for one in parts))
    matches = [ends.fullmatch(path) for path in paths]
    if other := [path for path, match in zip(paths, matches, strict=True) if not match]:
        raise UserError(f"group: '{pattern}' misses {len(other)} images: {listed(other, 3)}")
    names = ["/".join(match.groupdict().values()) for match in matches if match]
    return np.unique(names, return_inverse=True)[1].astype(np.int32)


def _alike(paths: Sequence[str]) -> tuple[npt.NDArray[np.int32], str]:
    """Return codes of images whose names differ in their suffix alone, and the pattern; or none."""
    files = [PurePosixPath(path) for path in paths]
    endings, names = {file.suffix for file in files}, [file.stem for file in files]
    # Where a name occurs twice, every folder counts from one.
    forms = ["{group}{suffix}"]
    if all(re.match(r"[A-Za-z]+-?\d+_", name) for name in names):  # sub-01_ses-2_T1w
        forms.append("{group}_*")
    for form in forms if len(endings) == 1 or not any("." in name for name in names) else ():
        pattern = "{folder}/" * (len({*names}) < len(names)) + form
        pattern += min(endings) if len(endings) == 1 else ".*"
        groups = groups_of(paths, pattern)
        sizes = np.bincount(groups)
        few = len(sizes) < _FEWEST or sizes.mean() > _LARGEST
        if not few and sizes[sizes > 1].sum() >= _SHARE * len(paths):
            return groups, pattern
    return np.zeros(0, np.int32), ""


def _other_level(root: Path, others: Sequence[str], here: int) -> str:
    """Return where the images are, and which folder to give."""
    direct = sum("/" not in path for path in others)
    if direct * 2 >= len(others):
        above = f"give the folder above it, data-path={root.parent}, if it has one for each class"
        return f"{direct} images lie in the folder itself, so they have no class: {above}"
    deep = [PurePosixPath(path).parent for path in others if path.count("/") > 1]
    counts = Counter(folder.parent for folder in deep)
    best = max(counts, key=lambda f: (counts[f], f.name.lower().startswith("train"), str(f)))
    example = min(folder for folder in deep if folder.parent == best)
    rest = f", and {here} images where they should be" * (here > 0)
    place = str(root / best) if root.is_dir() else f"FOLDER/{best} of the unpacked zip"
    levels = "one level" if len(example.parts) == 2 else f"{len(example.parts) - 1} levels"  # noqa: PLR2004
    if len(counts) > 1 and _SPLITS.isdisjoint(folder.name.lower() for folder in counts):
        place += f"; if {listed(sorted(map(str, counts)), 3)} are the classes, put images into them"
    return f"{len(deep)} images lie {levels} deeper, as in {example}{rest}: give data-path={place}"


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    """Return whether a file is called like an image that can be read."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _scan(root: Path) -> tuple[list[str], tuple[str, ...], list[str], str, int]:
    """Return images ``[<site>/]<class>/<image>``, classes, others, a prefix, the class's level."""
    prefix = ""  # of all names in a zip
    if root.is_dir():
        names = list(files_below(root, "data-path", MAX_DEPTH))
    else:
        with open_zip(root) as archive:
            files = dict.fromkeys(one for one in archive.namelist() if one[-1:] not in ("", "/"))
        names = [name for name in files if not any(map(_is_hidden, name.split("/")))]
        parts = [name.split("/") for name in names if is_image(name)]
        if len({one[0] for one in parts}) == 1 and all(len(one) > 2 for one in parts):  # noqa: PLR2004
            prefix = f"{parts[0][0]}/"  # of a zip of one folder
    inner = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    images = sorted({*filter(is_image, inner)})
    level = int(_are_by_site(images))
    others = [] if level else [name for name in images if name.count("/") != 1]
    ignored = [name.removeprefix(prefix) for name in names if not is_image(name)] + others
    images = sorted({*images}.difference(others))
    if others and len(others) >= len(images):
        raise UserError(f"data-path {root}: {_other_level(root, others, len(images))}")
    if not images:
        from fedhet.data.formats import refuse_other  # pandas: a second, here and below

        for name in names if root.is_dir() else ():
            refuse_other(root / name)
        raise UserError(f"data-path {root}: no <class>/<image> ({' '.join(sorted(SUFFIXES))})")
    classes = sorted({name.split("/")[level] for name in images})
    return images, tuple(classes), sorted(ignored), prefix, level


def _are_by_site(images: Sequence[str]) -> bool:
    """Return whether the first level are sites: images lie one deeper, in the same classes."""
    pairs = {tuple(path.split("/")[:2]) for path in images}
    sites = {site for site, *_ in pairs}
    if {path.count("/") for path in images} != {2} or {site.lower() for site in sites} & _SPLITS:
        return False
    return len(sites) > 1 and len({name for _, name in pairs}) < len(pairs)


def files_below(root: Path, key: str, depth: int | None = None) -> Iterator[str]:
    """Yield the regular files below a folder, relative to it, without hidden ones.

    ``depth`` bounds the walk, which then follows links. Raise UserError, which names ``key``, for
    a folder that cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"{key} {root}: {error.strerror}: {error.filename}") from error

    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=depth is not None):
        below = "" if folder == str(root) else f"{os.path.relpath(folder, root)}/"
        seen = [name for name in files if not _is_hidden(name)]
        yield from (f"{below}{n}" for n in seen if os.path.isfile(os.path.join(folder, n)))
        deeper = depth is None or below.count("/") < depth
        folders[:] = [name for name in folders if deeper and not _is_hidden(name)]


# --- images that a table lists ----------------------------------------------------------------

_LISTED = 200  # values by which a column is known to hold images


def images_below(root: Path) -> list[str]:
    """Return the images in a folder and below it, relative to it, sorted."""
    return sorted(filter(is_image, files_below(root, "data-path", MAX_DEPTH)))


_Ends = dict[tuple[str, ...], set[str]]  # image files by the ends of their paths


def _find(ends: _Ends, cell: str) -> list[str]:
    """Return the files that a cell may name, by the longest end of its path that does."""
    parts = PurePosixPath(cell.strip().replace("\\", "/")).parts
    return sorted(next(filter(None, (ends.get(parts[k:]) for k in range(len(parts)))), ()))


def _is_embedded(value: Any) -> bool:
    inner = value.get("bytes", value.get("path")) if isinstance(value, Mapping) else value
    return isinstance(inner, bytes) or isinstance(value, Mapping) and isinstance(inner, str)


def image_column(file: RowFile, root: Path, reading: Reading) -> tuple[str, bool, _Ends]:
    """Return the column of the images, whether it holds their bytes, and the files it may name.

    The column is empty if there is none. Raise Unclear if there are several.
    """
    from fedhet.data.describe import need
    from fedhet.data.rows import Unclear

    need(file, filter(None, [reading.image]), "image")
    if (frame := next(file.raw(file.columns), None)) is None:  # no rows
        return "", False, {}
    head = frame.head(_LISTED)
    values = {n: head[n].dropna() for n in file.columns if head[n].dtype.kind not in "iufb"}
    embedded = [n for n, cells in values.items() if len(cells) and all(map(_is_embedded, cells))]
    ends: _Ends = {}
    for name in images_below(root) if len(embedded) < len(values) else ():
        for path in (PurePosixPath(name), PurePosixPath(name).with_suffix("")):  # 7.png is 7, too
            for start in range(len(path.parts)):
                ends.setdefault(path.parts[start:], set()).add(name)

    def names_files(column: str) -> bool:
        cells = [*map(str, values[column])]
        matches, most = sum(bool(_find(ends, cell)) for cell in cells), len(cells) / 2
        return matches > most or (matches > 0 and sum(map(is_image, cells)) > most)

    free = [name for name in values if name not in reading.taken]
    columns = [name for name in free if name in embedded or names_files(name)]
    if len(columns) > 1 and not reading.image:
        raise Unclear("image", f"several columns name images: {listed(columns)}", columns)
    column = reading.image or "".join(columns)
    return column, column in embedded, ends


def images_of(
    file: RowFile, root: Path, reading: Reading, image: Inputs, classes: tuple[str, ...]
) -> Stream:
    """Return the images of the rows that have a label, in the order of the rows."""
    from fedhet.data.describe import described
    from fedhet.data.table import Keys

    column, embedded, ends = image_column(file, root, reading)
    if not column:
        raise UserError(f"image: {file.where} has no column of file names or bytes of images")
    reading, _ = described(file, reading.changed(image=column), "image")
    keys = Keys(reading, classes)
    texts = keys.columns(file)
    chosen, missing, count = list[str](), list[str](), 0
    for part, frame in file.chunks(texts if embedded else [*texts, column], ()):
        files = np.arange(count, count + len(frame)).astype(str)
        if not embedded:
            named = [_find(ends, cell) for cell in frame[column]]
            for cell, several in zip(frame[column], named, strict=True):
                if len(several) > 1:
                    raise UserError(f"image: '{cell}' may be {listed(several, 3)}: give its path")
            files = np.array(["".join(one) for one in named], dtype=object)
            missing += frame[column][files == ""].tolist()
        there = files != ""
        chosen += files[there][keys.add(part, frame[there])].tolist()
        count += len(frame)
    left = {*texts, column, *reading.ignore, *file.index}
    unused = listed([name for name in file.columns if name not in left])
    others = [] if embedded else sorted(set().union(*ends.values()).difference(chosen))
    warnings = [f"{len(names):,} {what}: {listed(names, 5)}" for names, what in (
        (missing, "rows name no image that is there"),
        (others, "images are in no row that is used"),
    ) if names]  # fmt: skip
    notes = [f"images by column '{column}' (image)", unused and f"columns not read: {unused}"]
    content = keys.content(image, warnings, [*notes, "; ".join(file.found)])
    cells = partial(_of_cells, file, column, {*map(int, chosen if embedded else ())}, root)
    read = cells if embedded else partial(decode_all, root, chosen)
    return (yield from image_stream(replace(content, paths=tuple(chosen)), read))


def _of_cells(
    file: RowFile, column: str, wanted: set[int], root: Path, image: Inputs
) -> Iterator[Decoded]:
    def read(cell: Any) -> bytes:
        if isinstance(cell, Mapping):
            cell = cell.get("bytes") or (root / cell["path"]).read_bytes()
        return bytes(cell)

    cells = (value for frame in file.raw([column]) for value in frame[column])
    return (decode(partial(read, cell), image) for k, cell in enumerate(cells) if k in wanted)
