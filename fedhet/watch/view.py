"""What is shown of a run or a sweep: facts, tables, curves; the same for page and terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Value = float | str | None  # of a table's cell

# What a run is at.
WAITING, RUNNING, IDLE, GONE = "waiting", "running", "not running", "gone"


@dataclass(frozen=True)
class Column:
    """A heading; ``kind`` says how values are written: text, count, percent, number or bytes."""

    title: str
    kind: str = "count"


@dataclass(frozen=True)
class Table:
    """Rows under columns, at most as many as can be looked through; ``more`` are left out."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    more: int = 0
    note: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a curve: what it is called, and which column of the rounds it draws."""

    title: str
    column: int


@dataclass(frozen=True)
class Curve:
    """Lines over rounds in one picture."""

    title: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Cell:
    """One run of a sweep in its grid: what it says, what it is at, and the name of its run."""

    text: str
    state: str
    run: str


@dataclass(frozen=True)
class Grid:
    """A sweep's cells: a row for every choice, a column for every block."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell | None]]]
    note: str = ""


@dataclass(frozen=True)
class State:
    """Everything but the rounds, as it is now."""

    name: str
    title: str
    status: str
    over: bool = False  # whether nothing more comes unless somebody goes on with it
    says: str = ""  # one sentence: why it failed, what it waits for
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    grids: Sequence[Grid] = ()
    columns: Sequence[Column] = ()  # of the rounds
    curves: Sequence[Curve] = ()
    damage: Sequence[str] = ()  # files that cannot be read, and why
    changed: float | None = None  # when something was last written, seconds since 1970


@dataclass
class Look:
    """What one look found; ``rounds`` are all rows so far, and ``era`` counts new beginnings."""

    state: State
    rounds: Sequence[Sequence[Value]] = ()
    era: int = 0


class View(Protocol):
    """Something that can be looked at again and again."""

    def look(self) -> Look:
        """Read what is new; never raises for what the files say."""

    def inside(self, name: str) -> "View | None":
        """The view of a run in it, by a name that a grid told; None if there is none."""
