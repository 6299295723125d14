"""Dataset ``module:load``: a user's own function, which returns arrays or a :class:`Data`."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedhet import plugins
from fedhet.data.data_file import Content, Sites, Stream
from fedhet.data.image_source import (
    Indices,
    Listing,
    Losses,
    Pixels,
    Shape,
    losses,
    select,
    to_pixels,
)
from fedhet.data.inputs import IMAGE, KINDS, SIGNAL, TABLE, TOKENS, Inputs, load_inputs
from fedhet.data.signals import small_numbers
from fedhet.errors import UserError, brief

_BYTE = 255
_CHUNK = 4096
_PLANES = (1, 3)  # channels of an image


@dataclass(frozen=True)
class Data:
    """What a ``load`` function may return: examples of any kind, and whose they are.

    ``examples`` are images uint8 (n, h, w[, 3]), signals (n, c, t), rows (n, f) with NaN for gaps,
    or token ids (n, l) with 0 for padding; ``kind`` may be left out where dtype and shape say it.
    ``labels`` (n,) are whole numbers from 0 into ``classes``. ``clients`` (n,) name the owner of
    every example, for ``partition=natural``. ``vocabulary`` is the number of token ids. ``columns``
    name a table's, in order; ``categories`` list the values of those whose numbers are places in
    that list. ``scale`` is what a signal's numbers are divided by.
    """

    examples: npt.ArrayLike
    labels: npt.ArrayLike
    classes: Sequence[str]
    kind: str = ""
    clients: Sequence[object] | None = None
    vocabulary: int = 0
    columns: Sequence[str] = ()
    categories: Mapping[str, Sequence[object]] = field(default_factory=dict)
    scale: float = 1.0


@dataclass(frozen=True)
class Own:
    """A user's function: ``load(data_path)`` -> :class:`Data`, or examples, labels, class names."""

    name: str
    data_path: str

    def fingerprint(self) -> list[object]:
        """The code of the function's module, and when and how large its data path is."""
        source = sys.modules[self._load().__module__].__file__
        code = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
        path = Path(self.data_path).expanduser()
        stat = path.stat() if self.data_path and path.exists() else None
        when = [stat.st_mtime_ns, stat.st_size] if stat else []
        return ["own", self.name, code, self.data_path, when]

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Listing | Stream:
        """Call the function and check what it returns; UserError, one line, if that is wrong."""
        load = self._load()
        try:
            found = load(self.data_path)
            data = found if isinstance(found, Data) else Data(*found)
            examples, labels = np.asarray(data.examples), np.asarray(data.labels)
            own = tuple(str(name) for name in data.classes)
        except Exception as error:
            raise UserError(
                f"dataset {self.name!r}: load({self.data_path!r}) must return images, labels and "
                f"class names, or a fedhet.Data: {brief(error)}"
            ) from error
        kind = data.kind or _kind(examples)
        if kind not in KINDS:
            raise UserError(
                f"dataset {self.name!r}: kind {kind!r} is unknown (allowed: {', '.join(KINDS)})"
                if kind
                else f"dataset {self.name!r}: examples are {_shown(examples)}: which of "
                f"{', '.join(KINDS)} that is only a fedhet.Data with `kind` can say"
            )
        _check_labels(self.name, examples, labels, own)
        sites, names = self._sites(data, len(labels))
        kept, labels = select(self.name, own, labels.astype(np.int64), classes)
        sites = sites[kept] if len(sites) else sites
        if kind == IMAGE:
            images = as_pixels(self.name, examples)
            return image_listing(images, kept, labels, classes or own, shape, sites, names)
        inputs, stored = self._described(data, kind, examples)
        content = Content(inputs, labels, classes or own, sites, names)
        return Stream(_chunks(stored[kept]), lambda: content)

    def _load(self) -> Callable[[str], Any]:
        load: Callable[[str], Any] = plugins.load("dataset", self.name)
        if not inspect.isroutine(load):
            raise UserError(
                f"dataset {self.name!r} is a {type(load).__name__}, must be a function "
                "load(data_path)"
            )
        return load

    def _sites(self, data: Data, count: int) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
        """The client column, if there is one."""
        sites = Sites()
        if data.clients is not None:
            if len(data.clients) != count:
                raise UserError(
                    f"dataset {self.name!r}: {len(data.clients)} clients, {count} labels"
                )
            sites.add(
                [(str(name),) for name in data.clients],
                lambda index: f"dataset {self.name!r}: clients[{index}]",
            )
        return sites.done()

    def _described(
        self, data: Data, kind: str, examples: npt.NDArray[Any]
    ) -> tuple[Inputs, npt.NDArray[Any]]:
        """What the examples are, and the examples as they are stored."""
        try:
            if kind == SIGNAL:
                inputs = Inputs(SIGNAL, examples.shape[1:], scale=float(data.scale))
                stored = small_numbers(examples, lambda i: f"example {i}")
            elif kind == TABLE:
                plain = data.columns or [str(i) for i in range(examples.shape[1])]
                columns = tuple(str(name) for name in plain)
                lists = {str(n): tuple(str(v) for v in vs) for n, vs in data.categories.items()}
                inputs = Inputs.table(columns, tuple(lists.items()))
                stored = _rows(examples, inputs)
            else:
                inputs = Inputs(TOKENS, examples.shape[1:], int(data.vocabulary))
                stored = _tokens(examples, inputs)
            return load_inputs(inputs.dump()), stored
        except (ValueError, IndexError, TypeError, UserError) as error:
            raise UserError(
                f"dataset {self.name!r}: {kind} examples {_shown(examples)}: {brief(error)}"
            ) from error


def _kind(examples: npt.NDArray[Any]) -> str:
    """What dtype and shape say; empty where they do not."""
    if examples.dtype == np.uint8 or examples.ndim == 4:  # noqa: PLR2004
        return IMAGE
    if examples.ndim == 3:  # noqa: PLR2004
        return SIGNAL
    return TABLE if examples.ndim == 2 and examples.dtype.kind == "f" else ""  # noqa: PLR2004


def _shown(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _rows(examples: npt.NDArray[Any], inputs: Inputs) -> npt.NDArray[np.float32]:
    if examples.dtype.kind not in "iufb" or examples.shape[1:] != inputs.stored:
        raise ValueError(f"must be numbers (n, {len(inputs.columns)}), one for each column")
    stored = examples.astype(np.float32)
    if np.isinf(stored).any():
        raise ValueError("a number is infinite; a gap is NaN")
    for name, values in inputs.categories:
        codes = stored[:, inputs.columns.index(name)]
        codes = codes[~np.isnan(codes)]
        if (
            (codes != codes.astype(np.int64)).any()
            or (codes < 0).any()
            or (codes >= len(values)).any()
        ):
            raise ValueError(f"column {name!r} must hold places in its {len(values)} categories")
    return stored


def _tokens(examples: npt.NDArray[Any], inputs: Inputs) -> npt.NDArray[np.int32]:
    if examples.dtype.kind not in "iu" or examples.ndim != 2:  # noqa: PLR2004
        raise ValueError("must be whole numbers (n, l)")
    if examples.min() < 0 or examples.max() >= inputs.vocabulary:
        raise ValueError(
            f"token ids go from {examples.min()} to {examples.max()}, and vocabulary is "
            f"{inputs.vocabulary}"
        )
    return examples.astype(np.int32)


def _chunks(stored: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(stored), _CHUNK):
        yield stored[start : start + _CHUNK]


def _check_labels(
    name: str, examples: npt.NDArray[Any], labels: npt.NDArray[Any], classes: tuple[str, ...]
) -> None:
    """UserError for examples that are not labelled."""
    if not examples.ndim or not len(examples):
        raise UserError(f"dataset {name!r}: there are no examples")
    if labels.shape != examples.shape[:1] or labels.dtype.kind not in "iu":
        raise UserError(
            f"dataset {name!r}: labels are {_shown(labels)}, must be whole numbers of shape "
            f"[{len(examples)}]"
        )
    if not classes or len(set(classes)) < len(classes) or not all(classes):
        raise UserError(f"dataset {name!r}: class names must be texts, each another")
    if labels.min() < 0 or labels.max() >= len(classes):
        raise UserError(
            f"dataset {name!r}: labels go from {labels.min()} to {labels.max()}, and there are "
            f"{len(classes)} class names"
        )


def as_pixels(name: str, images: npt.NDArray[Any]) -> Pixels:
    """uint8 (n, h, w) or (n, h, w, 3) of any array of images that loses nothing by it.

    Whole numbers from 0 to 255 of any dtype, channels first or last.
    """
    planes = images.shape[1:] if images.ndim == 4 else ()  # noqa: PLR2004
    if planes and planes[2] not in _PLANES and planes[0] in _PLANES:
        images = images.transpose(0, 2, 3, 1)
        planes = images.shape[1:]
    if planes and planes[2] == 1:
        images = images[..., 0]
    fits = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] == 3)  # noqa: PLR2004
    whole = images.dtype.kind in "iu" and images.size > 0
    if not fits or not whole or images.min() < 0 or images.max() > _BYTE:
        what = f" from {images.min()} to {images.max()}" if fits and whole else ""
        raise UserError(
            f"dataset {name!r}: images are {_shown(images)}{what}, must be uint8 (n, h, w, 3) or "
            "(n, h, w)"
        )
    return images.astype(np.uint8, copy=False)


def image_listing(  # noqa: PLR0913, PLR0917
    images: Pixels,
    kept: Indices,
    labels: Indices,
    classes: tuple[str, ...],
    shape: Shape,
    sites: npt.NDArray[np.int32] | None = None,
    site_names: tuple[str, ...] = (),
) -> Listing:
    """Those images of an array (n, h, w[, 3]) that are kept, with their labels."""
    pixels = (to_pixels(Image.fromarray(images[i]), shape) for i in kept)
    none = np.zeros(0, dtype=np.int32)
    lost = len(kept) and losses(Image.fromarray(images[0]), shape)  # all are of one size
    paths = tuple(str(i) for i in kept)
    return Listing(
        classes, paths, labels, pixels, sites=none if sites is None else sites,
        site_names=site_names, losses=Losses(squashed=len(kept) if lost else 0),
    )  # fmt: skip
