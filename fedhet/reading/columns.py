"""What a file of rows gives, whatever its format: columns by name, some thousand rows at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedhet.errors import UserError

MAX_ROWS = 20_000_000
MAX_COLUMNS = 4096
MAX_LINE = 4 << 20  # characters of a row, however many lines it has
CHUNK = 4096  # rows
_LONGEST_NAME = 200
_SHOWN = 60  # characters of somebody's value in a message

Texts = Sequence[str]
Numbers = npt.NDArray[np.float64]  # NaN for a gap
Where = Callable[[int], str]


def shown(value: str) -> str:
    """Somebody's value for a message."""
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")


@dataclass(frozen=True)
class Piece:
    """Some rows: the columns that were asked for, and where they stand.

    ``columns`` are texts, (k,) float64 where the file has numbers and they were asked for as such.
    ``places`` number the rows as ``unit`` says (``line`` of a CSV, ``row`` from 0 of a Parquet
    file); ``file`` is theirs where it is one of several.
    """

    columns: Mapping[str, Texts | Numbers]
    places: Sequence[int]
    where: str
    unit: str
    file: Path | None = None

    def __len__(self) -> int:
        return len(self.places)

    def texts(self, name: str) -> Texts:
        """A column that was asked for as texts."""
        column = self.columns[name]
        assert not isinstance(column, np.ndarray), f"{name} was asked for as numbers"
        return column

    def at(self, column: str) -> Where:
        """Where the i-th of these rows has its value, for messages."""
        return lambda i: f"{self.where} {self.unit} {self.places[i]} column {column!r}"


class RowFile(Protocol):
    """A file of rows: its columns in order, and what it is called in messages."""

    columns: list[str]
    where: str

    def pieces(self, texts: Sequence[str], numbers: Sequence[str] = ()) -> Iterator[Piece]:
        """The rows, with the columns of these names; UserError for what cannot be read."""


def check_names(columns: Sequence[str], at: str, what: str) -> None:
    """UserError for columns that are too many, without a name, or of the same name."""
    if len(columns) > MAX_COLUMNS:
        raise UserError(f"{at}: {len(columns):,} columns, at most {MAX_COLUMNS:,}")
    for number, name in enumerate(columns, start=1):
        if not name.strip() or len(name) > _LONGEST_NAME:
            raise UserError(f"{at}: column {number} has no name (or a very long one): {what}")
        if name in columns[: number - 1]:
            raise UserError(f"{at}: two columns are called {shown(name)}")
