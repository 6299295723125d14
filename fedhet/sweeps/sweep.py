"""Run the cells of a sweep side by side, each as ``fedhet run`` or ``fedhet resume``.

A cell is a process of its own on this machine, or one task of a Ray cluster. Its run folder decides
what happens: a completed cell is skipped, also if another sweep ran it, and a cell that was broken
off is continued to the same bytes. Beside the run folders lies ``sweeps/<preset>/`` with
``sweep.json`` (the index), each cell's configuration and its log.
"""

import contextlib
import math
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from fedhet.config.load import RESUMABLE, absolute_paths
from fedhet.config.schema import RunConfig
from fedhet.engines import system
from fedhet.errors import Damaged, RunFailed, UserError, one_line
from fedhet.files import check_entries, cpus, read_json, read_yaml, write_json, write_text
from fedhet.records.run_folder import DATA, LOCK, RunFolder, source_digest, versions
from fedhet.sweeps.grid import Cell, deciding, once

STATES = ("completed", "running", "pending", "diverged", "failed", "damaged")
POLL = 0.2  # seconds between looks at the cells
FRESH = 5.0  # seconds that a process may take to make a run folder
FAREWELL = 30.0  # seconds that an interrupted cell has to write its summary
LAST = 65_536  # bytes at the end of a log that its last line is looked for in
RETRIES = 3  # times that Ray starts a cell again whose machine or process has died
Work = Callable[[list[str]], int]  # runs a command line of fedhet, returns its exit code
_FORKS = multiprocessing.get_context("forkserver")


@dataclass
class Job:
    """A cell, its folder, and what is known of it."""

    cell: Cell
    folder: RunFolder
    state: str = "pending"
    reason: str = ""
    before: tuple[str, int] = ("", 0)  # reason and finished rounds when it was started
    logged: int = 0  # bytes of its log when it was started
    process: "BaseProcess | RayTask | None" = None
    rounds: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)  # line of rounds.jsonl
    waits: bool = False  # another process, such as another sweep's, runs it

    @property
    def due(self) -> bool:
        """Whether it is to be run or continued; a damaged folder is left to the user."""
        return self.state in {"pending", "failed"}

    @property
    def ended(self) -> bool:
        """Whether it has run to an end, good or bad."""
        return self.state not in {"pending", "running"}

    def look(self) -> None:
        """Read the finished rounds from the folder."""
        with contextlib.suppress(Damaged, OSError):  # :meth:`conclude` reports these
            records = self.folder.read_rounds()
            self.rounds, self.last = len(records), records[-1] if records else {}

    def taken(self) -> bool:
        """Return whether another process makes its folder or writes its run at this moment."""
        if not self.folder.path.is_dir():
            return False
        made = self.unbegun() and time.time() - self.folder.path.stat().st_mtime < FRESH
        return made or self.folder.being_written()

    def unbegun(self) -> bool:
        """Return whether the folder is as a run leaves it that was killed while it made it."""
        names = {path.name for path in self.folder.path.iterdir() if path.name[0] != "."}
        return names <= {"environment.json", "checkpoint"}

    def conclude(self) -> None:
        """Set the state by what the folder holds; without a summary it is pending."""
        self.look()
        try:
            self.state, self.reason = self._read()
        except (Damaged, UserError, OSError) as error:
            self.state = "damaged"
            self.reason = f"{one_line(error)}; remove '{self.folder.path}' to run the cell again"

    def _read(self) -> tuple[str, str]:
        """Return state and reason; raise for a damaged file."""
        if (there := self.folder.path.exists()) and not self.folder.path.is_dir():
            raise Damaged(f"'{self.folder.path}' is not a folder")
        summary, records = self.folder.read_result()
        if self.folder.config.exists():
            self._check_config(self.folder.config)
        state, reason = self.folder.status(summary, records, lambda: False)
        if state == "completed":
            from fedhet.reports.reading import read_run  # noqa: PLC0415  (pandas)

            read_run(self.folder.path)  # as a report will
        elif there and not (self.folder.identity.exists() or self.unbegun()):
            raise Damaged(f"'{self.folder.identity}' is missing, so the run cannot continue")
        over = state in {"completed", "diverged", "failed"}  # one that was stopped goes on
        return (state if over else "pending"), reason * bool(summary)

    def _check_config(self, path: Path) -> None:
        """Raise Damaged if the folder is another cell's, by a key that no resumption may change."""
        usual = RunConfig().flat()  # of keys that are younger than the folder
        asked, there = deciding(self.cell.config.flat()), deciding(usual | read_yaml(path))
        free = set(RESUMABLE) - {"rounds"} | ({"clients"} if not asked["clients"] else set())
        for key in sorted((asked.keys() | there.keys()) - free):
            old, new = there.get(key, "absent"), asked.get(key, "absent")
            if old != new:
                raise Damaged(f"'{path}' belongs to another cell: {key} is {old}, not {new}")


def command_line(folder: Path, preset: Path) -> list[str]:
    """Return the command line that runs a cell, or continues it where it has begun.

    A folder, of any machine, with the cell's own configuration names no other code: it is trusted.
    """
    run = RunFolder(folder)
    if not run.identity.exists():
        return ["run", str(preset), "--out", str(folder.parent), "--name", folder.name]
    words = ["resume", str(folder)]
    with contextlib.suppress(Damaged, UserError, OSError):  # resume says what is damaged
        started, asked = run.started_config(), read_yaml(preset)
        keys = started.keys() | asked.keys()
        if {key for key in keys if started.get(key) != asked.get(key)} <= {"clients"}:
            words.append("--trust")
    return words


def _carry_out(work: Work, folder: Path, preset: Path, log: Path) -> int:
    """Run the cell in this process, which writes to its log from now on."""
    with log.open("ab") as file, Path(os.devnull).open("rb") as nothing:
        for number, stream in enumerate((nothing, file, file)):
            os.dup2(stream.fileno(), number)
    return work(command_line(folder, preset))


def _in_fork(*order: Any) -> None:
    """Be the process of a cell here: it ends with the sweep."""
    system.end_with_maker(FAREWELL)
    os.setsid()  # Ctrl-C is for the sweep, which tells its cells
    sys.exit(_carry_out(*order))


def _in_task(
    ours: Mapping[str, str], work: Work, folder: Path, preset: Path, log: Path
) -> tuple[int, str]:
    """Be its process on a cluster; return its exit code, or why it cannot run there."""
    here = f"machine {socket.gethostname()}"
    if not preset.exists():
        return 2, f"{here} does not see '{preset}': --out must lie on a disk that all machines see"
    for what, value in made_with().items():
        if value != ours[what]:
            return 2, f"{here} has {what} {value}, not {ours[what]}: install the same there"
    return _carry_out(work, folder, preset, log), ""


def fork(*order: Any) -> BaseProcess:
    """Fork a cell from one process that has imported everything; RunFailed if that was killed."""
    _FORKS.set_forkserver_preload(["fedhet.engines.session", "fedhet.engines.grid"])
    process = _FORKS.Process(target=_in_fork, args=order)
    system.look_away()
    try:
        process.start()
    except EOFError as error:  # click would take it for the end of the input
        raise RunFailed(
            f"sweep '{order[-1].parent}' cannot go on: the process that starts its cells was "
            "killed; the same command continues it"
        ) from error
    return process


class RayTask:
    """A cell as one task of Ray, with the methods of a process that a sweep uses."""

    def __init__(self, ray: Any, cell: Cell, *order: Any) -> None:
        """Submit it; UserError if no machine has as many CPUs as it needs."""
        machines = [one["Resources"] for one in ray.nodes() if one["Alive"]]
        threads, most = cell.config.threads, max(one.get("CPU", 0.0) for one in machines)
        if threads > most:
            what = f"is more than any machine of the cluster has ({most:g} CPUs)"
            raise UserError(f"threads: {threads} {what}")
        share = gpu_share(cell.config, machines)
        # One process a cell, as here; a machine that dies costs its cells their running round.
        task = ray.remote(
            max_calls=1, max_retries=RETRIES, num_cpus=threads, num_gpus=share, name=cell.name
        )(_in_task)
        self.exitcode: int | None = None
        self.why = ""  # it never ran, or ended without an exit code
        self.ray, self.reference = ray, task.remote(made_with(), *order)
        self.terminate = partial(ray.cancel, self.reference)  # as Ctrl-C
        self.kill = partial(ray.cancel, self.reference, force=True)

    def is_alive(self) -> bool:
        """Return whether it runs, or waits for its turn."""
        if self.exitcode is None and self.ray.wait([self.reference], timeout=0)[0]:
            try:
                self.exitcode, self.why = self.ray.get(self.reference)
            except Exception as error:  # noqa: BLE001  (Ray's, and what a task raised)
                self.exitcode, self.why = 1, one_line(error, 300)
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self.ray.wait([self.reference], timeout=timeout)


def gpu_share(config: RunConfig, machines: Sequence[dict[str, float]]) -> float:
    """Return the part of a GPU that a cell asks for: that of the machine with most CPUs a GPU."""
    crowds = [m.get("CPU", 0.0) // config.threads / m["GPU"] for m in machines if m.get("GPU")]
    if config.device not in {"auto", "cuda"} or not crowds:
        return 0.0
    return system.gpu_part(max(1, math.ceil(max(crowds))), 1)


def made_with() -> dict[str, str]:
    """Return what decides results beside the configuration: our source and torch."""
    return {"source": source_digest(), "torch": versions()["torch"]}


@dataclass
class Sweep:
    """The cells of one preset in one folder; as long as they do not run, nothing is written."""

    name: str
    out: Path
    cells: Sequence[Cell]
    work: Work  # what a cell's process does with its command line
    ray: Any = None  # Ray's module, joined to a cluster whose machines all see the folder

    def __post_init__(self) -> None:
        placed = []  # with their folders, and with paths that hold everywhere
        for cell in self.cells:
            config = cell.config.model_copy(update={"out": str(self.out), "name": cell.name})
            placed.append(replace(cell, config=absolute_paths(config)))
        self.jobs = [Job(cell, RunFolder(self.out / cell.name)) for cell in once(placed)]
        for job in self.jobs:
            job.conclude()

    @property
    def folder(self) -> Path:
        """Folder of the index, the cells' configurations and their logs."""
        return self.out / "sweeps" / self.name

    def mixed(self) -> str:
        """Return what finished rounds were made with, if not with what is here; else empty."""
        from fedhet.site.local_data import load_dataset  # noqa: PLC0415  (torch)

        now, looked_at = made_with(), set[object]()
        for job in (one for one in self.jobs if one.rounds and one.folder.environment.exists()):
            name, config = f"cell {job.cell.name} was run", job.cell.config
            try:
                kept = read_json(job.folder.environment)
                then = {"source": kept["source_sha256"], "torch": kept["versions"]["torch"]}
            except (Damaged, OSError, KeyError, TypeError):
                return f"{name} with unknown code: '{job.folder.environment}' is damaged"
            for what, value in now.items():
                if then[what] != value:
                    return f"{name} with {what} {then[what]}, not {value}"
            data = config.dataset, config.data_path, config.image_size
            if kept.get(DATA) and data not in looked_at:
                looked_at.add(data)
                if load_dataset(config).digest != kept[DATA]:
                    return f"{name} on data with other values"
        return ""

    def join(self, address: str) -> None:
        """Let cells run on the Ray cluster at ``HOST:PORT`` (or ``auto``), each inline.

        Raise UserError if this machine is no part of the cluster, or for one machine's device.
        """
        for job in self.jobs:
            config = job.cell.config.model_copy(update={"engine": "inline"})
            if config.device.startswith("cuda:"):
                raise UserError(
                    f"device: '{config.device}' is not allowed with --ray, which assigns GPUs "
                    "itself: use cuda"
                )
            job.cell = replace(job.cell, config=config)
        system.check_ray_address(address, "--ray")
        start = f"`ray start --address={address} --num-cpus=0`"
        where = f"from here (this machine must be one of the cluster: {start})"
        what = f"--ray: '{address}' cannot be joined {where}"
        self.ray = system.start_ray(what, address=address)

    def run(self, workers: int, tell: Callable[["Sweep"], None]) -> None:
        """Run what has not ended, ``workers`` cells at a time (0: as many as fit).

        ``tell`` is called at each look. An interruption ends the cells and waits for their
        summaries. Raise UserError if another command runs this sweep, RunFailed on a full disk.
        """
        lock = self._prepare()
        try:
            waiting = [job for job in self.jobs if job.due]
            while waiting or self.running():
                for job in waiting.copy():
                    if not self._fits(job, workers):
                        break
                    job.waits = job.taken()
                    if job.waits:
                        job.look()
                        continue
                    waiting.remove(job)
                    self._start(job)
                    tell(self)
                time.sleep(POLL)
                for job in self.running():
                    job.look()
                    assert job.process is not None
                    if not job.process.is_alive():
                        self._end(job)
                        if job.state == "pending":  # another process was quicker
                            waiting.append(job)
                tell(self)
        except OSError as error:
            raise RunFailed(
                f"sweep '{self.folder}' cannot continue: {error.strerror or error}; when that is "
                "repaired, repeat the command"
            ) from error
        finally:
            self._interrupt()
            lock.release()

    def _fits(self, job: Job, workers: int) -> bool:
        """Return whether there is room; on Ray a cell waits for CPUs, not inline it runs alone."""
        running = self.running()
        if self.ray:
            return not workers or len(running) < workers
        if any(one.cell.config.engine != "inline" for one in (job, *running)):
            return not running
        return len(running) < (workers or max(1, cpus() // job.cell.config.threads))

    def running(self) -> list[Job]:
        """Return the running jobs."""
        return [job for job in self.jobs if job.state == "running"]

    def counts(self) -> dict[str, int]:
        """Return the number of cells by state."""
        return {state: sum(job.state == state for job in self.jobs) for state in STATES}

    def _prepare(self) -> FileLock:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder.resolve() != self.out.resolve() / "sweeps" / self.name:
                raise Damaged(f"'{self.folder}' is a link that leads elsewhere: remove it")
            check_entries(self.folder)  # another program may have sent it
            lock = FileLock(self.folder / LOCK, blocking=False)
            lock.acquire()
        except Timeout as error:
            raise UserError(f"sweep '{self.folder}' already runs in another process") from error
        except OSError as error:
            raise UserError(f"out: '{self.out}' cannot be written: {error.strerror}") from error
        for job in self.jobs:
            text = yaml.safe_dump(job.cell.config.flat(), sort_keys=False, allow_unicode=True)
            write_text(self._file(job, "yaml"), text)
        self._write_index()
        return lock

    def _write_index(self) -> None:
        cells = [
            {"name": job.cell.name, "values": dict(job.cell.values), "state": job.state,
             "reason": job.reason, "rounds": job.rounds,
             "test_accuracy_mean": job.last.get("test_accuracy_mean")}
            for job in self.jobs
        ]  # fmt: skip
        index = {"format": 1, "sweep": self.name, "cells": cells}
        write_json(self.folder / "sweep.json", index)

    def _start(self, job: Job) -> None:
        job.conclude()  # another sweep may have run it meanwhile
        if not job.due:
            return
        if job.folder.path.exists() and job.unbegun():
            shutil.rmtree(job.folder.path)
        log = self._file(job, "log")
        job.logged = log.stat().st_size if log.exists() else 0
        order = self.work, job.folder.path, self._file(job, "yaml"), log
        job.process = RayTask(self.ray, job.cell, *order) if self.ray else fork(*order)
        job.state, job.before = "running", (job.reason, job.rounds)

    def _file(self, job: Job, kind: str) -> Path:
        return self.folder / f"{job.cell.name}.{kind}"

    def _end(self, job: Job) -> None:
        job.conclude()
        if job.due and job.taken():
            job.state, job.process = "pending", None
            return
        unmoved = job.state == "failed" and (job.reason, job.rounds) == job.before
        if job.state == "pending" or unmoved:  # it could not start, or go on
            job.state, job.reason = "failed", self._last_words(job)
        self._write_index()

    def _last_words(self, job: Job) -> str:
        """Return why its process ended, as far as it is known."""
        assert job.process is not None
        code, why = job.process.exitcode, getattr(job.process, "why", "")
        if why:
            return str(why)
        if code is not None and code < 0:
            guess = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
            names = {one.value: one.name for one in signal.Signals}
            return f"killed by {names.get(-code, -code)}{guess}, after round {job.rounds}"
        path = self._file(job, "log")
        with path.open("rb") as file:
            file.seek(max(job.logged, path.stat().st_size - LAST))
            text = file.read(LAST).decode(errors="replace")
        return one_line(next(reversed(text.splitlines()), f"it ended with code {code}"))

    def _interrupt(self) -> None:
        running = [(job, job.process) for job in self.running() if job.process is not None]
        for _, process in running:
            process.terminate()
        for job, process in running:
            process.join(FAREWELL)
            process.kill()
            process.join(FAREWELL)
            job.conclude()
        with contextlib.suppress(OSError):  # the next command writes it anew
            self._write_index()


def shard(cells: Sequence[Cell], text: str) -> list[Cell]:
    """Return every n-th cell from the i-th: ``i/n`` with 1 <= i <= n, for n machines."""
    part = re.fullmatch("([0-9]+)/([0-9]+)", text)
    if not part or not 1 <= int(part[1]) <= int(part[2]):
        raise UserError(f"--shard: '{text}' is not allowed: i/n with 1 <= i <= n, such as 1/4")
    return list(cells[int(part[1]) - 1 :: int(part[2])])
