"""What an example is: its kind, its shape, and what a model and a preparation must know of it."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from fedhet.errors import one_line

Indices = npt.NDArray[np.int64]
Kind = Literal["image", "signal", "table", "tokens"]
IMAGE: Final = "image"
SIGNAL: Final = "signal"
TABLE: Final = "table"
TOKENS: Final = "tokens"
KINDS: tuple[Kind, ...] = (IMAGE, SIGNAL, TABLE, TOKENS)
PLURAL = {IMAGE: "images", SIGNAL: "signals", TABLE: "rows of a table", TOKENS: "texts"}
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
    range of a client's own, or by ``window``.
    """

    kind: Kind
    shape: tuple[Annotated[int, Field(ge=1, le=MAX_SIDE)], ...]
    vocabulary: Annotated[int, Field(ge=0, le=MAX_VOCABULARY)] = 0
    columns: _Names = ()
    categories: Annotated[tuple[tuple[_Name, _Names], ...], Field(max_length=MAX_COLUMNS)] = ()
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    scan: bool = False
    window: tuple[()] | tuple[FiniteFloat, FiniteFloat] = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @staticmethod
    def image(
        size: int | tuple[int, int],
        *,
        grey: bool = False,
        window: tuple[()] | tuple[float, float] = (),
    ) -> "Inputs":
        """Return RGB or grey images, square of side ``size`` or of that height and width.

        ``window`` are the lowest and highest value of scans of more than 8 bits; empty: 8 bits.
        """
        high, wide = (size, size) if isinstance(size, int) else size
        shape = (1 if grey else 3, high, wide)
        return Inputs(IMAGE, shape, scan=bool(window), window=window)

    @staticmethod
    def table(
        columns: tuple[str, ...], categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ) -> "Inputs":
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
        return self.kind in (SIGNAL, TABLE) or self.scan

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

    def differs(self, other: "Inputs") -> str:
        """Return in what ``other`` differs from these, in words; empty if in nothing."""
        if (self.kind, self.shape, self.vocabulary) != (other.kind, other.shape, other.vocabulary):
            return f"examples are {other}, but this run's are {self}"
        for ours, theirs in zip(self.columns, other.columns, strict=False):
            if ours != theirs:
                return f"column '{theirs}' is where this run has '{ours}'"
        if self.columns != other.columns:
            return f"columns are {len(other.columns)}, but this run's are {len(self.columns)}"
        if self.categories != other.categories:
            return "categories differ from this run's"
        if self.scale != other.scale:
            return f"scale is {other.scale:g}, but this run's is {self.scale:g}"
        return ""

    def dump(self) -> dict[str, Any]:
        """Return plain values, without what is empty."""
        found = asdict(self)
        return {
            key: value
            for key, value in found.items()
            if value not in ((), 0) and not (key == "scale" and value == 1.0)
        }

    def text(self) -> str:
        """Return JSON, for a message."""
        return json.dumps(self.dump(), separators=(",", ":"))


_INPUTS = TypeAdapter(Inputs)


def kind_of(dataset: str) -> str:
    """Return the kind of a data set by its name; empty for one that must be loaded first."""
    name = dataset.partition(":")[0]
    known = DATASETS | SYNTHETIC
    if name in known:
        return known[name]
    return IMAGE if name in IMAGE_SETS else ""


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
    if len(inputs.shape) != {IMAGE: 3, SIGNAL: 2, TABLE: 1, TOKENS: 1}[kind]:
        raise ValueError("inputs: kind and shape do not fit")
    if math.prod(inputs.shape) > MAX_SIZE:
        raise ValueError("inputs: shape: an example has too many numbers")
    if (kind == TOKENS) != (inputs.vocabulary > 1):
        raise ValueError(f"inputs: {inputs.vocabulary} token ids do not fit {kind}")
    if (inputs.scan and kind != IMAGE) or (inputs.window and not inputs.scan):
        raise ValueError("inputs: scan and window are for images only")
    for some in (inputs.columns, names, *(values for _, values in inputs.categories)):
        if len(set(some)) < len(some):
            raise ValueError("inputs: a column or a category is named twice")
    if set(names) - set(inputs.columns):
        raise ValueError("inputs: categories of a column that is not there")
    if kind == TABLE and Inputs.table(inputs.columns, inputs.categories).shape != inputs.shape:
        raise ValueError("inputs: a table's columns do not give its shape")
    return inputs
