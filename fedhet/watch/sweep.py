"""A folder of runs, such as a sweep's, as it is now: its cells by what distinguishes them."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhet.errors import VerifyError, one_line
from fedhet.reading.structured import read_json
from fedhet.records.run_folder import LOCK, held
from fedhet.records.summary import duration, percent
from fedhet.watch.cell import BROKEN, DIVERGED, FAILED, FINISHED, PENDING, CellView
from fedhet.watch.files import Document
from fedhet.watch.run import ASK, RunView
from fedhet.watch.view import IDLE, RUNNING, Cell, Column, Grid, Look, State, Table, Value

MOST = 2_000  # cells that are looked at
BLOCKS = ("partition-seed", "seed")  # keys that make a grid's columns
_COLUMNS = (
    Column("cell", "text"), Column("what", "text"), Column("state", "text"), Column("round"),
    Column("of"), Column("accuracy", "percent"), Column("why", "text"),
)  # fmt: skip


@dataclass
class Listed:
    """A cell and what the index says of it."""

    view: CellView
    sweep: str
    values: Mapping[str, Any]


class SweepView:
    """Looks at all runs in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, Listed] = {}
        self._indexes: dict[Path, Document[dict[str, Any]]] = {}
        self._views: dict[str, CellView] = {}
        self._left_out = 0
        self._busy, self._asked = False, 0.0

    def look(self) -> Look:
        """Read what is new."""
        found = self._listed()
        self._left_out = max(0, len(found) - MOST)
        self.cells = dict(list(found.items())[:MOST])
        unread = 10  # configurations of cells that have not begun, each a hundredth of a second
        for listed in self.cells.values():
            unread -= listed.view.look(ask_preset=unread > 0)
        return Look(self._state())

    def inside(self, name: str) -> RunView | None:
        """The run of a cell that has begun."""
        listed = self.cells.get(name)
        return RunView(listed.view.folder.path) if listed and listed.view.begun else None

    def _listed(self) -> dict[str, Listed]:
        """Cells by the name of their folder: those of an index first, then other runs."""
        found: dict[str, Listed] = {}
        try:
            for path in sorted(self.path.glob("sweeps/*/sweep.json")):
                index = self._indexes.setdefault(path, Document(path, read_json))
                for one in _cells(index.look() or {}):
                    view = self._view(one["name"], path.parent)
                    view.told(one)
                    values = one.get("values")
                    values = values if isinstance(values, dict) else {}
                    found.setdefault(one["name"], Listed(view, path.parent.name, values))
            for path in sorted(self.path.iterdir()):
                if path.name not in found and (path / "config.yaml").is_file():
                    found[path.name] = Listed(self._view(path.name, self.path), "", {})
        except OSError:  # the folder is gone, or was renamed just now
            pass
        return found

    def _view(self, name: str, presets: Path) -> CellView:
        if name not in self._views:
            self._views[name] = CellView(self.path / name, presets / f"{name}.yaml")
        return self._views[name]

    def _state(self) -> State:
        counts = Counter(listed.view.state for listed in self.cells.values())
        over = not (counts[RUNNING] or self._is_run())
        done = counts[FINISHED] + counts[DIVERGED] == len(self.cells) > 0
        more = f"; {self._left_out} more are not looked at" if self._left_out else ""
        return State(
            name=one_line(self.path.name, 200),
            title=f"{len(self.cells):,} runs{more}",
            status=("completed" if done else IDLE) if over else RUNNING,
            over=over,
            facts=self._facts(counts),
            tables=[self._table()],
            grids=list(self._grids()),
            damage=[document.problem for document in self._indexes.values() if document.problem],
        )

    def _is_run(self) -> bool:
        """Whether a command runs one of the sweeps; asked now and then."""
        if time.monotonic() - self._asked > ASK or not self._asked:
            self._asked = time.monotonic()
            try:
                self._busy = any(held(index.parent / LOCK) for index in self._indexes)
            except VerifyError:
                self._busy = False
        return self._busy

    def _facts(self, counts: Mapping[str, int]) -> list[tuple[str, str]]:
        states = (FINISHED, RUNNING, PENDING, BROKEN, DIVERGED, FAILED)
        known = [(state, f"{counts[state]:,}") for state in states if counts.get(state)]
        rest = [(state, f"{n:,}") for state, n in sorted(counts.items()) if state not in states]
        views = [listed.view for listed in self.cells.values()]
        rounds = f"{sum(one.done for one in views):,} of {sum(one.wanted for one in views):,}"
        left = self._seconds_left(views)
        time_ = [("time left", f"about {duration(left)}")] if left is not None else []
        return [*known, *rest, ("rounds", rounds), *time_]

    @staticmethod
    def _seconds_left(views: Sequence[CellView]) -> float | None:
        """By the last rounds of the runs that go on now; None where none has a round."""
        paces = [one.pace for one in views if one.state == RUNNING and one.pace is not None]
        if not paces:
            return None
        todo = sum(
            max(0, one.wanted - one.done) for one in views if one.state in {RUNNING, PENDING}
        )
        return todo * sum(paces) / len(paces) / len(paces)

    def _table(self) -> Table:
        rows: list[list[Value]] = [
            [
                one_line(name, 100), label(listed.values), listed.view.state, listed.view.done,
                listed.view.wanted or None, listed.view.accuracy, listed.view.why,
            ]
            for name, listed in self.cells.items()
        ]  # fmt: skip
        return Table("cells", "Cells", _COLUMNS, rows)

    def _grids(self) -> Iterator[Grid]:
        for sweep in dict.fromkeys(listed.sweep for listed in self.cells.values()):
            own = {n: one for n, one in self.cells.items() if one.sweep == sweep}
            if sweep:
                yield _grid(sweep, own)


def _cells(index: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The cells of a ``sweep.json`` whose names are those of folders beside it."""
    cells = index.get("cells")
    for one in cells if isinstance(cells, list) else []:
        name = one.get("name") if isinstance(one, dict) else None
        if isinstance(name, str) and _is_folder_name(name):
            yield one


def _is_folder_name(name: str) -> bool:
    return 0 < len(name) < 256 and name not in {".", ".."} and not {"/", "\0"} & set(name)


def label(values: Mapping[str, Any], *, blocks: bool = True) -> str:
    """What distinguishes a cell, in short; a method needs no word before it."""
    kept = {key: value for key, value in values.items() if blocks or key not in BLOCKS}
    shown = (f"{value}" if key == "method" else f"{key}={value}" for key, value in kept.items())
    return one_line(" ".join(shown), 120)


def _grid(sweep: str, cells: Mapping[str, Listed]) -> Grid:
    """A row for every choice and a column for every block, in the order of the index."""
    rows: dict[str, dict[str, Cell]] = {}
    columns: dict[str, None] = {}
    for name, listed in cells.items():
        block = label({key: listed.values[key] for key in BLOCKS if key in listed.values})
        columns.setdefault(block or "run")
        view = listed.view
        text = percent(view.accuracy) if view.accuracy is not None else ""
        if view.state not in {FINISHED, PENDING}:
            text = f"{view.state} {text} {view.done}/{view.wanted or '?'}".replace("  ", " ")
        cell = Cell(text or view.state, view.state, name if view.begun else "")
        rows.setdefault(label(listed.values, blocks=False) or "all", {})[block or "run"] = cell
    made = [(row, [own.get(column) for column in columns]) for row, own in rows.items()]
    return Grid(one_line(sweep, 100), list(columns), made)
