"""A simulation: Flower's Grid without Flower's processes, and the executors behind it.

The ServerApp runs in this process and sends through the grid; the same ClientApp as everywhere
answers: in this process (``engine: inline``, for debuggers), in worker processes
(``processes``), or as Ray tasks (``ray``). The same configuration ends with the same
``run_sha256`` in each.
"""

import contextlib
import logging
import os
import secrets
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TextIO

import torch
from flwr.app import Context, Error, Message
from flwr.serverapp import Grid

from fedhet import client_app, server_app
from fedhet.config.schema import RunConfig
from fedhet.engines import worker as answering
from fedhet.engines.fork_server import ForkServer, Worker, take_early
from fedhet.engines.launch import Launch, OnRounds, Reader, conclude, raise_unless_completed
from fedhet.engines.system import QUIET, Interrupted, direct, gpu_part, start_ray, undisturbed
from fedhet.engines.worker import FIRST_NODE, answered, contexts_of
from fedhet.errors import RunFailed, UserError, brief
from fedhet.files import cpus
from fedhet.plugins import giving, look_here
from fedhet.protocol.flower import ENDED, be_one_process, posted

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
    """Flower's Grid, whose messages an executor takes in the order in which they are pushed."""

    pull_interval = 0.0  # what marks a simulation's grid
    poll_interval = 0.0  # a pull waits by itself
    window = sys.maxsize  # messages under way: the executor queues them

    def __init__(
        self, executor: "Executor", nodes: int, between: Callable[[], None] = lambda: None
    ) -> None:
        """``executor`` has messages answered; ``between`` is called whenever some are pushed."""
        be_one_process()
        self.executor, self.between = executor, between
        self.nodes = range(FIRST_NODE, FIRST_NODE + nodes)
        self._replies: dict[str, Message] = {}  # that nobody has pulled yet

    def get_node_ids(self) -> Iterable[int]:
        """Return all of them."""
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand the messages to the executor; returns their ids."""
        self.between()
        pushed = {posted(message): message for message in messages}
        for message in pushed.values():
            self.executor.submit(message)
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there; wait a little while there is none."""
        asked = list(message_ids)
        patience = 0.0 if any(i in self._replies for i in asked) else LOOK
        for reply in self.executor.replies(patience):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [self._replies.pop(i) for i in asked if i in self._replies]

    def _absent(self, *_: Any, **__: Any) -> Any:
        """Raise NotImplementedError: what sends messages of ours calls none of these."""
        raise NotImplementedError

    send_and_receive = create_message = set_run = _absent
    run = property(_absent)


class Inline:
    """This process itself: a message is answered when it is submitted."""

    def __init__(self, answer: Callable[[Message], Message | None]) -> None:
        """``answer`` returns None for a message whose reply never comes."""
        self._answer = answer
        self._done: list[Message] = []

    def submit(self, message: Message) -> None:
        """Answer a message, which has an id."""
        if (reply := self._answer(message)) is not None:
            self._done.append(reply)

    def replies(self, patience: float) -> list[Message]:
        """Return the replies that have come; none comes later, but who asks waits all the same."""
        if not self._done:
            time.sleep(patience)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Do nothing: there are no processes."""


def run(launch: Launch, on_rounds: OnRounds) -> None:
    """Run a simulation to its end; raise RunFailed if it did not complete.

    The caller holds :func:`~fedhet.engines.launch.one_run` and the folder's lock. ``summary.json``
    is always written. KeyboardInterrupt and :class:`Interrupted` end the run as ``stopped``. Raises
    UserError if the run cannot start.
    """
    launch.folder.summary.unlink(missing_ok=True)
    reader = Reader(launch.folder, on_rounds)
    ending, begun = ("failed", "the run ended early"), False
    cause: BaseException | None = None
    client_app.shown.clear()  # another run of this process may have had the same
    try:
        with _console_to_log(launch), contextlib.ExitStack() as stack:
            grid = _grid(launch, reader.read, stack)
            begun = True
            with server_app.serving(launch) as roster:
                server_app.run(grid, launch, roster)
        reader.read()
    except (Interrupted, KeyboardInterrupt) as interrupt:
        ending = ("stopped", str(interrupt) or "SIGINT")
        raise
    except (Exception, SystemExit) as error:  # code of the user's may raise either
        ending, cause = ("failed", brief(error)), error
        if isinstance(error, UserError) and not begun:
            raise
    finally:
        with undisturbed():
            conclude(launch, ending)
    raise_unless_completed(launch, f"log: {launch.folder.log}", cause)


def _grid(launch: Launch, between: Callable[[], None], stack: contextlib.ExitStack) -> Grid:
    """Return the grid that the configuration asks for; ``stack`` ends its processes."""
    config, text, early = launch.config, launch.envelope(), take_early()
    executor: Executor
    if config.engine == "processes":
        executor = WorkerPool(launch, text, early or ForkServer())
    else:
        if early is not None:
            early.close()
        inline = Inline(partial(answered, contexts_of(text, config.clients)))
        executor = RayTasks(launch, text) if config.engine == "ray" else inline
    stack.callback(executor.close)
    return SimulationGrid(executor, config.clients, between)


# --- worker processes ---------------------------------------------------------------------------


def processes(config: RunConfig) -> tuple[int, int]:
    """Return the number of training processes, and of GPUs that they share: none if one is named.

    A round's clients keep no more busy. Where ``actors`` does not say how many there are, the CPUs
    do, but those of a Ray cluster are unknown; and each has ``GPU_SHARE`` bytes of a GPU.
    """
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


def _order(launch: Launch, text: str) -> dict[str, Any]:
    """Return what a process that answers messages is told first."""
    return {
        "text": text, "nodes": launch.config.clients, "log": str(launch.folder.log),
        "cwd": os.getcwd(), "objects": answering.packed_objects(launch.config),
    }  # fmt: skip


class WorkerPool:
    """Worker processes on this machine, one message each at a time.

    The message of a worker that dies is given to another one, once.
    """

    def __init__(self, launch: Launch, text: str, server: ForkServer) -> None:
        """Start the workers, which takes some seconds. The pool then owns ``server``."""
        count, self._gpus = processes(launch.config)
        self._order = _order(launch, text)
        self._server = server
        self._waiting: deque[Message] = deque()
        self._running: dict[Worker, Message] = {}
        self._deaths: Counter[str] = Counter()  # of workers, by message
        self._failed_starts = 0
        self._workers: dict[Worker, int] = {}
        for number in range(count):
            self._start(number)

    def _start(self, number: int) -> Worker:
        order = {**self._order, "environment": device_of(number, self._gpus)}
        try:
            worker = self._server.fork(order)
        except OSError:  # it was killed, and its workers with it
            self._server.close()
            self._server = ForkServer()
            worker = self._server.fork(order)
        self._workers[worker] = number
        return worker

    def submit(self, message: Message) -> None:
        """Take a message, which has an id."""
        self._waiting.append(message)

    def replies(self, patience: float) -> list[Message]:
        """Return the replies that have come; wait up to ``patience`` seconds for the first.

        RunFailed if no worker starts.
        """
        self._dispatch()
        ready = set(wait([worker.connection for worker in self._workers], patience))
        workers = [worker for worker in self._workers if worker.connection in ready]
        replies = [reply for worker in workers if (reply := self._read(worker)) is not None]
        self._dispatch()
        return replies

    def _dispatch(self) -> None:
        for worker in self._workers:
            if self._waiting and worker.pid and worker not in self._running:
                self._give(worker, self._waiting.popleft())

    def _give(self, worker: Worker, message: Message) -> None:
        self._running[worker] = message
        with contextlib.suppress(OSError):  # it has just died: reading tells
            worker.connection.send(message)

    def _read(self, worker: Worker) -> Message | None:
        """Read from a worker that it is ready, or a reply."""
        try:
            received = worker.connection.recv()
        except (EOFError, OSError):
            return self._replace(worker)
        if isinstance(received, int):
            worker.pid, self._failed_starts = received, 0
            if worker in self._running:
                self._give(worker, self._running[worker])
            return None
        del self._running[worker]
        assert isinstance(received, Message)
        return received

    def _replace(self, worker: Worker) -> Message | None:
        """Replace a dead worker by one that gets its message; an error if that ended two."""
        self._failed_starts += not worker.pid
        if self._failed_starts > STARTS:
            raise RunFailed("worker processes do not start: see log.txt, or the line above")
        number, message = self._workers.pop(worker), self._running.pop(worker, None)
        worker.end()
        new = self._start(number)
        if message is not None:
            self._deaths[message.metadata.message_id] += worker.pid > 0
            if self._deaths[message.metadata.message_id] > 1:
                return Message(Error(code=ENDED, reason=DIES), reply_to=message)
            self._running[new] = message
        return None

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


class RayTasks:
    """Messages as tasks of Ray: of one of its own, or of the cluster at RAY_ADDRESS."""

    def __init__(self, launch: Launch, text: str) -> None:
        """Start or join Ray; UserError if a machine of it does not see the run folder."""
        config = launch.config
        count, gpus = processes(config)
        joined = bool(os.environ.get("RAY_ADDRESS"))
        words: dict[str, Any] = {}
        self._running: dict[Any, Message] = {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(_environment({} if joined else _OWN_RAY))
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
            path = tuple(path for path in sys.path if path)
            self._order = ray.put(_order(launch, text) | {"path": path})
            self._stack = stack.pop_all()

    def submit(self, message: Message) -> None:
        """Take a message, which has an id."""
        with _signals_of_ray():
            self._running[self._task.remote(self._order, message)] = message

    def replies(self, patience: float) -> list[Message]:
        """Return the replies that have come; wait up to ``patience`` seconds for the first."""
        tasks = list(self._running)
        with _signals_of_ray():
            ready = self._ray.wait(tasks, timeout=patience)[0] if tasks else []
            if ready:  # and all others that are
                ready = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] or ready
            return [self._reply(task, self._running.pop(task)) for task in ready]

    def _reply(self, task: Any, message: Message) -> Message:
        try:
            reply = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return Message(Error(code=ENDED, reason=f"{DIES} ({brief(error)})"), reply_to=message)
        assert isinstance(reply, Message)
        return reply

    def close(self) -> None:
        """End all processes."""
        self._stack.close()


Executor = Inline | WorkerPool | RayTasks


@contextlib.contextmanager
def _signals_of_ray() -> Iterator[None]:
    """Let Ctrl-C through this block as what it raises: Ray's C code wraps that."""
    try:
        yield
    except SystemError as error:
        raise (error.__cause__ or error) from None


def _answer(order: Mapping[str, Any], message: Message) -> Message:
    contexts, objects, log = _prepared(**order)
    # Not for the whole process: Ray prints a line of its own before each task.
    with giving(objects), contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        return answered(contexts, message)


@lru_cache(maxsize=2)  # runs that a process of Ray's works for
def _prepared(
    text: str, nodes: int, log: str, cwd: str, path: tuple[str, ...], objects: bytes
) -> tuple[dict[int, Context], dict[str, Any], TextIO]:
    """Set up a process of Ray's, once."""
    with contextlib.suppress(OSError):  # another machine need not have it
        os.chdir(cwd)
    sys.path += [folder for folder in path if folder not in sys.path]
    look_here()
    file = Path(log).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
    return contexts_of(text, nodes), answering.unpacked_objects(objects), file


def _check_shared_folder(ray: Any, folder: Path) -> None:
    """Raise UserError if a machine of the cluster does not write to the same run folder."""
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    touch = ray.remote(num_cpus=0, max_retries=0)(_write_proof)
    for node in ray.nodes():
        if not node["Alive"] or not node["Resources"].get("CPU"):
            continue
        proof, place = folder / f".{node['NodeID']}", affinity(node["NodeID"], soft=False)
        why = "it has another folder of that name"
        try:
            ray.get(touch.options(scheduling_strategy=place).remote(str(proof)), timeout=START)
        except (ray.exceptions.RayError, OSError) as error:
            why = brief(error)
        if not proof.exists():
            raise UserError(
                f"engine: '{node['NodeManagerHostname']}' of RAY_ADDRESS="
                f"{os.environ['RAY_ADDRESS']} does not see '{folder}' ({why}): `out` must lie on a "
                "disk that all machines see"
            )
        proof.unlink()


def _write_proof(path: str) -> None:
    Path(path).touch()


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({**QUIET, **direct(), **changes})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


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
    """Copy the server's log and stderr, tracebacks of unexpected errors too, to ``log.txt``."""
    log = logging.getLogger("fedhet")
    before = log.handlers[:], log.level, log.propagate
    with launch.folder.log.open("a", encoding="utf-8", buffering=1) as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter(server_app.LOG_FORMAT))
        log.handlers[:] = [handler]
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
