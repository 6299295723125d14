"""Images: folders and zips of them, decoded on all cores, and what they lose on their way."""

import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fedhet.data.inputs import (
    Content,
    Inputs,
    Source,
    Stream,
    existing,
    file_stats,
    listed,
    listed_ids,
    safe_ids,
)
from fedhet.errors import UserError, brief
from fedhet.files import cpus

Pixels = npt.NDArray[Any]  # uint8 (h, w, c), or float32 (h, w, 1) of scans
Shape = tuple[int, int, int]  # of an image: height, width, channels (3, or 1 for grey)
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
_MAX_WORKERS, _PIECE = 16, 512
_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_ORIENTATION = 0x0112  # in EXIF


@dataclass(frozen=True)
class Decoded:
    """An image as it is stored, and flags of what is said of it; no pixels: no readable image."""

    pixels: Pixels | None
    flags: int = 0


class ScanFound(Exception):
    """An image of more than 8 bits among those that were to be stored as bytes."""


def losses(flags: Sequence[int], inputs: Inputs, bad: Sequence[str], most: int = 5) -> list[str]:
    """Return lines about what images with these flags lost, and about files that are no images.

    ``most`` of the ``bad`` files are named.
    """
    high, wide, _ = inputs.image_shape
    lost = {
        SQUASHED: f"images of other proportions were squashed to {wide} x {high}",
        SHORTENED | SCAN * (not inputs.scan): "images of more than 8 bits a channel were cut to 8",
    }
    lines = _counted(flags, lost)
    if bad:
        lines.append(f"ignored {len(bad)} files that are not readable images: {listed(bad, most)}")
    return lines


def _counted(flags: Sequence[int], texts: Mapping[int, str]) -> list[str]:
    counts = {text: sum(bool(one & flag) for one in flags) for flag, text in texts.items()}
    return [f"{count} {text}" for text, count in counts.items() if count]


def image_stream(
    about: Content, images: Iterator[Decoded], *, ignored: Sequence[str] = (),
    keep_empty: bool = True,
) -> Stream:  # fmt: skip
    """Return the images that can be read; ``about`` is the content if all can.

    ``ignored`` names files that were not tried. With ``keep_empty`` a class without images keeps
    its label: the caller named the classes. Raise UserError if none can be read, and ScanFound
    where the source must be read again, for scans.
    """
    inputs, kept, flags, bad = about.inputs, [], [], list(ignored)
    low, high = np.inf, -np.inf
    for index, image in enumerate(images):
        if image.pixels is None:
            bad.append(about.paths[index])
            continue
        if image.flags & SCAN:
            if not inputs.scan:
                raise ScanFound
            low = min(low, float(image.pixels.min()))
            high = max(high, float(image.pixels.max()))
        kept.append(index)
        flags.append(image.flags)
        yield image.pixels[None]
    if not kept:
        names = listed(bad, 5)
        raise UserError(f"data-path: none of {len(bad)} files is a readable image ({names})")
    notes, warnings = list(about.notes), losses(flags, inputs, bad)
    scan, factors = (np.array(flags) & SCAN) > 0, about.factors
    if scan.any():
        notes.append(
            f"{scan.sum()} images of more than 8 bits, values {low:g} to {high:g} once resized: "
            "every client scales them by the range of its own (window=LOW,HIGH fixes it)"
        )
        if not scan.all():
            top = 2.0 ** np.ceil(np.log2(high + 1)) - 1 if high > 1 else high
            factors = np.where(scan, 1.0, top / 255.0)
            notes.append(f"{(~scan).sum()} images of 8 bits are stretched to 0 to {top:g}")
    labels, classes = about.labels[kept], about.classes
    there = np.unique(labels)
    if not keep_empty and len(there) < len(classes):
        gone = [name for label, name in enumerate(classes) if label not in there]
        line = f"dropped {len(gone)} classes without a readable image: {listed(gone, 5)}"
        warnings.insert(0, line)
        classes, labels = tuple(classes[k] for k in there), np.searchsorted(there, labels)
    by_row = {name: getattr(about, name) for name in ("sites", "groups", "times", "tests")}
    return replace(
        about, labels=labels, classes=classes, paths=tuple(about.paths[k] for k in kept),
        factors=factors, warnings=(*about.warnings, *warnings),
        notes=(*notes, *_counted(flags, _NOTES)),
        **{name: rows[kept] if len(rows) else rows for name, rows in by_row.items()},
    )  # fmt: skip


# --- one image ----------------------------------------------------------------


def is_scan(image: Image.Image) -> bool:
    """Return whether it has one channel of more than 8 bits: 16 or 32 bits, signed, or float."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def to_pixels(image: Image.Image, shape: Shape, *, scans: bool = False) -> Pixels:
    """Return any image as uint8 of that shape, resized bilinearly without its aspect.

    ``scans``: float32 (h, w, 1) of its own values; an image of 8 bits becomes grey, 0 to 255.
    """
    high, wide, channels = shape
    mode = "F" if scans else "RGB" if channels == 3 else "L"
    if scans:
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


def decoded(image: Image.Image, shape: Shape, *, scans: bool = False) -> Decoded:
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
    off = image.width * shape[0] - image.height * shape[1]
    flags |= SQUASHED * (abs(off) >= image.height)
    return Decoded(to_pixels(image, shape, scans=scans), flags)


def decode(read: Callable[[], bytes], shape: Shape, *, scans: bool) -> Decoded:
    """Return the image in the bytes of a file, if any: decoders raise nearly every exception."""
    try:
        with Image.open(io.BytesIO(read()), formats=FORMATS) as image:
            return decoded(image, shape, scans=scans)
    except Exception:
        return Decoded(None)


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip for reading; UserError for what is none."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError) as error:
        raise UserError(
            f"data-path {path}: neither a folder nor a readable zip file ({brief(error)})"
        ) from error


# --- many images ----------------------------------------------------------------


def decode_all(
    root: Path, names: Sequence[str], shape: Shape, *, scans: bool = False
) -> Iterator[Decoded]:
    """Yield the image of each name, uint8 of that shape (with ``scans`` float32).

    Names are below ``root``, a folder or a zip. Threads decode, so that it works in every process
    (a daemon may have no children): Pillow decodes and resizes without the interpreter's lock.
    """
    with nullcontext() if root.is_dir() else open_zip(root) as archive:
        read = archive.read if archive else lambda name: (root / name).read_bytes()
        with ThreadPoolExecutor(min(_MAX_WORKERS, cpus())) as pool:
            for start in range(0, len(names), _PIECE):  # memory stays bounded
                reads = [partial(read, name) for name in names[start : start + _PIECE]]
                yield from pool.map(partial(decode, shape=shape, scans=scans), reads)


# --- folders ----------------------------------------------------------------


@dataclass(frozen=True)
class _Tree:
    """Images below the root, as ``<class>/<image>`` or ``<site>/<class>/<image>``, and the rest."""

    images: tuple[str, ...]
    classes: tuple[str, ...]  # also those without images
    ignored: tuple[str, ...]
    prefix: str  # that all have inside a zip
    level: int  # of the class in a path: 1 below folders of sites


def image_folder(data_path: str, group: Sequence[str] = ()) -> Source:
    """Return the folder of class folders, or the zip of one, at ``data_path``.

    ``group`` is a pattern of the paths such as ``{group}_*.png``. Raise UserError if there is no
    such folder, if most images are of other levels, or for a path that does not match.
    """
    path = existing("image-folder", data_path)
    tree = _scan(path)
    stats = file_stats([path / name for name in tree.images] if path.is_dir() else [path])
    key: list[object] = ["image-folder", str(path), tree.classes, tree.ignored, stats, *group]
    return Source(key, partial(_folder_stream, path, tree, ",".join(group)), len(tree.images))


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
        raise UserError(
            f"group: '{pattern}' is not allowed: of images it is a pattern of the path with one "
            "{group}, such as {group}_*.png or {group}/*"
        )
    parts = re.split(r"(\{group\}|\{folder\}|\{suffix\}|\*|\?)", pattern)
    ends = re.compile("(^|.*/)" + "".join(_SIGNS.get(one) or re.escape(one) for one in parts))
    matches = [ends.fullmatch(path) for path in paths]
    if other := [path for path, match in zip(paths, matches, strict=True) if not match]:
        raise UserError(
            f"group: '{pattern}' does not match {len(other)} of {len(paths)} images: "
            f"{listed(other, 3)}"
        )
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


def _folder_stream(
    path: Path, tree: _Tree, group: str, image: Inputs, classes: tuple[str, ...]
) -> Stream:
    """Return images by label, then by file name, the same for a folder and its zip."""
    names = classes or tree.classes
    label_of = {name: label for label, name in enumerate(names)}
    if other := [folder for folder in tree.classes if folder not in label_of]:
        raise UserError(
            f"data-path {path}: folder {other[0]!r} is not one of the classes ({listed(names)})"
        )
    pairs = sorted((label_of[name.split("/")[tree.level]], name) for name in tree.images)
    labels, order = zip(*pairs, strict=True)
    notes: list[str] = []
    groups, pattern = (groups_of(order, group), group) if group else _alike(order)
    about = Content(
        image, np.array(labels, dtype=np.int64), names, paths=order, groups=groups,
        group_by=pattern, grouped=bool(group),
    )  # fmt: skip
    if tree.level:
        found, owners = np.unique([name.split("/")[0] for name in order], return_inverse=True)
        sites = found.tolist()
        about = replace(about, sites=owners.astype(np.int32), site_names=safe_ids(sites))
        line = (
            f"{len(sites)} sites by folder: {listed(sites)}; partition=natural makes each a client"
        )
        notes += [line, *listed_ids(sites)]
    if group:
        notes.append(f"{groups.max(initial=-1) + 1:,} groups by {group}")
    images = decode_all(
        path, [tree.prefix + name for name in order], image.image_shape, scans=image.scan
    )
    about = replace(about, notes=tuple(notes))
    return image_stream(about, images, ignored=tree.ignored, keep_empty=bool(classes))


def _other_level(root: Path, others: Sequence[str], here: int) -> str:
    """Return where the images are, and which folder to give."""
    direct = [path for path in others if "/" not in path]
    if len(direct) * 2 >= len(others):
        return (
            f"{len(direct)} images lie in the folder itself, so they have no class: give the "
            f"folder above it, data-path={root.parent}, if it has one folder for each class"
        )
    deep = [PurePosixPath(path).parent for path in others if path.count("/") > 1]
    above = Counter(folder.parent for folder in deep)
    best = max(above, key=lambda f: (above[f], f.name.lower().startswith("train"), str(f)))
    example = min(folder for folder in deep if folder.parent == best)
    deeper = len(example.parts) - 1
    rest = f", and {here} images where they should be" * (here > 0)
    place = root / best if root.is_dir() else f"FOLDER/{best} of the unpacked zip"
    levels = "one level" if deeper == 1 else f"{deeper} levels"
    or_ = ""
    if len(above) > 1 and _SPLITS.isdisjoint(folder.name.lower() for folder in above):
        names = listed(sorted(map(str, above)), 3)
        or_ = f"; if {names} are the classes, put the images of each into it without folders"
    where = f"{levels} deeper, as in {example}{rest}"
    return f"{len(deep)} images lie {where}: give data-path={place}{or_}"


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    """Return whether a file is called like an image that can be read."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _scan(root: Path) -> _Tree:
    """Return what is in a folder or a zip, without hidden files; UserError for other levels."""
    prefix = ""
    if root.is_dir():
        names = list(files_below(root, "data-path", MAX_DEPTH))
    else:
        with open_zip(root) as archive:
            entries = dict.fromkeys(
                name for name in archive.namelist() if name[-1:] not in ("", "/")
            )
        names = [name for name in entries if not any(map(_is_hidden, name.split("/")))]
        parts = [name.split("/") for name in names if is_image(name)]
        if len({one[0] for one in parts}) == 1 and all(len(one) > 2 for one in parts):  # noqa: PLR2004
            prefix = f"{parts[0][0]}/"  # of a zip of one folder
    inner = sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))
    images = list(filter(is_image, inner))
    ignored = [name.removeprefix(prefix) for name in names if not is_image(name)]
    level = int(_are_by_site(images))
    classes = {name.split("/")[level] for name in (images if level else inner) if "/" in name}
    others = [] if level else [name for name in images if name.count("/") != 1]
    images = sorted({*images}.difference(others))
    if others and len(others) >= len(images):
        raise UserError(f"data-path {root}: {_other_level(root, others, len(images))}")
    if not images:
        from fedhet.data.formats import refuse_other  # noqa: PLC0415  (pandas: a second)

        for name in names if root.is_dir() else ():
            refuse_other(root / name)
        raise UserError(
            f"data-path {root}: no images found; expected <class>/<image>, one folder for each "
            "class, with file names that end in " + " ".join(sorted(SUFFIXES))
        )
    ignored = sorted(ignored + others)
    return _Tree(tuple(images), tuple(sorted(classes)), tuple(ignored), prefix, level)


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
