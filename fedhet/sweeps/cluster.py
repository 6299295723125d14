"""An existing cluster as a place for cells: which machine takes which, and what it needs for it.

Every machine is asked once what it runs; one whose fedhet or torch is another is left out and
named, since its results would be others. A cell asks its machine for ``threads`` CPUs, and for a
share of a GPU where it may use one. A machine that is lost gives its cells to others.
"""

import hashlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from fedhet.config.schema import RunConfig
from fedhet.errors import RunFailedError, UserError, one_line
from fedhet.reading.structured import parse_json
from fedhet.sweeps import ray_actor
from fedhet.sweeps.executor import CellProcess, Order
from fedhet.sweeps.grid import Cell
from fedhet.sweeps.job import Job
from fedhet.sweeps.remote import Keeper, LostError, RemoteCell, send
from fedhet.sweeps.transfer import extent, listing, to_json

SAME = {"fedhet": "fedhet", "torch": "torch", "source": "a fedhet whose source",
        "sweeps": "a fedhet whose sweeps"}  # fmt: skip
ASKED = 8  # machines at a time
REST = 30.0  # seconds without a cell after one was lost: a cluster is slow to see what is dead


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster: its id there, what people call it, and what it has."""

    id: str
    name: str
    cpus: float
    gpus: float = 0.0


class Machines(Protocol):
    """What a cluster is asked for; :class:`fedhet.sweeps.ray_machines.RayMachines` asks Ray."""

    def alive(self) -> Mapping[str, Machine]:
        """The machines that are there now, by id."""

    def keeper(self, machine: Machine, cpus: float, gpus: float, stop: threading.Event) -> Keeper:
        """A new keeper there that holds so much of it; its calls end when ``stop`` is set."""


class Cluster:
    """See :class:`~fedhet.sweeps.executor.Executor`."""

    def __init__(self, machines: Machines) -> None:
        """Ask every machine what it runs; UserError if none can take a cell."""
        self.machines = machines
        self._own = ray_actor.facts()
        self._asked: dict[str, Future[str]] = {}  # by machine's id: its cache's folder, or empty
        self._locks: dict[str, threading.Lock] = {}
        self._there: dict[tuple[str, str], str] = {}  # machine's id and path here: path there
        self._cells: list[tuple[Machine, float, RemoteCell]] = []  # with the share of a GPU
        self._rests: dict[str, float] = {}  # machine's id: until when
        self._notes: list[str] = []
        self._pool = ThreadPoolExecutor(ASKED)
        self._alone = False
        self._known()
        for answer in list(self._asked.values()):
            answer.result()
        if not self._known():
            why = "; ".join(self.notes()) or "it has no machine with a CPU"
            raise UserError(f"--ray: no machine of the cluster can run a cell: {why}")

    def fits(self, job: Job, running: Sequence[Job], workers: int) -> bool:
        """Whether a machine has its CPUs free, as far as this sweep's cells are concerned."""
        known = self._known()
        threads = job.cell.config.threads
        most = max((one.cpus for one in known), default=threads)
        if most < threads:
            raise UserError(
                f"threads: {threads} is more than any machine of the cluster has ({most:g} CPUs)"
            )
        if not known and not self._alone:
            self._notes.append(f"no machine of the cluster is left at {time.strftime('%H:%M:%S')}; "
                               "waiting for one")  # fmt: skip
        self._alone = not known
        return len(running) < workers and bool(self._free(job.cell.config, known))

    def start(self, job: Job, order: Order) -> CellProcess:
        """Give it to a machine that :meth:`fits` found: the one with the most CPUs free."""
        config, known = job.cell.config, self._known()
        machine = self._free(config, known)[0]
        share = gpu_share(config, known)
        make = partial(self.machines.keeper, machine, config.threads, share)
        cell = RemoteCell(config, job.folder, order.log, make, partial(self._send, machine))
        self._cells.append((machine, share, cell))
        return cell

    def notes(self) -> list[str]:
        """Machines that were left out, and why."""
        found, self._notes = self._notes, []
        return found

    def _known(self) -> list[Machine]:
        """The machines that are there and run what we run; new ones are asked meanwhile."""
        alive = [one for one in self.machines.alive().values() if one.cpus >= 1]
        for one in alive:
            if one.id not in self._asked:
                self._asked[one.id] = self._pool.submit(self._ask, one)
        return [one for one in alive if self._asked[one.id].done() and self._cache(one)]

    def _cache(self, machine: Machine) -> str:
        return self._asked[machine.id].result()

    def _ask(self, machine: Machine) -> str:
        """Where its cache is; empty, with a note, if its results would not be ours."""
        try:
            keeper = self.machines.keeper(machine, 0, 0, threading.Event())
            try:
                there = parse_json(keeper.call("facts"), "its answer")
            finally:
                with suppress(LostError, RunFailedError):
                    keeper.call("leave")
                keeper.kill()
            texts = isinstance(there, dict) and all(type(v) is str for v in there.values())
            if not texts or not {*SAME, "cache"} <= there.keys():
                raise RunFailedError("its answer is damaged")
            for key, what in SAME.items():
                if there[key] != self._own[key]:
                    raise RunFailedError(
                        f"it has {what} {there[key][:16]}, here is {self._own[key][:16]}: "
                        "install the same there"
                    )
        except (LostError, RunFailedError) as error:
            self._notes.append(f"machine {machine.name} is left out: {one_line(error)}")
            return ""
        return str(there["cache"])

    def _free(self, config: RunConfig, known: Sequence[Machine]) -> list[Machine]:
        """Machines with room for it, the emptiest first."""
        for at, _, cell in self._cells:
            if not cell.exists() and cell.lost:
                self._rests[at.id] = time.monotonic() + REST
        self._cells = [one for one in self._cells if one[2].exists()]
        share = gpu_share(config, known)
        room = []
        awake = [one for one in known if self._rests.get(one.id, 0.0) < time.monotonic()]
        for one in awake:
            mine = [(cell, part) for at, part, cell in self._cells if at.id == one.id]
            cpus = one.cpus - sum(cell.config.threads for cell, _ in mine)
            gpus = one.gpus - sum(part for _, part in mine)
            if cpus >= config.threads and gpus >= share - 1e-9:
                room.append((cpus, one))
        return [one for _, one in sorted(room, key=lambda pair: (-pair[0], pair[1].id))]

    def _send(self, machine: Machine, keeper: Keeper, path: str) -> str:
        """See to it that a user's file or folder is on the machine, and say where.

        Once for all cells of it: where it lies under the same path with the same names and sizes,
        else in the machine's cache, under the digest of its contents.
        """
        if not path:
            return ""
        with self._locks.setdefault(machine.id, threading.Lock()):
            key = machine.id, path
            if key not in self._there:
                self._there[key] = self._deliver(self._cache(machine), keeper, Path(path))
            return self._there[key]

    @staticmethod
    def _deliver(cache: str, keeper: Keeper, path: Path) -> str:
        ours = extent(path)
        if not ours or keeper.call("extent", str(path)).decode() == ours:
            return str(path)
        tree = listing(path.parent, below=path.name, links=True)
        kept = f"{cache}/sent/{hashlib.sha256(to_json(tree)).hexdigest()}"
        if not keeper.call("holds", kept):
            send(keeper, path.parent, tree, "data")
            keeper.call("keep", "data", kept)
        return f"{kept}/{path.name}"


def gpu_share(config: RunConfig, known: Sequence[Machine]) -> float:
    """The part of a GPU that a cell asks for: what the fullest device must hold, if there is any.

    Ray never splits one cell over devices. Rounded down, so that shares add up to no more than 1.
    """
    crowds = [one.cpus // config.threads / one.gpus for one in known if one.gpus]
    if config.device not in {"auto", "cuda"} or not crowds:
        return 0.0
    return min(1.0, math.floor(1e4 / math.ceil(max(crowds))) / 1e4)


def fitting(cell: Cell) -> Cell:
    """The cell as a machine of a cluster runs it: one process, its states in its folder.

    Raises UserError for what means one machine alone.
    """
    config = cell.config
    if config.device.startswith("cuda:"):
        raise UserError(
            f"device: '{config.device}' is not possible with --ray, which chooses the device: say "
            "cuda"
        )
    if config.state_dir:
        raise UserError(
            f"state-dir: '{config.state_dir}' is not possible with --ray: states travel with their "
            "cell's folder; leave it out"
        )
    return Cell(cell.values, config.model_copy(update={"engine": "inline"}))
