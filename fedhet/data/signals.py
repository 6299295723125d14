"""Dataset ``signals``: windows of channels and time steps out of NPZ or CSV files."""

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data import formats
from fedhet.data.inputs import MAX_SIDE, MAX_SIZE, SIGNAL, Examples, Form, Inputs, Reading, Stream
from fedhet.data.keys import Keys, as_times, need
from fedhet.data.rows import RowFile
from fedhet.data.table import TableRows, left_columns
from fedhet.errors import UserError, one_line

AXES = ("channels-time", "time-channels")
LONGER = 4  # times that the second axis is longer than the third where it is taken for time
_CHUNK = 4096
_DAMAGE = (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error)
TARGETS = ("y", "Y", "label", "labels", "target", "targets")


class Npz(RowFile):
    """The arrays of an NPZ file: windows ``x`` some at a time as (k, c, t), columns whole.

    ``shape`` is (n, c, t). Without ``axes`` time comes first where that axis is much longer, which
    a line in ``found`` says; ``axes`` is then the order that was taken.
    """

    def __init__(self, path: Path, axes: str = "") -> None:
        super().__init__(f"data-path {path}", Form())
        self.path = path
        formats.refuse_other(path)
        matlab = path.suffix.lower() == ".mat"
        load: Any = formats.matlab if matlab else np.load
        try:
            self._file = load(path)
        except _DAMAGE as error:
            raise UserError(f"{self.where}: not a valid NPZ file: {one_line(error)}") from error
        self.columns = list(self._file)
        self._name = self.one_of(("x", "X"))
        self.used = (self._name, self.one_of(TARGETS))
        need(self, [self._name], "signals")
        shape, _, self.dtype = self._head(self._name)
        if self.dtype.kind not in "biuf" or len(shape) not in (2, 3) or min(shape, default=0) < 1:
            raise UserError(
                f"{self.where}: x is {self.dtype} of shape {shape}, must be numbers (n, channels, "
                "time)"
            )
        n, second, third = shape if len(shape) == 3 else (shape[0], 1, shape[1])
        guessed = len(shape) == 3 and not axes and second >= LONGER * third
        self.axes = axes or AXES[guessed]
        self._turned = len(shape) == 3 and self.axes == AXES[1]
        self.shape = (n, third, second) if self._turned else (n, second, third)
        if max(second, third) > MAX_SIDE or second * third > MAX_SIZE:
            raise UserError(f"{self.where}: windows of {self.shape[1:]} are too large")
        if len(shape) != 3:
            self.found.append(f"x of shape {shape} is taken as one channel of {third} steps")
        if guessed:
            self.found.append(
                f"x of shape {shape} is taken as {third} channels of {second} steps: "
                f"axes={AXES[0]} takes it the other way"
            )

    def one_of(self, names: Sequence[str]) -> str:
        """Return the first of these names that there is; without any the first."""
        return next((name for name in names if name in self.columns), names[0])

    def has_column(self, name: str) -> bool:
        """Return whether an array has one value for each window."""
        shape, _, dtype = self._head(name)
        count = self.shape[0]
        return shape in {(count,), (1, count)} and not dtype.hasobject

    def _head(self, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Return shape, whether in Fortran's order, and dtype of an array."""
        if isinstance(self._file, dict):
            return self._file[name].shape, True, self._file[name].dtype
        with self._reading(name), self._file.zip.open(f"{name}.npy") as file:
            return _header(file)

    def windows(self) -> Iterator[npt.NDArray[Any]]:
        """Yield windows (k, c, t); an array in Fortran's order is read whole for it."""
        n, *sides = self.shape
        stored = sides[::-1] if self._turned else sides
        stream: Any = None
        if not isinstance(self._file, dict):
            stream = self._file.zip.open(f"{self._name}.npy")
        with self._reading(self._name), stream or nullcontext():
            whole = self._file[self._name] if stream is None or _header(stream)[1] else None
            for start in range(0, n, _CHUNK):
                count = min(_CHUNK, n - start)
                if whole is None:
                    data = stream.read(count * prod(stored) * self.dtype.itemsize)
                    part = np.frombuffer(data, self.dtype)
                else:
                    part = whole[start : start + count]
                part = part.reshape(count, *stored)
                yield part.transpose(0, 2, 1) if self._turned else part

    def check_windows(self, shape: Sequence[int], why: str) -> None:
        """Raise UserError for windows of another shape (c, t)."""
        if self.shape[1:] != shape:
            raise UserError(f"{self.where}: windows are {self.shape[1:]}, and {why}")

    def rows(self, names: Sequence[str]) -> pd.DataFrame:
        """Return those arrays (n,), (n, 1) or one-hot (n, C) as texts."""
        return pd.DataFrame({name: self._column(name) for name in names})

    def _column(self, name: str) -> pd.Series:
        with self._reading(name):
            found = np.asarray(self._file[name])
        if found.ndim == 2 and 1 in found.shape:
            found = found.ravel()
        if found.ndim == 2 and np.isin(found, (0, 1)).all() and (found.sum(axis=1) == 1).all():
            found = found.argmax(axis=1)  # one-hot
        count = self.shape[0]
        if found.shape != (count,):
            raise UserError(f"{self.where}: '{name}' has shape {found.shape}, and x has {count}")
        if found.dtype.kind == "S":
            found = np.char.decode(found, "utf-8", "replace")
        return pd.Series(found).astype("str").str.strip()

    def place(self, row: int) -> str:
        """Return the number of an entry."""
        return f"entry {row}"

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Raise UserError for what NumPy and zipfile say of an array that cannot be read."""
        try:
            yield
        except _DAMAGE as error:
            what = f"is damaged: {one_line(error)}"
            if "pickle" in str(error):
                what = (
                    "holds Python objects, which are not read: save texts as np.array(list, "
                    "dtype=str), and windows of unequal length cut or padded to one"
                )
            raise UserError(f"{self.where}: '{name}' {what}") from error


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether in Fortran's order, and dtype of an array in an NPZ file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    return (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)


def small_numbers(chunk: npt.NDArray[Any], *others: np.dtype[Any]) -> Examples:
    """Return numbers (k, ...) as int16 if it holds all of their and others' dtypes, or float32."""
    short = all(np.can_cast(dtype, np.int16) for dtype in (chunk.dtype, *others))
    with np.errstate(over="ignore"):
        return chunk.astype(np.int16 if short else np.float32)


def finite(chunk: Examples) -> npt.NDArray[np.bool_]:
    """Return which of the examples (k, ...) hold finite numbers alone."""
    if chunk.dtype.kind != "f":
        return np.ones(len(chunk), dtype=bool)
    return np.asarray(np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1))


def of_npz(
    paths: Sequence[Path], reading: Reading, classes: tuple[str, ...], notes: Sequence[str] = ()
) -> Stream:
    """Return windows (n, c, t), with their targets and sites; a file of several is a site."""
    files = [Npz(path, reading.axes) for path in paths]
    shape = files[0].shape[1:]
    for file in files:
        file.check_windows(shape, f"those of {paths[0].name} are {shape}")
    dtypes = {file.dtype for file in files}
    keys = Keys(replace(reading, target=reading.target or files[0].one_of(TARGETS)), classes)
    for file in files:
        file.site = file.path if len(files) > 1 else None
        others = [name for name in file.columns if not file.has_column(name)]
        rows, start = file.rows(keys.columns(file, (), others)), 0
        for part in file.windows():
            stored = small_numbers(part, *dtypes)
            yield stored[keys.add(file, rows[start : start + len(part)], finite(stored))]
            start += len(part)
    notes = list(dict.fromkeys([*(line for file in files for line in file.found), *notes]))
    return keys.content(Inputs(SIGNAL, shape, scale=reading.scale), (), notes)


def of_rows(file: RowFile, reading: Reading, classes: tuple[str, ...]) -> Stream:
    """Return windows out of rows: one row a window, or with ``time`` one row a step."""
    keys, columns = Keys(reading, classes), left_columns(file, reading)
    if reading.time:
        return (yield from _recordings(file, keys, [n for n in columns if n != reading.time]))
    groups = [[name for name in columns if name.startswith(one)] for one in reading.channels]
    groups = groups or [columns]
    if len({len(group) for group in groups}) > 1 or not all(groups):
        pairs = zip(reading.channels, groups, strict=True)
        each = ", ".join(f"{name}: {len(group)}" for name, group in pairs)
        raise UserError(f"channels: {file.where} has unequal numbers of columns ({each})")
    shape = (len(groups), len(groups[0]))
    rows = TableRows(Inputs.table(tuple(name for group in groups for name in group)))
    for part, frame in file.chunks(keys.columns(file, rows.plain), rows.plain):
        x = rows.numbers(part, frame).reshape(-1, *shape)
        yield x[keys.add(part, frame, finite(x))]
    notes = [f"one row a window of {shape}", file.said]
    return keys.content(Inputs(SIGNAL, shape, scale=reading.scale), (), notes)


def _recordings(file: RowFile, keys: Keys, others: Sequence[str]) -> Stream:
    """Take rows as time steps: a window ends where time goes back, or another key begins."""
    reading = keys.reading
    channels = reading.channels or tuple(others)
    need(file, [reading.time, *channels], "channels")
    rows, texts = (
        TableRows(Inputs.table(channels)),
        keys.columns(file, (), [*channels, reading.time]),
    )
    values, frames, files = [], [], []
    for part, some in file.chunks([*texts, reading.time], channels):
        values.append(rows.numbers(part, some))
        frames.append(some[[*texts, reading.time]].assign(**{"": str(part.site)}))
        files.append(part)
    x, frame = np.concatenate(values), pd.concat(frames)
    parts = np.repeat(np.arange(len(files)), [len(one) for one in frames])
    when = as_times(frame.pop(reading.time))
    ends = frame[[reading.target, *keys.reading.site, *reading.group, ""]]
    same = (ends == ends.shift()).all(axis=1)
    new = np.flatnonzero(~same.to_numpy() | (np.diff(when, prepend=np.inf) <= 0))
    starts, length, line = _cut(new, len(x), reading.length)
    windows = np.stack([x[start : start + length].T for start in starts])
    recordings = np.searchsorted(new, starts, side="right")
    good = finite(windows)
    for place in np.unique(parts[starts]):  # each file of a folder is a site
        own = parts[starts] == place
        some = frame.iloc[np.array(starts)[own]]
        yield windows[own][keys.add(files[place], some, good[own], recordings[own])]
    inputs = Inputs(SIGNAL, windows.shape[1:], scale=reading.scale)
    return keys.content(inputs, (), [line, file.said])


def _cut(new: npt.NDArray[Any], rows: int, length: int) -> tuple[list[int], int, str]:
    """Return first rows of the windows, their length, and a line about how they were cut."""
    sizes = np.diff(np.append(new, rows))
    common, count = Counter(sizes.tolist()).most_common(1)[0]
    if common > 1 and count >= 0.9 * len(sizes):
        left = f", {len(sizes) - count} of another length left out" if count < len(sizes) else ""
        line = f"{count} windows of {common} steps by time{left}"
        if length < common:
            line += f"; recordings of equal length stay whole, length={length} cuts none"
        return new[sizes == common].tolist(), int(common), line
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
