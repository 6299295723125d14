"""Dataset ``signals``: windows of channels and time steps out of NPZ or CSV files."""

import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """The arrays of an NPZ file: ``windows`` (n, c, t) of ``x``, the others as columns.

    Without ``axes`` time comes first where that axis is much longer, which a line in ``found``
    says; ``axes`` is then the order that was taken.
    """

    def __init__(self, path: Path, axes: str = "") -> None:
        super().__init__(f"data-path {path}", Form())
        self.path = path
        formats.refuse_other(path)
        try:
            self._file: Any = np.load(path)
        except _DAMAGE as error:
            raise UserError(f"{self.where}: not a valid NPZ file: {one_line(error)}") from error
        self.columns = list(self._file)
        self.used = (self.one_of(("x", "X")), self.one_of(TARGETS))
        need(self, self.used[:1], "signals")
        x = self._array(self.used[0])
        if x.dtype.kind not in "biuf" or x.ndim not in (2, 3) or not x.size:
            raise UserError(
                f"{self.where}: x is {x.dtype} of shape {x.shape}, must be numbers (n, channels, "
                "time)"
            )
        flat = x.ndim == 2  # noqa: PLR2004
        if flat:
            self.found.append(f"x of shape {x.shape} is taken as one channel of {x.shape[1]} steps")
            x = x[:, None]
        second, third = x.shape[1:]
        guessed = not axes and second >= LONGER * third
        self.axes = axes or AXES[guessed]
        if max(second, third) > MAX_SIDE or second * third > MAX_SIZE:
            raise UserError(f"{self.where}: windows of {(second, third)} are too large")
        if guessed:
            self.found.append(
                f"x of shape {x.shape} is taken as {third} channels of {second} steps: "
                f"axes={AXES[0]} takes it the other way"
            )
        self.windows = x.transpose(0, 2, 1) if self.axes == AXES[1] and not flat else x

    def one_of(self, names: Sequence[str]) -> str:
        """Return the first of these names that there is; without any the first."""
        return next((name for name in names if name in self.columns), names[0])

    def has_column(self, name: str) -> bool:
        """Return whether an array has one value for each window."""
        try:
            return self._array(name).shape in {(n := len(self.windows),), (1, n)}
        except UserError:
            return False

    def rows(self, names: Sequence[str]) -> pd.DataFrame:
        """Return those arrays (n,), (n, 1) or one-hot (n, C) as texts."""
        return pd.DataFrame({name: self._column(name) for name in names})

    def _column(self, name: str) -> pd.Series:
        found = self._array(name)
        if found.ndim == 2 and 1 in found.shape:
            found = found.ravel()
        if found.ndim == 2 and np.isin(found, (0, 1)).all() and (found.sum(axis=1) == 1).all():
            found = found.argmax(axis=1)  # one-hot
        if found.shape != (count := len(self.windows),):
            raise UserError(f"{self.where}: '{name}' has shape {found.shape}, and x has {count}")
        if found.dtype.kind == "S":
            found = np.char.decode(found, "utf-8", "replace")
        return pd.Series(found).astype("str").str.strip()

    def place(self, row: int) -> str:
        """Return the number of an entry."""
        return f"entry {row}"

    def _array(self, name: str) -> npt.NDArray[Any]:
        try:
            return np.asarray(self._file[name])
        except _DAMAGE as error:
            what = f"is damaged: {one_line(error)}"
            if "pickle" in str(error):
                what = (
                    "holds Python objects, which are not read: save texts as np.array(list, "
                    "dtype=str), and windows of unequal length cut or padded to one"
                )
            raise UserError(f"{self.where}: '{name}' {what}") from error


def small_numbers(chunk: npt.NDArray[Any], *others: np.dtype[Any]) -> Examples:
    """Return numbers (k, ...) as int16 if it holds all of their and others' dtypes, or float32."""
    short = all(np.can_cast(dtype, np.int16) for dtype in (chunk.dtype, *others))
    with np.errstate(over="ignore"):
        return chunk.astype(np.int16 if short else np.float32)


def finite(chunk: Examples) -> npt.NDArray[np.bool_]:
    """Return which of the examples (k, ...) hold finite numbers alone."""
    return np.asarray(np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1))


def of_npz(
    paths: Sequence[Path], reading: Reading, classes: tuple[str, ...], notes: Sequence[str] = ()
) -> Stream:
    """Return windows (n, c, t), with their targets and sites; a file of several is a site."""
    files = [Npz(path, reading.axes) for path in paths]
    shape, dtypes = files[0].windows.shape[1:], {file.windows.dtype for file in files}
    keys = Keys(replace(reading, target=reading.target or files[0].one_of(TARGETS)), classes)
    for file in files:
        if (own := file.windows.shape[1:]) != shape:
            raise UserError(f"{file.where}: windows are {own}, and those of {paths[0]} {shape}")
        file.site = file.path if len(files) > 1 else None
        others = [name for name in file.columns if not file.has_column(name)]
        rows = file.rows(keys.columns(file, (), others))
        for start in range(0, len(rows), _CHUNK):
            stored = small_numbers(file.windows[start : start + _CHUNK], *dtypes)
            yield stored[keys.add(file, rows[start : start + _CHUNK], finite(stored))]
    notes = list(dict.fromkeys([*(line for file in files for line in file.found), *notes]))
    return keys.content(Inputs(SIGNAL, shape, scale=reading.scale), (), notes)


def of_rows(file: RowFile, reading: Reading, classes: tuple[str, ...]) -> Stream:
    """Return windows out of rows: one row a window, or with ``time`` one row a step."""
    keys, columns = Keys(reading, classes), left_columns(file, reading)
    if reading.time:
        channels = reading.channels or tuple(n for n in columns if n != reading.time)
        texts = keys.columns(file, (), [*channels, reading.time])
        cut = cut_recordings(file, reading, channels, texts)
        shape, line = cut.windows.shape[1:], cut.line
        good = finite(cut.windows)
        for number, part in enumerate(cut.files):  # each file of a folder is a site
            own = cut.parts == number
            kept = keys.add(part, cut.rows[own], good[own], cut.recordings[own])
            yield cut.windows[own][kept]
    else:
        groups = [[name for name in columns if name.startswith(one)] for one in reading.channels]
        groups = groups or [columns]
        if len({len(group) for group in groups}) > 1 or not all(groups):
            pairs = zip(reading.channels, groups, strict=True)
            each = ", ".join(f"{name}: {len(group)}" for name, group in pairs)
            raise UserError(f"channels: {file.where} has unequal numbers of columns ({each})")
        shape = (len(groups), len(groups[0]))
        line = f"one row a window of {shape}"
        rows = TableRows(Inputs.table(tuple(name for group in groups for name in group)))
        for part, frame in file.chunks(keys.columns(file, rows.plain), rows.plain):
            x = rows.numbers(part, frame).reshape(-1, *shape)
            yield x[keys.add(part, frame, finite(x))]
    return keys.content(Inputs(SIGNAL, shape, scale=reading.scale), (), [line, file.said])


@dataclass(frozen=True)
class Cut:
    """Windows (m, c, t) with the texts of their first ``rows``, and what they were cut from.

    ``parts`` (m,) index into ``files``; ``recordings`` (m,) are equal for those of one recording;
    ``line`` says how they were cut.
    """

    windows: npt.NDArray[np.float32]
    rows: pd.DataFrame
    files: Sequence[RowFile]
    parts: npt.NDArray[np.int64]
    recordings: npt.NDArray[np.int64]
    line: str


def cut_recordings(
    file: RowFile, reading: Reading, channels: tuple[str, ...], texts: Sequence[str], steps: int = 0
) -> Cut:
    """Take rows as time steps: a recording ends where time goes back, or another key begins.

    With ``steps`` windows have that length; else recordings of equal length stay whole.
    """
    need(file, [reading.time, *channels], "channels")
    table, when = TableRows(Inputs.table(channels)), reading.time
    values, frames, files = [], [], []
    for part, frame in file.chunks([*texts, when], channels):
        values.append(table.numbers(part, frame))
        files += [part] if part not in files else []
        frames.append(frame[[*texts, when]].assign(**{"": files.index(part)}))
    x, rows = np.concatenate(values), pd.concat(frames)
    times, parts = as_times(rows[when]), rows[""].to_numpy()
    ends = rows[[n for n in ("", reading.target, *reading.site, *reading.group) if n in rows]]
    same = (ends == ends.shift()).all(axis=1).to_numpy()
    new = np.flatnonzero(~same | (np.diff(times, prepend=np.inf) <= 0))
    starts, length, line = _cut(new, len(x), steps or reading.length, whole=not steps)
    windows = np.stack([x[start : start + length].T for start in starts])
    recordings = np.searchsorted(new, starts, side="right")
    return Cut(windows, rows.iloc[starts], files, parts[starts], recordings, line)


def _cut(
    new: npt.NDArray[Any], rows: int, length: int, *, whole: bool
) -> tuple[npt.NDArray[np.int64], int, str]:
    """Return first rows of the windows, their length, and a line about how they were cut."""
    sizes = np.diff(np.append(new, rows))
    common, count = Counter(sizes.tolist()).most_common(1)[0]
    if whole and common > 1 and count >= 0.9 * len(sizes):
        left = f", {len(sizes) - count} of another length left out" if count < len(sizes) else ""
        line = f"{count} windows of {common} steps by time{left}"
        if length < common:
            line += f"; recordings of equal length stay whole, length={length} cuts none"
        return new[sizes == common], common, line
    each = sizes // length
    if not each.any():
        raise UserError(f"length: {length} is more than the longest recording, {sizes.max()}")
    within = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    starts = np.repeat(new, each) + within * length
    lost = rows - len(starts) * length
    return starts, length, (
        f"{len(new)} recordings are cut into {len(starts)} windows of {length} steps (length), "
        f"{lost} steps left over"
    )  # fmt: skip
