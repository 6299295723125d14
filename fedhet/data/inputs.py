"""What an example is: its kind, its shape, and what a model and a preparation must know of it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhet.errors import Damaged
from fedhet.files import parse_json

IMAGE, SIGNAL, TABLE, TOKENS = KINDS = ("image", "signal", "table", "tokens")
PLURAL = {IMAGE: "images", SIGNAL: "signals", TABLE: "rows of a table", TOKENS: "texts"}
IMAGE_SETS = ("digits", "cifar10", "cifar100", "fashion-mnist", "image-folder", "synthetic")
DATASETS = {"signals": SIGNAL, "table": TABLE, "texts": TOKENS}  # by their files' kind
SYNTHETIC = {f"synthetic-{kind}": kind for kind in (SIGNAL, TABLE, TOKENS)}
HUB = "hf:"  # and the name of a data set of Hugging Face's hub, of whatever kind
MAX_SIDE = 1 << 20  # of one axis of an example
MAX_SIZE = 1 << 24  # numbers of one example
MAX_VOCABULARY = 1 << 20
MAX_COLUMNS = 16_384
_LONGEST = 200  # characters of a column's or a category's name


@dataclass(frozen=True)
class Inputs:
    """What one example of a data set is, and what a model gets of it.

    ``shape`` is a model's, without the batch: (3, h, w) for an image, of a grey one (1, h, w),
    (c, t) for a signal, (f',) for a row of a table, (l,) for tokens. A batch is float32, of tokens
    int64. ``vocabulary`` is the number of token ids, 0 among them for padding. ``columns`` are a
    table's as stored, in order, or the one column of a file of texts; ``categories`` are the
    allowed values of those that are no numbers. ``scale`` is what a signal's stored numbers are
    divided by. ``scan``: images of more than 8 bits, stored as float32 (h, w, 1) and scaled by the
    range of a client's own, or by ``window``.
    """

    kind: str
    shape: tuple[int, ...]
    vocabulary: int = 0
    columns: tuple[str, ...] = ()
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    scale: float = 1.0
    scan: bool = False
    window: tuple[float, ...] = ()

    @staticmethod
    def image(
        size: int | tuple[int, int], *, grey: bool = False, window: tuple[float, ...] = ()
    ) -> "Inputs":
        """RGB or grey images, square of side ``size`` or of that height and width.

        ``window`` are the lowest and highest value of scans of more than 8 bits; empty: 8 bits.
        """
        high, wide = (size, size) if isinstance(size, int) else size
        shape = (1 if grey else 3, high, wide)
        return Inputs(IMAGE, shape, scan=bool(window), window=tuple(window))

    @staticmethod
    def table(
        columns: tuple[str, ...], categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ) -> "Inputs":
        """Rows: a number and whether it is missing for each plain column, one-hot categories.

        ``columns`` are all of a row's, in order; ``categories`` name those that are no numbers,
        each with its values.
        """
        plain = len(columns) - len(categories)
        width = 2 * plain + sum(len(values) for _, values in categories)
        return Inputs(TABLE, (width,), columns=columns, categories=categories)

    @property
    def channels(self) -> int:
        """Of an image or a signal; of a table its width."""
        return self.shape[0]

    @property
    def fitted(self) -> bool:
        """Whether the preparation is fitted to a client's own examples."""
        return self.kind in (SIGNAL, TABLE) or self.scan

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of an example as it is stored."""
        if self.kind == IMAGE:
            return (*self.shape[1:], 1 if self.scan else self.shape[0])
        return (len(self.columns),) if self.kind == TABLE else self.shape

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        channels, high, wide = self.shape
        return high, wide, channels

    def zeros(self, count: int) -> npt.NDArray[Any]:
        """``count`` examples as they are stored, all zero: images are black, texts empty.

        (n, ...) uint8 for images of 8 bits, int32 for tokens, else float32.
        """
        dtypes = {IMAGE: np.float32 if self.scan else np.uint8, TOKENS: np.int32}
        dtype = dtypes.get(self.kind, np.float32)
        return np.zeros((count, *self.stored), dtype=dtype)

    def blank(self, count: int) -> npt.NDArray[Any]:
        """A batch of ``count`` as a model gets it, all zero.

        (B, ...) int64 for tokens, else float32.
        """
        dtype = np.int64 if self.kind == TOKENS else np.float32
        return np.zeros((count, *self.shape), dtype=dtype)

    def __str__(self) -> str:
        """For messages, such as ``signal of shape (6, 128)``."""
        words = f", {self.vocabulary} token ids" if self.vocabulary else ""
        return f"{self.kind} of shape {self.shape}{words}"

    def differs(self, other: "Inputs") -> str:
        """In what those of ``other`` differ from these, in words; empty if in nothing."""
        if (self.kind, self.shape, self.vocabulary) != (other.kind, other.shape, other.vocabulary):
            return f"examples are {other}, and this run's are {self}"
        for ours, theirs in zip(self.columns, other.columns, strict=False):
            if ours != theirs:
                return f"column '{theirs}' stands where this run has '{ours}'"
        if self.columns != other.columns:
            return f"there are {len(other.columns)} columns, and in this run {len(self.columns)}"
        if self.categories != other.categories:
            return "categories have other values than this run's"
        if self.scale != other.scale:
            return f"scale is {other.scale:g}, and this run's is {self.scale:g}"
        return ""

    def dump(self) -> dict[str, Any]:
        """As plain values, without what is empty."""
        found = asdict(self)
        return {
            key: value
            for key, value in found.items()
            if value not in ((), 0) and not (key == "scale" and value == 1.0)
        }

    def text(self) -> str:
        """As JSON, for a message."""
        return json.dumps(self.dump(), separators=(",", ":"))


def kind_of(dataset: str) -> str:
    """The kind of a data set by its name; empty for other people's, which must be loaded first."""
    name = dataset.partition(":")[0]
    known = DATASETS | SYNTHETIC
    if name in known:
        return known[name]
    return IMAGE if name in IMAGE_SETS else ""


def is_hub(dataset: str) -> bool:
    """Whether a data set is one of Hugging Face's hub, by its name."""
    return dataset.startswith(HUB)


def noun(dataset: str) -> str:
    """What the examples of a data set are called: images where they are."""
    return "images" if kind_of(dataset) == IMAGE else "examples"


def load_inputs(value: Any) -> Inputs:
    """What :meth:`Inputs.dump` or :meth:`Inputs.text` gave, from anybody.

    Raises ValueError, in one line, for what no data set could be.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value, "inputs")
        except Damaged:
            raise ValueError("inputs: not readable") from None
    if not isinstance(value, Mapping) or not set(value) <= set(Inputs.__dataclass_fields__):
        raise ValueError("inputs: no description of examples (an older fedhet sends none)")
    kind: Any = value.get("kind")
    shape: Any = value.get("shape")
    axes = {IMAGE: 3, SIGNAL: 2, TABLE: 1, TOKENS: 1}
    if kind not in KINDS or not _is_shape(shape) or len(shape) != axes[kind]:
        raise ValueError("inputs: kind and shape describe no example")
    vocabulary = value.get("vocabulary", 0)
    if type(vocabulary) is not int or not 0 <= vocabulary <= MAX_VOCABULARY:
        raise ValueError("inputs: vocabulary is no number of token ids")
    if (kind == TOKENS) != (vocabulary > 1):
        raise ValueError(f"inputs: {vocabulary} token ids do not go with {kind}")
    scale = value.get("scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ValueError("inputs: scale is no positive number")
    scan, window = value.get("scan", False), value.get("window", ())
    good = isinstance(window, list | tuple) and len(window) in (0, 2) and all(
        type(end) in (int, float) and math.isfinite(end) for end in window
    )  # fmt: skip
    if not good or not isinstance(scan, bool) or (scan and kind != IMAGE) or (window and not scan):
        raise ValueError("inputs: scan and window describe no images")
    columns = _names(value.get("columns", ()), MAX_COLUMNS)
    categories = _categories(value.get("categories", ()), columns)
    if kind == TABLE and Inputs.table(columns, categories).shape != tuple(shape):
        raise ValueError("inputs: a table's columns do not give its shape")
    return Inputs(
        kind, tuple(shape), vocabulary, columns, categories, float(scale), scan, tuple(window)
    )


def _is_shape(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    whole = all(type(side) is int and 1 <= side <= MAX_SIDE for side in value)
    return whole and math.prod(value) <= MAX_SIZE


def _names(value: Any, most: int) -> tuple[str, ...]:
    good = isinstance(value, list | tuple) and len(value) <= most
    if not good or not all(isinstance(v, str) and len(v) <= _LONGEST for v in value):
        raise ValueError("inputs: columns and categories must be short texts")
    if len(set(value)) < len(value):
        raise ValueError("inputs: a column or a category is named twice")
    return tuple(value)


def _categories(value: Any, columns: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, list | tuple) or any(
        not isinstance(pair, list | tuple) or len(pair) != 2  # noqa: PLR2004
        for pair in value
    ):
        raise ValueError("inputs: categories must be pairs of a column and its values")
    names = _names([name for name, _ in value], MAX_COLUMNS)
    if set(names) - set(columns):
        raise ValueError("inputs: categories of a column that is not there")
    return tuple(
        (name, _names(values, MAX_COLUMNS)) for name, (_, values) in zip(names, value, strict=True)
    )
