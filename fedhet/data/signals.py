"""Dataset ``signals``: an NPZ with ``x`` (n, c, t), ``y`` (n,) and any columns (n,) beside them."""

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedhet.data.inputs import MAX_SIDE, MAX_SIZE, SIGNAL, Inputs
from fedhet.data.reading import (
    MAX_BYTES,
    MAX_ROWS,
    Chunk,
    Classes,
    Content,
    DataFile,
    Reading,
    Sites,
    Stream,
    find_file,
    need,
)
from fedhet.errors import UserError, brief

_CHUNK_BYTES = 8 << 20
_COLUMN_BYTES = 1 << 30
_ITEM_BYTES = 1024  # of one value of a column
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # others unpack without a limit
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, NotImplementedError,
           struct.error)  # fmt: skip


@dataclass(frozen=True)
class Header:
    """Of one array in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of one example."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


class NpzFile:
    """Arrays of numbers and texts in a zip, opened without pickle and read piece by piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = f"data-path {path}"
        with self._archive() as archive:
            self.names = [
                name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")
            ]

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except UserError:
            raise
        except OSError as error:
            raise UserError(f"{self.where}: {error.strerror or error}") from error
        except _DAMAGE as error:
            raise UserError(f"{self.where}: no sound NPZ file ({brief(error)})") from error

    @contextmanager
    def array(self, name: str) -> Iterator[tuple[Header, IO[bytes]]]:
        """The header of an array, and the stream of its numbers."""
        with self._archive() as archive:
            info = archive.getinfo(f"{name}.npy")
            if info.compress_type not in _METHODS:
                raise UserError(f"{self.where}: '{name}' is compressed in a way that is not read")
            with archive.open(info) as stream:
                yield self._header(name, stream), stream

    def _header(self, name: str, stream: IO[bytes]) -> Header:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise UserError(f"{self.where}: '{name}' is of another format than NPY 1.0 and 2.0")
        shape, fortran, dtype = read(stream)
        if dtype.hasobject:
            raise UserError(
                f"{self.where}: '{name}' holds Python objects, which are never loaded: save "
                "numbers or texts (dtype int, float or str)"
            )
        if fortran and len(shape) > 1:
            raise UserError(
                f"{self.where}: '{name}' is stored column by column: save "
                "numpy.ascontiguousarray of it"
            )
        return Header(tuple(int(side) for side in shape), dtype)

    def column(self, name: str, count: int) -> list[str]:
        """An array (n,) of texts or numbers, as texts."""
        with self.array(name) as (header, stream):
            if header.shape != (count,):
                raise UserError(
                    f"{self.where}: '{name}' has shape {header.shape}, and x has {count} examples"
                )
            size = header.dtype.itemsize
            if header.dtype.kind not in "biufUS" or not 0 < size <= _ITEM_BYTES:
                raise UserError(
                    f"{self.where}: '{name}' is {header.dtype}, must be whole numbers or "
                    "short texts"
                )
            if count * size > _COLUMN_BYTES:
                raise UserError(f"{self.where}: '{name}' takes more than {_COLUMN_BYTES >> 30} GiB")
            values = np.frombuffer(self._exactly(stream, count * size, name), dtype=header.dtype)
        if header.dtype.kind == "S":
            return [value.decode("utf-8", "replace") for value in values.tolist()]
        return [str(value) for value in values.tolist()]

    def rows(self, name: str) -> Iterator[tuple[int, Chunk]]:
        """Position of the first, and examples (k, ...), in pieces of some megabytes."""
        with self.array(name) as (header, stream):
            step = max(1, _CHUNK_BYTES // header.row_bytes)
            for start in range(0, header.shape[0], step):
                count = min(step, header.shape[0] - start)
                data = self._exactly(stream, count * header.row_bytes, name)
                yield start, np.frombuffer(data, header.dtype).reshape(count, *header.shape[1:])

    def _exactly(self, stream: IO[bytes], size: int, name: str) -> bytes:
        data = stream.read(size)
        if len(data) < size:
            raise UserError(f"{self.where}: '{name}' is cut off")
        return data


@dataclass(frozen=True)
class Signals(DataFile):
    """Windows (n, c, t) of an NPZ, with the target ``y`` and the sites."""

    dataset = "signals"

    def listing(self, image_size: int, classes: tuple[str, ...]) -> Stream:
        """The windows in the file's order."""
        del image_size
        reading, file = self.reading, NpzFile(self.path)
        need(file.names, ["x", "y"], "dataset signals", file.where)
        need([name for name in file.names if name != "x"], reading.site, "site", file.where)
        header = check_windows(file)
        count = header.shape[0]
        targets, sites = Classes(reading, classes), Sites()
        targets.add(file.column("y", count), lambda i: f"{file.where} 'y' entry {i}")
        if reading.site:
            columns = [file.column(name, count) for name in reading.site]
            keys = ", ".join(reading.site)
            sites.add(
                list(zip(*columns, strict=True)), lambda i: f"{file.where} '{keys}' entry {i}"
            )
        inputs = Inputs(SIGNAL, header.shape[1:], scale=reading.scale)
        labels, names = targets.done()
        content = Content(inputs, labels, names, *sites.done())
        return Stream(windows(file), lambda: content)


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
    stored = 2 if _is_short(header.dtype) else 4
    size = math.prod(shape[1:])
    if (
        shape[0] > MAX_ROWS or size > MAX_SIZE or max(shape[1:]) > MAX_SIDE
        or shape[0] * size * stored > MAX_BYTES
    ):  # fmt: skip
        raise UserError(
            f"{file.where}: x of shape {shape} is too large: at most {MAX_ROWS:,} windows of "
            f"{MAX_SIZE:,} numbers, {MAX_BYTES >> 30} GiB in all"
        )
    return header


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
    return Signals(find_file("signals", data_path), reading)
