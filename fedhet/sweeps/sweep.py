"""Runs the cells of a sweep side by side, each as a ``fedhet run`` or ``fedhet resume``.

A cell is a process of its own, here or on a cluster (:mod:`fedhet.sweeps.executor`): with ``engine:
inline`` one core trains and no barrier is waited for, with ``engine: ray`` a cell has the machine.
What a cell's folder says decides: a finished one is skipped, also if another sweep ran it, a broken
one is continued to the same bytes. Beside the run folders lies ``sweeps/<preset>/``: ``sweep.json``
(the index) and each cell's configuration.
"""

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from fedhet.errors import RunFailedError, UserError, VerifyError, one_line
from fedhet.files import write_json, write_text
from fedhet.reading.bounds import open_regular
from fedhet.reading.structured import read_json
from fedhet.records.environment import source_digest, versions
from fedhet.records.run_folder import LOCK, RunFolder
from fedhet.records.verification import check_entries
from fedhet.sweeps.executor import FAREWELL, Executor, LocalExecutor, Order, Work
from fedhet.sweeps.grid import Cell
from fedhet.sweeps.job import DIVERGED, FAILED, FINISHED, PENDING, RUNNING, Job

POLL = 0.2  # seconds between looks at the cells
LAST = 65_536  # bytes of a log that its last line is looked for in
LOSSES = 3  # times that a cell may lose its machine before it is taken for the reason


@dataclass
class Sweep:
    """The cells of one preset in one folder."""

    name: str
    out: Path
    jobs: list[Job]
    work: Work  # what a cell's process does with its command line
    note: str = ""
    title: str = ""  # what reports call its settings
    executor: Executor = field(default_factory=LocalExecutor)
    notes: list[str] = field(default_factory=list)  # lines for the user, in their order
    _lock: FileLock | None = field(default=None, repr=False)

    @classmethod
    def open(
        cls, name: str, out: Path, cells: Sequence[Cell], work: Work, note: str = ""
    ) -> "Sweep":
        """Look what is there already; nothing is written."""
        made = cls(name, out, [Job(cell, out / cell.name) for cell in cells], work, note)
        for job in made.jobs:
            job.conclude()
        return made

    @property
    def folder(self) -> Path:
        """Where the index and the cells' configurations are."""
        return self.out / "sweeps" / self.name

    def mixed(self) -> str:
        """What the finished rounds of these cells were made with, if not with what is here now."""
        now = {"source": source_digest(), "torch": versions()["torch"]}
        for job in self.jobs:
            path = job.folder / "environment.json"
            if not job.rounds or not path.exists():
                continue
            try:
                kept = read_json(path)
                then = {"source": kept["source_sha256"], "torch": kept["versions"]["torch"]}
            except (VerifyError, OSError, KeyError, TypeError):
                return f"cell {job.cell.name} was run with nobody knows what: '{path}' is damaged"
            for what, value in now.items():
                if then[what] != value:
                    return f"cell {job.cell.name} was run with {what} {then[what]}, not {value}"
        return ""

    def run(self, workers: int, tell: Callable[["Sweep"], None]) -> None:
        """Run what is not ended, ``workers`` cells at a time; ``tell`` is called about it.

        Whatever interrupts this interrupts the cells as well, and waits for their summaries.
        Raises UserError if another command runs this sweep, RunFailedError if the disk is full.
        """
        self._prepare()
        try:
            waiting = [job for job in self.jobs if job.due]
            while waiting or self.running():
                for job in waiting.copy():
                    if not self.executor.fits(job, self.running(), workers):
                        break
                    job.waits = job.taken()
                    if job.waits:
                        job.look()
                        continue
                    waiting.remove(job)
                    self._start(job)
                    if job.state == PENDING:  # another process was quicker
                        waiting.append(job)
                    tell(self)
                time.sleep(POLL)
                for job in self.running():
                    job.look()
                    assert job.process is not None
                    if not job.process.is_alive():
                        self._end(job)
                        if job.state == PENDING:  # that too, or its machine is gone
                            waiting.append(job)
                self.notes += self.executor.notes()
                tell(self)
        except OSError as error:
            raise RunFailedError(
                f"sweep '{self.folder}' cannot go on: {error.strerror or error}; when that is "
                "mended, the same command continues it"
            ) from error
        finally:
            self._interrupt()
            assert self._lock is not None
            self._lock.release()

    def running(self) -> list[Job]:
        """Jobs whose process lives."""
        return [job for job in self.jobs if job.state == RUNNING]

    def seconds_left(self) -> float | None:
        """Time to the end by the rounds finished since the start; None before there is one."""
        running = self.running()
        done = [(job.rounds - job.begun_at, time.monotonic() - job.started) for job in running]
        rounds, seconds = sum(n for n, _ in done), sum(s for _, s in done)
        if not rounds:
            return None
        todo = sum(
            job.cell.config.rounds - job.rounds
            for job in self.jobs
            if job.state == RUNNING or (job.due and job.process is None)
        )
        return todo * seconds / rounds / max(1, len(running))

    def counts(self) -> dict[str, int]:
        """Cells by state."""
        states = (FINISHED, RUNNING, PENDING, DIVERGED, FAILED)
        return {state: sum(job.state == state for job in self.jobs) for state in states}

    def index(self) -> dict[str, Any]:
        """What ``sweep.json`` holds."""
        cells = [
            {"name": job.cell.name, "values": dict(job.cell.values), "state": job.state,
             "reason": job.reason, "rounds": job.rounds, "test_accuracy_mean": job.accuracy}
            for job in self.jobs
        ]  # fmt: skip
        head = {"format": 1, "sweep": self.name, "title": self.title, "note": self.note}
        return head | {"cells": cells}

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder.resolve() != self.out.resolve() / "sweeps" / self.name:
                raise VerifyError(f"'{self.folder}' is a link that leads elsewhere: remove it")
            check_entries(self.folder)  # the folder of all may be a stranger's
            self._lock = FileLock(self.folder / LOCK, blocking=False)
            self._lock.acquire()
        except Timeout as error:
            raise UserError(f"sweep '{self.folder}' is being run by another process") from error
        except OSError as error:
            raise UserError(f"out: '{self.out}' cannot be written: {error.strerror}") from error
        for job in self.jobs:
            text = yaml.safe_dump(job.cell.config.flat(), sort_keys=False, allow_unicode=True)
            write_text(self.folder / f"{job.cell.name}.yaml", text)
        write_json(self.folder / "sweep.json", self.index())

    def _start(self, job: Job) -> None:
        job.conclude()  # another sweep may have been at it meanwhile
        if not job.due:
            return
        if job.anew and not self._set_aside(job):
            return
        log = self._log(job)
        job.logged = log.stat().st_size if log.exists() else 0
        preset = self.folder / f"{job.cell.name}.yaml"
        try:
            job.process = self.executor.start(job, Order(self.work, preset, log, self.folder))
        except UserError:  # another process is at its folder
            job.state = PENDING
            return
        job.state, job.started, job.begun_at = RUNNING, time.monotonic(), job.rounds

    def _log(self, job: Job) -> Path:
        return self.folder / f"{job.cell.name}.log"

    def _set_aside(self, job: Job) -> bool:
        """Whether a hopeless cell's folder made room; ``failed`` keeps the last one of each."""
        aside = self.folder / "failed" / job.folder.name
        try:
            with RunFolder(job.folder).lock():
                shutil.rmtree(aside, ignore_errors=True)
                aside.parent.mkdir(exist_ok=True)
                job.folder.rename(aside)
        except (UserError, OSError) as error:
            job.state, job.reason = FAILED, one_line(error)
            return False
        return True

    def _end(self, job: Job) -> None:
        earlier = job.reason
        job.conclude()
        if job.due and (job.taken() or self._lost(job)):
            job.state, job.process = PENDING, None
            return
        unmoved = job.state == FAILED and (job.reason, job.rounds) == (earlier, job.begun_at)
        if job.state == PENDING or (unmoved and not job.damaged):  # it could not start, or go on
            job.state, job.reason = FAILED, self._last_words(job)
        write_json(self.folder / "sweep.json", self.index())

    def _lost(self, job: Job) -> bool:
        """Whether its machine, not the cell, failed, so that another one gets it."""
        why = job.process.lost if job.process is not None else ""
        if not why:
            return False
        job.losses += 1
        again = job.losses < LOSSES
        self.notes.append(f"{job.cell.name}: {why}" + ("; it goes on elsewhere" if again else ""))
        return again

    def _last_words(self, job: Job) -> str:
        """Why its process ended, as far as anybody knows."""
        assert job.process is not None
        if job.process.lost:
            return f"{job.process.lost}, the {job.losses}. machine that it lost"
        code = job.process.exitcode
        if code is not None and code < 0:
            names = {one.value: one.name for one in signal.Signals}
            guess = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
            return f"killed by {names.get(-code, -code)}{guess}, after round {job.rounds}"
        with open_regular(self._log(job)) as (file, size):
            file.seek(max(job.logged, size - LAST))
            said = file.read(LAST).decode(errors="replace")
        return one_line(next(reversed(said.splitlines()), f"it ended with code {code}"))

    def _interrupt(self) -> None:
        for job in self.running():
            assert job.process is not None
            job.process.terminate()
        for job in self.running():
            assert job.process is not None
            job.process.join(FAREWELL)
            job.process.kill()
            job.process.join()
            job.conclude()
        with contextlib.suppress(OSError):  # the next command writes it anew
            write_json(self.folder / "sweep.json", self.index())


def default_workers(threads: int) -> int:
    """One training process per core."""
    return max(1, (os.cpu_count() or 1) // threads)


def shard(cells: Sequence[Cell], text: str) -> list[Cell]:
    """Every n-th cell from the i-th: ``i/n`` with 1 <= i <= n, for n machines."""
    found = re.fullmatch("([0-9]+)/([0-9]+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UserError(f"--shard: '{text}' is not allowed: i/n with 1 <= i <= n, such as 1/4")
    return list(cells[int(found[1]) - 1 :: int(found[2])])
