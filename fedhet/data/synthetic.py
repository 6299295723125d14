"""Seeded examples of every kind for benchmarks and tests: a pattern per class plus noise."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhet.data.data_file import Content, Stream
from fedhet.data.image_source import Listing, Pixels, Shape, Unread, select
from fedhet.data.inputs import SIGNAL, SYNTHETIC, TABLE, TOKENS, Inputs
from fedhet.errors import UserError
from fedhet.rng import generator

_IMAGES = re.compile(r"synthetic(?::(\d{1,9})(?:x(\d{1,4}))?)?")
_OTHERS = re.compile(r"(synthetic-\w+)(?::(\d{1,9})(?:x(\d{1,4}))?(?::([\dx]{1,20}))?)?")
_CHUNK = 2048
_BLOBS = 4
_SHAPES = {SIGNAL: (3, 32), TABLE: (8,), TOKENS: (16, 200)}  # tokens: length, vocabulary
_FORM = {SIGNAL: "CHANNELSxSTEPS", TABLE: "COLUMNS", TOKENS: "LENGTHxVOCABULARY"}


def synthetic(name: str, seed: int) -> "Synthetic | SyntheticKind":
    """The source of that name; UserError for one that is not of the form."""
    kind = SYNTHETIC.get(name.partition(":")[0])
    if kind is not None:
        return _other(name, kind, seed)
    match = _IMAGES.fullmatch(name)
    images = int(match[1] or 6000) if match else 0
    classes = int(match[2] or 10) if match else 0
    if classes < 2 or images < classes:  # noqa: PLR2004
        raise UserError(
            f"dataset {name!r}: expected synthetic, synthetic:IMAGES or synthetic:IMAGESxCLASSES "
            "with at least 2 classes and no fewer images than classes, such as synthetic:60000x100"
        )
    return Synthetic(images, classes, seed)


def invented(inputs: Inputs, examples: int, classes: int) -> str:
    """The name of a data set of such examples; of a table with as many numbers for a model."""
    shape: tuple[int, ...] = inputs.shape
    if inputs.kind == TABLE:
        shape = (max(1, inputs.shape[0] // 2),)
    elif inputs.kind == TOKENS:
        shape = (*inputs.shape, max(inputs.vocabulary, classes + 1))
    return f"synthetic-{inputs.kind}:{examples}x{classes}:{'x'.join(str(side) for side in shape)}"


def _other(name: str, kind: str, seed: int) -> "SyntheticKind":
    match = _OTHERS.fullmatch(name)
    examples = int(match[2] or 600) if match else 0
    classes = int(match[3] or 4) if match else 0
    sides = match[4].split("x") if match and match[4] else []
    shape = tuple(int(side) for side in sides if side) or _SHAPES[kind]
    good = len(shape) == len(_SHAPES[kind]) and min(shape) >= 1 and prod(shape) <= 1 << 24
    if classes < 2 or examples < classes or not good or (kind == TOKENS and shape[1] <= classes):  # noqa: PLR2004
        raise UserError(
            f"dataset {name!r}: expected synthetic-{kind}, synthetic-{kind}:EXAMPLES, "
            f"...:EXAMPLESxCLASSES or ...:EXAMPLESxCLASSES:{_FORM[kind]} with at least 2 classes "
            "and no fewer examples"
        )
    return SyntheticKind(kind, examples, classes, shape, seed)


@dataclass(frozen=True)
class Synthetic:
    """Images: a fixed scene of blobs per class plus noise per image."""

    images: int
    num_classes: int
    seed: int

    def fingerprint(self) -> list[object]:
        """Size and seed."""
        return ["synthetic", self.images, self.num_classes, self.seed]

    def extent(self) -> tuple[int, int]:
        """Images and classes."""
        return self.images, self.num_classes

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Listing:
        """Image i belongs to class i mod C, so every class has the same number within one."""
        names = tuple(f"class-{label}" for label in range(self.num_classes))
        labels = np.arange(self.images, dtype=np.int64) % self.num_classes
        kept, new_labels = select("synthetic", names, labels, classes)
        pixels = self._draw(labels[kept], shape)
        return Listing(classes or names, tuple(str(i) for i in kept), new_labels, pixels)

    def _patterns(self, shape: Shape) -> Pixels:
        """(C, *shape) uint8 in 0..135, the same scene at every size."""
        rng = generator(self.seed, "synthetic-patterns")
        blobs = (self.num_classes, _BLOBS)
        centre, width = rng.uniform(0, 1, (*blobs, 2)), rng.uniform(0.08, 0.25, blobs)
        colour = rng.uniform(0, 1, (*blobs, 3))[..., : shape[2]]
        down, across = ((np.arange(side) + 0.5) / side for side in shape[:2])
        scale = -0.5 / width[..., None] ** 2
        rows = np.exp((down - centre[..., :1]) ** 2 * scale)
        columns = np.exp((across - centre[..., 1:]) ** 2 * scale)
        scene = np.einsum("kby,kbx,kbc->kyxc", rows, columns, colour, optimize=True)
        patterns: Pixels = (135 * np.minimum(scene, 1)).astype(np.uint8)
        return patterns

    def _draw(
        self, labels: npt.NDArray[np.int64], shape: Shape
    ) -> Generator[Pixels | Unread, None, None]:
        """Pattern, a brightness 0..40 per image and noise 0..80 per value: at most 255."""
        patterns = self._patterns(shape)
        for chunk, start in enumerate(range(0, len(labels), _CHUNK)):
            rng = generator(self.seed, "synthetic-noise", round_=chunk)
            wanted = labels[start : start + _CHUNK]
            images = rng.integers(0, 81, (len(wanted), *shape), dtype=np.uint8)
            images += patterns[wanted]
            images += rng.integers(0, 41, (len(wanted), 1, 1, 1), dtype=np.uint8)
            yield from images


@dataclass(frozen=True)
class SyntheticKind:
    """Signals, rows, tokens: noise around a class's pattern, or words that a class prefers."""

    kind: str
    examples: int
    num_classes: int
    shape: tuple[int, ...]
    seed: int

    def fingerprint(self) -> list[object]:
        """Kind, size and seed."""
        return ["synthetic", self.kind, self.examples, self.num_classes, self.shape, self.seed]

    def extent(self) -> tuple[int, int]:
        """Examples and classes."""
        return self.examples, self.num_classes

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Stream:
        """Example i belongs to class i mod C."""
        del shape
        names = tuple(f"class-{label}" for label in range(self.num_classes))
        labels = np.arange(self.examples, dtype=np.int64) % self.num_classes
        kept, new_labels = select("synthetic", names, labels, classes)
        none = np.zeros(0, dtype=np.int32)
        content = Content(self.inputs(), new_labels, classes or names, none, ())
        return Stream(self._draw(labels[kept]), lambda: content)

    def inputs(self) -> Inputs:
        """What these examples are."""
        if self.kind == SIGNAL:
            return Inputs(SIGNAL, self.shape)
        if self.kind == TABLE:
            return Inputs.table(tuple(f"x{number}" for number in range(self.shape[0])))
        return Inputs(TOKENS, self.shape[:1], self.shape[1])

    def _draw(self, labels: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        rng = generator(self.seed, "synthetic-patterns", self.kind)
        patterns = rng.normal(size=(self.num_classes, *self.shape)).astype(np.float32)
        for chunk, start in enumerate(range(0, len(labels), _CHUNK)):
            rng = generator(self.seed, "synthetic-noise", self.kind, round_=chunk)
            wanted = labels[start : start + _CHUNK]
            if self.kind == TOKENS:
                yield self._words(rng, wanted)
                continue
            found = patterns[wanted] + rng.normal(size=(len(wanted), *self.shape))
            if self.kind == TABLE:
                found[rng.random(found.shape) < 0.05] = np.nan  # noqa: PLR2004
            yield found.astype(np.float32)

    def _words(
        self, rng: np.random.Generator, labels: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """Half of the words are of the class's own part of the vocabulary; lengths differ."""
        length, vocabulary = self.shape
        anything = rng.integers(1, vocabulary, (len(labels), length))
        own = (anything - 1) // self.num_classes * self.num_classes + labels[:, None] + 1
        words = np.where(
            rng.random(anything.shape) < 0.5, anything, np.minimum(own, vocabulary - 1)
        )  # noqa: PLR2004
        ends = rng.integers(1, length + 1, len(labels))
        words[np.arange(length) >= ends[:, None]] = 0
        return words.astype(np.int32)
