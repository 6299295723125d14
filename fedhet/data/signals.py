"""Dataset ``signals``: NPZ files with ``x`` (n, c, t), ``y`` (n,) and other columns (n,)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhet.data.data_file import (
    MAX_BYTES,
    Chunk,
    Classes,
    Content,
    DataFile,
    Reading,
    Sites,
    Stream,
    need,
)
from fedhet.data.image_source import Shape
from fedhet.data.inputs import MAX_SIDE, MAX_SIZE, SIGNAL, Inputs
from fedhet.data.row_files import NPZ_SUFFIXES, find_files
from fedhet.errors import UserError
from fedhet.reading.columns import MAX_ROWS
from fedhet.reading.npz import Header, NpzFile


@dataclass(frozen=True)
class Signals(DataFile):
    """Windows (n, c, t), with the target ``y`` and the sites; a file of several is a site."""

    dataset = "signals"

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Stream:
        """The windows in the file's order."""
        del shape
        targets, sites = Classes(self.reading, classes), Sites()
        headers = [self._add(path, targets, sites) for path in self.paths]
        window = headers[0].shape[1:]
        for path, header in zip(self.paths, headers, strict=True):
            if header.shape[1:] != window:
                raise UserError(
                    f"data-path {path}: windows are {header.shape[1:]}, and those of "
                    f"{self.paths[0].name} are {window}"
                )
        check_size(sum(header.shape[0] for header in headers), headers, self.paths[0])
        short = all(_is_short(header.dtype) for header in headers)
        labels, names = targets.done()
        inputs = Inputs(SIGNAL, window, scale=self.reading.scale)
        content = Content(inputs, labels, names, *sites.done())
        return Stream(_all_windows(self.paths, short=short), lambda: content)

    def _add(self, path: Path, targets: Classes, sites: Sites) -> Header:
        """Note the targets and the sites of a file."""
        reading, file = self.reading, NpzFile(path)
        need(file.names, ["x", "y"], "dataset signals", file.where)
        need([name for name in file.names if name != "x"], reading.site, "site", file.where)
        header = check_windows(file)
        count = header.shape[0]
        targets.add(file.column("y", count), lambda i: f"{file.where} 'y' entry {i}")
        if reading.site:
            columns = [file.column(name, count) for name in reading.site]
            keys = ", ".join(reading.site)
            sites.add(
                list(zip(*columns, strict=True)), lambda i: f"{file.where} '{keys}' entry {i}"
            )
        elif len(self.paths) > 1:
            sites.add_file(path, count)
        return header


def check_windows(file: NpzFile) -> Header:
    """The header of ``x``; UserError unless it is (n, c, t) numbers of a reasonable size."""
    with file.array("x") as (header, _):
        pass
    shape = header.shape
    if len(shape) != 3 or min(shape) < 1 or header.dtype.kind not in "iuf":  # noqa: PLR2004
        raise UserError(
            f"{file.where}: x is {header.dtype} of shape {shape}, must be numbers "
            "(n, channels, time)"
        )
    check_size(shape[0], [header], file.path)
    return header


def check_size(count: int, headers: Sequence[Header], path: Path) -> None:
    """UserError for ``count`` windows that are too many or too large."""
    stored = 2 if all(_is_short(header.dtype) for header in headers) else 4
    shape = headers[0].shape[1:]
    size = math.prod(shape)
    if (
        count > MAX_ROWS or size > MAX_SIZE or max(shape) > MAX_SIDE
        or count * size * stored > MAX_BYTES
    ):  # fmt: skip
        raise UserError(
            f"data-path {path}: x of shape {(count, *shape)} is too large: at most {MAX_ROWS:,} "
            f"windows of {MAX_SIZE:,} numbers, {MAX_BYTES >> 30} GiB in all"
        )


def _all_windows(paths: Sequence[Path], *, short: bool) -> Iterator[Chunk]:
    """Those of all files, int16 only if all can be."""
    for path in paths:
        for chunk in windows(NpzFile(path)):
            yield chunk if short else chunk.astype(np.float32, copy=False)


def windows(file: NpzFile) -> Iterator[Chunk]:
    """The windows, int16 where that holds them, else float32; UserError for one not finite."""
    for start, chunk in file.rows("x"):
        yield small_numbers(chunk, lambda i, start=start: f"{file.where}: x[{start + i}]")


def small_numbers(chunk: npt.NDArray[Any], where: Any) -> Chunk:
    """int16 or float32 of any numbers (k, ...)."""
    if _is_short(chunk.dtype):
        return chunk.astype(np.int16)
    with np.errstate(over="ignore"):
        small = chunk.astype(np.float32)
    bad = ~np.isfinite(small).reshape(len(small), -1).all(axis=1)
    if bad.any():
        raise UserError(f"{where(int(np.flatnonzero(bad)[0]))} is not finite")
    return small


def _is_short(dtype: np.dtype[Any]) -> bool:
    return bool(np.can_cast(dtype, np.int16))


def open_signals(data_path: str, reading: Reading) -> Signals:
    """The source at ``data_path``; UserError for no file."""
    return Signals(find_files("signals", data_path, NPZ_SUFFIXES), reading)
