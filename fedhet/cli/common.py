"""What the commands share: arguments that several take, lines, progress bars and tables."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TextIO, TypeAlias, get_type_hints

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer import Argument, Option
from typer.core import TyperArgument, TyperCommand

from fedhet.config.schema import RunConfig
from fedhet.engines.system import Interrupted, direct
from fedhet.errors import RunFailed, UserError, brief, distinct, one_line
from fedhet.plugins import look_here

Texts: TypeAlias = list[str] | None
File: TypeAlias = Path | None
ConfigName = Annotated[str, Argument(metavar="CONFIG", help="YAML file, or a preset (quickstart)")]
Overrides = Annotated[Texts, Argument(metavar="KEY=VALUE...", help="keys that replace the file's")]
Connection = Annotated[str | None, Option(metavar="TLS", help="run on nodes: the server's folder")]
Trust = Annotated[bool, Option("--trust", help="import code that it names, which then runs as you")]
RunFolderPath = Annotated[Path, Argument(metavar="RUN", help="run folder")]
Best = Annotated[bool, Option("--best", help="of the best validation round (keep-best)")]
Workers = Annotated[int, Option(min=0, help="runs at a time; 0: one per core")]
Json = Annotated[bool, Option("--json", help="print JSON, for programs")]
PLAIN_INTERVAL = 5.0  # seconds between lines where no bar can be drawn
NAMED = 3  # clients left out of a round that its line names


class Command(TyperCommand):
    """A command whose ``--help`` shows what its arguments mean: click's own (8.2) is empty."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                parameter.help = hints[str(parameter.name)].__metadata__[0].help


# --- one command line -------------------------------------------------------------------------


def carry_out(app: Callable[..., Any], arguments: list[str]) -> int:
    """Run one command line; return 0, 2 (mistake), 3 (run failed) or 128 + signal."""
    os.environ.update(direct())
    try:
        for word, following in zip(arguments, [*arguments[1:], "-"], strict=False):
            option, equals, value = word.partition("=")  # empty: as a script's unset variable
            if option.startswith("--") and not (value if equals else following).strip():
                raise UserError(f"{option}: '' is not allowed: give it a value, or leave it out")
        look_here()
        code = app(arguments or ["--help"], prog_name="fedhet", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt, Interrupted) as error:
        return getattr(error, "exit_code", 130)
    except (UserError, RunFailed) as error:
        return complain(error, error.exit_code)
    except click.ClickException as error:
        text, key = error.format_message(), getattr(error, "option_name", "").lstrip("-")
        if key.replace("-", "_") in RunConfig.model_fields:  # keys are no options
            text = f"No such option '--{key}': keys are written without dashes: {key}=VALUE"
        return complain(text)
    except OSError as error:  # for which nothing nearer has words
        return complain(error)
    return code if isinstance(code, int) else 0


def complain(error: object, code: int = UserError.exit_code) -> int:
    """Print one line; of the system what it refused, and for which file. Return the code."""
    if isinstance(error, OSError):
        why = error.strerror or brief(error)
        error = f"'{error.filename}': {why}" if error.filename else why
    tell(f"error: {error}")
    return code


# --- lines ------------------------------------------------------------------------------------


def tell(text: str) -> None:
    """Print a line for people on stderr; stdout is for programs."""
    say(f"fedhet: {one_line(text, None)}", sys.stderr)


def say(line: str, stream: TextIO) -> None:
    """Print at once; silence the stream if it cannot be written, and go on."""
    try:
        print(line, file=stream, flush=True)
    except OSError:  # the reader has gone, or the disk is full
        silence(stream)


def silence(stream: TextIO) -> None:
    """Discard all further text of a stream, also what Python still holds in its buffer."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


# --- progress and tables ----------------------------------------------------------------------


class Bar:
    """A progress bar on a terminal; nothing elsewhere, nor in a notebook, which needs widgets."""

    def __init__(self, title: str, total: int, *, stderr: bool, hidden: bool = False) -> None:
        console = Console(stderr=stderr)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False), TimeElapsedColumn(),
            console=console, transient=stderr,
            disable=hidden or not console.is_terminal or console.is_jupyter,
        )  # fmt: skip
        self._task = self._bar.add_task(one_line(title, None), total=total, note="")

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # a closed terminal stops no run
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._bar.stop()

    def show(self, done: int | None, note: str) -> None:
        """Move the bar, if ``done`` is known, and write beside it."""
        self._bar.update(self._task, completed=done, note=one_line(note, None))


class RunProgress(Bar):
    """A bar with round, metric and time left; in a pipe a plain line every few seconds.

    ``mode``: ``json``, with the bar on stderr and without plain lines, or ``silent``.
    """

    def __init__(self, title: str, rounds: int, metric: str = "accuracy", mode: str = "") -> None:
        super().__init__(title, rounds, stderr=mode == "json", hidden=mode == "silent")
        self.title, self.rounds, self.metric, self.mode = title, rounds, metric, mode
        self._printed = 0.0
        self._shown, self._missing = -1, ""  # rounds shown so far; who was left out of the last

    def note(self, text: str) -> None:
        """Show what happens now; in a pipe as a line on stderr."""
        self.show(None, text)
        if self._bar.disable and self.mode != "silent":
            tell(text)

    def update(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Show the rounds finished so far, lines of ``rounds.jsonl``."""
        from fedhet.records import summary  # noqa: PLC0415  (`--help` does not wait for it)

        # At first only the last round: those before it were shown before the run was resumed.
        new, self._shown = records[self._shown :], len(records)
        seconds = summary.seconds_left([record["seconds"] for record in records], self.rounds)
        left = f", {summary.duration(seconds)} left" if seconds is not None else ""
        for record in new:
            done = record["round"]
            missing = distinct(map(summary.left_out, record["failures"]), NAMED)
            changed, self._missing = missing != self._missing, missing
            lost = record["replied"] == 0
            note = "lost" if lost else summary.headline(self.metric, record)
            if (missing or changed) and not lost:
                note += f", {record['replied']} of {record['sampled']} replied"
            self.show(done, note + left)
            note += f" ({missing})" if changed and missing else ""
            line = one_line(f"{self.title}: round {done}/{self.rounds}, {note}{left}", None)
            due = done == self.rounds or time.monotonic() - self._printed > PLAIN_INTERVAL
            if not self._bar.disable and (changed or lost):  # beside a bar only what is new
                with contextlib.suppress(OSError):
                    self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            elif self._bar.disable and not self.mode and (changed or lost or due):
                self._printed = time.monotonic()
                say(line, sys.stdout)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; the first column is text, the others are aligned to the right.

    Outside a terminal it is as wide as it needs to be, where rich would cut it at 80 columns. Names
    may be other people's: brackets are no markup, control characters become question marks.
    """
    table = Table(title=one_line(title, None), title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(one_line(column, None), justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(one_line(c, None) if isinstance(c, str) else f"{c:,}" for c in row))
    Console(width=None if sys.stdout.isatty() else 10_000, markup=False).print(table)
