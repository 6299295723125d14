"""Which column of a file is what, and the classes and clients that its columns name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedhet.data.inputs import Indices, Inputs
from fedhet.errors import UserError, nearest
from fedhet.files import is_id

if TYPE_CHECKING:  # a second at import, and most processes read no file
    import pandas as pd

    from fedhet.data.rows import Chunk

Examples = npt.NDArray[Any]
GAPS = (
    "", "?", "na", "n/a", "n.a.", "missing", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na",
    ".", "-", "--", "nil", "#div/0!", "#value!", "#ref!", "#num!", "#name?",
)  # fmt: skip
MAX_CLASSES = 10_000
MEASURED = 20  # different numbers of a target that is taken for a measurement, if they are many
# Keys that say which column is the class and how files are written; a model's card has them.
READ_KEYS = (
    "target", "labels", "separator", "decimal", "thousands", "quote", "encoding", "columns", "gaps",
)  # fmt: skip
_PLAIN = re.compile(r"[+-]?(\d{1,300}(\.\d{0,300})?|\.\d{1,300})", re.ASCII)
_RANGE = re.compile(r"([+-]?[\d.]*?)\.\.([+-]?[\d.]*)", re.ASCII)
_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Form:
    """How a file of rows is written, as the configuration's keys of these names; empty: guess."""

    separator: str = ""
    decimal: str = ""
    thousands: str = ""
    quote: str = ""
    encoding: str = ""
    columns: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def missing(self) -> frozenset[str]:
        """Return the spellings of a gap, in lower case."""
        return frozenset(one.strip().lower() for one in self.gaps or GAPS) | {""}


@dataclass(frozen=True)
class Reading:
    """Which column is what; as the configuration's keys of the same names.

    Without ``declared`` what a key leaves open may be found out from the file's rows: categories,
    columns that are left out. On a node nothing is, so that all nodes make the same inputs.
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
    axes: str = ""
    channels: tuple[str, ...] = ()
    time: str = ""
    form: Form = Form()
    declared: bool = False


@dataclass(frozen=True)
class Content:
    """What is known of examples once they are read.

    ``inputs`` says what an example is; ``labels`` (n,) int64 index into ``classes``. ``sites`` (n,)
    int32 index into ``site_names`` where the data says whose an example is; else (0,).
    ``warnings`` say what may be wrong, ``notes`` what was understood of a file. ``paths`` name
    images, relative to the root such as ``ship/0655.webp``; other examples are named by index.
    """

    inputs: Inputs
    labels: Indices
    classes: tuple[str, ...]
    sites: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    site_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stream:
    """Examples in chunks (k, ...), and their content once the last chunk is out.

    ``content`` is given all examples as they are stored, and may change them in place.
    """

    chunks: Iterator[Examples]
    content: Callable[[Examples], Content]


@dataclass(frozen=True)
class Source:
    """Where examples come from.

    ``key`` is JSON-able and changes whenever the examples would; to make it, none is read.
    ``listing`` opens the examples, images as the inputs say; ``classes`` empty means the source's
    own. It raises UserError if the source cannot be opened, or does not fit the classes.
    ``extent`` counts examples and classes without reading any, and ``inputs`` are theirs if they
    are no images, where a source knows that.
    """

    key: list[object]
    listing: Callable[[Inputs, tuple[str, ...]], Stream]
    extent: Callable[[], tuple[int, int]] | None = None
    inputs: Inputs | None = None


def file_stats(paths: Iterable[Path]) -> list[object]:
    """Return what changes when one of these files does."""
    return [[str(p), stat.st_size, stat.st_mtime_ns] for p in paths for stat in [p.stat()]]


def shown(value: str) -> str:
    """Return a value of a file for a message."""
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")


def listed(names: Sequence[str], limit: int = 10) -> str:
    """Return some names for a message."""
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def canonical(value: str) -> str:
    """Return one value for ``1``, ``1.0`` and ``01``; ``1e3`` and ``1_2`` are names."""
    text = value.strip()
    if not _PLAIN.fullmatch(text):
        return text
    if "." not in text:  # a float would make one of two long ones
        return str(int(text))
    number = float(text)
    return str(int(number)) if number.is_integer() else np.format_float_positional(number)


def each_value(values: pd.Series, code: Callable[[str, Callable[[], int]], int]) -> Indices:
    """Return the code of every text; ``code`` is asked once a text, and may ask where it is."""
    from pandas import factorize

    codes, unique = factorize(values.fillna(""))

    def first(k: int) -> Callable[[], int]:
        return lambda: int(np.flatnonzero(codes == k)[0])

    found = [code(str(value), first(k)) for k, value in enumerate(unique)]
    made: Indices = np.array(found, dtype=np.int64)[codes]
    return made


def places_of(values: Sequence[str], key: str) -> dict[str, int]:
    """Return the place of each value in a list; raise UserError where one is there twice."""
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        if places.setdefault(canonical(value), place) != place:
            raise UserError(f"{key}: value '{value}' is given twice ({', '.join(values)})")
    return places


def need(columns: Sequence[str], wanted: Sequence[str], key: str, where: str) -> None:
    """Raise UserError for a column that a key names and the file has not."""
    for name in wanted:
        if name not in columns:
            hint = nearest(name, columns)
            raise UserError(
                f"{key}: {where} has no column {name!r}{hint}; it has {listed(columns)}"
            )


class Classes:
    """Labels of targets, as they come: by ``labels``, else every value is a class."""

    def __init__(self, reading: Reading, wanted: tuple[str, ...]) -> None:
        self._missing, self._target = reading.form.missing, reading.target
        declared = tuple(name for name, _ in reading.labels)
        if wanted and declared and set(wanted) != set(declared):
            raise UserError(
                f"classes: {', '.join(wanted)} must be the names in labels: {', '.join(declared)}"
            )
        self._wanted = wanted or declared
        self._code: dict[str, int] = {}
        self._ranges: list[tuple[float, float, int]] = []
        for name, values in reading.labels:
            for value in values or (name,):
                self._declare(value, self._wanted.index(name))
        self._open, self._all = not reading.labels, "labels"
        if self._open and wanted:
            self._code = places_of(wanted, "classes")
            self._open, self._all = False, "classes"
        self._counts = [0] * len(self._wanted)
        self.warnings: list[str] = []

    def _declare(self, value: str, label: int) -> None:
        if match := _RANGE.fullmatch(value.strip()):
            low, high = (float(end) if end else np.inf for end in match.groups())
            self._ranges.append((low if match[1] else -np.inf, high, label))
            return
        if canonical(value) in self._code:
            raise UserError(f"labels: value '{value}' belongs to two classes")
        self._code[canonical(value)] = label

    def labels(self, values: pd.Series, where: Callable[[int], str]) -> Indices:
        """Return the labels of texts, -1 for a gap; ``where`` says where the i-th of them is."""

        def code(value: str, place: Callable[[], int]) -> int:
            label = self._one(value)
            if label is None:
                raise UserError(f"{where(place())}: {shown(value)} has no class in {self._all}")
            return label

        made = each_value(values, code)
        for label, count in enumerate(np.bincount(made[made >= 0])):
            self._counts[label] += int(count)
        return made

    def _one(self, value: str) -> int | None:
        plain = canonical(value)
        if plain in self._code:
            return self._code[plain]
        if self._ranges and _PLAIN.fullmatch(plain):
            number = float(plain)
            for low, high, label in self._ranges:
                if low <= number < high:
                    return label
        if plain.lower() in self._missing:
            return -1
        if not self._open:
            return None
        if len(self._code) >= MAX_CLASSES:
            raise UserError(
                f"target '{self._target}': more than {MAX_CLASSES:,} different values cannot be "
                "classes; group them with labels"
            )
        self._code[plain] = len(self._code)
        self._counts.append(0)
        return self._code[plain]

    def done(self) -> tuple[Indices, tuple[str, ...]]:
        """Return the label of every code (C,), and class names, as numbers sorted by value."""
        if self._wanted:
            return np.arange(len(self._wanted)), self._wanted
        numbers = bool(self._code) and all(map(_PLAIN.fullmatch, self._code))
        if numbers and len(self._code) > MEASURED:
            self._about_measurement()
        names = sorted(self._code, key=float if numbers else str)
        order = np.empty(len(names), dtype=np.int64)
        for label, name in enumerate(names):
            order[self._code[name]] = label
        return order, tuple(names)

    def _about_measurement(self) -> None:
        """Warn of a target that may be a measurement; raise UserError for one that surely is."""
        values = sorted(map(float, self._code))
        middle = f"{values[len(values) // 2]:g}"
        text = (
            f"{len(values):,} different values, {values[0]:g} to {values[-1]:g}{{}}; divide it by "
            f"labels={{{{low: ..{middle}, high: {middle}..}}}}"
        )
        few = sum(self._counts) < 5 * len(values)
        if few or not all(one.is_integer() for one in values):
            what = text.format("")
            raise UserError(f"target: '{self._target}' is a measurement with {what}")
        what = text.format(", each taken as a class")
        self.warnings = [f"target: '{self._target}' may be a measurement: {what}"]


@dataclass
class SiteCodes:
    """The client of every example: the values of columns, joined by a hyphen, or its file."""

    missing: frozenset[str]
    _code: dict[tuple[str, ...], int] = field(default_factory=dict)

    def codes(self, columns: Sequence[pd.Series]) -> npt.NDArray[np.int32]:
        """Return the clients of rows (n,) by texts, -1 where one is a gap."""
        joined = columns[0].str.cat(list(columns[1:]), sep="\x1f") if columns[1:] else columns[0]

        def code(value: str, _: object) -> int:
            parts = tuple(canonical(part) for part in value.split("\x1f"))
            gap = any(part.lower() in self.missing for part in parts)
            return -1 if gap else self._code.setdefault(parts, len(self._code))

        return each_value(joined, code).astype(np.int32)

    def of_file(self, path: Path, count: int) -> npt.NDArray[np.int32]:
        """Return the client of the rows of a file: it has the file's name."""
        code = self._code.setdefault((path.name.split(".")[0] or path.name,), len(self._code))
        return np.full(count, code, dtype=np.int32)

    def done(self) -> tuple[tuple[str, ...], list[str]]:
        """Return ids in the order of the codes, and a line where one is not the name."""
        names = ["-".join(parts) for parts in self._code]
        return safe_ids(names), listed_ids(names)


def safe_ids(names: Sequence[str]) -> tuple[str, ...]:
    """Return ids of clients out of free text: other signs become a hyphen, each id occurs once.

    A name that loses letters gets its number among the sorted names: ``Köln`` is ``K-ln-2``.
    """
    taken = {name for name in names if is_id(name)}
    order, found = sorted(names), {}
    for name in names:
        if is_id(name) and name not in found:
            found[name] = name
            continue
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:50].strip("-.") or "site"
        lost = any(sign.isalnum() and not sign.isascii() for sign in name)
        number = order.index(name) + 1 if lost else 2
        one = f"{base}-{number}" if lost or base in taken else base
        while one in taken:
            number += 1
            one = f"{base}-{number}"
        taken.add(one)
        found[name] = one
    return tuple(found[name] for name in names)


def listed_ids(names: Sequence[str]) -> list[str]:
    """Return a line about the names that are no ids."""
    pairs = zip(names, safe_ids(names), strict=True)
    other = [f"'{name}' is {one}" for name, one in pairs if name != one]
    return [f"clients: {listed(other)}"] if other else []


class Keys:
    """Targets and sites of the rows that have both; the others are left out and counted."""

    def __init__(self, reading: Reading, wanted: tuple[str, ...]) -> None:
        self.reading = reading
        self.classes, self.sites = Classes(reading, wanted), SiteCodes(reading.form.missing)
        self._labels: list[Indices] = []
        self._owners: list[npt.NDArray[np.int32]] = []
        self.without_target = self.without_site = self.not_finite = self.rows = 0

    def columns(self, *others: str) -> list[str]:
        """Return the columns that are read as texts: target, sites and ``others``, each once."""
        return list(dict.fromkeys((self.reading.target, *self.reading.site, *others)))

    def add(
        self, chunk: Chunk, finite: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Note the keys of some rows; returns which of them have both, and are ``finite``."""
        frame, target = chunk.frame, self.reading.target
        owners = None
        if self.reading.site:
            owners = self.sites.codes([frame[name] for name in self.reading.site])
        elif chunk.site is not None:
            owners = self.sites.of_file(chunk.site, len(frame))
        return self.note(frame[target], owners, lambda i: chunk.at(i, target), finite)

    def note(
        self,
        targets: pd.Series,
        owners: npt.NDArray[np.int32] | None,
        where: Callable[[int], str],
        finite: npt.NDArray[np.bool_] | None = None,
    ) -> npt.NDArray[np.bool_]:
        """Do as :meth:`add` does, with targets and the codes of their sites."""
        labels = self.classes.labels(targets, where)
        kept = labels >= 0
        self.without_target += int((~kept).sum())
        if finite is not None:
            self.not_finite += int((~finite & kept).sum())
            kept &= finite
        if owners is not None:
            self.without_site += int((kept & (owners < 0)).sum())
            kept &= owners >= 0
            self._owners.append(owners[kept])
        self._labels.append(labels[kept])
        self.rows += len(labels)
        return kept

    def content(
        self, inputs: Inputs, warnings: Sequence[str] = (), notes: Sequence[str] = ()
    ) -> Content:
        """Return what is known once all rows are read; ``notes`` follow the line about the rows."""
        order, names = self.classes.done()
        none = [np.zeros(0, dtype=np.int32)]
        codes, owners = np.concatenate(self._labels), np.concatenate(self._owners or none)
        ids, lines = self.sites.done()
        labels = order[codes] if len(codes) else codes
        first = about_rows(self, labels, names, owners, ids)
        said = (*warnings, *self.classes.warnings)
        return Content(
            inputs, labels.astype(np.int64), names, owners, ids, said, (first, *notes, *lines)
        )


def about_rows(
    keys: Keys, labels: Indices, names: Sequence[str], owners: Examples, ids: Sequence[str]
) -> str:
    """Return one line: rows, what is left out, classes and clients with their counts."""
    left = [
        f"{count:,} rows {what} are left out (gaps)"
        for count, what in (
            (keys.without_target, "without target"), (keys.without_site, "without site"),
            (keys.not_finite, "with gaps in the window"),
        ) if count
    ]  # fmt: skip
    counts = np.bincount(labels, minlength=len(names))
    parts = [f"{len(labels):,} of {keys.rows:,} rows" if left else f"{keys.rows:,} rows", *left]
    target = f"'{keys.reading.target}': " if keys.reading.target else ""
    each = [f"{name} ({count:,})" for name, count in zip(names, counts, strict=True)]
    parts.append(f"{len(names)} classes, {target}{listed(each, 6)}")
    if ids:
        held = np.bincount(owners, minlength=len(ids))
        each = [f"{name} ({count:,})" for name, count in zip(ids, held, strict=True)]
        parts.append(f"{len(ids)} sites: {listed(each, 6)}")
    return "; ".join(parts)
