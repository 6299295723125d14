"""Raw examples that are no images, as an exported model wants them: CSV, Parquet, NPZ, texts.

What a model takes stands in its card (columns, categories, length, scale), so that a file without
classes and clients will do: only the columns that the model sees are needed.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedhet.data.data_file import Chunk, Reading, need
from fedhet.data.inputs import SIGNAL, TABLE, Inputs
from fedhet.data.row_files import ROW_SUFFIXES, open_rows
from fedhet.data.signals import check_windows, windows
from fedhet.data.table import Columns
from fedhet.data.texts import token_ids
from fedhet.errors import UserError
from fedhet.reading.npz import NpzFile
from fedhet.training.loop import EVALUATION_BATCH

Batch = tuple[list[str], Tensor]
MAX_TEXT_FILE = 64 << 20


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
            files = {SIGNAL: "NPZ", TABLE: "CSV or Parquet"}.get(
                inputs.kind, "CSV, Parquet or text"
            )
            raise UserError(f"'{place}' is a folder: this model takes {files} files, name those")
        if not there:
            raise UserError(f"'{place}': no such file")
        read = {SIGNAL: _signals, TABLE: _rows}.get(inputs.kind, _texts)
        for names, examples in read(path, inputs):
            yield from _in_batches([f"{place}:{name}" for name in names], examples)


def _in_batches(names: list[str], examples: Chunk) -> Iterator[Batch]:
    for start in range(0, len(names), EVALUATION_BATCH):
        part = slice(start, start + EVALUATION_BATCH)
        yield names[part], torch.from_numpy(np.ascontiguousarray(examples[part]))


def _rows(path: Path, inputs: Inputs) -> Iterator[tuple[list[str], Chunk]]:
    file = open_rows([path])
    need(file.columns, inputs.columns, "the model's columns", file.where)
    columns = Columns.of(inputs.columns, Reading(categories=inputs.categories))
    for piece in file.pieces([name for name, _ in inputs.categories], columns.plain):
        yield [str(place) for place in piece.places], columns.numbers(piece)


def _texts(path: Path, inputs: Inputs) -> Iterator[tuple[list[str], Chunk]]:
    """Of a CSV or Parquet file the model's column; any other file is one text a line."""
    if not inputs.columns:
        raise UserError(f"'{path}': this model's token ids are its data set's own; no text has any")
    if path.suffix.lower() in ROW_SUFFIXES:
        file = open_rows([path])
        need(file.columns, inputs.columns, "the model's column", file.where)
        for piece in file.pieces(inputs.columns):
            yield (
                [str(place) for place in piece.places],
                token_ids(piece.texts(inputs.columns[0]), inputs),
            )
        return
    if path.stat().st_size > MAX_TEXT_FILE:
        raise UserError(f"'{path}' has more than {MAX_TEXT_FILE >> 20} MiB: give a CSV")
    line = 1
    try:
        with path.open(encoding="utf-8-sig") as lines:
            while texts := [one.removesuffix("\n") for one in islice(lines, EVALUATION_BATCH)]:
                names = [str(number) for number in range(line, line + len(texts))]
                yield names, token_ids(texts, inputs)
                line += len(texts)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' is no readable UTF-8 text") from error


def _signals(path: Path, inputs: Inputs) -> Iterator[tuple[list[str], Chunk]]:
    file = NpzFile(path)
    need(file.names, ["x"], "the model", file.where)
    shape = check_windows(file).shape[1:]
    if shape != inputs.shape:
        raise UserError(f"{file.where}: windows are {shape}, and the model takes {inputs.shape}")
    start = 0
    for chunk in windows(file):
        yield [str(start + index) for index in range(len(chunk))], chunk
        start += len(chunk)
