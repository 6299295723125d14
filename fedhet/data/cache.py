"""Data sets decoded once into a memory-mapped cache that all processes share.

A cache entry is a folder ``<cache-dir>/<key>/`` with ``examples.bin``, the numbers of the examples
(n, ...) one after another, ``rows.npz`` with labels, sites, groups, times and tests, and
``meta.json``, which has the examples' dtype and shape, and the digest of all of it. It is written
under a lock into a temporary folder, synced and renamed, so a reader sees all of it or nothing;
only its owner can read it. On opening, sizes, shapes and the hash of the labels are checked; the
examples are not, because a training process reads only its clients'.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from fedhet.data.inputs import Content, Inputs, Reading, Stream, load_inputs
from fedhet.data.sources import find_source
from fedhet.errors import UserError
from fedhet.files import appearing, private_folder

_FORMAT = 11
_MAX = "FEDHET_CACHE_MAX"  # bytes that the cache may take; a tenth of its disk without it
_EXAMPLES = "examples.bin"
_WRITTEN = "texts.npy", "text-ends.npy"  # UTF-8, and where each ends
_CHUNK = 1 << 24  # bytes by which the room for an unknown number of examples grows
_ARRAYS = ("labels", "sites", "groups", "times", "tests")
_TEXTS = ("classes", "site_names", "warnings", "notes", "paths")


@dataclass(frozen=True, kw_only=True)
class Dataset(Content):
    """All examples of a source, with what is known of them.

    ``examples`` (n, ...) is a read-only memory map, of images (n, s, s, 3) uint8. ``digest`` is the
    SHA-256 of everything that a run on it depends on.
    """

    examples: npt.NDArray[Any]
    digest: str = ""

    def about_repeats(self, clients: Sequence[Any]) -> list[str]:
        """Return a line about test examples that also stand in train, of these splits, if any."""
        # Of each 64 numbers tell most apart; only those alike in them are read whole, from a disk.
        flat = self.examples.reshape(len(self.examples), -1)
        middle = flat.shape[1] // 2
        parts = [hash(one.tobytes()) for one in flat[:, middle : middle + 64]]
        train, tests = ([k for c in clients for k in getattr(c, p)] for p in ("train", "test"))
        alike = {parts[k] for k in train} & {parts[k] for k in tests}
        whole = {hash(flat[k].tobytes()) for k in train if parts[k] in alike}
        count = sum(parts[k] in alike and hash(flat[k].tobytes()) in whole for k in tests)
        again = "test examples also stand in train, equal in all values"
        return [f"{count:,} of {len(tests):,} {again}"] if count else []


def _make_room(cache: Path, size: int, written: int) -> None:
    """Remove what killed processes left, then the oldest entries, until ``size`` bytes fit."""
    text, entries = os.environ.get(_MAX, "").strip().upper(), []
    match, limit = re.fullmatch(r"(\d+)([KMGT]?)", text), shutil.disk_usage(cache).total // 10
    if match:
        limit = int(match[1]) << 10 * " KMGT".index(match[2] or " ")
    elif text:
        raise UserError(f"{_MAX}: '{text}' is not allowed: bytes, or a number with K, M, G or T")
    for folder in cache.glob("*/") if size <= limit else ():
        if re.fullmatch(r"\.[0-9a-f]{64}\.tmp", folder.name):
            lock = FileLock(cache / f"{folder.name[1:-4]}.lock", timeout=0, mode=0o600)
            with suppress(Timeout), lock:  # nobody writes it
                shutil.rmtree(folder, ignore_errors=True)
        elif (folder / "meta.json").is_file():
            taken = sum(file.stat().st_size for file in folder.iterdir())
            entries.append((folder.stat().st_mtime, taken, folder))
    total = size + sum(taken for _, taken, _ in entries)
    for _, taken, folder in sorted(entries):
        if total > limit:
            shutil.rmtree(folder, ignore_errors=True)
            total -= taken
    if size > (fits := min(limit, shutil.disk_usage(cache).free + written)):
        needs = f"the data set takes {size:,} bytes or more, and {fits:,} are allowed or free"
        raise UserError(f"cache folder {cache}: {needs}: set {_MAX}=20G, or another FEDHET_CACHE")


def open_dataset(  # noqa: PLR0913 - one keyword per configuration key
    name: str, *, data_path: str = "", image_size: int | tuple[int, int] = 32, grey: bool = False,
    window: tuple[float, float] | tuple[()] = (), standardise: bool = False,
    classes: Sequence[str] = (), seed: int = 0, cache_dir: Path | None = None,
    reading: Reading = Reading(),
) -> Dataset:  # fmt: skip
    """Open a source through the cache; the first call decodes, later ones only map.

    Arguments are as the configuration's keys; ``classes`` are names in label order, empty for the
    source's own. An image folder must not hold others, and may lack some; of the other sources
    these are kept. ``seed`` is that of the synthetic examples. Without ``cache_dir`` the cache is
    ``$FEDHET_CACHE``, ``$XDG_CACHE_HOME/fedhet`` or ``~/.cache/fedhet``.

    Raise UserError for a wrong name, path, class or cache folder, and for a failed download.
    """
    image = Inputs.image(image_size, grey=grey, window=window, standardised=standardise)
    wanted = tuple(classes)
    if twice := [name for name in wanted if wanted.count(name) > 1]:
        raise UserError(f"classes: {twice[0]!r} is named twice")
    usual = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/fedhet"
    cache = Path(cache_dir or os.environ.get("FEDHET_CACHE") or usual).expanduser().absolute()
    downloads = cache / "downloads"
    source = find_source(name, data_path=data_path, seed=seed, downloads=downloads, reading=reading)
    key = [_FORMAT, source.key, image.shape, wanted, window, *["standardised"] * standardise]
    folder = cache / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    # Without the lock: a complete entry must open from a read-only folder, too.
    if (dataset := _load(folder)) is not None:
        return dataset
    try:
        private_folder(cache)
        with FileLock(f"{folder}.lock", mode=0o600):
            if (dataset := _load(folder)) is None:  # else another process was first
                with appearing(folder) as temporary:
                    _write(temporary, source.stream(image, wanted), source.count, cache)
                    shutil.rmtree(folder, ignore_errors=True)  # one that is damaged
                dataset = _load(folder)
    except OSError as error:
        why = f"cannot write ({error.strerror or error}): set FEDHET_CACHE to a folder with space"
        raise UserError(f"cache folder {cache}: {why}") from error
    if dataset is None:
        raise UserError(f"cache folder {cache}: what was written cannot be read back")
    return dataset


def _load(folder: Path) -> Dataset | None:
    """Return the entry, or ``None`` if there is none or it is damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        with np.load(folder / "rows.npz", allow_pickle=False) as file:
            arrays = {name: file[name] for name in _ARRAYS}
        shape = tuple(meta["shape"])
        examples = np.memmap(folder / _EXAMPLES, meta["dtype"], "r", shape=shape)
        lists: dict[str, Any] = {key: tuple(meta["about"].pop(key)) for key in _TEXTS}
        sound = (
            (folder / _EXAMPLES).stat().st_size == examples.nbytes
            and len(examples) == len(arrays["labels"])
            and {len(examples), 0} >= {len(one) for one in (*arrays.values(), lists["paths"])}
            and _rows_digest(arrays) == meta["rows_sha256"]
        )
        dataset = Dataset(
            examples=examples, inputs=load_inputs(meta["inputs"]), digest=meta["digest"],
            **arrays, **lists, **meta["about"],
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
        return None
    with suppress(OSError):  # the entry may be read-only
        os.utime(folder)  # those used longest ago go first
    return dataset if sound else None


def _rows_digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in _ARRAYS)).hexdigest()


def texts_at(dataset: Dataset, index: npt.NDArray[np.int64]) -> list[str]:
    """Return the texts of examples ``index`` as they are written; UserError if it has none."""
    folder = Path(str(getattr(dataset.examples, "filename", ""))).parent
    try:
        letters, ends = (np.load(folder / name, mmap_mode="r") for name in _WRITTEN)
    except OSError as error:
        raise UserError("a model of hf:FOLDER needs texts as written: use dataset=texts") from error
    starts = np.concatenate([[0], ends])
    return [letters[starts[i] : starts[i + 1]].tobytes().decode() for i in index]


def _write(folder: Path, stream: Stream, total: int, cache: Path) -> None:
    """Fill the folder of an entry, in as little memory as one chunk takes."""
    contents: list[Content] = []

    def chunks() -> Iterator[npt.NDArray[Any]]:
        contents.append((yield from stream))

    count, allowed, meta, path = 0, 0, dict[str, Any](), folder / _EXAMPLES
    with path.open("wb") as file:  # not mapped: a full disk is an error then and not a SIGBUS
        for chunk in chunks():
            size = max(total, count + len(chunk)) * chunk[:1].nbytes
            if size > allowed:  # all at once where their number is known
                allowed = size + _CHUNK * (not total)
                _make_room(cache, size, count * chunk[:1].nbytes)
            count += len(chunk)
            file.write(np.ascontiguousarray(chunk).tobytes())
            meta = {"dtype": chunk.dtype.str, "shape": [count, *chunk.shape[1:]]}
    if not count:
        raise UserError("the data set has no example of the named classes")
    arrays = {name: getattr(contents[0], name) for name in _ARRAYS}
    np.savez(folder / "rows.npz", **arrays)
    lists = {key: getattr(contents[0], key) for key in (*_TEXTS, "group_by", "grouped")}
    meta |= {"inputs": contents[0].inputs.dump(), "rows_sha256": _rows_digest(arrays)}
    digest = hashlib.sha256(json.dumps([meta, lists["classes"], lists["site_names"]]).encode())
    with path.open("rb") as examples:
        hashlib.file_digest(examples, lambda: digest)
    if texts := [text.encode() for text in contents[0].texts]:
        letters = np.frombuffer(b"".join(texts), np.uint8)
        digest.update(letters.tobytes())
        for name, array in zip(_WRITTEN, (letters, np.cumsum([*map(len, texts)])), strict=True):
            np.save(folder / name, array, allow_pickle=False)
    meta |= {"about": lists, "digest": digest.hexdigest()}
    (folder / "meta.json").write_bytes(json.dumps(meta).encode())
