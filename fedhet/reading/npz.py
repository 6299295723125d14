"""NPZ files of strangers: arrays of numbers and texts, without pickle, piece by piece."""

import io
import math
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedhet.errors import UserError, brief

_CHUNK_BYTES = 8 << 20
_COLUMN_BYTES = 1 << 30
_ITEM_BYTES = 1024  # of one value of a column
_DISTINCT_BYTES = 256 << 20  # of a column's different values
_HEADER_BYTES = 4096  # NumPy reads as much as a file claims before it looks at its own bound
_LARGEST_SIDE = 1 << 40
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # others unpack without a limit
_HALVES = 0xD800, 0xDFFF  # of characters, alone
_LEAST = 64  # bytes that any text takes
_VERSIONS = {
    (1, 0): ("<H", np.lib.format.read_array_header_1_0),
    (2, 0): ("<I", np.lib.format.read_array_header_2_0),
}
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
        length, read = _VERSIONS.get(version, ("", None))
        if read is None:
            raise UserError(f"{self.where}: '{name}' is of another format than NPY 1.0 and 2.0")
        prefix = self._exactly(stream, struct.calcsize(length), name)
        (size,) = struct.unpack(length, prefix)
        if size > _HEADER_BYTES:
            raise UserError(
                f"{self.where}: '{name}' has a header of {size:,} bytes, at most {_HEADER_BYTES:,} "
                "are read"
            )
        text = prefix + self._exactly(stream, size, name)
        try:
            shape, fortran, dtype = read(io.BytesIO(text))
        except Exception as error:  # it is parsed as Python, which fails in every way
            raise UserError(
                f"{self.where}: '{name}' has no sound header ({brief(error)})"
            ) from error
        if not all(0 <= side < _LARGEST_SIDE for side in shape):
            raise UserError(f"{self.where}: '{name}' has a shape that no array has")
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
            known: dict[Any, str] = {}
            found: list[str] = []
            step = _CHUNK_BYTES // size
            for start in range(0, count, step):
                piece = self._exactly(stream, min(step, count - start) * size, name)
                found += self._texts(np.frombuffer(piece, dtype=header.dtype), known, name)
        return found

    def _texts(self, values: npt.NDArray[Any], known: dict[Any, str], name: str) -> list[str]:
        """Values as texts; one text for all that are equal, which ``known`` holds."""
        kind = values.dtype.kind
        if kind == "U":
            codes = values.view(np.dtype(np.uint32).newbyteorder(values.dtype.byteorder))
            half = (codes >= _HALVES[0]) & (codes <= _HALVES[1])
            if (half | (codes > sys.maxunicode)).any():
                raise UserError(f"{self.where}: '{name}' holds what is no text")
        listed = values.tolist()
        for value in set(listed) - known.keys():
            known[value] = value.decode("utf-8", "replace") if kind == "S" else str(value)
        if len(known) * max(values.dtype.itemsize, _LEAST) > _DISTINCT_BYTES:
            raise UserError(
                f"{self.where}: '{name}' has {len(known):,} different values, more than are kept"
            )
        return [known[value] for value in listed]

    def rows(self, name: str) -> Iterator[tuple[int, npt.NDArray[Any]]]:
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
