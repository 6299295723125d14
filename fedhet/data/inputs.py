"""What examples are: kind and shape, columns of a file, the classes and clients that they name."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from fedhet.errors import UserError, nearest, one_line
from fedhet.files import is_id, near
from fedhet.plugins import is_given

if TYPE_CHECKING:  # a second at import, and most processes read no file
    import pandas as pd

    from fedhet.data.rows import RowFile

Examples = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Kind = Literal["image", "signal", "table", "tokens"]
IMAGE: Final = "image"
SIGNAL: Final = "signal"
TABLE: Final = "table"
TOKENS: Final = "tokens"
KINDS: tuple[Kind, ...] = (IMAGE, SIGNAL, TABLE, TOKENS)
PLURAL = {IMAGE: "images", SIGNAL: "signals", TABLE: "rows of a table", TOKENS: "texts"}
_AXES = {IMAGE: 3, SIGNAL: 2, TABLE: 1, TOKENS: 1}  # of a shape
IMAGE_SETS = ("digits", "cifar10", "cifar100", "fashion-mnist", "image-folder", "synthetic")
DATASETS = {"signals": SIGNAL, "table": TABLE, "texts": TOKENS}  # by their files' kind
SYNTHETIC = {f"synthetic-{kind}": kind for kind in (SIGNAL, TABLE, TOKENS)}
HUB = "hf:"  # and the name of a data set of Hugging Face's hub, of whatever kind
MAX_SIDE = 1 << 20  # of one axis of an example
MAX_SIZE = 1 << 24  # numbers of one example
MAX_VOCABULARY = 1 << 20
MAX_COLUMNS = 16_384
_Name = Annotated[str, Field(max_length=200)]  # of a column or a category
_Names = Annotated[tuple[_Name, ...], Field(max_length=MAX_COLUMNS)]


@dataclass(frozen=True)
class Inputs:
    """What one example of a data set is, and what a model gets of it.

    ``shape`` is a model's, without the batch: (3, h, w) for an image, of a grey one (1, h, w),
    (c, t) for a signal, (f',) for a row of a table, (l,) for tokens. A batch is float32, of tokens
    int64. ``vocabulary`` is the number of token ids, 0 among them for padding. ``columns`` are a
    table's as stored, in order, or the one column of a file of texts; ``categories`` are the
    allowed values of those that are no numbers. ``scale`` is what a signal's stored numbers are
    divided by. ``scan``: images of more than 8 bits, stored as float32 (h, w, 1) and scaled by the
    range of a client's own, or by ``window``. ``standardised``: images of 8 bits by the mean and
    deviation of each channel of a client's own.
    """

    kind: Kind
    shape: tuple[Annotated[int, Field(ge=1, le=MAX_SIDE)], ...]
    vocabulary: Annotated[int, Field(ge=0, le=MAX_VOCABULARY)] = 0
    columns: _Names = ()
    categories: Annotated[tuple[tuple[_Name, _Names], ...], Field(max_length=MAX_COLUMNS)] = ()
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    scan: bool = False
    window: tuple[()] | tuple[FiniteFloat, FiniteFloat] = ()
    standardised: bool = False
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @staticmethod
    def image(
        size: int | tuple[int, int],
        *,
        grey: bool = False,
        window: tuple[()] | tuple[float, float] = (),
        standardised: bool = False,
    ) -> Inputs:
        """Return RGB or grey images, square of side ``size`` or of that height and width.

        ``window`` are the lowest and highest value of scans of more than 8 bits; empty: 8 bits.
        ``standardised``: images of 8 bits by a client's own mean and deviation of each channel.
        """
        high, wide = (size, size) if isinstance(size, int) else size
        shape = (1 if grey else 3, high, wide)
        return Inputs(IMAGE, shape, scan=bool(window), window=window, standardised=standardised)

    @staticmethod
    def table(
        columns: tuple[str, ...], categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ) -> Inputs:
        """Return rows: a number and whether it is missing per plain column, one-hot categories.

        ``columns`` are all of a row's, in order; ``categories`` name those that are no numbers,
        each with its values.
        """
        plain = len(columns) - len(categories)
        width = 2 * plain + sum(len(values) for _, values in categories)
        return Inputs(TABLE, (width,), columns=columns, categories=categories)

    @property
    def channels(self) -> int:
        """Return those of an image or a signal; of a table its width."""
        return self.shape[0]

    @property
    def fitted(self) -> bool:
        """Return whether the preparation is fitted to a client's own examples."""
        return self.kind in (SIGNAL, TABLE) or self.scan or self.standardised

    @property
    def stored(self) -> tuple[int, ...]:
        """Return the shape of an example as it is stored."""
        if self.kind == IMAGE:
            return (*self.shape[1:], 1 if self.scan else self.shape[0])
        return (len(self.columns),) if self.kind == TABLE else self.shape

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return height, width and channels of an image."""
        channels, high, wide = self.shape
        return high, wide, channels

    def zeros(self, count: int) -> npt.NDArray[Any]:
        """Return ``count`` examples as stored, all zero: images are black, texts empty.

        (n, ...) uint8 for images of 8 bits, int32 for tokens, else float32.
        """
        dtypes = {IMAGE: np.float32 if self.scan else np.uint8, TOKENS: np.int32}
        dtype = dtypes.get(self.kind, np.float32)
        return np.zeros((count, *self.stored), dtype=dtype)

    def blank(self, count: int) -> npt.NDArray[Any]:
        """Return a batch of ``count`` as a model gets it, all zero.

        (B, ...) int64 for tokens, else float32.
        """
        dtype = np.int64 if self.kind == TOKENS else np.float32
        return np.zeros((count, *self.shape), dtype=dtype)

    def __str__(self) -> str:
        """Return words for messages, such as ``signal of shape (6, 128)``."""
        words = f", {self.vocabulary} token ids" if self.vocabulary else ""
        return f"{self.kind} of shape {self.shape}{words}"

    def differs(self, other: Inputs) -> str:
        """Return in what ``other`` differs from these, in words; empty if in nothing."""
        if (self.kind, self.shape, self.vocabulary) != (other.kind, other.shape, other.vocabulary):
            return f"examples are {other}, but this run's are {self}"
        for ours, theirs in zip_longest(self.columns, other.columns):
            if ours != theirs:
                return f"column '{theirs}' is where this run has '{ours}'"
        if self.categories != other.categories:
            return "categories differ from this run's"
        if self.scale != other.scale:
            return f"scale is {other.scale:g}, but this run's is {self.scale:g}"
        return ""

    def dump(self) -> dict[str, Any]:
        """Return plain values, without the defaults."""
        pairs = ((one, getattr(self, one.name)) for one in fields(self))
        return {one.name: value for one, value in pairs if value != one.default}

    def text(self) -> str:
        """Return JSON, for a message."""
        return json.dumps(self.dump(), separators=(",", ":"))


_INPUTS = TypeAdapter(Inputs)


def kind_of(dataset: str) -> str:
    """Return the kind of a data set by its name; empty for one that must be loaded first."""
    kinds = dict.fromkeys(IMAGE_SETS, IMAGE) | DATASETS | SYNTHETIC
    return kinds.get(dataset.partition(":")[0], "")


def family(dataset: str) -> str:
    """Return the data set whose keys this one has: its own name, or of a given object its kind's.

    An object of a Python program is called ``table:pandas.DataFrame:digest``.
    """
    return dataset.partition(":")[0] if is_given(dataset) else dataset


def is_hub(dataset: str) -> bool:
    """Return whether a data set is one of Hugging Face's hub, by its name."""
    return dataset.startswith(HUB)


def noun(dataset: str) -> str:
    """Return what the examples of a data set are called: images where they are."""
    return "images" if kind_of(dataset) == IMAGE else "examples"


def load_inputs(value: Any) -> Inputs:
    """Return what :meth:`Inputs.dump` or :meth:`Inputs.text` gave, from anybody.

    Raise ValueError, in one line, for what no data set could be.
    """
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        inputs = _INPUTS.validate_json(text, strict=True)
    except ValidationError as errors:
        error = errors.errors(include_url=False, include_input=False)[0]
        where = ".".join(one_line(part, 80) for part in error["loc"])
        raise ValueError(
            f"inputs: {where or 'not a description of examples'}: {error['msg']}"
        ) from None
    except (TypeError, ValueError):
        raise ValueError(
            "inputs: the description of examples is missing (is its fedhet older?)"
        ) from None
    kind, names = inputs.kind, [name for name, _ in inputs.categories]
    lists = (inputs.columns, names, *(values for _, values in inputs.categories))
    table = Inputs.table(inputs.columns, inputs.categories)
    for what, wrong in {
        "kind and shape do not fit": len(inputs.shape) != _AXES[kind],
        "shape: an example has too many numbers": math.prod(inputs.shape) > MAX_SIZE,
        f"{inputs.vocabulary} token ids do not fit {kind}":
            (kind == TOKENS) != (inputs.vocabulary > 1),
        "scan and window are for images only":
            (inputs.scan and kind != IMAGE) or (inputs.window and not inputs.scan),
        "standardise is for images of 8 bits":
            inputs.standardised and (inputs.scan or kind != IMAGE),
        "a column or a category is named twice": any(len(set(one)) < len(one) for one in lists),
        "categories of a column that is not there": not set(names) <= set(inputs.columns),
        "a table's columns do not give its shape": kind == TABLE and table.shape != inputs.shape,
    }.items():  # fmt: skip
        if wrong:
            raise ValueError(f"inputs: {what}")
    return inputs


# --- columns of a file ----------------------------------------------------------------

GAPS = (
    "", "?", "na", "n/a", "n.a.", "missing", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na",
    ".", "-", "--", "nil", "#div/0!", "#value!", "#ref!", "#num!", "#name?",
)  # fmt: skip
MAX_CLASSES = 10_000
RECORDING = "recording"  # what windows that were cut from one are grouped by
MEASURED = 20  # different numbers of a target that is taken for a measurement, if they are many
_GAP, _UNKNOWN = -1, -2  # in place of a label
_PLAIN = re.compile(r"[+-]?(\d{1,300}(\.\d{0,300})?|\.\d{1,300})", re.ASCII)
_CODE = re.compile(r"[+-]?0\d")  # what begins so is written like a number and is none
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
    sheet: str = ""

    @property
    def missing(self) -> frozenset[str]:
        """Return the spellings of a gap, in lower case."""
        return frozenset(one.strip().lower() for one in self.gaps or GAPS) | {""}


# Keys that say which column is the class and how files are written; a model's card has them.
READ_KEYS = ("target", "labels", *(one.name for one in fields(Form)))


@dataclass(frozen=True)
class Reading:
    """Which column is what; as the configuration's keys of the same names.

    Without ``declared`` what a key leaves open may be found out from the file's rows: categories,
    columns that are left out. On a node nothing is, so that all nodes make the same inputs.
    """

    target: str = ""
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    site: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    split_by: str = ""
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    numbers: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    image: str = ""
    text: str = ""
    length: int = 64
    vocabulary: int = 5000
    scale: float = 1.0
    axes: str = ""
    channels: tuple[str, ...] = ()
    time: str = ""
    form: Form = Form()
    declared: bool = False

    @property
    def when(self) -> list[str]:
        """Return the column of ``split-by``, if there is one."""
        return [self.split_by] if self.split_by else []

    @property
    def taken(self) -> set[str]:
        """Return the columns that are no features, since a key names them for something else."""
        return {self.target, *self.site, *self.group, *self.when, *self.ignore}


@dataclass(frozen=True)
class Content:
    """What is known of examples once they are read.

    ``inputs`` says what an example is; ``labels`` (n,) int64 index into ``classes``. ``sites`` (n,)
    int32 index into ``site_names`` where the data says whose an example is; else (0,). ``groups``
    (n,) or (0,) int32 are equal for the rows of one person, recording or scan, by ``group_by``;
    ``grouped`` says that they stay together, else they are only suspected. ``times`` (n,) or (0,)
    are float64 of the column of ``split-by``. ``tests`` (n,) or (0,) bool are in the test split.
    ``warnings`` say what may be wrong, ``notes`` what was understood of a file. ``paths`` name
    images, relative to the root such as ``ship/0655.webp``; other examples are named by index.
    ``factors`` (n,) or (0,) are what the stored examples must still be multiplied by.
    """

    inputs: Inputs
    labels: Indices
    classes: tuple[str, ...]
    sites: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    site_names: tuple[str, ...] = ()
    groups: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    group_by: str = ""
    grouped: bool = False
    times: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    tests: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    factors: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


# Examples in chunks (k, ...); it returns their content at the end.
Stream = Generator[Examples, None, Content]


@dataclass(frozen=True)
class Source:
    """Where examples come from.

    ``key`` is JSON-able and changes whenever the examples would; to make it, none is read.
    ``stream`` reads the examples, images as the inputs say; ``classes`` empty means the source's
    own. It raises UserError if the source cannot be read, or does not fit the classes.
    ``extent`` are the numbers of examples and classes, and ``inputs`` those of examples that are no
    images, where a source knows them without reading any.
    """

    key: list[object]
    stream: Callable[[Inputs, tuple[str, ...]], Stream]
    extent: tuple[int, int] | None = None
    inputs: Inputs | None = None


def existing(dataset: str, data_path: str) -> Path:
    """Return the path of a file or folder; raise UserError if it is empty or does not exist."""
    if not data_path:
        raise UserError(f"data-path is empty: dataset {dataset} needs its file or folder")
    path = Path(data_path).expanduser().absolute()
    if not path.exists():
        raise UserError(f"data-path {data_path}: this file or folder does not exist{near(path)}")
    return path


def file_stats(paths: Iterable[Path]) -> list[object]:
    """Return what changes when one of these files does; raise UserError for one that is gone."""
    try:
        return [[str(p), stat.st_size, stat.st_mtime_ns] for p in paths for stat in [p.stat()]]
    except OSError as error:
        raise UserError(f"data-path {error.filename}: {error.strerror}") from error


# --- values ----------------------------------------------------------------


def shown(value: str) -> str:
    """Return a value of a file for a message."""
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")


def listed(names: Sequence[str], limit: int = 10) -> str:
    """Return some names for a message."""
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def counted(names: Sequence[str], codes: npt.NDArray[Any]) -> str:
    """Return names, each with how often its code occurs, for a message."""
    counts = np.bincount(codes, minlength=len(names))
    return listed([f"{name} ({n:,})" for name, n in zip(names, counts, strict=True)], 6)


def canonical(value: str) -> str:
    """Return one value for ``1``, ``1.0`` and ``+1``; ``1e3``, ``1_2`` and ``01`` are names."""
    text = value.strip()
    if not _PLAIN.fullmatch(text) or _CODE.match(text):
        return text
    if "." not in text:  # a float would make one of two long ones
        return str(int(text))
    number = float(text)
    return str(int(number)) if number.is_integer() else np.format_float_positional(number)


def coded(values: pd.Series, code: Callable[[str], int]) -> Indices:
    """Return the code of every text; ``code`` is asked once a text."""
    from pandas import factorize

    places, unique = factorize(values.fillna(""))
    made: Indices = np.array([code(str(value)) for value in unique], dtype=np.int64)[places]
    return made


def places_of(values: Sequence[str], key: str) -> dict[str, int]:
    """Return the place of each value in a list; raise UserError where one is there twice."""
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        if places.setdefault(canonical(value), place) != place:
            raise UserError(f"{key}: value '{value}' is given twice ({', '.join(values)})")
    return places


def need(file: RowFile, wanted: Iterable[str], key: str) -> None:
    """Raise UserError for a column that a key names and the file has not."""
    for name in wanted:
        if name not in file.columns:
            raise UserError(
                f"{key}: {file.where} has no column {name!r}{nearest(name, file.columns)}; it has "
                f"{listed(file.columns)}",
                about=f"{key}: column {name!r}",
            )


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
        for name, values in reading.labels:
            for value in values or (name,):
                self._declare(value, self._names.index(name))
        self._examples = 0
        self.warnings: list[str] = []

    def _declare(self, value: str, label: int) -> None:
        if match := _RANGE.fullmatch(value.strip()):
            low, high = (float(end) if end else np.inf for end in match.groups())
            self._ranges.append((low if match[1] else -np.inf, high, label))
        elif self._code.setdefault(canonical(value), label) != label:
            raise UserError(f"labels: value '{value}' belongs to two classes")

    def labels(self, values: pd.Series, where: Callable[[int], str]) -> Indices:
        """Return the labels of texts, -1 for a gap; ``where`` says where a row is."""
        made = coded(values, self._label)
        for row, value in values[made == _UNKNOWN].items():
            key = "labels" if self._reading.labels else "classes"
            known = [one for name, some in self._reading.labels for one in some or (name,)]
            raise UserError(
                f"{where(row)}: {shown(str(value))} has no class in {key} "
                f"({listed(known or self._names)}): add it there, or correct the file"
            )
        self._examples += int((made >= 0).sum())
        return made

    def _label(self, value: str) -> int:
        plain = canonical(value)
        if plain in self._code:
            return self._code[plain]
        if self._ranges and _PLAIN.fullmatch(plain):
            for low, high, label in self._ranges:
                if low <= float(plain) < high:
                    return label
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
        """Return the label of every code (C,), and class names, as numbers sorted by value."""
        if self._names:
            return np.arange(len(self._names)), self._names
        self._refuse_several()
        numbers = bool(self._code) and all(map(_PLAIN.fullmatch, self._code))
        names = sorted(self._code, key=float if numbers else str)
        if numbers and len(names) > MEASURED:
            self._about_measurement([float(name) for name in names])
        order = np.empty(len(names), dtype=np.int64)
        order[[self._code[name] for name in names]] = np.arange(len(names))
        return order, tuple(names)

    def _refuse_several(self) -> None:
        """Raise UserError for cells of several classes, such as ``a|b`` beside ``b|c``."""
        names = list(self._code)
        for sign in "|;,":
            parts = Counter(one for name in names for one in {*map(str.strip, name.split(sign))})
            joined = [name for name in names if sign in name.strip(sign)]
            known = {*names} if sign == "," else {one for one in parts if parts[one] > 1}
            again = [n for n in joined if any(one.strip() in known for one in n.split(sign))]
            listed_in = [name for name in names if name.startswith("[")]
            if listed_in or (joined and 2 * len(again) >= len(joined)):
                raise UserError(
                    f"target: '{self._reading.target}' has several classes in one cell "
                    f"({shown((listed_in or joined)[0])}): multi-label data are not supported; "
                    "join values with labels, or make a column for one class"
                )

    def _about_measurement(self, values: Sequence[float]) -> None:
        """Warn of a target that may be a measurement; raise UserError for one that surely is."""
        few = self._examples < 5 * len(values) or not all(one.is_integer() for one in values)
        middle = f"{values[len(values) // 2]:g}"
        what, how = "is a measurement with", ""
        if not few:
            what, how = "may be a measurement:", ", each taken as a class"
        text = (
            f"target: '{self._reading.target}' {what} {len(values):,} different values, "
            f"{values[0]:g} to {values[-1]:g}{how}; divide it by "
            f"labels={{low: ..{middle}, high: {middle}..}}"
        )
        if few:
            raise UserError(text)
        self.warnings = [text]


# --- clients ----------------------------------------------------------------


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
    """Return a line about the names that are no ids, and one about those that are alike."""
    pairs = zip(names, safe_ids(names), strict=True)
    other = [f"'{name}' is {one}" for name, one in pairs if name != one]
    lines = [f"clients: {listed(other)}"] if other else []
    if same := [" and ".join(map(repr, one)) for one in alike(names)]:
        lines.append(
            f"sites that differ only in case or spaces are clients of their own: {listed(same)}"
        )
    return lines


def alike(names: Sequence[str]) -> list[list[str]]:
    """Return the names that differ in case or spaces alone, together."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(" ".join(name.lower().split()), []).append(name)
    return [same for same in found.values() if len(same) > 1]


REPEATING = re.compile(  # names of columns that say whose a row is, or of what it was cut
    r"(^|[^a-z])(patients?|subj|subjects?|persons?|participants?|probands?|famil(y|ies)|households?"
    r"|recordings?|scans?|stud(y|ies)|series|sessions?|specimens?|donors?|animals?|users?"
    r"|customers?|clients?|volunteers?|mrn|pid)[^a-z]?(id|ids|no|nr|nbr|num|number|code|key|uuid)?"
    r"([^a-z]|$)|(^|[^a-z])(id|ids|uuid|guid)([^a-z]|$)"
)
_FEW_GROUPS = 10  # values of such a column below which it says nothing of whose a row is


def snake(name: str) -> str:
    """Return ``PatientID`` as ``patient_id``."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("ô", "o")
    return re.sub(r"[^a-z0-9]+", "_", parted).strip("_")


def present(file: RowFile, reading: Reading) -> Reading:
    """Return the reading, on a node without sites that its file has not.

    All rows of a node are its own. Raise UserError for a column that a key names and the file has
    not.
    """
    if reading.declared:
        reading = replace(reading, site=tuple(n for n in reading.site if n in file.columns))
    keys = {"target": [reading.target], "site": reading.site, "group": reading.group}
    for key, names in (keys | {"split-by": reading.when}).items():
        need(file, names, key)
    return reading


class _Codes:
    """Numbers of the values of some columns together, as they are written; -1 for a gap."""

    def __init__(self, names: Sequence[str], missing: frozenset[str]) -> None:
        self.names, self._missing = names, missing
        self.places: dict[tuple[str, ...], int] = {}
        self.parts: list[Indices] = []  # of the rows, as they come

    def of(self, frame: pd.DataFrame) -> Indices:
        """Return the codes of some rows."""
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
    ``suspects`` are columns beside those of ``REPEATING`` names that may say whose a row is.
    """

    def __init__(
        self, reading: Reading, wanted: tuple[str, ...], suspects: Sequence[str] = ()
    ) -> None:
        self.reading, self._classes = reading, Classes(reading, wanted)
        self._missing = reading.form.missing
        self._files: dict[str, int] = {}
        self._groups = [_Codes(reading.group, self._missing)] if reading.group else []
        self._suspects = suspects
        self._labels: list[Indices] = []
        self._owners: list[Indices] = []
        self._times: list[npt.NDArray[np.float64]] = []
        self._recordings: list[Indices] = []
        self._left: Counter[str] = Counter()

    def columns(
        self, file: RowFile, features: Collection[str] = (), others: Collection[str] = ()
    ) -> list[str]:
        """Return the columns that are read as texts: target, site, group, time, and suspects.

        ``features`` are read in any case, and ``others`` are no suspects. Raise UserError as
        :func:`present`.
        """
        self.reading = reading = present(file, self.reading)
        self._sites = _Codes(reading.site, self._missing)
        if not reading.group:
            taken = reading.taken - set(reading.ignore) | {*others, reading.text, reading.time}
            names = [name for name in file.columns if REPEATING.search(snake(name))]
            every = dict.fromkeys([*self._suspects, *names])
            self._groups = [_Codes([name], self._missing) for name in every if name not in taken]
        groups = [n for one in self._groups for n in one.names if n not in features]
        return [*dict.fromkeys([reading.target, *reading.site, *groups, *reading.when])]

    def add(
        self, file: RowFile, frame: pd.DataFrame, finite: npt.NDArray[np.bool_] | None = None,
        recordings: Indices | None = None,
    ) -> npt.NDArray[np.bool_]:  # fmt: skip
        """Note the keys of some rows; return which of them have all, and are ``finite``.

        ``recordings`` (k,) are equal for windows that were cut from one recording.
        """
        target = self.reading.target
        labels = self._classes.labels(frame[target], lambda row: file.at(row, target))
        owners = self._sites.of(frame) if self.reading.site else self._file(file, len(frame))
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
        self._labels.append(labels[kept])
        self._owners.append(owners[kept])
        for one, codes in zip(self._groups, groups, strict=True):
            one.parts.append(codes[kept])
        if times is not None:
            self._times.append(times[kept])
        if recordings is not None:
            self._recordings.append(recordings[kept])
        return kept

    def _file(self, file: RowFile, rows: int) -> Indices:
        """Return the code of the file for all of its rows; 0 where the file is no site."""
        name = file.site.name.split(".")[0] or file.site.name if file.site else ""
        return np.full(rows, self._files.setdefault(name, len(self._files)), dtype=np.int64)

    def _when(self, file: RowFile, frame: pd.DataFrame) -> npt.NDArray[np.float64] | None:
        """Return the times of ``split-by``, NaN for a gap; UserError for what is no time."""
        name = self.reading.split_by
        if not name:
            return None
        known = frame[name].mask(frame[name].str.lower().isin(list(self._missing)))
        times = as_times(known)
        for row, value in frame[name][known.notna() & np.isnan(times)].items():
            raise UserError(
                f"split-by: {file.at(row, name)}: {shown(str(value))} is neither a date nor a "
                "number"
            )
        return times

    def _grouped(self) -> dict[str, Any]:
        """Return the groups of all rows: asked for, cut from one recording, or only suspected."""
        if self.reading.group:
            groups = np.concatenate(self._groups[0].parts)
            by = " and ".join(self.reading.group)
            return {"groups": groups.astype(np.int32), "group_by": by, "grouped": True}
        if self._recordings:
            groups = np.concatenate(self._recordings)
            if len(np.unique(groups)) < len(groups):
                groups = groups.astype(np.int32)
                return {"groups": groups, "group_by": RECORDING, "grouped": True}
        for one in self._groups:
            groups = np.concatenate(one.parts)
            if _FEW_GROUPS <= len(one.places) < len(groups):
                # A gap is a group of its own.
                groups = np.where(groups < 0, len(one.places) + np.arange(len(groups)), groups)
                return {"groups": groups.astype(np.int32), "group_by": one.names[0]}
        return {}

    def content(
        self, inputs: Inputs, warnings: Sequence[str] = (), notes: Sequence[str] = ()
    ) -> Content:
        """Return what is known once all rows are read.

        ``notes`` follow the line about the rows; empty lines are left out.
        """
        order, classes = self._classes.done()
        labels, owners = np.concatenate(self._labels), np.concatenate(self._owners)
        labels = order[labels] if len(labels) else labels
        sites = ["-".join(values) for values in self._sites.places] or list(
            filter(None, self._files)
        )
        clients = owners.astype(np.int32) if sites else np.zeros(0, dtype=np.int32)
        rows, left = len(labels), +self._left
        parts = [f"{rows:,} of {rows + left.total():,} rows" if left else f"{rows:,} rows"]
        parts += [f"{count:,} rows {what} are left out (gaps)" for what, count in left.items()]
        target = f"'{self.reading.target}': " if self.reading.target else ""
        parts.append(f"{len(classes)} classes, {target}{counted(classes, labels)}")
        ids = safe_ids(sites)
        if ids:
            parts.append(f"{len(ids)} sites: {counted(ids, clients)}")
        groups = self._grouped()
        if groups.get("grouped"):
            number = len(np.unique(groups["groups"]))
            parts.append(f"{number:,} groups by {groups['group_by']}")
        lines = filter(None, ("; ".join(parts), *notes, *listed_ids(sites)))
        every = filter(None, (*warnings, *self._classes.warnings))
        times = np.concatenate(self._times) if self._times else np.zeros(0)
        return Content(
            inputs, labels, classes, clients, ids, **groups, times=times, warnings=tuple(every),
            notes=tuple(lines),
        )  # fmt: skip


def as_times(values: pd.Series) -> npt.NDArray[np.float64]:
    """Return numbers, or dates as numbers, of texts; NaN for what is neither."""
    from pandas import to_datetime, to_numeric

    numbers = to_numeric(values, errors="coerce")
    if numbers.isna().any() and values.notna().any():
        dates = to_datetime(values, errors="coerce", format="mixed")
        if dates.notna().any():
            numbers = dates.astype("int64").where(dates.notna())
    return np.asarray(numbers, dtype=np.float64)
