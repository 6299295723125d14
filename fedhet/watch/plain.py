"""The same as the page in lines: for a pipe, a screen reader, a terminal without colours."""

import time
from collections.abc import Iterator, Sequence

from fedhet.records.summary import duration, percent, size
from fedhet.watch.books import Books
from fedhet.watch.run import RunView
from fedhet.watch.sweep import SweepView
from fedhet.watch.view import IDLE, State, Table, Value

POLL = 1.0  # seconds between looks
PATIENCE = 3  # looks after which a run that nobody writes counts as broken off


def follow(view: RunView | SweepView) -> Iterator[str]:
    """Lines as they come, until the run or all runs are over."""
    follower = _Run(view) if isinstance(view, RunView) else _Runs(view)
    idle = 0
    while True:
        state = view.look().state
        yield from follower.news(state)
        idle = idle + 1 if state.status == IDLE else 0
        if state.over and (state.status != IDLE or idle >= PATIENCE):
            yield from follower.end(state)
            return
        time.sleep(POLL)


class _Run:
    """A line for every round, and one whenever something else changes."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.told = 0
        self.before: tuple[object, ...] = ()
        self.sites: dict[str, str] = {}
        self.era = 0

    def news(self, state: State) -> Iterator[str]:
        """What has changed since the last look."""
        if not self.before:
            yield f"{state.name}: {state.title}"
        if self.view.era != self.era:
            self.told, self.era = 0, self.view.era
            yield "it began anew"
        books = self.view.books
        wanted = dict(state.facts)["round"].partition(" of ")[2]
        for number in range(self.told, len(books.rows)):
            yield from _round(books, number, wanted)
        if self.told < len(books.rows) and "time left" in dict(state.facts):
            yield f"time left: {dict(state.facts)['time left']}"
        self.told = len(books.rows)
        now = (state.status, state.says, *state.damage)
        if now != self.before and not state.over:
            yield ": ".join(filter(None, now[:2]))
            yield from (f"cannot be read: {problem}" for problem in state.damage)
        self.before = now
        for table in state.tables:
            if table.name == "sites":
                yield from self._sites(table)

    def _sites(self, table: Table) -> Iterator[str]:
        """Those that have come or gone."""
        for row in table.rows:
            site, now, *_ = map(str, row)
            if self.sites.get(site) != now:
                self.sites[site] = now
                yield said(table, row)

    def end(self, state: State) -> Iterator[str]:
        """How it stands at the end."""
        yield ": ".join(filter(None, (state.status, state.says)))
        yield from (f"cannot be read: {problem}" for problem in state.damage)
        yield ", ".join(f"{name}: {text}" for name, text in state.facts)
        for table in state.tables:
            if table.name == "clients":  # the others have been told as they came
                yield from lines(table)


def _round(books: Books, number: int, wanted: str) -> Iterator[str]:
    """A round and, below it, who was left out of it and why."""
    row = books.rows[number]
    round_, mean, p10, val, loss, asked, replied, failed, up, down, _, _, seconds = row
    loss_ = "-" if loss is None else f"{loss:.4g}"
    yield (
        f"round {round_} of {wanted}: accuracy {percent(_real(mean))}, 10th percentile "
        f"{percent(_real(p10))}, validation {percent(_real(val))}, loss {loss_}, {replied} of "
        f"{asked} replied, {failed} failed, {_size(up)} up, {_size(down)} down, "
        f"{duration(_real(seconds) or 0.0)}"
    )
    for at, client, why in books.failures:
        if at == round_:
            yield f"  client {client} failed: {why}"


def _real(value: Value) -> float | None:
    return value if isinstance(value, int | float) else None


def _size(value: Value) -> str:
    return size(int(_real(value) or 0))


class _Runs:
    """A line whenever a cell's state changes."""

    def __init__(self, view: SweepView) -> None:
        self.view = view
        self.before: dict[str, str] = {}
        self.rounds = ""

    def news(self, state: State) -> Iterator[str]:
        """What has changed since the last look."""
        if not self.before:
            yield f"{state.name}: {state.title}"
        table = state.tables[0]
        for row in table.rows:
            name, _, now, *_ = map(str, row)
            if self.before.get(name) != now:
                self.before[name] = now
                yield _cell(row)
        rounds = dict(state.facts)["rounds"]
        if rounds != self.rounds and not state.over:
            self.rounds = rounds
            yield ", ".join(f"{name}: {text}" for name, text in state.facts)

    def end(self, state: State) -> Iterator[str]:
        """How they stand."""
        yield f"{state.status}: " + ", ".join(f"{name}: {text}" for name, text in state.facts)


def _cell(row: Sequence[Value]) -> str:
    """A cell's row as a sentence."""
    name, what, state, done, wanted, accuracy, why = row
    rounds = f", round {done} of {wanted}" if wanted else f", round {done}"
    known = _real(accuracy)
    return (
        f"cell {name}{f' ({what})' if what else ''}: {state}{rounds}"
        + (f", accuracy {percent(known)}" if known is not None else "")
        + (f": {why}" if why else "")
    )


def lines(table: Table) -> Iterator[str]:
    """A table, a line a row, every figure with its name."""
    yield f"{table.title}: {len(table.rows) + table.more:,}"
    yield from (f"  {said(table, row)}" for row in table.rows)
    if table.more:
        yield f"  and {table.more:,} more"


def said(table: Table, row: Sequence[Value]) -> str:
    """A row in words; what is absent is left out."""
    pairs = zip(table.columns, row, strict=True)
    return ", ".join(f"{c.title} {_word(v, c.kind)}" for c, v in pairs if v not in {None, ""})


def _word(value: Value, kind: str) -> str:
    if isinstance(value, int | float) and kind == "percent":
        return percent(value)
    return _size(value) if kind == "bytes" else str(value)
