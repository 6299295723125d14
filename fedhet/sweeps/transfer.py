"""Files on their way between two machines: listed with their digests, sent in pieces, checked.

Nothing here knows Ray, and nothing is unpickled: a listing is JSON, a piece is bytes. What arrives
lies in a folder of its own until all of it is there and has the digests that were promised.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fedhet.errors import RunFailedError
from fedhet.files import private_files
from fedhet.reading.structured import parse_json

PIECE = 4 << 20  # bytes of files in one message
MOST_FILES = 1_000_000  # of one folder
_LONGEST = 1024  # characters of a name
T = TypeVar("T", dict[str, Any], list[Any])


class TransferError(RunFailedError):
    """What another machine said about its files is not to be believed, or did not arrive whole."""


@dataclass(frozen=True)
class Entry:
    """A file: bytes, SHA-256 (hex), and whether only its owner can read it."""

    size: int
    sha256: str
    private: bool


@dataclass(frozen=True)
class Span:
    """Bytes of a file from ``offset``."""

    name: str
    offset: int
    length: int


Tree = dict[str, Entry]  # by path below the folder, with slashes


def safe_name(name: object) -> str:
    """The name of a file below a folder; TransferError if it could lead anywhere else."""
    text = name if isinstance(name, str) else ""
    parts = text.split("/")
    plain = text.isprintable() and "\\" not in text and len(text) <= _LONGEST
    if not plain or any(part in {"", ".", ".."} for part in parts):
        raise TransferError(f"a machine named a file {text[:100]!r}, which is no name in a folder")
    return text


def listing(root: Path, *, below: str = "", links: bool = False) -> Tree:
    """The regular files of a folder, or of its file or folder ``below``, with their digests.

    Names that begin with a dot are left out: locks, and what is half written. ``links`` are
    followed where they are the user's own data; elsewhere one is an error.
    """
    found: Tree = {}
    for name, path in _files(root, below, links=links):
        status = path.stat()
        found[name] = Entry(status.st_size, digest(path), not status.st_mode & 0o077)
    return found


def names(root: Path) -> list[str]:
    """The files that :func:`listing` lists."""
    return [name for name, _ in _files(root, "", links=False)]


def extent(path: Path) -> str:
    """SHA-256 (hex) of the names and sizes of a file or folder: cheap, and empty if none is there.

    A copy that was made elsewhere and has other names or sizes is another one.
    """
    if not path.exists():
        return ""
    sizes = [
        (name, file.stat().st_size) for name, file in _files(path.parent, path.name, links=True)
    ]
    return hashlib.sha256(json.dumps(sizes).encode()).hexdigest()


def _files(root: Path, below: str, *, links: bool) -> Iterator[tuple[str, Path]]:
    """Names and paths in the names' order."""
    start = root / below
    if start.is_file() and below:
        yield below, start
        return
    found = []
    for folder, folders, files in os.walk(start, followlinks=links):
        folders[:] = [one for one in folders if not one.startswith(".")]
        for one in (*files, *folders):
            path = Path(folder, one)
            if path.is_symlink() and not links:
                raise TransferError(f"'{path}' is a link, which no run makes: remove it")
        found += [Path(folder, one) for one in files if not one.startswith(".")]
    for path in sorted(found):
        if path.is_file():
            yield path.relative_to(root).as_posix(), path


def digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pieces(tree: Mapping[str, Entry]) -> Iterator[list[Span]]:
    """Every byte of the files once, in groups of at most :data:`PIECE` bytes."""
    group: list[Span] = []
    room = PIECE
    for name, entry in tree.items():
        offset = 0
        while True:
            length = min(room, entry.size - offset)
            group.append(Span(name, offset, length))
            offset, room = offset + length, room - length
            if not room or len(group) == PIECE >> 10:
                yield group
                group, room = [], PIECE
            if offset == entry.size:
                break
    if group:
        yield group


def read(root: Path, spans: Sequence[Span]) -> bytes:
    """The bytes of the spans, one after the other."""
    found = bytearray()
    for span in spans:
        with (root / safe_name(span.name)).open("rb") as file:
            file.seek(span.offset)
            found += file.read(span.length)
    return bytes(found)


class Arriving:
    """A folder in which files arrive, and from which they are taken when they are whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def clear(self) -> None:
        """Nothing has arrived."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, spans: Sequence[Span], payload: bytes) -> None:
        """Take in what :func:`read` gave for these spans."""
        if len(payload) != sum(span.length for span in spans):
            raise TransferError(f"{len(payload)} bytes arrived where others were asked for")
        position = 0
        with private_files():
            for span in spans:
                path = self.folder / safe_name(span.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("r+b" if span.offset else "wb") as file:
                    file.seek(span.offset)
                    file.write(payload[position : position + span.length])
                position += span.length

    def check(self, tree: Mapping[str, Entry]) -> None:
        """TransferError unless every file is here with its digest; its mode is set."""
        for name, entry in tree.items():
            path = self.folder / safe_name(name)
            if not path.is_file() or digest(path) != entry.sha256:
                raise TransferError(f"'{name}' did not arrive as it was sent")
            if not entry.private:
                path.chmod(0o644)


def to_json(tree: Mapping[str, Entry]) -> bytes:
    """A listing as bytes."""
    rows = {name: [one.size, one.sha256, int(one.private)] for name, one in tree.items()}
    return json.dumps(rows).encode()


def from_json(data: bytes) -> Tree:
    """A listing that another machine made; TransferError for anything but plain, bounded values."""
    rows = _parsed(data, dict)
    if len(rows) > MOST_FILES:
        raise TransferError(f"a machine listed {len(rows)} files; at most {MOST_FILES} are taken")
    found: Tree = {}
    for name, row in rows.items():
        if not (isinstance(row, list) and [type(part) for part in row] == [int, str, int]):
            raise TransferError(f"a machine listed '{safe_name(name)}' as what is no file")
        if row[0] < 0 or not _is_digest(row[1]):
            raise TransferError(f"a machine listed '{safe_name(name)}' without size or digest")
        found[safe_name(name)] = Entry(row[0], row[1], bool(row[2]))
    for name in found:
        if any(str(parent) in found for parent in PurePosixPath(name).parents):
            raise TransferError(f"a machine listed '{name}' below another file")
    return found


def spans_to_json(spans: Sequence[Span]) -> bytes:
    """What is asked for, or sent, as bytes."""
    return json.dumps([[span.name, span.offset, span.length] for span in spans]).encode()


def spans_from_json(data: bytes) -> list[Span]:
    """The inverse."""
    return [Span(safe_name(name), int(at), int(size)) for name, at, size in _parsed(data, list)]


def _is_digest(text: str) -> bool:
    return len(text) == hashlib.sha256().digest_size * 2 and not text.strip("0123456789abcdef")


def _parsed(data: bytes, kind: type[T]) -> T:
    value = parse_json(data, "a machine's listing")
    if not isinstance(value, kind):
        raise TransferError("a machine's listing is damaged")
    return value
