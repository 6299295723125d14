"""Raw examples that are no images, as an exported model wants them: CSV, Parquet, NPZ, texts.

What a model takes stands in its card (columns, categories, length, scale), so that a file without
classes and clients will do: only the columns that the model sees are needed.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedhet.data.inputs import SIGNAL, TABLE, Inputs
from fedhet.data.labels import Examples, Form, need
from fedhet.data.rows import (
    ROW_SUFFIXES,
    Chunk,
    CsvFile,
    NoHeader,
    RowFile,
    holds,
    open_rows,
)
from fedhet.data.signals import Npz, finite, small_numbers, windows_like
from fedhet.data.table import Columns, token_ids
from fedhet.errors import UserError
from fedhet.training.loop import EVALUATION_BATCH

Batch = tuple[list[str], Tensor]


def batches(places: Sequence[Path], inputs: Inputs) -> Iterator[Batch]:
    """Names and examples (B, ...) as they are stored, file after file.

    A name is ``<file>:<line>`` of a CSV, ``<file>:<index>`` of a Parquet file or an NPZ,
    ``<file>:<line>`` of a text file, one text a line. Raises UserError with file, line and column
    for what does not fit.
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
        read = {SIGNAL: _signals, TABLE: _rows}.get(inputs.kind, _texts)
        for names, examples in read(path, inputs):
            yield from _in_batches([f"{place}:{name}" for name in names], examples)


def _in_batches(names: list[str], examples: Examples) -> Iterator[Batch]:
    for start in range(0, len(names), EVALUATION_BATCH):
        part = slice(start, start + EVALUATION_BATCH)
        yield names[part], torch.from_numpy(np.ascontiguousarray(examples[part]))


def _rows(path: Path, inputs: Inputs) -> Iterator[tuple[list[str], Examples]]:
    file = _opened(path, inputs)
    need(file.columns, inputs.columns, "the model's columns", file.where)
    columns = Columns.of(inputs.columns, inputs.categories)
    for names, chunk in _named(file, file.chunks(list(columns.codes), columns.plain)):
        yield names, columns.numbers(chunk)


def _opened(path: Path, inputs: Inputs) -> RowFile:
    """A file of rows; one without a header has the model's columns, if it has as many."""
    try:
        return open_rows([path])
    except NoHeader as error:
        if error.width != len(inputs.columns):
            raise
        return open_rows([path], Form(columns=inputs.columns))


def _named(file: RowFile, chunks: Iterable[Chunk]) -> Iterator[tuple[list[str], Chunk]]:
    """Chunks with the names of their rows: lines of a CSV, else numbers."""
    numbers = file.lines() if isinstance(file, CsvFile) else count()
    for chunk in chunks:
        yield [str(number) for number in islice(numbers, len(chunk))], chunk


def _texts(path: Path, inputs: Inputs) -> Iterator[tuple[list[str], Examples]]:
    """Of a CSV or Parquet file the model's column; any other file is one text a line."""
    if not inputs.columns:
        raise UserError(f"'{path}': this model's token ids are its data set's own; no text has any")
    if holds(path, ROW_SUFFIXES):
        file = _opened(path, inputs)
        need(file.columns, inputs.columns, "the model's column", file.where)
        for names, chunk in _named(file, file.chunks(inputs.columns, ())):
            yield names, token_ids(chunk.frame[inputs.columns[0]].tolist(), inputs)
        return
    line = 1
    try:
        with path.open(encoding="utf-8-sig") as lines:
            while texts := [one.removesuffix("\n") for one in islice(lines, EVALUATION_BATCH)]:
                names = [str(number) for number in range(line, line + len(texts))]
                yield names, token_ids(texts, inputs)
                line += len(texts)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' is no readable UTF-8 text") from error


def _signals(path: Path, inputs: Inputs) -> Iterator[tuple[list[str], Examples]]:
    """Windows of an NPZ file, or of a CSV with one row a window and the model's numbers alone."""
    if holds(path, ROW_SUFFIXES):
        yield from _windows_of_rows(open_rows([path]), inputs)
        return
    file = Npz(path)
    x = windows_like(file, inputs.shape)
    for start in range(0, len(x), EVALUATION_BATCH):
        part = small_numbers(x[start : start + EVALUATION_BATCH])
        if not (good := finite(part)).all():
            index = start + int(np.flatnonzero(~good)[0])
            raise UserError(f"{file.where}: x[{index}] is not finite")
        yield [str(start + index) for index in range(len(part))], part


def _windows_of_rows(file: RowFile, inputs: Inputs) -> Iterator[tuple[list[str], Examples]]:
    columns = [name for name in file.columns if name not in file.index]
    channels, steps = inputs.shape
    if len(columns) != channels * steps:
        raise UserError(
            f"{file.where}: {len(columns)} columns, and the model takes {channels} x {steps} "
            "numbers a row"
        )
    table = Columns.of(columns, ())
    for names, chunk in _named(file, file.chunks((), columns)):
        yield names, table.numbers(chunk).reshape(-1, channels, steps)
