"""Class, client, group and time of the rows of a file: the columns that keys name, as numbers."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data.inputs import (
    PLAIN,
    RECORDING,
    Content,
    Indices,
    Inputs,
    Reading,
    canonical,
    counted,
    listed,
    listed_ids,
    safe_ids,
    shown,
)
from fedhet.data.rows import RowFile
from fedhet.errors import UserError, nearest

MAX_CLASSES = 10_000
MEASURED = 20  # different numbers of a target that is taken for a measurement, if they are many
PERSON = re.compile(  # names of columns that say whose a row is, or of what it was cut
    r"(?!(len|length|time|days|duration)_)(\w+_)?(patient(en)?|pat|proband(en)?|versuchsperson"
    r"|versicherten|paciente|sujeto?|dossier|pseudonym|person|subject|subj|sub|participant|individual|animal"
    r"|mouse|rat|donor|child|infant|mother|family|household|recording|record|scan|slide|lesion|case"
    r"|volunteer|specimen|sample|user|client|customer|speaker|writer|session|trip|eye|encounter|hadm"
    r"|stay|unit|engine|study|series|stratum|pair|litter|cluster|herd|cage|twin)s?_?"
    r"(id|ids|no|nr|nbr|num|number|nummer|numero|code|key|uid|uuid|name|kennung)?"
    r"|(sur|last_?|full_?|nach)?name|(fall|kind|tier|akten?|vp)_?(id|nr|nummer)"
    r"|pid|mrn|ptid|rid|id|ids|uuid|guid|nr|ident|subid|usubjid"
)
_FEW_GROUPS = 10  # values of such a column below which it says nothing of whose a row is
_RANGE = re.compile(r"([+-]?[\d.]*?)\.\.([+-]?[\d.]*)", re.ASCII)
_GAP, _UNKNOWN = -1, -2  # in place of a label


def snake(name: str) -> str:
    """Return ``PatientID`` as ``patient_id``."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("ô", "o")
    return re.sub(r"[^a-z0-9]+", "_", parted).strip("_")


def coded(values: pd.Series, code: Callable[[str], int]) -> Indices:
    """Return the code of every text; ``code`` is asked once a text."""
    places, unique = pd.factorize(values.fillna(""))
    codes: Indices = np.array([code(str(value)) for value in unique], dtype=np.int64)[places]
    return codes


def places_of(values: Sequence[str], key: str) -> dict[str, int]:
    """Return the place of each value in a list; raise UserError where one is there twice."""
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        if places.setdefault(canonical(value), place) != place:
            raise UserError(f"{key}: value '{value}' is given twice ({', '.join(values)})")
    return places


def cut_labels(middle: float) -> str:
    """Return the key that divides a measurement into two classes."""
    half = np.format_float_positional(middle, 3, unique=False, fractional=False, trim="-")
    return f'labels="{{low: ..{half}, high: {half}..}}"'


def need(file: RowFile, wanted: Iterable[str], key: str) -> None:
    """Raise UserError for a column that a key names and the file has not."""
    for name in wanted:
        if name not in file.columns:
            raise UserError(
                f"{key}: {file.where} has no column {name!r}{nearest(name, file.columns)}; it has "
                f"{listed(file.columns)}",
                about=f"{key}: column {name!r}",
            )


def present(file: RowFile, reading: Reading) -> Reading:
    """Return the reading, on a node without sites that its file has not.

    All rows of a node are its own. Raise UserError for a column that a key names and the file has
    not; a node may be without those of ``ignore``.
    """
    if reading.declared:
        reading = replace(reading, site=tuple(n for n in reading.site if n in file.columns))
    for key, names in {
        "target": [reading.target], "site": reading.site, "group": reading.group,
        "split-by": reading.when, "ignore": () if reading.declared else reading.ignore,
        "categories": dict(reading.categories), "numbers": reading.numbers,
        "text": [reading.text], "image": [reading.image], "time": [reading.time],
    }.items():  # fmt: skip
        need(file, filter(None, names), key)
    return reading


# --- classes ----------------------------------------------------------------


class Classes:
    """Labels of targets, as they come: by ``labels`` or ``classes``, else each value is a class."""

    def __init__(self, reading: Reading, wanted: tuple[str, ...]) -> None:
        declared = tuple(name for name, _ in reading.labels)
        if wanted and declared and set(wanted) != set(declared):
            raise UserError(
                f"classes: {', '.join(wanted)} must be the names in labels: {', '.join(declared)}"
            )
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
        for row, value in values[labels == _UNKNOWN].items():
            raise UserError(
                f"{where(row)}: {shown(str(value))} has no class in "
                f"{'labels' if self._reading.labels else 'classes'} ({listed(self._known)}): add "
                "it there, or correct the file"
            )
        self._examples += int((labels >= 0).sum())
        return labels

    def _label(self, value: str) -> int:
        plain = canonical(value)
        if plain in self._code:
            return self._code[plain]
        number = float(plain) if self._ranges and PLAIN.fullmatch(plain) else np.nan
        if inside := [label for low, high, label in self._ranges if low <= number < high]:
            return inside[0]
        if plain.lower() in self._reading.form.missing:
            return _GAP
        if self._names:
            return _UNKNOWN
        if len(self._code) >= MAX_CLASSES:
            raise UserError(
                f"target '{self._reading.target}': more than {MAX_CLASSES:,} different values "
                "cannot be classes; group them with labels"
            )
        return self._code.setdefault(plain, len(self._code))

    def done(self) -> tuple[Indices, tuple[str, ...]]:
        """Return the label of every code (C,), and class names, as numbers sorted by value.

        Raise UserError for cells of several classes, and for a target that surely is a measurement.
        """
        if self._names:
            return np.arange(len(self._names)), self._names
        self._refuse_several()
        numbers = bool(self._code) and all(map(PLAIN.fullmatch, self._code))
        names = sorted(self._code, key=float if numbers else str)
        if numbers and len(names) > MEASURED:
            values = [float(name) for name in names]
            whole = all(one.is_integer() for one in values)
            surely = self._examples < 5 * len(values) or not whole
            text = (
                f"target: '{self._reading.target}' {'is' if surely else 'may be'} a measurement: "
                f"{len(values):,} different values, {values[0]:g} to {values[-1]:g}; divide it by "
                f"{cut_labels(values[len(values) // 2])}"
            )
            if surely:
                raise UserError(text)
            self.warnings = [text]
        return np.argsort([self._code[name] for name in names]), tuple(names)

    def _refuse_several(self) -> None:
        """Raise UserError for cells of several classes, such as ``a|b`` beside ``b|c``."""
        lists = [name for name in self._code if name.startswith("[")]
        for sign in ("|", ";", ",", "+", "/", "&", " and ", " und ", " et ", " y "):
            split = {name: {*map(str.strip, name.split(sign))} for name in self._code}
            counts = Counter(part for parts in split.values() for part in parts)
            often = {part for part in counts if counts[part] > 1}
            known = often if sign in "|;" else {*split}
            joined = [name for name, parts in split.items() if len(parts - {""}) > 1]
            again = sum(
                not known.isdisjoint(split[name]) if sign in "|;," else split[name] <= known
                for name in joined
            )
            if lists or (joined and 2 * again >= len(joined)):
                raise UserError(
                    f"target: '{self._reading.target}' has several classes in one cell "
                    f"({shown((lists or joined)[0])}): multi-label data are not supported; "
                    "join values with labels, or make a column for one class"
                )


# --- clients, groups and times ---------------------------------------------------------------


class _Codes:
    """Numbers of the values of some columns together, as they are written; -1 for a gap."""

    def __init__(self, names: Sequence[str], missing: frozenset[str]) -> None:
        self.names, self._missing = names, missing
        self.places: dict[tuple[str, ...], int] = {}
        self.parts: list[Indices] = []  # of the rows that are kept, as they come

    def of(self, frame: pd.DataFrame) -> Indices:
        first, *others = (frame[name].astype("str") for name in self.names)
        return coded(first.str.cat(others, sep="\x1f") if others else first, self._code)

    def _code(self, value: str) -> int:
        # pandas writes a whole number among gaps as 1.0.
        parts = tuple(re.sub(r"^(\d+)\.0$", r"\1", one.strip()) for one in value.split("\x1f"))
        if any(part.lower() in self._missing for part in parts):
            return _GAP
        return self.places.setdefault(parts, len(self.places))


class Keys:
    """Target, site, group and time of the rows that have all of them; others are left out.

    The client of a row are the values of the columns of ``site``, joined by a hyphen, or its file.
    """

    def __init__(self, reading: Reading, wanted: tuple[str, ...]) -> None:
        self.reading, self._classes = reading, Classes(reading, wanted)
        self._missing = reading.form.missing
        self._sites, self._files = _Codes((), self._missing), dict[str, int]()
        self._groups: list[_Codes] = []  # asked for, else suspected
        self._kept: dict[str, list[npt.NDArray[Any]]] = {}  # labels, owners, times, recordings
        self._left: Counter[str] = Counter()

    def columns(
        self, file: RowFile, features: Collection[str] = (), others: Collection[str] = ()
    ) -> list[str]:
        """Return the columns that are read as texts: target, site, group, time, and suspects.

        ``features`` are read in any case, and ``others`` are no suspects. Raise UserError as
        :func:`present`.
        """
        self.reading = reading = present(file, self.reading)
        need(file, [reading.target], "target")
        if not self._sites.names:  # else one more file of a folder
            self._sites = _Codes(reading.site, self._missing)
        taken = reading.taken - {*reading.ignore} | {*others, reading.text, reading.time}
        persons = (n for n in file.columns if n not in taken and PERSON.fullmatch(snake(n)))
        columns = [reading.group] if reading.group else [[name] for name in persons]
        groups = self._groups or [_Codes(names, self._missing) for names in columns]
        self._groups = [one for one in groups if {*one.names} <= {*file.columns}]
        read = [n for one in self._groups for n in one.names if n not in features]
        return [*dict.fromkeys([reading.target, *reading.site, *read, *reading.when])]

    def add(
        self, file: RowFile, frame: pd.DataFrame, finite: npt.NDArray[np.bool_] | None = None,
        recordings: Indices | None = None,
    ) -> npt.NDArray[np.bool_]:  # fmt: skip
        """Note the keys of some rows; return which of them have all, and are ``finite``.

        ``recordings`` (k,) are equal for windows that were cut from one recording.
        """
        target = self.reading.target
        labels = self._classes.labels(frame[target], lambda row: file.at(row, target))
        if self.reading.site:
            owners = self._sites.of(frame)
        else:  # the file, where it is a site
            name = file.site.name.split(".")[0] or file.site.name if file.site else ""
            owners = np.full(len(frame), self._files.setdefault(name, len(self._files)))
        groups = [one.of(frame) for one in self._groups]
        times = self._when(file, frame)
        kept = np.ones(len(labels), dtype=bool)
        for what, good in (
            ("without target", labels >= 0), ("without site", owners >= 0),
            ("without group", groups[0] >= 0 if self.reading.group else None),
            ("without a time of split-by", None if times is None else ~np.isnan(times)),
            ("with gaps in the window", finite),
        ):  # fmt: skip
            if good is not None:
                self._left[what] += int((kept & ~good).sum())
                kept &= good
        for one, codes in zip(self._groups, groups, strict=True):
            one.parts.append(codes[kept])
        columns = {"labels": labels, "owners": owners, "times": times, "recordings": recordings}
        for name, values in columns.items():
            if values is not None:
                self._kept.setdefault(name, []).append(values[kept])
        return kept

    def _when(self, file: RowFile, frame: pd.DataFrame) -> npt.NDArray[np.float64] | None:
        """Return the times of ``split-by``, NaN for a gap; UserError for what is no time."""
        name = self.reading.split_by
        if not name:
            return None
        known = frame[name].mask(frame[name].str.lower().isin(list(self._missing)))
        times = as_times(known)
        for row, value in frame[name][known.notna() & np.isnan(times)].items():
            what = "is neither a date nor a number"
            raise UserError(f"split-by: {file.at(row, name)}: {shown(str(value))} {what}")
        return times

    def _grouped(self, recordings: Indices) -> tuple[Indices, str, bool]:
        """Return groups of all rows, by what, and whether they were asked for or one recording."""
        if not self.reading.group and len(np.unique(recordings)) < len(recordings):
            return recordings, RECORDING, True
        for one in self._groups:
            groups, by, count = np.concatenate(one.parts), " and ".join(one.names), len(one.places)
            if self.reading.group or _FEW_GROUPS <= count < len(groups):
                # A gap is a group of its own.
                groups = np.where(groups < 0, count + np.arange(len(groups)), groups)
                return groups, by, bool(self.reading.group)
        return recordings[:0], "", False

    def content(
        self, inputs: Inputs, warnings: Sequence[str] = (), notes: Sequence[str] = ()
    ) -> Content:
        """Return what is known once all rows are read.

        ``notes`` follow the line about the rows; empty lines are left out.
        """
        order, classes = self._classes.done()
        all_of = {name: np.concatenate(parts) for name, parts in self._kept.items()}
        labels = order[all_of["labels"]] if len(all_of["labels"]) else all_of["labels"]
        sites = ["-".join(values) for values in self._sites.places] or [*filter(None, self._files)]
        ids = safe_ids(sites)
        clients = all_of["owners"].astype(np.int32) if sites else np.zeros(0, dtype=np.int32)
        groups, by, grouped = self._grouped(all_of.get("recordings", np.zeros(0, dtype=np.int64)))
        left, target = +self._left, self.reading.target
        lines = [f"{len(labels):,}{f' of {len(labels) + left.total():,}' if left else ''} rows"]
        lines += [f"{count:,} rows {what} are left out (gaps)" for what, count in left.items()]
        lines.append(f"{len(classes)} classes, '{target}': {counted(classes, labels)}")
        lines += [f"{len(ids)} sites: {counted(ids, clients)}"] if ids else []
        lines += [f"{len(np.unique(groups)):,} groups by {by}"] if grouped else []
        return Content(
            inputs, labels, classes, clients, ids, groups.astype(np.int32), by, grouped,
            times=all_of.get("times", np.zeros(0)),
            warnings=tuple(filter(None, (*warnings, *self._classes.warnings))),
            notes=tuple(filter(None, ("; ".join(lines), *notes, *listed_ids(sites)))),
        )  # fmt: skip


def as_times(values: pd.Series) -> npt.NDArray[np.float64]:
    """Return numbers, or dates as numbers, of texts; NaN for what is neither."""
    numbers = pd.to_numeric(values, errors="coerce")
    if numbers.isna().any() and values.notna().any():
        dates = pd.to_datetime(values, errors="coerce", format="mixed")
        if dates.notna().any():
            numbers = dates.astype("int64").where(dates.notna())
    return np.asarray(numbers, dtype=np.float64)
