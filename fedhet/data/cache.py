"""Data sets decoded once into a memory-mapped cache that all processes share.

A cache entry is a folder ``<cache-dir>/<key>/`` with ``examples.npy`` (n, ...), for images
(n, s, s, 3) uint8 or, of scans, (n, s, s, 1) float32, ``labels.npy`` (n,) int64, ``sites.npy`` (n,)
or (0,) int32 and ``meta.json``.
It is written under a lock into a temporary folder, synced and renamed, so a reader sees all of it
or nothing; only its owner can read it. On opening, sizes, shapes and the hash of the labels are
checked; the examples are not, because a training process reads only its clients'.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from fedhet.data.images import SCAN, TURNED, Indices, Listing, Pixels, Unread
from fedhet.data.inputs import Inputs, load_inputs
from fedhet.data.labels import Reading, Stream
from fedhet.data.sources import find_source
from fedhet.errors import UserError
from fedhet.files import appearing, private_files

_FORMAT = 4
_NAMED = 5
_EXAMPLES = "examples.npy"
MAX_IMAGE_SIZE = 1024


@dataclass(frozen=True)
class Dataset:
    """All examples of a source.

    ``examples`` (n, ...) is a read-only memory map, of images (n, s, s, 3) uint8; ``labels`` (n,)
    int64 index into ``classes``. ``paths`` name the images: relative to the root such as
    ``ship/0655.webp`` for an image folder, else the index as text; of other kinds there are none,
    and an example's name is its index. ``notes`` are lines that say what was understood of a file,
    ``warnings`` what may be wrong. ``inputs`` says what an example is. ``sites`` (n,) int32 index
    into ``site_names`` where the data says whose an example
    is; else (0,).
    """

    examples: npt.NDArray[Any]
    labels: Indices
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    warnings: tuple[str, ...]
    inputs: Inputs
    sites: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    site_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def default_cache_dir() -> Path:
    """``$FEDHET_CACHE``, else ``$XDG_CACHE_HOME/fedhet``, else ``~/.cache/fedhet``."""
    if os.environ.get("FEDHET_CACHE"):
        return Path(os.environ["FEDHET_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "fedhet"
    return Path("~/.cache/fedhet")


def open_dataset(  # noqa: PLR0913 - one keyword per configuration key
    name: str,
    *,
    data_path: str = "",
    image_size: int | tuple[int, int] = 32,
    grey: bool = False,
    window: tuple[float, float] | tuple[()] = (),
    classes: Sequence[str] = (),
    seed: int = 0,
    cache_dir: Path | None = None,
    reading: Reading = Reading(),  # noqa: B008  (frozen)
) -> Dataset:
    """Open a source through the cache; the first call decodes, later ones only map.

    Args:
        name: ``digits``, ``cifar10``, ``cifar100``, ``fashion-mnist``, ``image-folder``,
            ``table``, ``signals``, ``texts``, ``synthetic``, ``synthetic:IMAGES`` or
            ``synthetic:IMAGESxCLASSES``.
        data_path: the image folder or its zip, the file of a table, of signals or of texts; for
            torchvision's sets where their files are.
        image_size: side of the square in pixels, or height and width, 1..1024.
        grey: one channel instead of three.
        window: lowest and highest value of scans of more than 8 bits; empty: each client's own.
        classes: class names in label order; empty means the source's own. An image folder must
            not hold others; of the other sources these are kept.
        seed: of the synthetic examples; other sources do not use it.
        cache_dir: see :func:`default_cache_dir`.
        reading: which column of a file is what.

    Raises:
        UserError: a wrong name, path, size or class; a failed download; a cache folder that
            cannot be written.

    """
    image = Inputs.image(image_size, grey=grey, window=window)
    if not 1 <= min(image.shape[1:]) <= max(image.shape[1:]) <= MAX_IMAGE_SIZE:
        raise UserError(f"image-size {image_size} is not allowed (1..{MAX_IMAGE_SIZE} pixels)")
    wanted = tuple(classes)
    for index, class_name in enumerate(wanted):
        if class_name in wanted[:index]:
            raise UserError(f"classes: {class_name!r} is named twice")
    cache = (cache_dir or default_cache_dir()).expanduser().absolute()
    source = find_source(
        name, data_path=data_path, seed=seed, downloads=cache / "downloads", reading=reading
    )
    material = json.dumps([_FORMAT, source.fingerprint(), image.shape, wanted, window])
    folder = cache / hashlib.sha256(material.encode()).hexdigest()
    # Without the lock: a complete entry must open from a read-only folder, too.
    found = _load(folder)
    if found is not None:
        return found
    try:
        with private_files():
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                found = _load(folder)
                if found is None:
                    _build(folder, source.listing(image.image_shape, wanted), image)
                    found = _load(folder)
    except OSError as error:
        raise UserError(
            f"cache folder {cache}: cannot write ({error.strerror or error}); "
            "set FEDHET_CACHE to a folder with space"
        ) from error
    if found is None:
        raise UserError(f"cache folder {cache}: what was written cannot be read back")
    return found


def open_private_folder(
    path: str,
    *,
    image_size: int | tuple[int, int] = 32,
    grey: bool = False,
    window: tuple[float, float] | tuple[()] = (),
    classes: Sequence[str] = (),
    cache_dir: Path | None = None,
) -> Dataset:
    """Open a node's own images, ``<path>/<class>/<image>`` or a zip of it.

    Labels index ``classes`` where given, else the folder's own names, sorted.

    Classes that are named but have no folder are fine: the node then has no image of them.

    Raises:
        UserError: as :func:`open_dataset`, e.g. for a folder that is not one of ``classes``.

    """
    return open_dataset(
        "image-folder",
        data_path=path,
        image_size=image_size,
        grey=grey,
        window=window,
        classes=classes,
        cache_dir=cache_dir,
    )


def _load(folder: Path) -> Dataset | None:
    """Return the entry, or ``None`` if there is none or it is damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        labels = np.load(folder / "labels.npy", allow_pickle=False)
        sites = np.load(folder / "sites.npy", allow_pickle=False)
        # Unlike numpy.load this one never takes the file for a zip or a pickle.
        examples = np.lib.format.open_memmap(folder / _EXAMPLES, mode="r")
        sound = (
            list(examples.shape) == meta["shape"]
            and examples.dtype.str == meta["dtype"]
            and (folder / _EXAMPLES).stat().st_size == meta["bytes"]
            and len(examples) == len(labels)
            and len(meta["paths"]) in (0, len(labels))
            and len(sites) in (0, len(labels))
            and hashlib.sha256(labels.tobytes()).hexdigest() == meta["labels_sha256"]
        )
        if not sound:
            return None
        classes, paths, warnings, names, notes = (
            tuple(meta[key]) for key in ("classes", "paths", "warnings", "site-names", "notes")
        )
        inputs = load_inputs(meta["inputs"])
        return Dataset(examples, labels, classes, paths, warnings, inputs, sites, names, notes)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _build(folder: Path, listing: Listing | Stream, image: Inputs) -> None:
    """Write the entry; the caller holds the lock and has found the one that is there damaged."""
    with appearing(folder) as temporary:
        _write(temporary, listing, image)
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, listing: Listing | Stream, image: Inputs) -> None:
    if isinstance(listing, Stream):
        _write_stream(folder, listing)
        return
    with (folder / _EXAMPLES).open("w+b") as file:
        found = None if image.scan else _write_images(file, listing.images, listing, image)
        if found is None:  # an image of more than 8 bits: all are stored as scans
            assert listing.scans is not None
            listing.losses.flags.clear()
            file.seek(0)
            file.truncate()
            image = replace(image, scan=True)
            found = _write_images(file, listing.scans(), listing, image)
    assert found is not None
    kept, unread = found
    bad = [*listing.ignored, *unread]
    if not kept:
        raise UserError(f"data-path: no readable image among {len(bad)} files ({_names(bad)})")
    notes = _about_scans(folder, listing) if image.scan else []
    if turned := listing.losses.count(TURNED):
        notes.append(f"{turned} photographs were turned upright, as their EXIF says")
    labels, classes, warnings = _drop_empty(listing, listing.labels[kept])
    if bad:
        warnings.append(f"ignored {len(bad)} files that are no readable images: {_names(bad)}")
    sites = listing.sites[kept] if len(listing.sites) else listing.sites
    _write_about(
        folder,
        Dataset(
            np.lib.format.open_memmap(folder / _EXAMPLES, mode="r"),
            labels,
            tuple(classes),
            tuple(listing.paths[index] for index in kept),
            (*listing.losses.lines(image.image_shape, scans=image.scan), *warnings),
            image,
            sites,
            listing.site_names,
            (*listing.notes, *notes),
        ),
    )


def _about_scans(folder: Path, listing: Listing) -> list[str]:
    """Stretch images of 8 bits to the range of the scans beside them; lines that say it."""
    scan = np.array([bool(flag & SCAN) for flag in listing.losses.flags])
    if not scan.any():
        return []
    examples = np.lib.format.open_memmap(folder / _EXAMPLES, mode="r+")
    low, high, levels = np.inf, -np.inf, 0
    for index in np.flatnonzero(scan):
        image = examples[index]
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
    examples.flush()
    return notes


def _write_stream(folder: Path, stream: Stream) -> None:
    """Examples that are no images, in as little memory as one chunk takes."""
    count = 0
    with (folder / _EXAMPLES).open("w+b") as file:
        for chunk in stream.chunks:
            if not count:
                start = _header(file, 0, chunk.shape[1:], chunk.dtype.str)
            file.write(np.ascontiguousarray(chunk).tobytes())
            count += len(chunk)
        if not count:
            raise UserError(
                "the data set has no example that has a class (of those that are named)"
            )
        file.seek(0)
        assert _header(file, count, chunk.shape[1:], chunk.dtype.str) == start
        file.flush()
    content = stream.content()
    examples = np.lib.format.open_memmap(folder / _EXAMPLES, mode="r")
    about = Dataset(
        examples, content.labels, content.classes, (), content.warnings, content.inputs,
        content.sites, content.site_names, content.notes,
    )  # fmt: skip
    _write_about(folder, about)


def _write_about(folder: Path, dataset: Dataset) -> None:
    """All but the examples."""
    for name, array in (("labels.npy", dataset.labels), ("sites.npy", dataset.sites)):
        with (folder / name).open("wb") as file:
            np.save(file, array, allow_pickle=False)
    meta = {
        "classes": dataset.classes,
        "paths": dataset.paths,
        "warnings": dataset.warnings,
        "notes": dataset.notes,
        "shape": dataset.examples.shape,
        "dtype": dataset.examples.dtype.str,
        "bytes": (folder / _EXAMPLES).stat().st_size,
        "inputs": dataset.inputs.dump(),
        "site-names": dataset.site_names,
        "labels_sha256": hashlib.sha256(dataset.labels.tobytes()).hexdigest(),
    }
    with (folder / "meta.json").open("wb") as file:
        file.write(json.dumps(meta).encode())


def _write_images(
    file: IO[bytes],
    images: Generator[Pixels | Unread, None, None],
    listing: Listing,
    about: Inputs,
) -> tuple[list[int], list[str]] | None:
    """Stream the readable images; returns their positions in the listing, and the other files.

    None as soon as there is a scan of more than 8 bits, if they are to be stored as bytes and the
    listing can give them as scans. Written, not mapped: a full disk is an error and not a SIGBUS.
    """
    kept: list[int] = []
    unread: list[str] = []
    dtype, flags = about.zeros(0).dtype.str, listing.losses.flags
    start = _header(file, len(listing.paths), about.stored, dtype)
    with closing(images):
        for index, image in enumerate(images):
            if isinstance(image, Unread):
                unread.append(image.name(listing.paths[index]))
                continue
            if not about.scan and listing.scans and flags and flags[-1] & SCAN:
                return None
            file.write(image.tobytes())
            kept.append(index)
    file.seek(0)
    # NumPy pads the header so that the first axis may change in place.
    assert _header(file, len(kept), about.stored, dtype) == start
    file.flush()
    return kept, unread


def _header(file: IO[bytes], count: int, shape: tuple[int, ...], dtype: str) -> int:
    """Write the .npy header for ``count`` examples; returns the position after it."""
    header = {"descr": dtype, "fortran_order": False, "shape": (count, *shape)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


def _drop_empty(listing: Listing, labels: Indices) -> tuple[Indices, list[str], list[str]]:
    """Labels, classes and warnings after classes without an image are dropped."""
    present = np.bincount(labels, minlength=len(listing.classes)) > 0
    if listing.keep_empty or present.all():
        return labels, list(listing.classes), []
    gone = [name for name, ok in zip(listing.classes, present, strict=True) if not ok]
    classes = [name for name, ok in zip(listing.classes, present, strict=True) if ok]
    new_label = np.cumsum(present) - 1
    warning = f"dropped {len(gone)} classes without a readable image: {_names(gone)}"
    return new_label[labels].astype(np.int64), classes, [warning]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
