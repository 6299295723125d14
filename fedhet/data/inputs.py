"""What examples are: kind and shape, columns of a file, the classes and clients that they name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from fedhet.config.schema import FORM, DataKeys
from fedhet.errors import UserError, one_line
from fedhet.files import is_id, near
from fedhet.plugins import is_given

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
    range of a client's own, or by ``window``, its lowest and highest value. ``standardised``:
    images of 8 bits by the mean and deviation of each channel of a client's own.
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
        size: int | tuple[int, int], *, grey: bool = False,
        window: tuple[()] | tuple[float, float] = (), standardised: bool = False,
    ) -> Inputs:  # fmt: skip
        """Return RGB or grey images, square of side ``size`` or of that height and width.

        ``window`` are the values that become -1 and 1 in images of more than 8 bits; empty: 8 bits.
        ``standardised`` ones have mean 0 and deviation 1 by channel, fitted to a client's own.
        """
        high, wide = (size, size) if isinstance(size, int) else size
        shape = (1 if grey else 3, high, wide)
        return Inputs(IMAGE, shape, scan=bool(window), window=window, standardised=standardised)

    @staticmethod
    def table(
        columns: tuple[str, ...], categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ) -> Inputs:
        """Return rows of ``columns``: a number and its gap, or one-hot ``categories``."""
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

    def zeros(self, count: int) -> npt.NDArray[Any]:
        """Return ``count`` examples (n, ...) as stored, of zeros: uint8, int32 tokens, float32."""
        dtypes = {IMAGE: np.float32 if self.scan else np.uint8, TOKENS: np.int32}
        return np.zeros((count, *self.stored), dtype=dtypes.get(self.kind, np.float32))

    def blank(self, count: int) -> npt.NDArray[Any]:
        """Return a batch (B, ...) of ``count`` as a model gets it: zeros, int64 or float32."""
        return np.zeros((count, *self.shape), np.int64 if self.kind == TOKENS else np.float32)

    def __str__(self) -> str:
        """Return words for messages, such as ``signal of shape (6, 128)``."""
        words = f", {self.vocabulary} token ids" if self.vocabulary else ""
        return f"{self.kind} of shape {self.shape}{words}"

    def differs(self, other: Inputs) -> str:
        """Return in what ``other`` differs from these, in words; empty if in nothing."""
        if self.kind == other.kind and self.columns != other.columns:
            lacks = [name for name in self.columns if name not in other.columns]
            more = [name for name in other.columns if name not in self.columns]
            wrong = f"are without {listed(lacks)}, which this run has" if lacks else (
                f"have {listed(more)}, which this run has not" if more else "have another order"
            )  # fmt: skip
            return f"columns {wrong}: name all in numbers and categories"
        if (self.kind, self.shape, self.vocabulary) != (other.kind, other.shape, other.vocabulary):
            return f"examples are {other}, but this run's are {self}"
        if self.categories != other.categories:
            return "categories differ from this run's"
        if self.scale != other.scale:
            return f"scale is {other.scale:g}, but this run's is {self.scale:g}"
        return ""

    def dump(self) -> dict[str, Any]:
        """Return plain values, without the defaults."""
        pairs = ((one, getattr(self, one.name)) for one in fields(self))
        return {one.name: value for one, value in pairs if value != one.default}


_INPUTS = TypeAdapter(Inputs)


def kind_of(dataset: str) -> str:
    """Return the kind of a data set by its name; empty for one that must be loaded first."""
    kinds = dict.fromkeys(IMAGE_SETS, IMAGE) | DATASETS
    return kinds.get(dataset.partition(":")[0], "")


def family(dataset: str) -> str:
    """Return the data set whose keys this one has: ``table`` of ``table:pandas.DataFrame:id``."""
    return dataset.partition(":")[0] if is_given(dataset) else dataset


def noun(dataset: str) -> str:
    """Return what the examples of a data set are called: images where they are."""
    return "images" if kind_of(dataset) == IMAGE else "examples"


def load_inputs(value: Any) -> Inputs:
    """Return what :meth:`Inputs.dump` gave, or its JSON; ValueError, a line, for what cannot be."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        inputs = _INPUTS.validate_json(text, strict=True)
    except ValidationError as errors:
        error = errors.errors(include_url=False, include_input=False)[0]
        where = ".".join(one_line(part, 80) for part in error["loc"]) or "no description"
        raise ValueError(f"inputs: {where}: {error['msg']}") from None
    except (TypeError, ValueError):
        raise ValueError("inputs: the description of examples is missing") from None
    kind, names = inputs.kind, [name for name, _ in inputs.categories]
    lists = (inputs.columns, names, *(values for _, values in inputs.categories))
    table = Inputs.table(inputs.columns, inputs.categories)
    for what, wrong in {
        "kind and shape do not fit": len(inputs.shape) != _AXES[kind],
        "shape: an example has too many numbers": math.prod(inputs.shape) > MAX_SIZE,
        f"{inputs.vocabulary} token ids do not fit {kind}":
            (kind == TOKENS) != (inputs.vocabulary > 1),
        "scan, window or standardise do not fit":
            kind != IMAGE and (inputs.scan or inputs.standardised)
            or inputs.scan and inputs.standardised or inputs.window and not inputs.scan,
        "a column or a category is named twice": any(len(set(one)) < len(one) for one in lists),
        "categories of a column that is not there": not set(names) <= set(inputs.columns),
        "a table's columns do not give its shape": kind == TABLE and table.shape != inputs.shape,
    }.items():  # fmt: skip
        if wrong:
            raise ValueError(f"inputs: {what}")
    return inputs


GAPS = (
    "", "?", "na", "n/a", "n.a.", "missing", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na",
    ".", "-", "--", "nil", "#div/0!", "#value!", "#ref!", "#num!", "#name?",
)  # fmt: skip
RECORDING = "recording"  # what windows that were cut from one are grouped by
PLAIN = re.compile(r"[+-]?(\d{1,300}(\.\d{0,300})?|\.\d{1,300})", re.ASCII)
_CODE = re.compile(r"[+-]?0\d")  # what begins so is written like a number and is none
_SHOWN = 60  # characters of a value in a message
# Keys that say which column is the class and how files are written; a model's card has them.
READ_KEYS = ("target", "labels", "site", "group", "split_by", "ignore", "channels", "time", *FORM)


class Reading(DataKeys):
    """Which column is what, and how a file is written; as the configuration's keys.

    Without ``declared`` what a key leaves open may be found out from the file's rows: categories,
    columns that are left out. On a node nothing is, so that all nodes make the same inputs.
    """

    declared: bool = False

    def changed(self, **keys: Any) -> Reading:
        """Return a copy with other values of these keys."""
        return self.model_copy(update=keys)

    @property
    def missing(self) -> frozenset[str]:
        """Return the spellings of a gap, in lower case."""
        return frozenset(one.strip().lower() for one in self.gaps or GAPS) | {""}

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """Return the columns that are named, by key; a column's first key says what it is for."""
        keys = {
            "target": [self.target], "site": self.site, "group": self.group,
            "split-by": [self.split_by], "ignore": self.ignore, "text": [self.text],
            "image": [self.image], "numbers": self.numbers, "categories": dict(self.categories),
            "time": [self.time],
        }  # fmt: skip
        return {key: tuple(filter(None, names)) for key, names in keys.items()}

    @property
    def keyed(self) -> set[str]:
        """Return the columns that some key names."""
        return set(chain(*self.named.values()))

    @property
    def taken(self) -> set[str]:
        """Return the columns that are no features, since a key names them for something else."""
        return {self.target, *self.site, *self.group, self.split_by, *self.ignore}


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
    texts: tuple[str, ...] = field(default=(), repr=False)  # as written, for other tokenizers
    notes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


# Examples in chunks (k, ...); it returns their content at the end.
Stream = Generator[Examples, None, Content]


@dataclass(frozen=True)
class Source:
    """Where examples come from.

    ``key`` is JSON-able and changes whenever the examples would; to make it, none is read. There
    are ``count`` examples at most, if their number is known by then.
    ``stream`` reads the examples, images as the inputs say; ``classes`` empty means the source's
    own. It raises UserError if the source cannot be read, or does not fit the classes.
    """

    key: list[object]
    stream: Callable[[Inputs, tuple[str, ...]], Stream]
    count: int = 0


def existing(dataset: str, data_path: str) -> Path:
    """Return the path of a file or folder; raise UserError if it is empty or does not exist."""
    if not data_path:
        raise UserError(f"data-path is empty: dataset {dataset} needs its file or folder")
    path = Path(data_path).expanduser().absolute()
    if not path.exists():
        raise UserError(f"data-path {data_path}: this file or folder does not exist{near(path)}")
    return path


def file_stats(paths: Iterable[Path]) -> list[object]:
    """Return what changes when one of these files does; raise OSError for one that is gone."""
    return [[str(p), stat.st_size, stat.st_mtime_ns] for p in paths for stat in [p.stat()]]


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
    if not PLAIN.fullmatch(text) or _CODE.match(text):
        return text
    if "." not in text:  # a float would make one of two long ones
        return str(int(text))
    number = float(text)
    return str(int(number)) if number.is_integer() else np.format_float_positional(number)


def safe_ids(names: Sequence[str]) -> tuple[str, ...]:
    """Return ids of clients out of free text: other signs become a hyphen, each id occurs once.

    A name that loses letters gets its number among the sorted names: ``Köln`` is ``K-ln-2``.
    """
    order, ids, plain = sorted(names), dict[str, None](), {name for name in names if is_id(name)}
    for name in names:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:50].strip("-.") or "site"
        lost = any(sign.isalnum() and not sign.isascii() for sign in name)
        numbered = (f"{base}-{k}" for k in count(order.index(name) + 1 if lost else 2))
        forms = chain([name] * is_id(name), [base] * (not lost), numbered)
        ids[next(n for n in forms if n not in ids and (n == name or n not in plain))] = None
    return tuple(ids)


def listed_ids(names: Sequence[str]) -> list[str]:
    """Return a line about the names that are no ids, and one about those that are alike."""
    pairs = zip(names, safe_ids(names), strict=True)
    other = [f"'{name}' is {one}" for name, one in pairs if name != one]
    lines = [f"clients: {listed(other)}"] if other else []
    if same := listed([" and ".join(map(repr, one)) for one in alike(names)]):
        lines.append(f"sites that differ only in case or spaces are clients of their own: {same}")
    return lines


def alike(names: Sequence[str]) -> list[list[str]]:
    """Return the names that differ in case or spaces alone, together."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(" ".join(name.lower().split()), []).append(name)
    return [same for same in found.values() if len(same) > 1]
