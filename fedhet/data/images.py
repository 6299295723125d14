"""Images: folders and zips of them, decoded on all cores, and what they lose on their way."""

import io
import os
import posixpath
import signal
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fedhet.errors import UserError, nearest, one_line
from fedhet.files import cpus

if TYPE_CHECKING:
    from fedhet.data.labels import Stream

Pixels = npt.NDArray[Any]  # uint8 (h, w, c), or float32 (h, w, 1) of scans
Indices = npt.NDArray[np.int64]
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
        """The path, with the reason where there is one."""
        return f"{path} ({self.reason})" if self.reason else path


@dataclass
class Losses:
    """What is said of each image that was read, in order: flags of ``SQUASHED`` and so on."""

    flags: list[int] = field(default_factory=list)

    def count(self, flag: int) -> int:
        """How many images have that flag."""
        return sum(bool(one & flag) for one in self.flags)

    def lines(self, shape: Shape, *, scans: bool = False) -> list[str]:
        """For the user; none where nothing was lost."""
        found = []
        if count := self.count(SQUASHED):
            size = f"{shape[1]} x {shape[0]}"
            found.append(f"{count} images of other proportions were squashed to {size}")
        if count := self.count(SHORTENED if scans else SHORTENED | SCAN):
            found.append(f"{count} images of more than 8 bits a channel were cut to 8")
        return found


@dataclass(frozen=True)
class Listing:
    """The images of one source, in their final order.

    ``images`` yields one uint8 array of the asked shape per path, or :class:`Unread` with the
    reason, and notes in ``losses`` what it lost. ``scans`` gives them anew as float32 (h, w, 1), as
    scans of more than 8 bits are stored. ``labels`` (n,) int64 index into ``classes``; ``ignored``
    names the files that were not tried. With ``keep_empty`` a class without images keeps its label:
    the caller named the classes. ``sites`` (n,) index into ``site_names``, the clients that the
    source itself names; else (0,).
    """

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: Indices
    images: Generator[Pixels | Unread, None, None]
    ignored: tuple[str, ...] = ()
    keep_empty: bool = True
    sites: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    site_names: tuple[str, ...] = ()
    losses: Losses = field(default_factory=Losses)
    scans: Callable[[], Generator[Pixels | Unread, None, None]] | None = None
    notes: tuple[str, ...] = ()


class DataSource(Protocol):
    """Where examples come from."""

    def fingerprint(self) -> list[object]:
        """JSON-able values that change whenever the examples would; cheap, none is read."""

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> "Listing | Stream":
        """All examples, images of that ``shape``.

        ``classes`` empty means the source's own. Raises UserError if the source cannot be opened,
        or does not fit ``classes``.
        """


def select(
    source: str, own: Sequence[str], labels: Indices, wanted: tuple[str, ...]
) -> tuple[Indices, Indices]:
    """Find the examples whose class is wanted: indices (m,) and new labels (m,).

    Raises UserError for a wanted class that the source does not have.
    """
    new_label = np.full(len(own), -1, dtype=np.int64)
    for label, name in enumerate(wanted or own):
        if name not in own:
            raise UserError(f"classes: dataset {source} has no class {name!r}{nearest(name, own)}")
        new_label[list(own).index(name)] = label
    kept = np.flatnonzero(new_label[labels] >= 0)
    return kept, new_label[labels[kept]]


# --- one image ----------------------------------------------------------------


def is_scan(image: Image.Image) -> bool:
    """Whether it has one channel of more than 8 bits: 16 or 32 bits, signed, or float."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def to_pixels(image: Image.Image, shape: Shape) -> Pixels:
    """Any image as uint8 of that shape, resized bilinearly without keeping the aspect."""
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
    """Any image as float32 (h, w, 1) of its own values; an 8-bit one becomes grey, 0 to 255."""
    plain = image if is_scan(image) else image.convert("L")
    values = np.asarray(plain, dtype=np.float32)
    if not np.isfinite(values).all():
        values = np.nan_to_num(values, nan=float(np.nanmin(values[np.isfinite(values)])))
    if values.shape != shape[:2]:
        resized = Image.fromarray(values).resize(shape[1::-1], Image.Resampling.BILINEAR)
        values = np.asarray(resized, dtype=np.float32)
    return values[..., None]


def losses(image: Image.Image, shape: Shape) -> int:
    """``SCAN``, ``SHORTENED``, and ``SQUASHED`` where the proportions are others.

    To be asked before the image is decoded: what Pillow makes of a file of colours has 8 bits.
    """
    off = image.width * shape[0] - image.height * shape[1]
    deep = image.mode not in _BYTE_MODES or ";16" in str(getattr(image, "tile", ""))
    kind = SCAN if is_scan(image) else SHORTENED * deep
    return SQUASHED * (abs(off) >= image.height) | kind


def _decode(read: Callable[[str], bytes], name: str, shape: Shape, *, scans: bool) -> Any:
    """One image, and what it lost, or why not: decoders raise nearly every exception."""
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
    found = _in_workers(some, names, workers) if workers > 1 else iter([some(names)])
    if workers <= 1:
        found = (some([name]) for name in names) if root.is_dir() else _pieces(some, names)
    with closing(found):  # type: ignore[type-var]
        for piece in found:
            for one in piece:
                if isinstance(one, Unread):
                    yield one
                    continue
                if lost is not None:
                    lost.flags.append(one[1])
                yield one[0]


def _pieces(
    some: Callable[[Sequence[str]], list[Any]], names: Sequence[str]
) -> Iterator[list[Any]]:
    for start in range(0, len(names), _PIECE):
        yield some(names[start : start + _PIECE])


def _decode_some(root: Path, shape: Shape, scans: bool, names: Sequence[str]) -> list[Any]:  # noqa: FBT001
    with ExitStack() as stack:
        read: Callable[[str], bytes] = lambda name: (root / name).read_bytes()  # noqa: E731
        if not root.is_dir():
            archive = stack.enter_context(open_zip(root))
            read = archive.read
        return [_decode(read, name, shape, scans=scans) for name in names]


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole process group; the parent ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _in_workers(
    some: Callable[[Sequence[str]], list[Any]], names: Sequence[str], workers: int
) -> Iterator[list[Any]]:
    """Pieces in order; a few are ahead, so that memory stays bounded."""
    from joblib.externals import loky  # noqa: PLC0415  (only where there are many images)

    os.environ["PYTHONSAFEPATH"] = "1"  # for its tracker of resources as well
    pool = loky.ProcessPoolExecutor(max_workers=workers, initializer=_ignore_interrupts)
    ahead: deque[Any] = deque()
    try:
        for start in range(0, len(names), _PIECE):
            ahead.append(pool.submit(some, names[start : start + _PIECE]))
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
        """Whether the first level are sites: every image lies one deeper, in the same classes."""
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
        """The class of an image."""
        return path.split("/")[self.by_site]

    @property
    def classes(self) -> tuple[str, ...]:
        """Sorted; without sites also folders in which there is no image."""
        if self.by_site:
            return tuple(sorted({path.split("/")[1] for path in self.images}))
        return self.folders


@dataclass(frozen=True)
class ImageFolder:
    """A folder of class folders, or a zip of one; ``path`` is absolute and exists."""

    path: Path

    def fingerprint(self) -> list[object]:
        """Return the zip's size and time, or those of every file of the folder."""
        if not self.path.is_dir():
            stat = self.path.stat()
            return ["image-folder", str(self.path), stat.st_size, stat.st_mtime_ns]
        tree = _scan(self.path)
        files: list[object] = []
        try:
            for name in tree.images:
                stat = (self.path / name).stat()
                files.append([name, stat.st_size, stat.st_mtime_ns])
        except OSError as error:
            raise UserError(f"data-path {self.path}: {error.strerror}: {name}") from error
        return ["image-folder", str(self.path), list(tree.folders), list(tree.ignored), files]

    def extent(self) -> tuple[int, int]:
        """Return the numbers of images and of classes by their names; no image is opened."""
        tree = self._checked()
        return len(tree.images), len(tree.classes)

    def _checked(self) -> _Tree:
        """The tree with the images of the right level; UserError if most are of another."""
        tree = _scan(self.path)
        if tree.by_site:
            return tree
        level = [path for path in tree.images if path.count("/") == 1]
        others = [path for path in tree.images if path.count("/") != 1]
        if others and len(others) >= len(level):
            raise UserError(f"data-path {self.path}: {_other_level(self.path, others, len(level))}")
        if not level:
            raise UserError(
                f"data-path {self.path}: no images found; expected <class>/<image>, one folder for "
                "each class, with file names that end in " + " ".join(sorted(SUFFIXES))
            )
        ignored = tuple(sorted([*tree.ignored, *others]))
        return _Tree(tuple(level), tree.folders, ignored, tree.prefix)

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Listing:
        """Images ordered by label, then by file name, the same for a folder and its zip.

        Raises UserError for no zip, no class folders, or a folder that is not in ``classes``.
        """
        tree = self._checked()
        names = classes or tree.classes
        label_of = {name: label for label, name in enumerate(names)}
        for folder in tree.classes:
            if folder not in label_of:
                raise UserError(
                    f"data-path {self.path}: folder {folder!r} is not one of the classes "
                    f"({_shorten(names)})"
                )
        order = sorted(tree.images, key=lambda path: (label_of[tree.class_of(path)], path))
        sites, site_names, notes = _sites(tree, order)
        lost, full = Losses(), [tree.prefix + path for path in order]
        return Listing(
            classes=names,
            paths=tuple(order),
            labels=np.array([label_of[tree.class_of(path)] for path in order], dtype=np.int64),
            images=decode_all(self.path, full, shape, lost),
            losses=lost,
            ignored=tree.ignored,
            keep_empty=bool(classes),
            scans=lambda: decode_all(self.path, full, shape, lost, scans=True),
            sites=sites,
            site_names=site_names,
            notes=notes,
        )


def _sites(
    tree: _Tree, order: Sequence[str]
) -> tuple[npt.NDArray[np.int32], tuple[str, ...], tuple[str, ...]]:
    if not tree.by_site:
        return np.zeros(0, dtype=np.int32), (), ()
    from fedhet.data.labels import safe_ids  # noqa: PLC0415  (it imports this module)

    owners = [path.split("/")[0] for path in order]
    names = sorted(set(owners))
    ids = safe_ids(names)
    others = [f"'{n}' is {one}" for n, one in zip(names, ids, strict=True) if n != one]
    note = f"{len(names)} sites by folder: {_shorten(names)}; partition=natural makes each a client"
    codes = np.array([names.index(owner) for owner in owners], dtype=np.int32)
    return codes, ids, (note, *([f"clients: {_shorten(others)}"] if others else []))


def _other_level(root: Path, others: Sequence[str], here: int) -> str:
    """Where the images are, and which folder to give."""
    direct = [path for path in others if "/" not in path]
    if len(direct) * 2 >= len(others):
        above = root.parent
        return (
            f"{len(direct)} images lie in the folder itself, so they have no class: give the folder "  # noqa: E501
            f"above it, data-path={above}, if it has one folder for each class"
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
    return f"{sum(folders.values())} images lie {level} deeper, as in {example}{rest}: give data-path={place}"  # noqa: E501


def open_image_folder(data_path: str) -> ImageFolder:
    """Return the source at ``data_path``; UserError if it is empty or does not exist."""
    if not data_path:
        raise UserError(
            "data-path is empty: dataset image-folder needs the folder (or the zip of it) "
            "that holds <class>/<image>"
        )
    try:
        path = Path(data_path).expanduser().resolve()
    except RuntimeError as error:
        raise UserError(f"data-path {data_path}: links that lead to each other") from error
    if not path.exists():
        raise UserError(f"data-path {data_path}: no such file or directory")
    return ImageFolder(path)


def _shorten(names: Sequence[str], limit: int = 10) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    """Whether a file is called like an image that can be read."""
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
    """``"top/"`` when every image lies in ``top/<class>/``, else nothing."""
    images = [name.split("/") for name in names if is_image(name)]
    tops = {parts[0] for parts in images}
    if len(tops) == 1 and all(len(parts) > 2 for parts in images):
        return f"{tops.pop()}/"
    return ""
