"""What the command line prints: progress of a run, and tables."""

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedhet.cli.saying import say, tell
from fedhet.errors import one_line
from fedhet.files import plain_path
from fedhet.records.summary import duration, headline, seconds_left

if TYPE_CHECKING:
    from fedhet.reports.report import Report

PLAIN_INTERVAL = 5.0  # seconds between lines where no bar can be drawn


class RunProgress:
    """A bar with round, metric and time left; in a pipe a plain line every few seconds.

    ``quiet``: the bar goes to stderr and plain lines are left out, for ``--json``; ``silent``:
    nothing at all. A notebook shows lines, too: a bar would need its widgets. Where nothing can be
    written any more, the run goes on unseen.
    """

    def __init__(
        self,
        title: str,
        rounds: int,
        metric: str = "accuracy",
        *,
        quiet: bool = False,
        silent: bool = False,
    ) -> None:
        self.metric = metric
        self.title = title = one_line(title, None)
        self.rounds = rounds
        self.quiet = quiet or silent
        self.silent = silent
        self.done = 0
        self._printed = 0.0
        console = Console(stderr=quiet)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False), TimeElapsedColumn(),
            console=console, transient=quiet, disable=silent or not shows_bars(console),
        )  # fmt: skip
        self._task = self._bar.add_task(title, total=rounds, note="")

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # a closed terminal takes no more text
            self._bar.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._bar.stop()

    def note(self, text: str) -> None:
        """What happens now; in a pipe it goes to stderr as a line."""
        text = one_line(text, None)
        self._bar.update(self._task, note=text)
        if self._bar.disable and not self.silent:
            tell(text)

    def update(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Show the rounds finished so far, lines of ``rounds.jsonl``."""
        if not records:
            return
        self.done = records[-1]["round"]
        note = headline(self.metric, records[-1])
        left = seconds_left([record["seconds"] for record in records], self.rounds)
        if left is not None:
            note += f", {duration(left)} left"
        self._bar.update(self._task, completed=self.done, note=note)
        now = time.monotonic()
        last = self.done == self.rounds
        if self._bar.disable and not self.quiet and (last or now - self._printed > PLAIN_INTERVAL):
            self._printed = now
            say(f"{self.title}: round {self.done}/{self.rounds}, {note}", sys.stdout)


def shows_bars(console: Console) -> bool:
    """Whether a bar can be drawn and redrawn."""
    return console.is_terminal and not console.is_jupyter


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; the first column is text, the others are aligned to the right.

    Outside a terminal it is as wide as it needs to be: rich would cut it at 80 columns.
    Brackets are text: names of classes and folders are other people's; what a terminal would obey
    in them is shown as a question mark.
    """
    table = Table(title=one_line(title, None), title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(
            one_line(column, None), justify="left" if i == 0 else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(*(one_line(c, None) if isinstance(c, str) else f"{c:,}" for c in row))
    wide = Console(width=10_000, markup=False)
    width = None if sys.stdout.isatty() else wide.measure(table).maximum
    Console(width=width, markup=False).print(table)


def show_report(made: "Report", out: Path, *, as_json: bool) -> None:
    """Print what a report says; the page is the last line, or a key of the JSON."""
    page = str(plain_path(out / "report.html"))
    left_out = {one.name: one.reason for one in made.runs.left_out}
    if as_json:
        content = {
            "page": page, "runs": len(made.runs.placed),
            "tables": [table.name for table in made.tables],
            "figures": [figure.name for figure in made.figures if figure.panels],
            "absent": made.absent, "left_out": left_out,
        }  # fmt: skip
        print(json.dumps(content, indent=2))
        return
    for name, reason in left_out.items():
        print(one_line(f"fedhet: left out: {name}: {reason}", None), file=sys.stderr)
    for title, reason in made.absent.items():
        print(one_line(f"fedhet: figure {title} is absent: {reason}", None), file=sys.stderr)
    for line in made.runs.verdict:
        print(one_line(line, None))
    print(page)
