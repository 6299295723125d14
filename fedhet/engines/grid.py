"""A simulation: Flower's Grid without Flower's processes, one for each engine.

The ServerApp runs in this process. The same ClientApp as everywhere answers: in this process
(``engine: inline``), in worker processes, or as Ray tasks, with the same ``run_sha256``.
"""

import contextlib
import logging
import os
import pickle
import secrets
import sys
import time
import traceback
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TextIO

import torch
from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedhet import client_app, server_app
from fedhet.config.schema import RunConfig
from fedhet.engines import launch as launching
from fedhet.engines.fork_server import ForkServer, Worker, take_early
from fedhet.engines.launch import Launch, answerer, order_of
from fedhet.engines.system import QUIET, Interrupted, direct, gpu_part, start_ray, undisturbed
from fedhet.errors import RunFailed, UserError, brief
from fedhet.files import cpus
from fedhet.protocol.flower import ENDED, be_task, posted

LOOK = 0.2  # seconds that a pull waits for a reply
RAY_STARTS = 3  # tries: it gives itself 30 s, too little on a very busy machine
STARTS = 5  # workers in a row that may end before they are ready
GPU_SHARE = 2 << 30  # bytes of a GPU for a worker, where `actors` does not say how many there are
START = 120.0  # seconds within which a machine of a cluster starts a process
DIES = (
    "the process that trained it ended twice without an answer (killed, or out of memory?): fewer "
    "`actors` leave each more memory; log.txt has what it printed"
)


class SimulationGrid(Grid):
    """Flower's Grid for processes of ours, which take the messages in the order of their pushes."""

    pull_interval = 0.0  # what marks a simulation's grid
    poll_interval = 0.0  # a pull waits by itself
    window = sys.maxsize  # messages under way: they are queued here

    def __init__(self, nodes: int) -> None:
        be_task()
        self.nodes = range(launching.FIRST_NODE, launching.FIRST_NODE + nodes)
        self.waiting: deque[Message] = deque()  # for somebody who answers
        self.replies: dict[str, Message] = {}  # that nobody has pulled yet
        self.between: Callable[[], object] = lambda: None  # before each push

    def get_node_ids(self) -> Iterable[int]:
        """Return all of them."""
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have the messages answered; returns their ids."""
        self.between()
        pushed = {posted(message): message for message in messages}
        self.waiting.extend(pushed.values())
        self.collect(0.0)
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there; wait a little while there is none."""
        asked = list(message_ids)
        self.collect(0.0 if any(i in self.replies for i in asked) else LOOK)
        return [self.replies.pop(i) for i in asked if i in self.replies]

    @abstractmethod
    def collect(self, patience: float) -> None:
        """Have messages answered; wait up to ``patience`` seconds for the first reply."""

    def close(self) -> None:
        """End all processes."""

    def _absent(self, *_: Any, **__: Any) -> Any:
        """Raise NotImplementedError: what sends messages of ours calls none of these."""
        raise NotImplementedError

    send_and_receive = create_message = set_run = _absent
    run = property(_absent)


class Inline(SimulationGrid):
    """This process itself: a message is answered when it is pushed."""

    def __init__(self, answer: Callable[[Message], Message | None], nodes: int) -> None:
        """``answer`` returns None for a message whose reply never comes."""
        super().__init__(nodes)
        self._answer = answer

    def collect(self, patience: float) -> None:
        """Answer what waits; no reply comes later."""
        while self.waiting:
            message = self.waiting.popleft()
            if (reply := self._answer(message)) is not None:
                self.replies[message.metadata.message_id] = reply
        if patience:
            time.sleep(patience)


def run(launch: Launch, on_rounds: launching.OnRounds) -> None:
    """Run a simulation to its end, and write ``summary.json``; the caller holds process and folder.

    ``on_rounds`` gets all rounds when the next one begins. Raises RunFailed if the run did not
    complete, UserError if it cannot start, and what interrupts it, which ends it as ``stopped``.
    """
    launch.folder.summary.unlink(missing_ok=True)
    client_app.shown.clear()  # another run of this process may have had the same
    reader, begun = launching.Reader(launch.folder, on_rounds), False
    try:
        with _console_to_log(launch), contextlib.closing(_grid(launch)) as grid:
            grid.between, begun = reader.read, True
            with server_app.serving(launch) as roster:
                server_app.run(grid, launch, roster)
        reader.read()
    except BaseException as error:  # code of the user's may raise SystemExit
        stopped = isinstance(error, Interrupted | KeyboardInterrupt)
        ending = ("stopped", str(error) or "SIGINT") if stopped else ("failed", brief(error))
        with undisturbed():
            launching.conclude(launch, ending)
        if stopped or (isinstance(error, UserError) and not begun):
            raise
        launching.raise_unless_completed(launch, f"log: {launch.folder.log}", error)


def _grid(launch: Launch) -> SimulationGrid:
    """Return the grid that the configuration asks for."""
    config, early = launch.config, take_early()
    if config.engine == "processes":
        return WorkerPool(launch, early or ForkServer())
    if early is not None:
        early.close()
    if config.engine == "ray":
        return RayTasks(launch)
    contexts = launching.contexts_of(launch.envelope(), config.clients)
    return Inline(partial(launching.answered, contexts), config.clients)


# --- worker processes ---------------------------------------------------------------------------


def processes(config: RunConfig) -> tuple[int, int]:
    """Return the number of training processes, at most K, and of GPUs: none if one is named."""
    cohort, memory = config.cohort(config.clients), list[int]()
    joined = config.engine == "ray" and os.environ.get("RAY_ADDRESS")
    room = cohort if joined else max(1, cpus() // config.threads)
    wanted = min(config.actors or room, cohort)
    if config.device in {"auto", "cuda"} and torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        memory = [torch.cuda.get_device_properties(device).total_memory for device in devices]
    if memory and not config.actors:
        wanted = min(wanted, len(memory) * max(1, min(memory) // GPU_SHARE))
    return wanted, len(memory)


def device_of(worker: int, gpus: int) -> dict[str, str]:
    """Return the environment in which worker number ``worker`` sees its own GPU alone."""
    if not gpus:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in visible.split(",") if name] or [str(gpu) for gpu in range(gpus)]
    return {"CUDA_VISIBLE_DEVICES": names[worker % gpus]}


class WorkerPool(SimulationGrid):
    """Worker processes on this machine; the message of one that dies goes to another, once."""

    def __init__(self, launch: Launch, server: ForkServer) -> None:
        """Start the workers, which takes some seconds. The pool then owns ``server``."""
        super().__init__(launch.config.clients)
        count, self._gpus = processes(launch.config)
        self._order, self._server = order_of(launch), server
        self._deaths: Counter[str] = Counter()  # of workers, by message
        self._failed_starts = 0
        self._workers = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> Worker:
        order = {**self._order, "environment": device_of(number, self._gpus)}
        try:
            return self._server.fork(number, order)
        except OSError:  # it was killed, and its workers with it
            self._server.close()
            self._server = ForkServer()
            return self._server.fork(number, order)

    def collect(self, patience: float) -> None:
        """As the base class; RunFailed if no worker starts."""
        self._dispatch()
        ready = set(wait([worker.connection for worker in self._workers], patience))
        for worker in [worker for worker in self._workers if worker.connection in ready]:
            self._read(worker)
        self._dispatch()

    def _dispatch(self) -> None:
        for worker in self._workers:
            if self.waiting and worker.pid and worker.message is None:
                worker.message = self.waiting.popleft()
                self._send(worker)

    def _send(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):  # it has just died: reading tells
            worker.connection.send(worker.message)

    def _read(self, worker: Worker) -> None:
        """Read from a worker that it is ready, or a reply; replace a dead one."""
        try:
            received = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker)
        else:
            if isinstance(received, int):
                worker.pid, self._failed_starts = received, 0
                if worker.message is not None:
                    self._send(worker)
                return
            self.replies[worker.message.metadata.message_id] = received
            worker.message = None

    def _replace(self, worker: Worker) -> None:
        """Replace a dead worker by one that gets its message, unless that has ended two.

        No other worker may take it: where all were killed, that one is as dead.
        """
        self._failed_starts += not worker.pid
        if self._failed_starts > STARTS:
            raise RunFailed("worker processes do not start: see log.txt, or the line above")
        worker.end()
        self._workers[worker.number] = new = self._start(worker.number)
        if (message := worker.message) is not None:
            identity = message.metadata.message_id
            self._deaths[identity] += worker.pid > 0
            if self._deaths[identity] > 1:
                died = Error(code=ENDED, reason=DIES)
                self.replies[identity] = Message(died, reply_to=message)
            else:
                new.message = message

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.end()
        self._server.close()


# --- Ray ----------------------------------------------------------------------------------------


_OWN_RAY = {  # of a private Ray: on 127.0.0.1, refusing all without its token
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or it binds to all addresses, on every system
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # Ray takes one for a process
    "RAY_worker_niceness": "0",  # Ray would put training behind everything else (15)
    "RAY_prestart_worker_first_driver": "0",
}


class RayTasks(SimulationGrid):
    """Messages as tasks of Ray: of one of its own, or of the cluster at RAY_ADDRESS."""

    def __init__(self, launch: Launch) -> None:
        """Start or join Ray; UserError if a machine of it does not see the run folder."""
        config = launch.config
        super().__init__(config.clients)
        count, gpus = processes(config)
        joined = bool(os.environ.get("RAY_ADDRESS"))
        words: dict[str, Any] = {}
        self._running: dict[Any, Message] = {}
        with contextlib.ExitStack() as stack:
            stack.callback(os.environ.update, dict(os.environ))
            stack.callback(os.environ.clear)  # the last comes first
            os.environ.update({**QUIET, **direct(), **({} if joined else _OWN_RAY)})
            self._ray = ray = import_module("ray")  # takes a second, and reads its environment
            # Ray would put the working folder first in a task's `sys.path`, where a user's
            # `queue.py` would hide Python's. Ray has no public option against this.
            import_module("ray.job_config").JobConfig._py_driver_sys_path = property(
                lambda _: [], lambda *_: None
            )
            if not joined:
                # A Unix socket's path is limited to 107 bytes, of which Ray needs about 70.
                session = TemporaryDirectory(prefix="fh", dir="/tmp", ignore_cleanup_errors=True)
                words = {"address": "local", "num_cpus": count * config.threads,
                         "num_gpus": gpus, "_temp_dir": stack.enter_context(session),
                         "include_dashboard": False}  # fmt: skip
            stack.callback(ray.shutdown)
            where = f" at RAY_ADDRESS={os.environ['RAY_ADDRESS']}" if joined else ""
            start_ray(f"engine: Ray does not start{where}", 1 if joined else RAY_STARTS, **words)
            if joined:
                _check_shared_folder(ray, launch.folder.path)
            gpus = int(ray.cluster_resources().get("GPU", 0)) if gpus or joined else 0
            gpus = gpus if config.device in {"auto", "cuda"} else 0
            share = gpu_part(count, gpus) if gpus else 0
            # A task whose process dies is repeated once: a client starts from the generation that
            # the server names, so that changes nothing.
            remote = ray.remote(num_cpus=config.threads, num_gpus=share, max_retries=1)
            self._task = remote(_answer)
            path = [path for path in sys.path if path]
            self._order = ray.put(pickle.dumps(order_of(launch) | {"path": path}))
            self._stack = stack.pop_all()

    def collect(self, patience: float) -> None:
        """As the base class. Ctrl-C raises what it does elsewhere: Ray's C code wraps that."""
        try:
            self._collect(patience)
        except SystemError as error:
            raise (error.__cause__ or error) from None

    def _collect(self, patience: float) -> None:
        while self.waiting:
            message = self.waiting.popleft()
            self._running[self._task.remote(self._order, message)] = message
        tasks = list(self._running)
        ready = self._ray.wait(tasks, timeout=patience)[0] if tasks else []
        if ready:  # and all others that are
            ready = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] or ready
        for task in ready:
            message = self._running.pop(task)
            try:
                reply = self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                died = Error(code=ENDED, reason=f"{DIES} ({brief(error)})")
                reply = Message(died, reply_to=message)
            self.replies[message.metadata.message_id] = reply

    def close(self) -> None:
        """End all processes."""
        self._stack.close()


def _answer(order: bytes, message: Message) -> Message:
    answer, log = _prepared(order)
    # Not for the whole process: Ray prints a line of its own before each task.
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        return answer(message)


@lru_cache(maxsize=2)  # runs that a process of Ray's works for
def _prepared(packed: bytes) -> tuple[Callable[[Message], Message], TextIO]:
    """Set up a process of Ray's, once."""
    order = pickle.loads(packed)
    with contextlib.suppress(OSError):  # another machine need not have it
        os.chdir(order["cwd"])
    sys.path += [folder for folder in order["path"] if folder not in sys.path]
    log = Path(order["log"]).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
    return answerer(order), log


def _check_shared_folder(ray: Any, folder: Path) -> None:
    """Raise UserError if a machine of the cluster does not write to the same run folder."""
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    touch = ray.remote(num_cpus=0, max_retries=0)(Path.touch)
    for node in ray.nodes():
        if not node["Alive"] or not node["Resources"].get("CPU"):
            continue
        proof, place = folder / f".{node['NodeID']}", affinity(node["NodeID"], soft=False)
        why = "it has another folder of that name"
        try:
            ray.get(touch.options(scheduling_strategy=place).remote(proof), timeout=START)
        except (ray.exceptions.RayError, OSError) as error:
            why = brief(error)
        if not proof.exists():
            raise UserError(
                f"engine: '{node['NodeManagerHostname']}' of RAY_ADDRESS="
                f"{os.environ['RAY_ADDRESS']} does not see '{folder}' ({why}): `out` must lie on a "
                "disk that all machines see"
            )
        proof.unlink()


# --- this process while a run goes on -----------------------------------------------------------


class _Tee:
    def __init__(self, console: TextIO, log: IO[str]) -> None:
        self.console, self.log = console, log

    def write(self, text: str) -> int:
        self.log.write(text)
        return self.console.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)


@contextlib.contextmanager
def _console_to_log(launch: Launch) -> Iterator[None]:
    """Copy stderr and unexpected tracebacks to ``log.txt``, where the log goes alone."""
    log = logging.getLogger("fedhet")
    before = log.handlers[:], log.level, log.propagate
    with launch.folder.log.open("a", encoding="utf-8", buffering=1) as file:
        log.handlers.clear()
        log.setLevel(logging.INFO)
        log.propagate = False
        with contextlib.redirect_stderr(_Tee(sys.stderr, file)):
            try:
                yield
            except (RunFailed, UserError):
                raise
            except Exception:
                traceback.print_exc()
                raise
            finally:
                log.handlers[:], log.level, log.propagate = before
