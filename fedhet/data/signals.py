"""Dataset ``signals``: windows of channels and time steps out of NPZ or CSV files."""

import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet.data.images import Shape
from fedhet.data.inputs import MAX_SIDE, MAX_SIZE, SIGNAL, Inputs
from fedhet.data.labels import DataFile, Examples, Keys, Reading, Stream, need
from fedhet.data.rows import NPZ_SUFFIXES, ROW_SUFFIXES, RowFile, find_files, holds, open_rows
from fedhet.data.table import about_file, left_columns
from fedhet.errors import UserError, one_line

AXES = ("channels-time", "time-channels")
LONGER = 4  # times that the second axis is longer than the third where it is taken for time
_CHUNK = 4096
_X, _Y = ("x", "X"), ("y", "Y", "label", "labels", "target", "targets")


class Npz:
    """The arrays of an NPZ file: ``x``, the target and other columns, by name."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, f"data-path {path}"
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{self.where}: no sound NPZ file: {one_line(error)}") from error
        if isinstance(found, np.ndarray):
            raise UserError(f"{self.where}: one array; signals need an NPZ with x and y")
        self._arrays: Mapping[str, npt.NDArray[Any]] = found
        self.names = list(found)

    def named(self, known: Sequence[str], what: str) -> str:
        """The first of these names that there is; UserError for none."""
        found = next((name for name in known if name in self.names), "")
        if not found:
            raise UserError(
                f"dataset signals: {self.where} has no column '{known[0]}' ({what}); it has "
                f"{', '.join(self.names)}"
            )
        return found

    def array(self, name: str) -> npt.NDArray[Any]:
        """The array of that name; UserError for Python objects and for damage."""
        try:
            return np.asarray(self._arrays[name])
        except ValueError as error:
            if "pickle" in str(error):
                raise UserError(
                    f"{self.where}: '{name}' holds Python objects, which are not read: save texts "
                    "as np.array(list, dtype=str), and numbers as one array"
                ) from error
            raise UserError(f"{self.where}: '{name}' is damaged: {one_line(error)}") from error
        except (OSError, EOFError, MemoryError, zipfile.BadZipFile) as error:
            raise UserError(f"{self.where}: '{name}' is damaged: {one_line(error)}") from error

    def column(self, name: str, count: int) -> pd.Series:
        """An array (n,), (n, 1) or one-hot (n, C) as texts."""
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


def _is_one_hot(array: npt.NDArray[Any]) -> bool:
    return bool(((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all())


def oriented(x: npt.NDArray[Any], axes: str, where: str) -> tuple[npt.NDArray[Any], str]:
    """Windows (n, c, t), and a line where the order of axes was guessed; UserError for no windows.

    ``axes`` is one of ``AXES``, or empty: time comes first where that axis is much longer.
    """
    if x.dtype.kind not in "biuf" or x.ndim not in (2, 3) or min(x.shape, default=0) < 1:
        raise UserError(
            f"{where}: x is {x.dtype} of shape {x.shape}, must be numbers (n, channels, time)"
        )
    if x.ndim == 2:
        return x[:, None, :], ""
    _, second, third = x.shape
    guessed = not axes and second >= LONGER * third
    if axes == AXES[1] or guessed:
        x = x.transpose(0, 2, 1)
    _check_size(x.shape, where)
    line = f"x of shape {(len(x), second, third)} is taken as {third} channels of {second} steps: "
    return x, line + f"axes={AXES[0]} takes it the other way" if guessed else ""


def windows_of(file: Npz) -> npt.NDArray[Any]:
    """The windows (n, c, t) of a file, in the order of axes that is guessed."""
    return oriented(file.array(file.named(_X, "windows")), "", file.where)[0]


def windows_like(file: Npz, shape: Sequence[int]) -> npt.NDArray[Any]:
    """The windows of a file in the order of axes that gives ``shape``; UserError if none does."""
    found = file.array(file.named(_X, "windows"))
    for axes in AXES:
        x, _ = oriented(found, axes, file.where)
        if x.shape[1:] == tuple(shape):
            return x
    raise UserError(
        f"{file.where}: windows are {found.shape[1:]}, and the model takes {tuple(shape)}"
    )


def _check_size(shape: Sequence[int], where: str) -> None:
    if max(shape[1:]) > MAX_SIDE or shape[1] * shape[2] > MAX_SIZE:
        raise UserError(f"{where}: windows of {tuple(shape[1:])} are too large")


def small_numbers(chunk: npt.NDArray[Any], *, short: bool | None = None) -> Examples:
    """int16 where its dtype allows it (or ``short`` says so), else float32, of numbers (k, ...)."""
    if _is_short(chunk.dtype) if short is None else short:
        return chunk.astype(np.int16)
    with np.errstate(over="ignore"):
        return chunk.astype(np.float32)


def _is_short(dtype: np.dtype[Any]) -> bool:
    return bool(np.can_cast(dtype, np.int16))


def finite(chunk: Examples) -> npt.NDArray[np.bool_]:
    """Which of the examples (k, ...) hold finite numbers alone."""
    if chunk.dtype.kind != "f":
        return np.ones(len(chunk), dtype=bool)
    return np.asarray(np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1))


@dataclass(frozen=True)
class Signals(DataFile):
    """Windows (n, c, t), with their targets and sites; a file of several is a site."""

    dataset = "signals"

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Stream:
        """The windows in the file's order."""
        del shape
        if holds(self.paths[0], (*ROW_SUFFIXES, ".txt")):
            return self._of_rows(open_rows(self.paths, self.reading.form), classes)
        return self._of_npz(classes)

    def _of_npz(self, classes: tuple[str, ...]) -> Stream:
        files = [Npz(path) for path in self.paths]
        keys, notes = Keys(self.reading, classes), []
        kept, short = [], True
        shapes: list[tuple[int, ...]] = []
        for file in files:
            x, line = oriented(file.array(file.named(_X, "windows")), self.reading.axes, file.where)
            notes += [line] if line and line not in notes else []
            if shapes and x.shape[1:] != shapes[0][1:]:
                raise UserError(
                    f"{file.where}: windows are {x.shape[1:]}, and those of "
                    f"{self.paths[0].name} are {shapes[0][1:]}"
                )
            shapes.append(x.shape)
            short = short and _is_short(x.dtype)
            kept.append(self._keys(file, x, keys))
        inputs = Inputs(SIGNAL, shapes[0][1:], scale=self.reading.scale)

        def chunks() -> Iterator[Examples]:
            for file, mask in zip(files, kept, strict=True):
                x, _ = oriented(file.array(file.named(_X, "")), self.reading.axes, file.where)
                for start in range(0, len(x), _CHUNK):
                    part = x[start : start + _CHUNK][mask[start : start + _CHUNK]]
                    if len(part):
                        yield small_numbers(part, short=short)

        return Stream(chunks(), lambda: keys.content(inputs, (), notes))

    def _keys(self, file: Npz, x: npt.NDArray[Any], keys: Keys) -> npt.NDArray[np.bool_]:
        """Note the targets and the sites of a file; which windows have both and finite numbers."""
        reading, count = self.reading, len(x)
        y = reading.target or file.named(_Y, "target")
        need(file.names, [y, *reading.site], "site" if reading.site else "target", file.where)
        owners = None
        if reading.site:
            owners = keys.sites.codes([file.column(name, count) for name in reading.site])
        elif len(self.paths) > 1:
            owners = keys.sites.of_file(file.path, count)
        return keys.note(
            file.column(y, count), owners, lambda i: f"{file.where} '{y}' entry {i}",
            finite=_finite_windows(x),
        )  # fmt: skip

    def _of_rows(self, file: RowFile, classes: tuple[str, ...]) -> Stream:
        reading = self.reading
        need(file.columns, [reading.target], "target", file.where)
        need(file.columns, reading.site, "site", file.where)
        keys = Keys(reading, classes)
        if reading.time:
            return self._recordings(file, keys)
        columns = [name for name in left_columns(file, reading) if name != reading.time]
        groups = [
            [name for name in columns if name.startswith(one)] for one in reading.channels
        ] or [columns]
        if len({len(group) for group in groups}) > 1 or not all(groups):
            each = ", ".join(
                f"{n}: {len(g)}" for n, g in zip(reading.channels, groups, strict=True)
            )
            raise UserError(f"channels: {file.where} has unequal numbers of columns ({each})")
        shape = (len(groups), len(groups[0]))
        inputs = Inputs(SIGNAL, shape, scale=reading.scale)
        order = [name for group in groups for name in group]

        def chunks() -> Iterator[Examples]:
            for chunk in file.chunks(keys.columns(), order):
                x = _numbers(chunk.frame, order, chunk.at).reshape(-1, *shape)
                kept = keys.add(chunk, finite=finite(x))
                if kept.any():
                    yield x[kept]

        return Stream(
            chunks(),
            lambda: keys.content(inputs, (), [f"one row a window of {shape}", *about_file(file)]),
        )

    def _recordings(self, file: RowFile, keys: Keys) -> Stream:
        """One row a time step: a window ends where time goes back, or another key begins."""
        reading = self.reading
        others = [name for name in left_columns(file, reading) if name != reading.time]
        channels = list(reading.channels or others)
        need(file.columns, [reading.time, *channels], "channels", file.where)
        texts = keys.columns()
        x, times, names, site = [], [], [], []
        for chunk in file.chunks([*texts, reading.time], channels):
            x.append(_numbers(chunk.frame, channels, chunk.at))
            times.append(_times(chunk.frame[reading.time]))
            names.append(chunk.frame[texts])
            site += [str(chunk.site)] * len(chunk)
        values, when = np.concatenate(x), np.concatenate(times)
        frame = pd.concat(names, ignore_index=True)
        same = (frame == frame.shift()).all(axis=1) & (pd.Series(site) == pd.Series(site).shift())
        new = np.flatnonzero(~same.to_numpy() | (np.diff(when, prepend=np.inf) <= 0))
        starts, length, line = _cut(new, len(values), reading.length)
        windows = np.stack([values[start : start + length].T for start in starts])
        first = frame.iloc[starts].reset_index(drop=True)
        owners = keys.sites.codes([first[name] for name in reading.site]) if reading.site else None
        kept = keys.note(
            first[reading.target], owners, lambda i: f"{file.where} window {i}",
            finite=finite(windows),
        )  # fmt: skip
        inputs = Inputs(SIGNAL, windows.shape[1:], scale=reading.scale)
        return Stream(
            iter([windows[kept]]), lambda: keys.content(inputs, (), [line, *about_file(file)])
        )


def _finite_windows(x: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which windows hold finite numbers alone, piece by piece."""
    parts = [finite(small_numbers(x[k : k + _CHUNK])) for k in range(0, len(x), _CHUNK)]
    return np.concatenate(parts)


def _numbers(frame: pd.DataFrame, names: Sequence[str], at: Any) -> npt.NDArray[np.float32]:
    for name in names:
        if frame[name].dtype.kind != "f":
            bad = pd.to_numeric(frame[name], errors="coerce").isna() & frame[name].notna()
            raise UserError(
                f"{at(int(np.flatnonzero(bad)[0]), name)}: no number: name the column in ignore"
            )
    return np.asarray(frame[list(names)], dtype=np.float32)


def _times(column: pd.Series) -> npt.NDArray[np.float64]:
    numbers = pd.to_numeric(column, errors="coerce")
    if numbers.isna().any():
        dates = pd.to_datetime(column, errors="coerce", format="mixed")
        numbers = dates.astype("int64").where(dates.notna())
    return np.asarray(numbers, dtype=np.float64)


def _cut(new: npt.NDArray[Any], rows: int, length: int) -> tuple[list[int], int, str]:
    """First rows of the windows, their length, and a line about how they were cut."""
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
        raise UserError(f"length: no recording has {length} steps; the longest has {sizes.max()}")
    lost = int(rows - len(starts) * length)
    return starts, length, (
        f"{len(new)} recordings are cut into {len(starts)} windows of {length} steps (length), "
        f"{lost} steps left over"
    )  # fmt: skip


def open_signals(data_path: str, reading: Reading) -> Signals:
    """The source at ``data_path``; UserError for no file."""
    path = Path(data_path).expanduser()
    suffixes = NPZ_SUFFIXES if path.is_dir() and holds(path, NPZ_SUFFIXES) else ROW_SUFFIXES
    return Signals(find_files("signals", data_path, suffixes), reading)
