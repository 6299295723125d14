"""Dataset ``signals``: windows of channels and time steps out of NPZ or CSV files."""

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data.inputs import MAX_SIDE, MAX_SIZE, SIGNAL, Inputs
from fedhet.data.labels import Examples, Keys, Reading, Stream, need
from fedhet.data.rows import Chunk, RowFile
from fedhet.data.table import about_file, left_columns
from fedhet.errors import UserError, one_line

AXES = ("channels-time", "time-channels")
LONGER = 4  # times that the second axis is longer than the third where it is taken for time
_CHUNK = 4096
_X, TARGETS = ("x", "X"), ("y", "Y", "label", "labels", "target", "targets")


class Npz:
    """The arrays of an NPZ file by name: windows some at a time, columns whole."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, f"data-path {path}"
        try:
            found = np.load(path, allow_pickle=False, mmap_mode="r")
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{self.where}: not a valid NPZ file: {one_line(error)}") from error
        if isinstance(found, np.ndarray):
            raise UserError(f"{self.where}: one array only; signals need an NPZ with x and y")
        self._file, self.names = found, list(found)

    def named(self, known: Sequence[str], what: str) -> str:
        """Return the first of these names that there is; raise UserError for none."""
        found = next((name for name in known if name in self.names), "")
        if not found:
            raise UserError(
                f"dataset signals: {self.where} has no column '{known[0]}' ({what}); it has "
                f"{', '.join(self.names)}"
            )
        return found

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array, whole; raise UserError for Python objects and for damage."""
        with self._reading(name):
            return np.asarray(self._file[name])

    def header(self, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Return the shape of an array, whether it is in Fortran's order, and its dtype."""
        with self._reading(name), self._file.zip.open(f"{name}.npy") as file:
            return _header(file)

    def pieces(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Yield an array some rows at a time; one in Fortran's order is read whole for it."""
        with self._reading(name), self._file.zip.open(f"{name}.npy") as file:
            shape, fortran, dtype = _header(file)
            whole = self.array(name) if fortran or dtype.hasobject else None
            for start in range(0, shape[0], _CHUNK):
                count = min(_CHUNK, shape[0] - start)
                if whole is not None:
                    yield whole[start : start + count]
                    continue
                data = file.read(count * prod(shape[1:]) * dtype.itemsize)
                yield np.frombuffer(data, dtype).reshape(count, *shape[1:])

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Raise UserError for what NumPy and zipfile say of an array that cannot be read."""
        try:
            yield
        except (
            ValueError,
            OSError,
            EOFError,
            MemoryError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            if "pickle" in str(error):
                raise UserError(
                    f"{self.where}: '{name}' holds Python objects, which are not read: save texts "
                    "as np.array(list, dtype=str), and numbers as one array"
                ) from error
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self.where}: '{name}' is damaged: {one_line(error)}") from error

    def column(self, name: str, count: int) -> pd.Series:
        """Return an array (n,), (n, 1) or one-hot (n, C) as texts."""
        found = self.array(name)
        if found.ndim == 2 and found.shape[1] == 1:
            found = found[:, 0]
        if found.ndim == 2 and found.dtype.kind in "biuf" and _is_one_hot(found):
            found = found.argmax(axis=1)
        if found.shape != (count,):
            raise UserError(f"{self.where}: '{name}' has shape {found.shape}, and x has {count}")
        if found.dtype.kind == "S":
            found = np.char.decode(found, "utf-8", "replace")
        return pd.Series(found).astype("str").str.strip()


def _entry(what: str, start: int, index: int) -> str:
    """Return the name of an entry of an array that is read in pieces."""
    return f"{what} {start + index}"


def _is_one_hot(array: npt.NDArray[Any]) -> bool:
    return bool(((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all())


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array inside an NPZ file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    return (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)


@dataclass(frozen=True)
class Windows:
    """The windows of an NPZ file as (n, c, t), and a line where the order of axes was guessed."""

    file: Npz
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    turned: bool
    line: str = ""

    @staticmethod
    def of(file: Npz, axes: str = "") -> "Windows":
        """Find ``x``; without ``axes`` time comes first where that axis is much longer.

        Raise UserError for what are no windows.
        """
        name = file.named(_X, "windows")
        shape, _, dtype = file.header(name)
        if dtype.kind not in "biuf" or len(shape) not in (2, 3) or min(shape, default=0) < 1:
            raise UserError(
                f"{file.where}: x is {dtype} of shape {shape}, must be numbers (n, channels, time)"
            )
        if len(shape) == 2:
            return Windows(file, name, (shape[0], 1, shape[1]), dtype, turned=False)
        n, second, third = shape
        guessed = not axes and second >= LONGER * third
        turned = guessed or axes == AXES[1]
        shape = (n, third, second) if turned else shape
        _check_size(shape, file.where)
        line = f"x of shape {(n, second, third)} is taken as {third} channels of {second} steps: "
        line = line + f"axes={AXES[0]} takes it the other way" if guessed else ""
        return Windows(file, name, shape, dtype, turned, line)

    @staticmethod
    def like(file: Npz, shape: Sequence[int]) -> "Windows":
        """Find ``x`` in the order of axes that gives ``shape``; UserError if none does."""
        for axes in AXES:
            found = Windows.of(file, axes)
            if found.shape[1:] == tuple(shape):
                return found
        raise UserError(
            f"{file.where}: windows are {file.header(found.name)[0][1:]}, and the model takes "
            f"{tuple(shape)}"
        )

    def pieces(self) -> Iterator[npt.NDArray[Any]]:
        """Yield windows (k, c, t) in the file's order."""
        for part in self.file.pieces(self.name):
            turned = part.transpose(0, 2, 1) if self.turned else part
            yield turned.reshape(len(part), *self.shape[1:])


def _check_size(shape: Sequence[int], where: str) -> None:
    if max(shape[1:]) > MAX_SIDE or shape[1] * shape[2] > MAX_SIZE:
        raise UserError(f"{where}: windows of {tuple(shape[1:])} are too large")


def small_numbers(chunk: npt.NDArray[Any], *, short: bool | None = None) -> Examples:
    """Return numbers (k, ...) as int16 if the dtype or ``short`` says so, else as float32."""
    if _is_short(chunk.dtype) if short is None else short:
        return chunk.astype(np.int16)
    with np.errstate(over="ignore"):
        return chunk.astype(np.float32)


def _is_short(dtype: np.dtype[Any]) -> bool:
    return bool(np.can_cast(dtype, np.int16))


def finite(chunk: Examples) -> npt.NDArray[np.bool_]:
    """Return which of the examples (k, ...) hold finite numbers alone."""
    if chunk.dtype.kind != "f":
        return np.ones(len(chunk), dtype=bool)
    return np.asarray(np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1))


def of_npz(paths: Sequence[Path], reading: Reading, classes: tuple[str, ...]) -> Stream:
    """Return windows (n, c, t), with their targets and sites; a file of several is a site."""
    windows = [Windows.of(Npz(path), reading.axes) for path in paths]
    shape = windows[0].shape[1:]
    for one in windows:
        if one.shape[1:] != shape:
            raise UserError(
                f"{one.file.where}: windows are {one.shape[1:]}, and those of {paths[0].name} are "
                f"{shape}"
            )
    keys, short = Keys(reading, classes), all(_is_short(one.dtype) for one in windows)
    notes = list(dict.fromkeys(one.line for one in windows if one.line))

    def chunks() -> Iterator[Examples]:
        for one in windows:
            file, count = one.file, one.shape[0]
            y = reading.target or file.named(TARGETS, "target")
            need(file.names, [y], "target", file.where)
            need(file.names, reading.site, "site", file.where)
            targets, owners, start = file.column(y, count), None, 0
            if reading.site:
                owners = keys.sites.codes([file.column(name, count) for name in reading.site])
            elif len(paths) > 1:
                owners = keys.sites.of_file(file.path, count)
            for part in one.pieces():
                stored, rows = small_numbers(part, short=short), slice(start, start + len(part))
                kept = keys.note(
                    targets[rows], None if owners is None else owners[rows],
                    partial(_entry, f"{file.where} '{y}' entry", start), finite=finite(stored),
                )  # fmt: skip
                start += len(part)
                if kept.any():
                    yield stored[kept]

    inputs = Inputs(SIGNAL, shape, scale=reading.scale)
    return Stream(chunks(), lambda _: keys.content(inputs, (), notes))


def of_rows(file: RowFile, reading: Reading, classes: tuple[str, ...]) -> Stream:
    """Return windows out of rows: one row a window, or with ``time`` one row a step."""
    need(file.columns, [reading.target], "target", file.where)
    need(file.columns, reading.site, "site", file.where)
    keys, columns = Keys(reading, classes), left_columns(file, reading)
    if reading.time:
        return _recordings(file, keys, [name for name in columns if name != reading.time])
    groups = [[name for name in columns if name.startswith(one)] for one in reading.channels]
    groups = groups or [columns]
    if len({len(group) for group in groups}) > 1 or not all(groups):
        pairs = zip(reading.channels, groups, strict=True)
        each = ", ".join(f"{name}: {len(group)}" for name, group in pairs)
        raise UserError(f"channels: {file.where} has unequal numbers of columns ({each})")
    shape = (len(groups), len(groups[0]))
    order = [name for group in groups for name in group]

    def chunks() -> Iterator[Examples]:
        for chunk in file.chunks(keys.columns(), order):
            x = _numbers(chunk, order).reshape(-1, *shape)
            kept = keys.add(chunk, finite=finite(x))
            if kept.any():
                yield x[kept]

    inputs = Inputs(SIGNAL, shape, scale=reading.scale)
    notes = [f"one row a window of {shape}", *about_file(file)]
    return Stream(chunks(), lambda _: keys.content(inputs, (), notes))


def _recordings(file: RowFile, keys: Keys, others: Sequence[str]) -> Stream:
    """Take rows as time steps: a window ends where time goes back, or another key begins."""
    reading, texts = keys.reading, keys.columns()
    channels = list(reading.channels or others)
    need(file.columns, [reading.time, *channels], "channels", file.where)
    x, times, names = [], [], []
    for chunk in file.chunks([*texts, reading.time], channels):
        x.append(_numbers(chunk, channels))
        times.append(_times(chunk.frame[reading.time]))
        names.append(chunk.frame[texts].assign(**{"": str(chunk.site)}))
    values, when = np.concatenate(x), np.concatenate(times)
    frame = pd.concat(names, ignore_index=True)
    same = (frame == frame.shift()).all(axis=1)
    new = np.flatnonzero(~same.to_numpy() | (np.diff(when, prepend=np.inf) <= 0))
    starts, length, line = _cut(new, len(values), reading.length)
    windows = np.stack([values[start : start + length].T for start in starts])
    first = frame.iloc[starts].reset_index(drop=True)
    owners = keys.sites.codes([first[name] for name in reading.site]) if reading.site else None
    where = f"{file.where} window {{}}".format
    kept = keys.note(first[reading.target], owners, where, finite=finite(windows))
    inputs, notes = (
        Inputs(SIGNAL, windows.shape[1:], scale=reading.scale), [line, *about_file(file)]
    )  # fmt: skip
    return Stream(iter([windows[kept]]), lambda _: keys.content(inputs, (), notes))


def _numbers(chunk: Chunk, names: Sequence[str]) -> npt.NDArray[np.float32]:
    for name in names:
        column = chunk.frame[name]
        if column.dtype.kind != "f":
            bad = pd.to_numeric(column, errors="coerce").isna() & column.notna()
            at = chunk.at(int(np.flatnonzero(bad)[0]), name)
            raise UserError(f"{at}: not a number: name the column in ignore")
    return np.asarray(chunk.frame[list(names)], dtype=np.float32)


def _times(column: pd.Series) -> npt.NDArray[np.float64]:
    numbers = pd.to_numeric(column, errors="coerce")
    if numbers.isna().any():
        dates = pd.to_datetime(column, errors="coerce", format="mixed")
        numbers = dates.astype("int64").where(dates.notna())
    return np.asarray(numbers, dtype=np.float64)


def _cut(new: npt.NDArray[Any], rows: int, length: int) -> tuple[list[int], int, str]:
    """Return first rows of the windows, their length, and a line about how they were cut."""
    sizes = np.diff(np.append(new, rows))
    common, count = Counter(sizes.tolist()).most_common(1)[0]
    if common > 1 and count >= 0.9 * len(sizes):
        left = f", {len(sizes) - count} of another length left out" if count < len(sizes) else ""
        starts = [int(start) for start, size in zip(new, sizes, strict=True) if size == common]
        return starts, int(common), f"{count} windows of {common} steps by time{left}"
    starts = [
        int(start) + k * length
        for start, size in zip(new, sizes, strict=True)
        for k in range(int(size) // length)
    ]
    if not starts:
        raise UserError(f"length: {length} is more than the longest recording, {sizes.max()}")
    lost = int(rows - len(starts) * length)
    return starts, length, (
        f"{len(new)} recordings are cut into {len(starts)} windows of {length} steps (length), "
        f"{lost} steps left over"
    )  # fmt: skip
