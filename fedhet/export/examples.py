"""Raw examples as an exported model wants them: image files, CSV, Parquet, NPZ, texts.

What a model takes stands in its card (columns, categories, length, scale), so that a file without
classes and clients will do: only the columns that the model sees are needed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedhet.data import formats, rows
from fedhet.data.formats import ROW_SUFFIXES, holds
from fedhet.data.images import SCAN, decode_all, files_below, is_image, losses
from fedhet.data.inputs import (
    PLURAL,
    SIGNAL,
    TABLE,
    TOKENS,
    Examples,
    Form,
    Indices,
    Inputs,
    Reading,
)
from fedhet.data.keys import Classes, need
from fedhet.data.rows import CsvFile, NoHeader, RowFile, open_rows
from fedhet.data.signals import AXES, TARGETS, Npz, finite, small_numbers
from fedhet.data.table import TableRows, token_ids
from fedhet.errors import UserError
from fedhet.files import near
from fedhet.training.loop import EVALUATION_BATCH

Batch = tuple[list[str], Tensor]
_Found = Iterator[tuple[list[str], Examples, pd.Series | None]]  # names, examples, their targets
_NAMED = 20  # unreadable files that a warning names


class Truth:
    """The classes that labelled files name, in the order of their examples; -1 for none."""

    def __init__(self, reading: Reading, classes: tuple[str, ...]) -> None:
        self.target, self.names, self._classes = reading.target, classes, Classes(reading, classes)
        self.labels: list[Indices] = []
        self.problem = ""  # why there are no more
        self.left_out = 0  # windows with gaps, which no model takes
        self.unseen: Counter[str] = Counter()  # values of no known category, by column

    def add(self, targets: pd.Series | None, examples: int) -> None:
        """Note the targets of some examples, None where the file has none."""
        found = np.full(examples, -1, dtype=np.int64)
        try:
            if targets is not None and not self.problem:
                found = self._classes.labels(targets, lambda _: f"target '{self.target}'")
        except UserError as error:
            self.problem = str(error)
        self.labels.append(found)


# --- images -------------------------------------------------------------------------------------


def _files(place: Path) -> list[str]:
    """Return the file that is named, or the image files below a folder, sorted, no hidden ones.

    Raise UserError for a path that does not exist or cannot be listed.
    """
    if not place.exists():
        raise UserError(f"images: '{place}' does not exist{near(place)}")
    if not place.is_dir():
        return [str(place)]
    return [str(place / name) for name in sorted(files_below(place, "images")) if is_image(name)]


class ImageFiles:
    """The image files of some places, each once; :meth:`batches` notes what is lost."""

    def __init__(
        self, places: Iterable[Path], inputs: Inputs, window: tuple[float, float] | None,
        *, most: int = 0,
    ) -> None:  # fmt: skip
        """``window``: of a model of scans; ``most``: so many, evenly spread; 0: all."""
        found = list(dict.fromkeys(path for place in places for path in _files(place.expanduser())))
        self.paths = found[:: max(1, len(found) // most)][:most] if most else found
        self._inputs, self._window = inputs, window
        self._unreadable: list[str] = []
        self._flags: list[int] = []

    def batches(self, truth: Truth) -> Iterator[Batch]:
        """Yield paths and images (B, ...) as they are stored, of the readable files.

        An image in a folder that is called like a class is of it. Only one batch is in memory, so
        that a folder may be larger than it.
        """
        found = self._decoded()
        while part := list(islice(found, EVALUATION_BATCH)):
            paths = [path for path, _ in part]
            folders = [Path(path).absolute().parent.name for path in paths]
            known = not set(folders).isdisjoint(truth.names)
            truth.add(pd.Series(folders, dtype="str") if known else None, len(paths))
            yield paths, torch.from_numpy(np.stack([image for _, image in part]))

    def _decoded(self) -> Iterator[tuple[str, Examples]]:
        """Yield the readable files; 8 bits are stretched to the window of a model of scans."""
        shape, window = self._inputs.image_shape, self._window
        images = decode_all(Path(), self.paths, shape, scans=window is not None)
        for path, image in zip(self.paths, images, strict=True):
            if image.pixels is None:
                self._unreadable.append(image.name(path))
                continue
            self._flags.append(image.flags)
            if window is not None and not image.flags & SCAN:
                yield path, window[0] + image.pixels * ((window[1] - window[0]) / 255.0)
            else:
                yield path, image.pixels

    def warnings(self) -> list[str]:
        """Return lines about what was lost, and one that names unreadable files, if any are."""
        return losses(self._flags, self._inputs, self._unreadable, _NAMED)


# --- rows, texts and signals --------------------------------------------------------------------


def batches(places: Sequence[Path], inputs: Inputs, form: Form, truth: Truth) -> Iterator[Batch]:
    """Yield names and examples (B, ...) as they are stored, file after file.

    A name is ``<file>:<line>`` of a CSV or of a text file with one text a line, ``<file>:<index>``
    of a Parquet file or an NPZ. ``form`` says how files of rows are written, as in training;
    ``truth`` notes the classes that they name. Raise UserError with file, line and column for what
    does not fit.
    """
    for place in places:
        path = place.expanduser()
        if not path.is_dir() and not path.is_file():
            raise UserError(f"'{place}' does not exist{near(place)}")
        if path.is_dir() or (inputs.kind != SIGNAL and holds(path, formats.NPZ_SUFFIXES)):
            files = {SIGNAL: "NPZ or CSV", TABLE: "CSV or Parquet"}.get(
                inputs.kind, "CSV, Parquet or text"
            )
            raise UserError(
                f"'{place}' is {'a folder' if path.is_dir() else 'an NPZ of signals'}, but the "
                f"model takes {PLURAL[inputs.kind]}: give {files} files"
            )
        if inputs.kind == TABLE or holds(path, ROW_SUFFIXES):
            found = _rows(_opened(path, inputs, form), inputs, truth)
        else:
            found = _windows(path, inputs, truth) if inputs.kind == SIGNAL else _lines(path, inputs)
        yield from _cut(found, inputs, f"{place}:", truth)


def of_frame(frame: pd.DataFrame, inputs: Inputs, form: Form, truth: Truth) -> Iterator[Batch]:
    """Yield numbers and examples of the rows of a DataFrame, as :func:`batches` of a file."""
    return _cut(_rows(rows.of_frame(frame, form), inputs, truth), inputs, "", truth)


def _cut(found: _Found, inputs: Inputs, place: str, truth: Truth) -> Iterator[Batch]:
    """Yield batches of the examples, without windows with gaps, as in training."""
    for names, examples, targets in found:
        good = finite(examples) if inputs.kind == SIGNAL else np.ones(len(names), dtype=bool)
        kept = np.flatnonzero(good)
        truth.left_out += len(names) - len(kept)
        truth.add(None if targets is None else targets[good], len(kept))
        for start in range(0, len(kept), EVALUATION_BATCH):
            part = kept[start : start + EVALUATION_BATCH]
            shown = [place + names[k] for k in part]
            yield shown, torch.from_numpy(np.ascontiguousarray(examples[part]))


def _opened(path: Path, inputs: Inputs, form: Form) -> RowFile:
    """Open a file of rows; one without a header has the model's columns, if it has as many."""
    try:
        return open_rows([path], form)
    except NoHeader as error:
        if error.width != len(inputs.columns):
            raise
        return open_rows([path], replace(form, columns=inputs.columns))
    except UserError:
        if not form.columns:  # names of the training file, which also had a target
            raise
        return _opened(path, inputs, replace(form, columns=()))


def _rows(file: RowFile, inputs: Inputs, truth: Truth) -> _Found:
    """Yield rows, texts, or windows of which each is a row; names are lines, or numbers."""
    wanted, windows, target = inputs.columns, inputs.kind == SIGNAL, truth.target
    _need_columns(inputs, file.where)
    labelled = [target] if target in file.columns and target not in wanted else []
    if windows:
        wanted = tuple(n for n in file.columns if n not in (*file.index, *labelled))
        channels, steps = inputs.shape
        if len(wanted) != channels * steps:
            raise UserError(
                f"{file.where}: {len(wanted)} columns, but the model takes {channels} x {steps} "
                "numbers per row"
            )
    need(file, wanted, "the model's columns")
    table = TableRows(Inputs.table(wanted) if windows else inputs, truth.unseen)
    texts = wanted if inputs.kind == TOKENS else tuple(table.codes)
    lines = file.lines() if isinstance(file, CsvFile) else count()
    for part in file.chunks([*texts, *labelled], [name for name in wanted if name not in texts]):
        targets = part[1][target] if labelled else None
        names = [str(number) for number in islice(lines, len(part[1]))]
        if inputs.kind == TOKENS:
            yield names, token_ids(part[1][wanted[0]].tolist(), inputs), targets
        else:
            numbers = table.numbers(*part)
            yield names, numbers.reshape(-1, *inputs.shape) if windows else numbers, targets


def _need_columns(inputs: Inputs, where: str) -> None:
    """Raise UserError for a model of images, or of token ids that are not made of texts."""
    if inputs.kind != SIGNAL and not inputs.columns:
        raise UserError(f"{where}: the model takes {inputs}, not rows or texts")


def _lines(path: Path, inputs: Inputs) -> _Found:
    """Yield the texts of a file with one text a line."""
    _need_columns(inputs, f"'{path}'")
    line = 1
    try:
        with path.open(encoding="utf-8-sig") as lines:
            while texts := [one.removesuffix("\n") for one in islice(lines, EVALUATION_BATCH)]:
                names = [str(number) for number in range(line, line + len(texts))]
                yield names, token_ids(texts, inputs), None
                line += len(texts)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' is not a readable UTF-8 text") from error


def _windows(path: Path, inputs: Inputs, truth: Truth) -> _Found:
    """Yield the windows of an NPZ file."""
    files = (Npz(path, axes) for axes in AXES)
    file = next((one for one in files if one.windows.shape[1:] == inputs.shape), None)
    if file is None:
        shape = Npz(path).windows.shape[1:]
        raise UserError(
            f"data-path {path}: windows are {shape}, and the model takes {inputs.shape}"
        )
    y = next((name for name in (truth.target, *TARGETS) if name in file.columns), "")
    names = [str(index) for index in range(len(file.windows))]
    yield names, small_numbers(file.windows), file.rows([y])[y] if y else None
