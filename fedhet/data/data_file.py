"""What a configuration says about the columns of a file, and what a read file is made of."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedhet.data.image_source import Indices
from fedhet.data.inputs import Inputs
from fedhet.errors import UserError, nearest
from fedhet.files import is_id
from fedhet.reading.columns import shown

Chunk = npt.NDArray[Any]
MAX_BYTES = 16 << 30  # of all examples as they are stored
MAX_DIFFERENT = 10_000  # values of a target or a category
MAX_SITES = 100_000
_NUMBER = re.compile(r"[+-]?(\d{1,300}(\.\d{0,300})?|\.\d{1,300})", re.ASCII)
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})


@dataclass(frozen=True)
class Reading:
    """Which column is what; as the configuration's keys of the same names.

    Without ``declared`` the categories of a table may be those that its file happens to hold.
    """

    target: str = ""
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    site: tuple[str, ...] = ()
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ignore: tuple[str, ...] = ()
    text: str = ""
    length: int = 64
    vocabulary: int = 5000
    scale: float = 1.0
    declared: bool = False


@dataclass(frozen=True)
class Content:
    """What is known of examples once they are read: labels (n,) and sites (n,) or (0,), int."""

    inputs: Inputs
    labels: Indices
    classes: tuple[str, ...]
    sites: npt.NDArray[np.int32]
    site_names: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stream:
    """Examples in chunks (k, ...), and their content once the last chunk is out."""

    chunks: Iterator[Chunk]
    content: Callable[[], Content]


def canonical(value: str) -> str:
    """A value by which ``1``, ``1.0`` and ``01`` are the same.

    Numbers are what people write as such: ``1_2`` and ``1e3`` are names.
    """
    text = value.strip()
    if not _NUMBER.fullmatch(text):
        return text
    if "." not in text:  # a float would make one of two long ones
        return str(int(text))
    number = float(text)
    return str(int(number)) if number.is_integer() else np.format_float_positional(number)


def places_of(values: Sequence[str], key: str) -> dict[str, int]:
    """The place of each value in a list; UserError where two of them are the same value."""
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        if places.setdefault(canonical(value), place) != place:
            raise UserError(f"{key}: value '{value}' is given twice ({', '.join(values)})")
    return places


@dataclass(frozen=True)
class DataFile:
    """Files and how they are read: what sources of every kind but images are."""

    paths: tuple[Path, ...]
    reading: Reading
    dataset: ClassVar[str]  # the name by which a run asks for such a file

    def fingerprint(self) -> list[object]:
        """What changes when the file or the reading of it does."""
        stats = [(str(path), path.stat()) for path in self.paths]
        text = hashlib.sha256(repr(self.reading).encode()).hexdigest()
        return [
            self.dataset, *([path, stat.st_size, stat.st_mtime_ns] for path, stat in stats), text
        ]  # fmt: skip


def need(columns: Sequence[str], wanted: Sequence[str], key: str, where: str) -> None:
    """UserError for a column that a key names and the file has not."""
    for name in wanted:
        if name not in columns:
            hint = nearest(name, columns)
            raise UserError(
                f"{key}: {where} has no column {name!r}{hint}; it has {_listed(columns)}"
            )


def _listed(names: Sequence[str], limit: int = 10) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


class Classes:
    """Labels of targets, as they come: by ``labels``, else every value is a class."""

    def __init__(self, reading: Reading, wanted: tuple[str, ...]) -> None:
        self._declared = tuple(name for name, _ in reading.labels)
        if wanted and self._declared and set(wanted) != set(self._declared):
            raise UserError(
                f"classes: {', '.join(wanted)} are not the names that labels has: "
                f"{', '.join(self._declared)}"
            )
        self._wanted = wanted or self._declared
        self._code: dict[str, int] = {}
        for name, values in reading.labels:
            for value in map(canonical, values or (name,)):
                if value in self._code:
                    raise UserError(f"labels: value '{value}' belongs to two classes")
                self._code[value] = self._wanted.index(name)
        self._open = not reading.labels
        self._all = "labels"
        if self._open and wanted:
            self._code = places_of(wanted, "classes")
            self._open, self._all = False, "classes"
        self._parts: list[npt.NDArray[np.int32]] = []

    def add(self, values: Sequence[str], where: Callable[[int], str]) -> None:
        """The targets of the next examples; ``where`` says where the i-th of them stands."""
        code = self._code
        try:
            labels = [code[value] for value in values]
        except KeyError:
            labels = [self._one(value, where, index) for index, value in enumerate(values)]
        self._parts.append(np.array(labels, dtype=np.int32))

    def _one(self, value: str, where: Callable[[int], str], index: int) -> int:
        plain = canonical(value)
        if plain in self._code:
            return self._code[plain]
        if plain.lower() in {"", "nan"}:
            raise UserError(f"{where(index)}: no class")
        if not self._open:
            raise UserError(f"{where(index)}: {shown(value)} is in none of the {self._all}")
        if len(self._code) >= MAX_DIFFERENT:
            raise UserError(
                f"{where(index)}: more than {MAX_DIFFERENT:,} different values are no classes; "
                "labels can put them together"
            )
        self._code[plain] = len(self._code)
        return self._code[plain]

    def done(self) -> tuple[Indices, tuple[str, ...]]:
        """Labels (n,) and class names; values are sorted as numbers if all of them are."""
        labels = np.concatenate(self._parts).astype(np.int64)
        if self._wanted:
            return labels, self._wanted
        numbers = all(map(_NUMBER.fullmatch, self._code))
        names = sorted(self._code, key=_as_number if numbers else str)
        order = np.empty(len(names), dtype=np.int64)
        for label, name in enumerate(names):
            order[self._code[name]] = label
        return order[labels], tuple(names)


def _as_number(name: str) -> float:
    return float(name)


class Sites:
    """The client of every example: the values of columns, joined by a hyphen, or its file."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, ...], int] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._place: dict[str, int] = {}  # of each name among them
        self._parts: list[npt.NDArray[np.int32]] = []

    def add(self, rows: Sequence[tuple[str, ...]], where: Callable[[int], str]) -> None:
        """The site columns of the next examples."""
        code = self._code
        for index, row in enumerate(rows):
            if row not in code:
                self._new(row, where, index)
        self._parts.append(np.array([code[row] for row in rows], dtype=np.int32))

    def add_file(self, path: Path, count: int) -> None:
        """The next examples are of that file, and it is their client, under its name."""
        name, row = path.stem, (path.name,)
        _check_name(name, f"data-path {path}")
        if self._names.setdefault(name, row) != row:
            raise UserError(
                f"data-path {path}: client {name!r} has another file, {self._names[name][0]}: "
                "rename one"
            )
        code = self._place.setdefault(name, len(self._place))
        self._parts.append(np.full(count, code, dtype=np.int32))

    def _new(self, row: tuple[str, ...], where: Callable[[int], str], index: int) -> None:
        name = "-".join(canonical(value) for value in row)
        _check_name(name, where(index))
        if len(self._place) >= MAX_SITES and name not in self._place:
            raise UserError(f"{where(index)}: more than {MAX_SITES:,} different clients")
        if self._names.setdefault(name, row) != row and tuple(
            map(canonical, self._names[name])
        ) != tuple(map(canonical, row)):
            raise UserError(f"{where(index)}: {shown(name)} would be the name of two clients")
        self._code[row] = self._place.setdefault(name, len(self._place))

    def done(self) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
        """Sites (n,), or (0,) where no column names them, and their names."""
        none = [np.zeros(0, dtype=np.int32)]
        return np.concatenate(self._parts or none), tuple(self._names)


def _check_name(name: str, at: str) -> None:
    if not is_id(name):
        raise UserError(
            f"{at}: {shown(name)} cannot be a client's name (1 to 64 of A-Z a-z 0-9 . _ -)"
        )
