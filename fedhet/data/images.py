"""Images: folders and zips of them, decoded on all cores, and what they lose on their way."""

import io
import os
import posixpath
import signal
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fedhet.data.inputs import Indices, Inputs
from fedhet.data.labels import (
    Content,
    Source,
    Stream,
    file_stats,
    listed,
    listed_ids,
    safe_ids,
)
from fedhet.errors import UserError, one_line
from fedhet.files import cpus

Pixels = npt.NDArray[Any]  # uint8 (h, w, c), or float32 (h, w, 1) of scans
Shape = tuple[int, int, int]  # of an image: height, width, channels (3, or 1 for grey)
SQUASHED, SHORTENED, SCAN, TURNED = 1, 2, 4, 8  # what is said of an image
SUFFIXES = frozenset({
    ".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm",
})  # fmt: skip
# Others are not opened, whatever a file is called: Pillow would run Ghostscript for some.
_FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_BYTE_MODES = ("1", "L", "P", "LA", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")
_SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "eval"})
MAX_DEPTH, MAX_FILES = 4, 2_000_000  # of a walk: a wrong path such as / must have an end
_MAX_WORKERS, _PER_WORKER, _PIECE = 16, 500, 64


@dataclass(frozen=True)
class Unread:
    """A file that gave no image; ``reason`` is empty where it simply is none."""

    reason: str = ""

    def name(self, path: str) -> str:
        """Return the path, with the reason where there is one."""
        return f"{path} ({self.reason})" if self.reason else path


@dataclass
class Losses:
    """What is said of each image that was read, in order: flags of ``SQUASHED`` and so on."""

    flags: list[int] = field(default_factory=list)

    def count(self, flag: int) -> int:
        """Return how many images have that flag."""
        return sum(bool(one & flag) for one in self.flags)

    def lines(self, shape: Shape, *, scans: bool = False) -> list[str]:
        """Return lines for the user; none where nothing was lost."""
        found = []
        if count := self.count(SQUASHED):
            size = f"{shape[1]} x {shape[0]}"
            found.append(f"{count} images of other proportions were squashed to {size}")
        if count := self.count(SHORTENED if scans else SHORTENED | SCAN):
            found.append(f"{count} images of more than 8 bits a channel were cut to 8")
        return found


class ScanFound(Exception):
    """An image of more than 8 bits among those that were to be stored as bytes."""


@dataclass
class Listing:
    """The images of one source, in their final order.

    ``images`` yields one array of the shape that ``inputs`` say per path, or :class:`Unread` with
    the reason, and notes in ``losses`` what it lost. ``labels`` (n,) int64 index into ``classes``;
    ``ignored`` names the files that were not tried. With ``keep_empty`` a class without images
    keeps its label: the caller named the classes. ``sites`` (n,) index into ``site_names``, the
    clients that the source itself names; else (0,). ``scans``: the source can be opened again for
    scans, which one image of more than 8 bits makes of all.
    """

    inputs: Inputs
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: Indices
    images: Generator[Pixels | Unread, None, None]
    ignored: tuple[str, ...] = ()
    keep_empty: bool = True
    sites: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    site_names: tuple[str, ...] = ()
    losses: Losses = field(default_factory=Losses)
    scans: bool = False
    notes: tuple[str, ...] = ()
    _kept: list[int] = field(default_factory=list)  # positions of those that could be read

    def stream(self) -> Stream:
        """Return the readable images, and what is known of them."""
        self._bad = list(self.ignored)
        return Stream(self._readable(), self._content)

    def _readable(self) -> Iterator[Pixels]:
        """Yield image after image (1, ...); raise ScanFound, UserError if none can be read."""
        flags = self.losses.flags
        with closing(self.images):
            for index, image in enumerate(self.images):
                if isinstance(image, Unread):
                    self._bad.append(image.name(self.paths[index]))
                    continue
                if self.scans and not self.inputs.scan and flags[-1] & SCAN:
                    raise ScanFound
                self._kept.append(index)
                yield image[None]
        if not self._kept:
            count, names = len(self._bad), listed(self._bad, 5)
            raise UserError(f"data-path: none of {count} files is a readable image ({names})")

    def _content(self, examples: npt.NDArray[Any]) -> Content:
        kept, lost = self._kept, self.losses
        notes = [*self.notes, *(_stretch(examples, lost) if self.inputs.scan else [])]
        if turned := lost.count(TURNED):
            notes.append(f"{turned} photographs were turned upright, as their EXIF says")
        labels, classes = self.labels[kept], self.classes
        gone: list[str] = []
        present = np.bincount(labels, minlength=len(classes)) > 0
        if not self.keep_empty and not present.all():
            gone = [name for name, ok in zip(classes, present, strict=True) if not ok]
            classes = tuple(name for name, ok in zip(classes, present, strict=True) if ok)
            labels = (np.cumsum(present) - 1)[labels].astype(np.int64)
        warnings = lost.lines(self.inputs.image_shape, scans=self.inputs.scan)
        if gone:
            text = f"dropped {len(gone)} classes without a readable image"
            warnings.append(f"{text}: {listed(gone, 5)}")
        if self._bad:
            text = f"ignored {len(self._bad)} files that are not readable images"
            warnings.append(f"{text}: {listed(self._bad, 5)}")
        return Content(
            self.inputs, labels, classes, self.sites[kept] if len(self.sites) else self.sites,
            self.site_names, tuple(warnings), tuple(notes), tuple(self.paths[k] for k in kept),
        )  # fmt: skip


def _stretch(examples: npt.NDArray[Any], lost: Losses) -> list[str]:
    """Stretch images of 8 bits to the range of the scans beside them; return lines that say it."""
    scan = np.array([bool(flag & SCAN) for flag in lost.flags])
    if not scan.any():
        return []
    low, high, levels = np.inf, -np.inf, 0
    for image in (examples[index] for index in np.flatnonzero(scan)):
        low, high = min(low, float(image.min())), max(high, float(image.max()))
        levels = max(levels, len(np.unique(image)))
    notes = [
        f"{int(scan.sum())} images of more than 8 bits, values {low:g} to {high:g}, up to {levels} "
        "levels each: every client scales them by the range of its own (window=LOW,HIGH fixes it)"
    ]
    if not scan.all():
        top = 2.0 ** np.ceil(np.log2(high + 1)) - 1 if high > 1 else high
        for index in np.flatnonzero(~scan):
            examples[index] *= top / 255.0
        notes.append(f"{int((~scan).sum())} images of 8 bits are stretched to 0 to {top:g}")
    return notes


# --- one image ----------------------------------------------------------------


def is_scan(image: Image.Image) -> bool:
    """Return whether it has one channel of more than 8 bits: 16 or 32 bits, signed, or float."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def to_pixels(image: Image.Image, shape: Shape) -> Pixels:
    """Return any image as uint8 of that shape, resized bilinearly without its aspect."""
    high, wide, channels = shape
    if is_scan(image):
        # Pillow's own conversion clips at 255, which turns scans white.
        image = Image.fromarray(
            (np.asarray(image).clip(0, 65535).astype(np.int32) >> 8).astype(np.uint8)
        )
    mode = "RGB" if channels == 3 else "L"
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (wide, high):
        image = image.resize((wide, high), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8).reshape(shape)


def to_scan(image: Image.Image, shape: Shape) -> Pixels:
    """Return any image as float32 (h, w, 1) of its own values; 8 bits become grey, 0 to 255."""
    plain = image if is_scan(image) else image.convert("L")
    values = np.asarray(plain, dtype=np.float32)
    if not np.isfinite(values).all():
        values = np.nan_to_num(values, nan=float(np.nanmin(values[np.isfinite(values)])))
    if values.shape != shape[:2]:
        resized = Image.fromarray(values).resize(shape[1::-1], Image.Resampling.BILINEAR)
        values = np.asarray(resized, dtype=np.float32)
    return values[..., None]


def losses(image: Image.Image, shape: Shape) -> int:
    """Return flags: ``SCAN``, ``SHORTENED``, and ``SQUASHED`` where the proportions are others.

    To be asked before the image is decoded: what Pillow makes of a file of colours has 8 bits.
    """
    off = image.width * shape[0] - image.height * shape[1]
    deep = image.mode not in _BYTE_MODES or ";16" in str(getattr(image, "tile", ""))
    kind = SCAN if is_scan(image) else SHORTENED * deep
    return SQUASHED * (abs(off) >= image.height) | kind


def _decode(read: Callable[[str], bytes], name: str, shape: Shape, *, scans: bool) -> Any:
    """Return one image, and what it lost, or why not: decoders raise nearly every exception."""
    try:
        with Image.open(io.BytesIO(read(name)), formats=_FORMATS) as image:
            found = losses(image, shape)
            upright: Image.Image = image
            if ("exif" in image.info or image.format == "TIFF") and image.getexif().get(
                0x0112, 1
            ) > 1:
                upright = ImageOps.exif_transpose(image)
                found = losses(upright, shape) & SQUASHED | found & ~SQUASHED | TURNED
            return (to_scan if scans else to_pixels)(upright, shape), found
    except Image.DecompressionBombError:
        return Unread("more pixels than Pillow reads")
    except Exception:
        return Unread()


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip for reading; UserError for what is none."""
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"data-path {path}: neither a folder nor a file")
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise UserError(f"data-path {path}: neither a folder nor a readable zip file") from error
    except OSError as error:
        raise UserError(f"data-path {path}: {error.strerror}") from error


# --- many images ----------------------------------------------------------------


def decode_all(
    root: Path,
    names: Sequence[str],
    shape: Shape,
    lost: Losses | None = None,
    *,
    scans: bool = False,
) -> Generator[Pixels | Unread, None, None]:
    """Yield uint8 of that shape (with ``scans`` float32), or why there is none, per name.

    Names are below ``root``, a folder or a zip. ``lost`` notes what is said of those that were
    read. Pillow holds the interpreter's lock for most of a small image: many are decoded by worker
    processes. Raises UserError if one of those dies.
    """
    workers = min(_MAX_WORKERS, cpus(), 1 + len(names) // _PER_WORKER)
    some = partial(_decode_some, root, shape, scans)
    size = _PIECE if workers > 1 or not root.is_dir() else 1
    pieces = [names[start : start + size] for start in range(0, len(names), size)]
    alone = (some(piece) for piece in pieces)
    with closing(_in_workers(some, pieces, workers) if workers > 1 else alone) as found:
        for one in chain.from_iterable(found):
            if isinstance(one, Unread):
                yield one
                continue
            if lost is not None:
                lost.flags.append(one[1])
            yield one[0]


def _decode_some(root: Path, shape: Shape, scans: bool, names: Sequence[str]) -> list[Any]:
    if root.is_dir():
        return [_decode(lambda n: (root / n).read_bytes(), n, shape, scans=scans) for n in names]
    with open_zip(root) as archive:
        return [_decode(archive.read, name, shape, scans=scans) for name in names]


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which reaches the whole process group: the parent ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _in_workers(
    some: Callable[[Sequence[str]], list[Any]], pieces: Sequence[Sequence[str]], workers: int
) -> Generator[list[Any], None, None]:
    """Yield pieces in order; a few are ahead, so that memory stays bounded."""
    from joblib.externals import loky  # only where there are many images

    os.environ["PYTHONSAFEPATH"] = "1"  # for its tracker of resources as well
    pool = loky.ProcessPoolExecutor(max_workers=workers, initializer=_ignore_interrupts)
    ahead: deque[Any] = deque()
    try:
        for piece in pieces:
            ahead.append(pool.submit(some, piece))
            if len(ahead) > 4 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    except loky.process_executor.BrokenProcessPool as error:
        raise UserError(f"data-path: a decoding process ended early ({one_line(error)})") from error
    finally:
        pool.shutdown(wait=True, kill_workers=True)


# --- folders ----------------------------------------------------------------


@dataclass(frozen=True)
class _Tree:
    """Images below the root, as ``<class>/<image>`` or ``<site>/<class>/<image>``, and the rest."""

    images: tuple[str, ...]
    folders: tuple[str, ...]  # of the first level, also the empty ones
    ignored: tuple[str, ...]
    prefix: str = ""  # that all have inside a zip

    @property
    def by_site(self) -> bool:
        """Return whether the first level are sites: images lie one deeper, in the same classes."""
        if not self.images or any(path.count("/") != 2 for path in self.images):
            return False
        held: dict[str, set[str]] = {}
        for path in self.images:
            site, name, _ = path.split("/")
            held.setdefault(site, set()).add(name)
        if len(held) < 2 or {site.lower() for site in held} & _SPLITS:
            return False
        return any(len(a & b) for a in held.values() for b in held.values() if a is not b)

    def class_of(self, path: str) -> str:
        """Return the class of an image."""
        return path.split("/")[self.by_site]

    @property
    def classes(self) -> tuple[str, ...]:
        """Return them sorted; without sites also folders in which there is no image."""
        if self.by_site:
            return tuple(sorted({path.split("/")[1] for path in self.images}))
        return self.folders


def image_folder(data_path: str) -> Source:
    """Return the folder of class folders, or the zip of one, at ``data_path``.

    Raise UserError if it is empty or does not exist.
    """
    if not data_path:
        raise UserError(
            "data-path is empty: dataset image-folder needs the folder (or the zip of it) "
            "that holds <class>/<image>"
        )
    try:
        path = Path(data_path).expanduser().resolve()
    except RuntimeError as error:
        raise UserError(f"data-path {data_path}: its links form a circle") from error
    if not path.exists():
        raise UserError(f"data-path {data_path}: this file or folder does not exist")
    tree, files = _scan(path), [path]
    if path.is_dir():
        files = [path / name for name in tree.images]
    try:
        stats = file_stats(files)
    except OSError as error:
        raise UserError(f"data-path {path}: {error.strerror}: {error.filename}") from error

    def extent() -> tuple[int, int]:
        found = _checked(path, tree)
        return len(found.images), len(found.classes)

    key: list[object] = ["image-folder", str(path), list(tree.folders), list(tree.ignored), stats]
    return Source(key, partial(_folder_stream, path, tree), extent)


def _checked(path: Path, tree: _Tree) -> _Tree:
    """Return the tree with the images of the right level; raise UserError if most are of others."""
    if tree.by_site:
        return tree
    level = [name for name in tree.images if name.count("/") == 1]
    others = [name for name in tree.images if name.count("/") != 1]
    if others and len(others) >= len(level):
        raise UserError(f"data-path {path}: {_other_level(path, others, len(level))}")
    if not level:
        raise UserError(
            f"data-path {path}: no images found; expected <class>/<image>, one folder for "
            "each class, with file names that end in " + " ".join(sorted(SUFFIXES))
        )
    return replace(tree, images=tuple(level), ignored=tuple(sorted([*tree.ignored, *others])))


def _folder_stream(path: Path, found: _Tree, image: Inputs, classes: tuple[str, ...]) -> Stream:
    """Return images by label, then by file name, the same for a folder and its zip.

    Raise UserError for no class folders, or a folder that is not in ``classes``.
    """
    tree = _checked(path, found)
    names = classes or tree.classes
    label_of = {name: label for label, name in enumerate(names)}
    for folder in tree.classes:
        if folder not in label_of:
            raise UserError(
                f"data-path {path}: folder {folder!r} is not one of the classes ({listed(names)})"
            )
    order = sorted(tree.images, key=lambda name: (label_of[tree.class_of(name)], name))
    lost, full = Losses(), [tree.prefix + name for name in order]
    pixels = decode_all(path, full, image.image_shape, lost, scans=image.scan)
    found_here = Listing(
        image, names, tuple(order),
        np.array([label_of[tree.class_of(name)] for name in order], dtype=np.int64), pixels,
        ignored=tree.ignored, keep_empty=bool(classes), losses=lost, scans=True,
    )  # fmt: skip
    if tree.by_site:
        owners = [name.split("/")[0] for name in order]
        sites = sorted(set(owners))
        found_here.sites = np.array([sites.index(owner) for owner in owners], dtype=np.int32)
        found_here.site_names, other = safe_ids(sites), listed_ids(sites)
        found_here.notes = (
            f"{len(sites)} sites by folder: {listed(sites)}; partition=natural makes each a client",
            *other,
        )
    return found_here.stream()


def _other_level(root: Path, others: Sequence[str], here: int) -> str:
    """Return where the images are, and which folder to give."""
    direct = [path for path in others if "/" not in path]
    if len(direct) * 2 >= len(others):
        above = root.parent
        return (
            f"{len(direct)} images lie in the folder itself, so they have no class: give the "
            f"folder above it, data-path={above}, if it has one folder for each class"
        )
    folders = Counter(posixpath.dirname(path) for path in others if path.count("/") > 1)
    above_them: Counter[str] = Counter()
    for folder, count in folders.items():
        above_them[posixpath.dirname(folder)] += count
    best, count = max(above_them.items(), key=lambda one: (one[1], one[0]))
    several = [name for name in above_them if above_them[name] == count]
    best = next((n for n in several if posixpath.basename(n).lower().startswith("train")), best)
    example = next(folder for folder in sorted(folders) if posixpath.dirname(folder) == best)
    deeper = example.count("/")
    level = "one level" if deeper == 1 else f"{deeper} levels"
    rest = f", and {here} images where they should be" if here else ""
    place = root / best if root.is_dir() else f"FOLDER/{best} of the unpacked zip"
    return (
        f"{sum(folders.values())} images lie {level} deeper, as in {example}{rest}: give "
        f"data-path={place}"
    )


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    """Return whether a file is called like an image that can be read."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _scan(root: Path) -> _Tree:
    """Return what is in a folder or a zip, without hidden files."""
    prefix = ""
    if root.is_dir():
        names = _files_below(root)
    else:
        with open_zip(root) as archive:
            names = list(dict.fromkeys(archive.namelist()))
    names = [n for n in names if not any(map(_is_hidden, n.split("/")))]
    if not root.is_dir():
        prefix = _top_folder(names)
    folders: set[str] = set()
    images: list[str] = []
    ignored: list[str] = []
    for name in names:
        inner = name[len(prefix) :] if name.startswith(prefix) else ""
        if "/" in inner:
            folders.add(inner.split("/")[0])
        if not name.endswith("/"):
            (images if is_image(inner) else ignored).append(inner or name)
    return _Tree(tuple(sorted(images)), tuple(sorted(folders)), tuple(sorted(ignored)), prefix)


def _files_below(root: Path) -> list[str]:
    """Return the regular files and, with a slash at their end, the folders below a folder."""
    found: list[str] = []

    def refuse(error: OSError) -> None:
        raise UserError(f"data-path {root}: {error.strerror}: {error.filename}") from error

    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        below = "" if folder == str(root) else f"{os.path.relpath(folder, root)}/"
        found += [f"{below}{name}/" for name in folders]
        found += [f"{below}{n}" for n in files if os.path.isfile(os.path.join(folder, n))]
        if below.count("/") >= MAX_DEPTH or len(found) > MAX_FILES:
            folders.clear()
        folders[:] = [name for name in folders if not _is_hidden(name)]
    return found


def _top_folder(names: Sequence[str]) -> str:
    """Return ``"top/"`` when every image lies in ``top/<class>/``, else nothing."""
    images = [name.split("/") for name in names if is_image(name)]
    tops = {parts[0] for parts in images}
    if len(tops) == 1 and all(len(parts) > 2 for parts in images):
        return f"{tops.pop()}/"
    return ""
