"""Raw examples that are no images, as an exported model wants them: CSV, Parquet, NPZ, texts.

What a model takes stands in its card (columns, categories, length, scale), so that a file without
classes and clients will do: only the columns that the model sees are needed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedhet.data.images import Indices
from fedhet.data.inputs import SIGNAL, TABLE, TOKENS, Inputs
from fedhet.data.labels import Classes, Examples, Form, Reading, need
from fedhet.data.rows import (
    ROW_SUFFIXES,
    Chunk,
    CsvFile,
    NoHeader,
    RowFile,
    holds,
    open_rows,
)
from fedhet.data.signals import TARGETS, Npz, Windows, finite, small_numbers
from fedhet.data.table import Columns, token_ids
from fedhet.errors import UserError
from fedhet.training.loop import EVALUATION_BATCH

if TYPE_CHECKING:
    from pandas import Series

Batch = tuple[list[str], Tensor]
_Found = Iterator[tuple[list[str], Examples, "Series | None"]]  # names, examples, their targets


class Truth:
    """The classes that labelled files name, in the order of their examples; -1 for none."""

    def __init__(self, reading: Reading, classes: tuple[str, ...]) -> None:
        self.target, self._names, self._classes = reading.target, classes, Classes(reading, classes)
        self.labels: list[Indices] = []
        self.problem = ""  # why there are no more

    def knows(self, names: Sequence[str]) -> bool:
        """Return whether one of these is a class of the model."""
        return bool(set(names) & set(self._names))

    def add(self, targets: "Series | None", examples: int) -> None:
        """Note the targets of some examples, None where the file has none."""
        found = np.full(examples, -1, dtype=np.int64)
        try:
            if targets is not None and not self.problem:
                found = self._classes.labels(targets, lambda _: f"target '{self.target}'")
        except UserError as error:
            self.problem = str(error)
        self.labels.append(found)


def batches(places: Sequence[Path], inputs: Inputs, form: Form, truth: Truth) -> Iterator[Batch]:
    """Yield names and examples (B, ...) as they are stored, file after file.

    A name is ``<file>:<line>`` of a CSV or of a text file with one text a line, ``<file>:<index>``
    of a Parquet file or an NPZ. ``form`` says how files of rows are written, as in training;
    ``truth`` notes the classes that they name. Raise UserError with file, line and column for what
    does not fit.
    """
    for place in places:
        path = place.expanduser()
        try:
            folder, there = path.is_dir(), path.is_file()
        except OSError as error:
            raise UserError(f"'{place}': {error.strerror}") from error
        if folder:
            files = {SIGNAL: "NPZ or CSV", TABLE: "CSV or Parquet"}.get(
                inputs.kind, "CSV, Parquet or text"
            )
            raise UserError(f"'{place}' is a folder: this model takes {files} files, name those")
        if not there:
            raise UserError(f"'{place}': no such file")
        if inputs.kind == TABLE or holds(path, ROW_SUFFIXES):
            found = _rows(_opened(path, inputs, form), inputs, truth.target)
        else:
            found = _windows(path, inputs, truth) if inputs.kind == SIGNAL else _lines(path, inputs)
        for names, examples, targets in found:
            truth.add(targets, len(names))
            for start in range(0, len(names), EVALUATION_BATCH):
                part = slice(start, start + EVALUATION_BATCH)
                shown = [f"{place}:{name}" for name in names[part]]
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


def _rows(file: RowFile, inputs: Inputs, target: str) -> _Found:
    """Yield rows, texts, or windows of which each is a row."""
    wanted, windows = inputs.columns, inputs.kind == SIGNAL
    if inputs.kind == TOKENS and not wanted:
        raise UserError(f"{file.where}: the model's token ids are its data set's own, no text's")
    labelled = [target] if target in file.columns and target not in wanted else []
    if windows:
        wanted = tuple(n for n in file.columns if n not in (*file.index, *labelled))
        channels, steps = inputs.shape
        if len(wanted) != channels * steps:
            raise UserError(
                f"{file.where}: {len(wanted)} columns, and the model takes {channels} x {steps} "
                "numbers a row"
            )
    need(file.columns, wanted, "the model's columns", file.where)
    table = Columns.of(wanted, inputs.categories)
    texts = list(wanted if inputs.kind == TOKENS else table.codes)
    chunks = file.chunks([*texts, *labelled], [name for name in wanted if name not in texts])
    for names, chunk in _named(file, chunks):
        targets = chunk.frame[target] if labelled else None
        if inputs.kind == TOKENS:
            yield names, token_ids(chunk.frame[wanted[0]].tolist(), inputs), targets
        else:
            numbers = table.numbers(chunk)
            yield names, numbers.reshape(-1, *inputs.shape) if windows else numbers, targets


def _named(file: RowFile, chunks: Iterable[Chunk]) -> Iterator[tuple[list[str], Chunk]]:
    """Yield chunks with the names of their rows: lines of a CSV, else numbers."""
    numbers = file.lines() if isinstance(file, CsvFile) else count()
    for chunk in chunks:
        yield [str(number) for number in islice(numbers, len(chunk))], chunk


def _lines(path: Path, inputs: Inputs) -> _Found:
    """Yield the texts of a file with one text a line."""
    if not inputs.columns:
        raise UserError(f"'{path}': the model's token ids are its data set's own, no text's")
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
    file, start = Npz(path), 0
    windows = Windows.like(file, inputs.shape)
    y = next((name for name in (truth.target, *TARGETS) if name in file.names), "")
    targets = file.column(y, windows.shape[0]) if y else None
    for piece in windows.pieces():
        part = small_numbers(piece)
        if not (good := finite(part)).all():
            index = start + int(np.flatnonzero(~good)[0])
            raise UserError(f"{file.where}: x[{index}] is not finite")
        rows = slice(start, start + len(part))
        names = [str(start + index) for index in range(len(part))]
        yield names, part, None if targets is None else targets[rows]
        start += len(part)
