"""How a sweep shows itself while it runs."""

import sys
import time
from collections.abc import Mapping
from datetime import datetime
from textwrap import shorten

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedhet.cli.saying import say, tell
from fedhet.engines.signals import Interrupted
from fedhet.records.summary import duration, percent
from fedhet.sweeps.job import ENDED, FAILED, RUNNING, Job
from fedhet.sweeps.sweep import Sweep

SHOWN = 20  # lines of cells in the table of progress
WAITS = "is being run by another process, which is waited for since {}"
REASON = 120  # characters of a cell's reason there; the end of the sweep says it whole


class Progress:
    """A table of the cells on a terminal; elsewhere a line per cell that has ended.

    ``blind`` leaves out test accuracies, by which a search must not be followed.
    """

    def __init__(self, found: Sweep, *, quiet: bool, blind: bool = False) -> None:
        self.console = Console(stderr=True, markup=False)
        self.quiet, self.blind = quiet, blind
        self.told = {job.cell.name for job in found.jobs if job.state in ENDED - {FAILED}}
        self.waiting: dict[str, str] = {}  # since when, by cell
        self.noted = 0
        self.live: Live | None = None
        if not quiet and self.console.is_terminal:
            self.live = Live(
                _table(found, {}, blind=blind), console=self.console, auto_refresh=False
            )

    def __enter__(self) -> "Progress":
        if self.live is not None:
            self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.live is not None:
            self.live.__exit__(None, None, None)
        if kind is Interrupted:
            tell("interrupted; the same command goes on")

    def update(self, found: Sweep) -> None:
        """Show how it stands."""
        for note in [] if self.quiet else found.notes[self.noted :]:
            self.console.print(f"fedhet: {note}", soft_wrap=True, highlight=False)
        self.noted = len(found.notes)
        news = [job.cell.name for job in found.jobs if job.waits]
        news = [name for name in news if name not in self.waiting]
        self.waiting |= dict.fromkeys(news, f"{datetime.now():%H:%M:%S}")
        if self.live is not None:
            self.live.update(_table(found, self.waiting, blind=self.blind), refresh=True)
            return
        for job in found.jobs:
            if job.cell.name in news and not self.quiet:
                tell(f"{job.cell.name} {WAITS.format(self.waiting[job.cell.name])}")
            ended = job.state in ENDED and (job.state != FAILED or job.process is not None)
            if ended and job.cell.name not in self.told and not self.quiet:
                self.told.add(job.cell.name)
                accuracy = percent(None if self.blind else job.accuracy)
                why = f": {job.reason}" if job.reason else ""
                line = f"fedhet: {job.cell.name} {job.state} {accuracy}  {job.cell.label}{why}"
                say(line, sys.stderr)


def _table(found: Sweep, waiting: Mapping[str, str], *, blind: bool) -> Group:
    table = Table(box=None, pad_edge=False)
    for column in ("cell", "state", "round", "accuracy", "what"):
        table.add_column(column, no_wrap=column != "what")
    running = [job for job in found.jobs if job.state == RUNNING]
    others = [job for job in found.jobs if job.state != RUNNING]
    others.sort(key=lambda job: job.state not in ENDED)
    for job in (*running, *others)[:SHOWN]:
        table.add_row(*_row(job, waiting.get(job.cell.name, ""), blind=blind))
    counts = ", ".join(f"{count} {state}" for state, count in found.counts().items() if count)
    left = found.seconds_left()
    more = f", {len(found.jobs) - SHOWN} cells not shown" if len(found.jobs) > SHOWN else ""
    line = f"{counts}{more}" + (f", about {duration(left)} left" if left else "")
    return Group(table, Text(line), Text(found.note)) if found.note else Group(table, Text(line))


def _row(job: Job, since: str, *, blind: bool) -> tuple[str, ...]:
    rounds = f"{job.rounds}/{job.cell.config.rounds}"
    if job.state == RUNNING and job.rounds > job.begun_at:
        pace = (time.monotonic() - job.started) / (job.rounds - job.begun_at)
        rounds += f" {duration(pace * (job.cell.config.rounds - job.rounds))} left"
    accuracy = percent(None if blind else job.accuracy)
    ended = job.state in ENDED and job.reason
    why = f": {shorten(job.reason, REASON, placeholder=' ...')}" if ended else ""
    why = f": {WAITS.format(since)}" if job.waits else why
    return job.cell.name, job.state, rounds, accuracy, f"{job.cell.label}{why}"
