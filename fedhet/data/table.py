"""Rows of files and NPZ as examples: datasets ``table``, ``texts`` and ``signals``.

Columns that keys name become class, client, group and time; the others numbers, ids or windows.
"""

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data import describe, formats
from fedhet.data import inputs as kinds
from fedhet.data.inputs import Content, Indices, Inputs, Reading, Stream, canonical, listed
from fedhet.data.rows import RowFile, to_numbers
from fedhet.errors import UserError, one_line

MAX_CLASSES = 10_000
MEASURED = 20  # different numbers of a target that is taken for a measurement, if they are many
_FEW_GROUPS = 10  # values of such a column below which it says nothing of whose a row is
_RANGE = re.compile(r"([+-]?[\d.]*?)\.\.([+-]?[\d.]*)", re.ASCII)
_GAP, _UNKNOWN = -1, -2  # in place of a label
_LABEL, _OWNER, _TIME, _RECORDING = range(4)  # names that no column has


def coded(values: pd.Series, code: Callable[[str], int]) -> Indices:
    """Return the code of every text; ``code`` is asked once a text."""
    places, unique = pd.factorize(values.fillna(""))
    codes: Indices = np.array([code(str(value)) for value in unique], dtype=np.int64)[places]
    return codes


def _refuse(values: pd.Series, bad: Any, where: Callable[[int], str], what: str) -> None:
    for row, value in values[bad].items():
        raise UserError(f"{where(row)}: {kinds.shown(str(value))} {what}")


def places_of(values: Sequence[str], key: str) -> dict[str, int]:
    """Return the place of each value in a list; raise UserError where one is there twice."""
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        if places.setdefault(canonical(value), place) != place:
            raise UserError(f"{key}: value '{value}' is given twice ({', '.join(values)})")
    return places


class Classes:
    """Labels of targets, as they come: by ``labels`` or ``classes``, else each value is a class."""

    def __init__(self, reading: Reading, wanted: tuple[str, ...]) -> None:
        declared = tuple(name for name, _ in reading.labels)
        if wanted and declared and set(wanted) != set(declared):
            raise UserError(f"classes: {listed(wanted)} must be in labels: {listed(declared)}")
        self._reading, self._names = reading, wanted or declared
        self._code = {} if declared else places_of(wanted, "classes")
        self._ranges: list[tuple[float, float, int]] = []
        pairs = [(name, value) for name, values in reading.labels for value in values or (name,)]
        self._known = [value for _, value in pairs] or [*self._names]
        for name, value in pairs:
            label = self._names.index(name)
            if match := _RANGE.fullmatch(value.strip()):
                low, high = match.groups()
                self._ranges.append((float(low or -np.inf), float(high or np.inf), label))
            elif self._code.setdefault(canonical(value), label) != label:
                raise UserError(f"labels: value '{value}' belongs to two classes")
        self._examples = 0
        self.warnings: list[str] = []

    def labels(self, values: pd.Series, where: Callable[[int], str]) -> Indices:
        """Return the labels of texts, -1 for a gap; ``where`` says where a row is."""
        labels = coded(values, self._label)
        key = "labels" if self._reading.labels else "classes"
        what = f"is not in {key} ({listed(self._known)}): add it there, or correct the file"
        _refuse(values, labels == _UNKNOWN, where, what)
        self._examples += int((labels >= 0).sum())
        return labels

    def _label(self, value: str) -> int:
        plain = canonical(value)
        if plain in self._code:
            return self._code[plain]
        number = float(plain) if self._ranges and kinds.PLAIN.fullmatch(plain) else np.nan
        if inside := [label for low, high, label in self._ranges if low <= number < high]:
            return inside[0]
        if plain.lower() in self._reading.missing:
            return _GAP
        if self._names:
            return _UNKNOWN
        if len(self._code) >= MAX_CLASSES:
            raise UserError(f"target: over {MAX_CLASSES:,} values: group them with labels")
        return self._code.setdefault(plain, len(self._code))

    def done(self) -> tuple[Indices, tuple[str, ...]]:
        """Return the label of every code (C,), and class names, as numbers sorted by value.

        Raise UserError for cells of several classes, and for a target that surely is a measurement.
        """
        if self._names:
            return np.arange(len(self._names)), self._names
        self._refuse_several()
        numbers = bool(self._code) and all(map(kinds.PLAIN.fullmatch, self._code))
        names = sorted(self._code, key=float if numbers else str)
        if numbers and len(names) > MEASURED:
            values = [float(name) for name in names]
            whole = all(one.is_integer() for one in values)
            surely = self._examples < 5 * len(values) or not whole
            text = (
                f"target: '{self._reading.target}' {'is' if surely else 'may be'} a measurement: "
                f"{len(values):,} different values, {values[0]:g} to {values[-1]:g}; divide it by "
                f"{describe.cut_labels(values[len(values) // 2])}"
            )
            if surely:
                raise UserError(text)
            self.warnings = [text]
        return np.argsort([self._code[name] for name in names]), tuple(names)

    def _refuse_several(self) -> None:
        """Raise UserError for cells of several classes, such as ``a|b`` beside ``b|c``."""
        several = [name for name in self._code if name.startswith("[")]
        for sign in ("|", ";", ",", "+", "/", "&", " and ", " und ", " et ", " y "):
            split = {name: {*map(str.strip, name.split(sign))} for name in self._code}
            counts = Counter(part for parts in split.values() for part in parts)
            known = {part for part in counts if counts[part] > 1} if sign in "|;" else {*split}
            joined = [name for name, parts in split.items() if len(parts - {""}) > 1]
            enough = any if sign in "|;," else all
            again = sum(enough(part in known for part in split[name]) for name in joined)
            several += joined if 2 * again >= len(joined) else []
        if several:
            raise UserError(f"target: several classes in one cell: {kinds.shown(several[0])}")


class _Codes:
    """Numbers of the values of some columns together, as they are written; -1 for a gap."""

    def __init__(self, names: Sequence[str], missing: frozenset[str]) -> None:
        self.names, self.by, self._missing = names, " and ".join(names), missing
        self.places: dict[tuple[str, ...], int] = {}

    def place(self, parts: tuple[str, ...]) -> int:
        return self.places.setdefault(parts, len(self.places))

    def of(self, frame: pd.DataFrame) -> Indices:
        first, *others = (frame[name].astype("str") for name in self.names)
        return coded(first.str.cat(others, sep="\x1f") if others else first, self._code)

    def _code(self, value: str) -> int:
        # pandas writes a whole number among gaps as 1.0.
        parts = tuple(re.sub(r"^(\d+)\.0$", r"\1", one.strip()) for one in value.split("\x1f"))
        return _GAP if any(one.lower() in self._missing for one in parts) else self.place(parts)


class Keys:
    """Target, site, group and time of the rows that have all of them; others are left out.

    The client of a row are the values of the columns of ``site``, joined by a hyphen, or its file.
    """

    def __init__(self, reading: Reading, wanted: tuple[str, ...]) -> None:
        self.reading, self._classes = reading, Classes(reading, wanted)
        self._sites = _Codes((), frozenset())
        self._groups: list[_Codes] = []  # asked for, else suspected
        self._rows: list[pd.DataFrame] = []  # label, owner, time, recording, groups; without gaps
        self._left: Counter[str] = Counter()

    def columns(
        self, file: RowFile, features: Collection[str] = (), others: Collection[str] = ()
    ) -> list[str]:
        """Return the columns that are read as texts: target, site, group, time, and suspects.

        ``features`` are read in any case, and ``others`` are no suspects.
        """
        self.reading = reading = describe.present(file, self.reading)
        describe.need(file, [reading.target], "target")
        if reading.site and not self._sites.names:  # else one more file of a folder
            self._sites = _Codes(reading.site, reading.missing)
        taken = reading.taken - {*reading.ignore} | {*others, reading.text, reading.time}
        persons = (n for n in file.columns if n not in taken and describe.is_person(n))
        columns = [reading.group] if reading.group else [[name] for name in persons]
        groups = self._groups or [_Codes(names, reading.missing) for names in columns]
        self._groups = [one for one in groups if {*one.names} <= {*file.columns}]
        read = [n for one in self._groups for n in one.names if n not in features]
        return [*dict.fromkeys([reading.target, *reading.site, *read, *reading.named["split-by"]])]

    def add(
        self, file: RowFile, frame: pd.DataFrame, finite: npt.NDArray[np.bool_] | None = None,
        recordings: Indices | None = None,
    ) -> npt.NDArray[np.bool_]:  # fmt: skip
        """Note the keys of some rows; return which of them have all, and are ``finite``.

        ``recordings`` (k,) are equal for windows that were cut from one recording.
        """
        reading, target = self.reading, self.reading.target
        labels = self._classes.labels(frame[target], partial(file.at, column=target))
        if reading.site:
            owners = self._sites.of(frame)
        else:  # the file, where it is a site
            name = file.site.name.split(".")[0] or file.site.name if file.site else ""
            owners = np.full(len(frame), self._sites.place((name,)))
        rows: dict[Any, Any] = {one.by: one.of(frame) for one in self._groups}
        rows |= {_LABEL: labels, _OWNER: owners}
        good = {"without target": labels >= 0, "without site": owners >= 0}
        if reading.group:
            good["without group"] = rows[self._groups[0].by] >= 0
        if reading.split_by:
            column, where = frame[reading.split_by], partial(file.at, column=reading.split_by)
            known = column.mask(column.str.lower().isin(list(reading.missing)))
            rows[_TIME], what = as_times(known), "is neither a date nor a number (split-by)"
            _refuse(column, known.notna() & np.isnan(rows[_TIME]), where, what)
            good["without a time of split-by"] = ~np.isnan(rows[_TIME])
        if finite is not None:
            good["with gaps in the window"] = finite
        if recordings is not None:
            rows[_RECORDING] = recordings
        kept = np.ones(len(labels), dtype=bool)
        for what, one in good.items():
            self._left[what] += int((kept & ~one).sum())
            kept &= one
        self._rows.append(pd.DataFrame(rows)[kept])
        return kept

    def _grouped(self, rows: pd.DataFrame) -> tuple[Indices, str, bool]:
        """Return groups of all rows, by what, and whether they were asked for or one recording."""
        asked = bool(self.reading.group)
        if not asked and _RECORDING in rows and rows[_RECORDING].duplicated().any():
            return rows[_RECORDING].to_numpy(), kinds.RECORDING, True
        for one in self._groups:
            groups, count = rows[one.by].to_numpy(), len(one.places)
            if asked or _FEW_GROUPS <= count < len(groups):
                # A gap is a group of its own.
                groups = np.where(groups < 0, count + np.arange(len(groups)), groups)
                return groups, one.by, asked
        return np.zeros(0, dtype=np.int64), "", False

    def content(
        self, inputs: Inputs, warnings: Sequence[str] = (), notes: Sequence[str] = ()
    ) -> Content:
        """Return what is known once all rows are read; ``notes`` follow the line about them."""
        order, classes = self._classes.done()
        rows = pd.concat(self._rows)
        labels = order[rows[_LABEL].to_numpy()]
        sites = [*filter(None, map("-".join, self._sites.places))]
        ids, clients = kinds.safe_ids(sites), rows[_OWNER].to_numpy(np.int32)
        clients = clients[: len(rows) * bool(sites)]
        groups, by, grouped = self._grouped(rows)
        left, target = +self._left, self.reading.target
        lines = [f"{len(labels):,}{f' of {len(labels) + left.total():,}' if left else ''} rows"]
        lines += [f"{count:,} rows {what} are left out (gaps)" for what, count in left.items()]
        lines.append(f"{len(classes)} classes, '{target}': {kinds.counted(classes, labels)}")
        lines += [f"{len(ids)} sites: {kinds.counted(ids, clients)}"] if ids else []
        lines += [f"{len(np.unique(groups)):,} groups by {by}"] if grouped else []
        notes = ["; ".join(lines), *notes, *kinds.listed_ids(sites)]
        return Content(
            inputs, labels, classes, clients, ids, groups.astype(np.int32), by, grouped,
            times=rows[_TIME].to_numpy() if _TIME in rows else np.zeros(0),
            warnings=tuple(filter(None, (*warnings, *self._classes.warnings))),
            notes=tuple(filter(None, notes)),
        )  # fmt: skip


def as_times(values: pd.Series) -> npt.NDArray[np.float64]:
    """Return numbers, or dates as numbers, of texts; NaN for what is neither."""
    numbers = pd.to_numeric(values, errors="coerce")
    if numbers.isna().any() and values.notna().any():
        dates = pd.to_datetime(values, errors="coerce", format="mixed")
        if dates.notna().any():
            numbers = dates.astype("int64").where(dates.notna())
    return np.asarray(numbers, dtype=np.float64)


_WORD = re.compile(r"\w+|[^\w\s]")
_SAMPLED = 2_000  # rows of a chunk by which leaks are looked for


class TableRows:
    """Rows as the numbers that inputs of a table say: a category is its place in its list."""

    def __init__(self, inputs: Inputs, unseen: Counter[str] | None = None) -> None:
        """``unseen`` counts values that are no category, by column; without it they are refused."""
        self.inputs, self._unseen = inputs, unseen
        self.codes = {n: places_of(some, f"categories '{n}'") for n, some in inputs.categories}
        self.plain = [name for name in inputs.columns if name not in self.codes]
        self.infinite: Counter[str] = Counter()  # numbers that count as gaps, by column

    def numbers(self, file: RowFile, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        """Return float32 (k, f), NaN for a gap; raise UserError for what is no such value."""
        if bad := [name for name in self.plain if frame[name].dtype.kind not in "iuf"]:
            column = frame[bad[0]].dropna()
            keys = f"words ({listed(bad)}) go into ignore or categories; decimal and gaps change it"
            words = to_numbers(column, file.form).isna()
            _refuse(column, words, partial(file.at, column=bad[0]), f"is not a number: {keys}")
        numbers = np.empty((len(frame), len(self.inputs.columns)), dtype=np.float32)
        with np.errstate(over="ignore"):
            for place, name in enumerate(self.inputs.columns):
                column = frame[name]
                numbers[:, place] = self._coded(column, file) if name in self.codes else column
        infinite = np.isinf(numbers)
        self.infinite += Counter(np.repeat(self.inputs.columns, infinite.sum(axis=0)).tolist())
        numbers[infinite] = np.nan
        return numbers

    def _coded(self, column: pd.Series, file: RowFile) -> npt.NDArray[np.float64]:
        form, name = file.form, str(column.name)
        codes = self.codes[name]

        def code(value: str) -> int:
            plain = canonical(value)
            # Else a number that the file writes in its own way.
            number = canonical(f"{to_numbers(pd.Series([value]), form).iloc[0]:.10g}")
            gap = _GAP if plain.lower() in form.missing else _UNKNOWN
            return codes.get(plain, codes.get(number, gap))

        places = coded(column, code)
        if self._unseen is None:
            what = f"is not in categories ({listed([*codes])}): add it there, or correct the file"
            _refuse(column, places == _UNKNOWN, partial(file.at, column=name), what)
        else:
            self._unseen[name] += int((places == _UNKNOWN).sum())
        return np.where(places < 0, np.nan, places)


def of_table(file: RowFile, given: Reading, classes: tuple[str, ...]) -> Stream:
    """Return the rows of a file, in its order: the columns that are features."""
    reading, description = describe.described(file, given)
    for name, values in reading.categories:
        if name in reading.taken or (reading.declared and not values):
            use = "has another use" if name in reading.taken else "needs its values on a node"
            raise UserError(f"categories: '{name}' {use}: categories={{{name}: [a, b]}}")
    lines = [f"target: '{reading.target}' by its name"] if not given.target else []
    features, categories = left_columns(file, reading), dict(reading.categories)
    if reading.numbers:
        features = [*reading.numbers, *categories]
        if other := [n for n in left_columns(file, reading) if n not in features]:
            lines.append(f"columns that no key names and no model sees: {listed(other)}")
    elif description is not None:
        if unusable := description.unusable():
            raise UserError(f"{file.where}: {'; '.join(unusable)}")
        features, categories = description.features, description.categories
        lines.append(description.line())
        if description.is_recording():
            lines.append("rows that follow each other are nearly alike, as steps of a recording")
    else:
        features.sort()  # by name: each node's file has an order of its own
    if not features:
        raise UserError(f"{file.where}: no column is left for the models: see site and ignore")
    lists = tuple((name, categories[name]) for name in features if name in categories)
    keys, rows = Keys(reading, classes), TableRows(Inputs.table(tuple(features), lists))
    texts, places, sampled, count = keys.columns(file, features), [], [], 0
    for part, frame in file.chunks([*texts, *rows.codes], rows.plain):
        numbers = rows.numbers(part, frame[keys.add(part, frame)])
        step = len(numbers) // _SAMPLED + 1
        places.append(np.arange(count, count + len(numbers), step))
        sampled.append(numbers[::step])
        count += len(numbers)
        yield numbers
    seen = np.concatenate(sampled)
    if not (reading.site or reading.declared or file.site is not None):
        named = [(n, x) for n, x in zip(features, seen.T, strict=True) if describe.site_like(n)]
        different = {name: len(np.unique(x[~np.isnan(x)])) for name, x in named}
        likely = [name for name, many in different.items() if 2 <= many <= len(seen) // 10]  # noqa: PLR2004
        lines += map(describe.about_site, likely[:1])
    infinite = listed([f"{name} ({count:,})" for name, count in rows.infinite.items()])
    warning = infinite and f"infinite numbers count as gaps: {infinite}"
    content = keys.content(rows.inputs, [warning], [*lines, "; ".join(file.found)])
    if reading.declared:
        return content
    leaking = describe.leaks(features, seen, content.labels[np.concatenate(places)], reading.target)
    return replace(content, warnings=(*content.warnings, *leaking))


def left_columns(file: RowFile, reading: Reading) -> list[str]:
    """Return the columns that may be features: no key names them, and they are no index."""
    return [name for name in describe.named_columns(file, reading) if name not in reading.taken]


def token_ids(texts: Sequence[str], inputs: Inputs) -> npt.NDArray[np.int32]:
    """Return int32 (k, l): of the first l words in lower case each 1 + CRC-32 mod (V - 1).

    A hash needs no vocabulary of all clients' texts. Id 0 is for padding.
    """
    ids = inputs.zeros(len(texts))
    for row, text in zip(ids, texts, strict=True):
        for place, word in zip(range(len(row)), _WORD.finditer(text.lower()), strict=False):
            row[place] = 1 + zlib.crc32(word[0].encode()) % (inputs.vocabulary - 1)
    return ids


def of_texts(file: RowFile, given: Reading, classes: tuple[str, ...]) -> Stream:
    """Return the texts of a file, in its order, with the target and the sites."""
    reading, _ = describe.described(file, given, "text")
    lines = [f"the texts are those of '{reading.text}'"] if not given.text else []
    used = {reading.text, *reading.taken, *file.index}
    if unused := [name for name in file.columns if name not in used]:
        lines.append(f"columns that are not read: {listed(unused)} (dataset=table reads them)")
    inputs = Inputs(kinds.TOKENS, (reading.length,), reading.vocabulary, (reading.text,))
    keys, empty, written = Keys(reading, classes), 0, list[str]()
    for part, frame in file.chunks([*keys.columns(file), reading.text], ()):
        texts = frame[keys.add(part, frame)][reading.text].tolist()
        written += texts
        ids = token_ids(texts, inputs)
        empty += int((ids[:, 0] == 0).sum())
        yield ids
    warning = f"{empty} texts have no word" * bool(empty)
    content = keys.content(inputs, [warning], [*lines, "; ".join(file.found)])
    return replace(content, texts=tuple(written))


# --- signals ----------------------------------------------------------------

AXES = ("channels-time", "time-channels")
LONGER = 4  # times that the second axis is longer than the third where it is taken for time
_CHUNK = 4096
_DAMAGE = (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error)
_PART = ""  # the column of a file's number among those of a folder
TARGETS = ("y", "Y", "label", "labels", "target", "targets")


class Npz(RowFile):
    """The arrays of an NPZ file: ``windows`` (n, c, t) of ``x``, the others as columns.

    Without ``axes`` time comes first where that axis is much longer, which a line in ``found``
    says; ``axes`` is then the order that was taken.
    """

    def __init__(self, path: Path, axes: str = "") -> None:
        super().__init__(f"data-path {path}", Reading())
        self.path, self.row = path, "entry"
        formats.refuse_other(path)
        try:
            self._file: Any = np.load(path)
        except _DAMAGE as error:
            raise UserError(f"{self.where}: not a valid NPZ file: {one_line(error)}") from error
        self.columns = list(self._file)
        names = (("x", "X"), TARGETS)
        self.used = [next((n for n in forms if n in self.columns), forms[0]) for forms in names]
        describe.need(self, self.used[:1], "signals")
        x = self._array(self.used[0])
        what, flat = f"x of shape {x.shape} is", x.ndim == 2  # noqa: PLR2004
        if x.dtype.kind not in "biuf" or x.ndim not in (2, 3) or not x.size:
            what = f"{what} {x.dtype}, must be numbers (n, channels, time)"
            raise UserError(f"{self.where}: {'there is no row' if x.shape[:1] == (0,) else what}")
        if flat:
            self.found.append(f"{what} taken as one channel of {x.shape[1]} steps")
            x = x[:, None]
        second, third = x.shape[1:]
        if max(second, third) > kinds.MAX_SIDE or second * third > kinds.MAX_SIZE:
            raise UserError(f"{self.where}: windows of {(second, third)} are too large")
        self.axes = axes or AXES[second >= LONGER * third]
        if not axes and self.axes == AXES[1]:
            other = f"axes={AXES[0]} takes it the other way"
            self.found.append(f"{what} taken as {third} channels of {second} steps: {other}")
        self.windows = x.transpose(0, 2, 1) if self.axes == AXES[1] and not flat else x

    def has_column(self, name: str) -> bool:
        """Return whether an array has one value for each window."""
        try:
            return self._array(name).shape in {(n := len(self.windows),), (1, n)}
        except UserError:
            return False

    def rows(self, names: Sequence[str]) -> pd.DataFrame:
        """Return those arrays (n,), (n, 1) or one-hot (n, C) as texts."""
        return pd.DataFrame({name: self._column(name) for name in names})

    def _column(self, name: str) -> pd.Series:
        column = self._array(name)
        if column.ndim == 2 and 1 in column.shape:
            column = column.ravel()
        if column.ndim == 2 and np.isin(column, (0, 1)).all() and (column.sum(axis=1) == 1).all():
            column = column.argmax(axis=1)  # one-hot
        if column.shape != (count := len(self.windows),):
            raise UserError(f"{self.where}: '{name}' has shape {column.shape}, and x has {count}")
        if column.dtype.kind == "S":
            column = np.char.decode(column, "utf-8", "replace")
        return pd.Series(column).astype("str").str.strip()

    def _array(self, name: str) -> npt.NDArray[Any]:
        try:
            return np.asarray(self._file[name])
        except _DAMAGE as error:
            what = f"is damaged: {one_line(error)}"
            if "pickle" in str(error):
                what = "holds Python objects: save texts with dtype=str, windows of one length"
            raise UserError(f"{self.where}: '{name}' {what}") from error


def small_numbers(chunk: npt.NDArray[Any], *others: np.dtype[Any]) -> kinds.Examples:
    """Return numbers (k, ...) as int16 if it holds all of their and others' dtypes, or float32."""
    short = all(np.can_cast(dtype, np.int16) for dtype in (chunk.dtype, *others))
    with np.errstate(over="ignore"):
        return chunk.astype(np.int16 if short else np.float32)


def finite(chunk: kinds.Examples) -> npt.NDArray[np.bool_]:
    """Return which of the examples (k, ...) hold finite numbers alone."""
    return np.asarray(np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1))


def of_npz(
    paths: Sequence[Path], reading: Reading, classes: tuple[str, ...], notes: Sequence[str] = ()
) -> Stream:
    """Return windows (n, c, t), with their targets and sites; a file of several is a site."""
    files = [Npz(path, reading.axes) for path in paths]
    shape, dtypes = files[0].windows.shape[1:], {file.windows.dtype for file in files}
    keys = Keys(reading.changed(target=reading.target or files[0].used[1]), classes)
    for file in files:
        if (form := file.windows.shape[1:]) != shape:
            raise UserError(f"{file.where}: windows are {form}, and those of {paths[0]} {shape}")
        file.site = file.path if len(files) > 1 else None
        others = [name for name in file.columns if not file.has_column(name)]
        rows = file.rows(keys.columns(file, (), others))
        for start in range(0, len(rows), _CHUNK):
            stored = small_numbers(file.windows[start : start + _CHUNK], *dtypes)
            yield stored[keys.add(file, rows[start : start + _CHUNK], finite(stored))]
    notes = list(dict.fromkeys([*(line for file in files for line in file.found), *notes]))
    return keys.content(Inputs(kinds.SIGNAL, shape, scale=reading.scale), (), notes)


def of_windows(file: RowFile, reading: Reading, classes: tuple[str, ...]) -> Stream:
    """Return windows out of rows: one row a window, or with ``time`` one row a step."""
    keys, columns = Keys(reading, classes), left_columns(file, reading)
    if reading.time:
        channels = reading.channels or tuple(n for n in columns if n != reading.time)
        texts = keys.columns(file, (), [*channels, reading.time])
        windows, first, recordings, line = cut_recordings(file, reading, channels, texts)
        shape, good, parts = windows.shape[1:], finite(windows), first[_PART].to_numpy()
        for number, part in enumerate(file.files):  # each file of a folder is a site
            mask = parts == number
            yield windows[mask][keys.add(part, first[mask], good[mask], recordings[mask])]
    else:
        groups = [[name for name in columns if name.startswith(one)] for one in reading.channels]
        groups = groups or [columns]
        if not columns:
            raise UserError(f"{file.where}: no column is left for the models: see site and ignore")
        if len({len(group) for group in groups}) > 1 or not all(groups):
            counts = dict(zip(reading.channels, map(len, groups), strict=True))
            raise UserError(f"channels: {file.where} has unequal numbers of columns: {counts}")
        shape = (len(groups), len(groups[0]))
        line = f"one row a window of {shape}"
        rows = TableRows(Inputs.table(tuple(name for group in groups for name in group)))
        for part, frame in file.chunks(keys.columns(file, rows.plain), rows.plain):
            x = rows.numbers(part, frame).reshape(-1, *shape)
            yield x[keys.add(part, frame, finite(x))]
    inputs = Inputs(kinds.SIGNAL, shape, scale=reading.scale)
    return keys.content(inputs, (), [line, "; ".join(file.found)])


def cut_recordings(
    file: RowFile, reading: Reading, channels: tuple[str, ...], texts: Sequence[str], steps: int = 0
) -> tuple[npt.NDArray[np.float32], pd.DataFrame, Indices, str]:
    """Return windows (m, c, t), the texts of their first rows, codes (m,) of recordings, a line.

    A recording ends where time goes back, or another key begins. With ``steps`` windows have that
    length; else recordings of equal length stay whole. One text is the file's number.
    """
    describe.need(file, [reading.time, *channels], "channels")
    table, when = TableRows(Inputs.table(channels)), reading.time
    values, frames = [], []
    for part, frame in file.chunks([*texts, when], channels):
        values.append(table.numbers(part, frame))
        frames.append(frame[[*texts, when]].assign(**{_PART: file.files.index(part)}))
    x, rows = np.concatenate(values), pd.concat(frames)
    ends = rows[[n for n in (_PART, reading.target, *reading.site, *reading.group) if n in rows]]
    same = (ends == ends.shift()).all(axis=1).to_numpy()
    new = np.flatnonzero(~same | (np.diff(as_times(rows[when]), prepend=np.inf) <= 0))
    starts, length, line = _cut(new, len(x), steps or reading.length, whole=not steps)
    windows = np.stack([x[start : start + length].T for start in starts])
    return windows, rows.iloc[starts], np.searchsorted(new, starts, side="right"), line


def _cut(new: Indices, rows: int, length: int, *, whole: bool) -> tuple[Indices, int, str]:
    """Return first rows of the windows, their length, and a line about how they were cut."""
    sizes = np.diff(np.append(new, rows))
    common, count = Counter(sizes.tolist()).most_common(1)[0]
    if whole and common > 1 and count >= 0.9 * len(sizes):
        other = f", {len(sizes) - count} of another length left out" * (count < len(sizes))
        line = f"{count} windows of {common} steps, recordings of equal length (length cuts none)"
        return new[sizes == common], common, line + other
    each = sizes // length
    if not each.any():
        raise UserError(f"length: {length} is more than the longest recording, {sizes.max()}")
    within = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    starts = np.repeat(new, each) + within * length
    line = f"{len(new)} recordings are cut into {len(starts)} windows of {length} steps (length)"
    return starts, length, f"{line}, {rows - len(starts) * length} steps left over"
