"""Where the process of a cell runs: what a sweep asks of an executor, and this machine as one."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedhet.engines.process_groups import end_with_maker, look_away
from fedhet.errors import RunFailedError

if TYPE_CHECKING:
    from fedhet.sweeps.job import Job

FAREWELL = 30.0  # seconds that an interrupted cell has to write its summary
Work = Callable[[list[str]], int]  # runs a command line of fedhet, returns its exit code
_FORKS = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Order:
    """What is needed to start a cell here: its configuration's file and its log, and the sweep."""

    work: Work
    preset: Path
    log: Path
    sweep: Path


class CellProcess(Protocol):
    """The process of a cell, wherever it is; as one of :mod:`multiprocessing`."""

    lost: str  # once it has ended: why the executor, and not the cell, is the reason; else empty

    @property
    def exitcode(self) -> int | None:
        """As that of a process; None while it runs, or if nobody knows."""

    def is_alive(self) -> bool:
        """Whether it runs, or its files are still on their way here."""

    def terminate(self) -> None:
        """Ask it to end."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""

    def kill(self) -> None:
        """End it at once."""


class Executor(Protocol):
    """Takes cells as long as they fit, and runs each."""

    def fits(self, job: "Job", running: Sequence["Job"], workers: int) -> bool:
        """Whether there is room for one more beside those that run, ``workers`` at most."""

    def start(self, job: "Job", order: Order) -> CellProcess:
        """Run or continue the cell so that what it leaves comes to ``job.folder``.

        Raises UserError if another process is at that folder.
        """

    def notes(self) -> list[str]:
        """Lines for the user since the last call."""


class _Forked(_FORKS.Process):  # type: ignore[name-defined,misc]
    """A process of this machine."""

    lost = ""


class LocalExecutor:
    """This machine: cells are forked from one process that has imported everything."""

    def fits(self, job: "Job", running: Sequence["Job"], workers: int) -> bool:
        """A Ray simulation takes the machine for itself."""
        alone = any(one.cell.config.engine == "ray" for one in (job, *running))
        return not running if alone else len(running) < workers

    def start(self, job: "Job", order: Order) -> CellProcess:
        """Fork it; the cell's own command finds out who else is at the folder."""
        _FORKS.set_forkserver_preload(["fedhet.engines.session", "fedhet.engines.inline"])
        words = command(job.folder, order.preset, begun=begun(job.folder))
        process = _Forked(target=_in_cell, args=(order.work, words, order.log))
        look_away()
        try:
            process.start()
        except EOFError as error:  # for click it would be the end of somebody's input
            raise RunFailedError(
                f"sweep '{order.sweep}' cannot go on: the process that starts its cells was "
                "killed; the same command continues it"
            ) from error
        placed: CellProcess = process
        return placed

    def notes(self) -> list[str]:
        """Nothing."""
        return []


def begun(folder: Path) -> bool:
    """Whether there is a run to be continued."""
    return (folder / "checkpoint" / "run.json").exists()


def command(folder: Path, preset: Path, *, begun: bool) -> list[str]:
    """What ``fedhet`` is to do to run a cell, or to continue it where its folder has begun."""
    if begun:
        return ["resume", str(folder)]
    return ["run", str(preset), "--out", str(folder.parent), "--name", folder.name]


def _in_cell(work: Work, words: list[str], log: Path) -> None:
    """What a cell's process does: it writes to its log and ends when the sweep is gone."""
    end_with_maker(FAREWELL)
    os.setsid()  # Ctrl-C is for the sweep, which tells its cells
    with log.open("ab") as file, Path(os.devnull).open("rb") as nothing:
        for number, stream in enumerate((nothing, file, file)):
            os.dup2(stream.fileno(), number)
    sys.exit(work(words))
