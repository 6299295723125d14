"""A run that is about to start: its process, its folder, how it is followed and concluded."""

import contextlib
import ctypes
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from types import CodeType
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from threadpoolctl import threadpool_info

from fedhet import client_app
from fedhet.config.load import envelope
from fedhet.config.schema import RunConfig
from fedhet.engines.system import open_streams
from fedhet.errors import RunFailed, UserError, brief
from fedhet.plugins import given, giving, look_here, named
from fedhet.protocol.flower import be_task, simulating
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import partition_clients
from fedhet.rng import one_blas_thread
from fedhet.site import local_data, state

FIRST_NODE = 100  # first node id; no code may confuse node ids with client ids
OnRound = Callable[[Mapping[str, Any]], object]
OnRounds = Callable[[Sequence[Mapping[str, Any]]], None]


@dataclass(frozen=True)
class Launch:
    """A run folder that is to be filled, and how."""

    config: RunConfig
    folder: RunFolder
    resume: bool = False
    on_round: OnRound | None = None  # is given the line of every round; False ends the run
    models_elsewhere: bool = False  # the clients have models of their own, whatever `models` says

    def envelope(self) -> str:
        """Return what the ServerApp gets."""
        identity = {"folder": str(self.folder.path), "experiment": self.folder.experiment}
        return envelope(self.config, identity | {"resume": self.resume})

    def write_config(self) -> None:
        """Give a resumed folder this launch's configuration, if it had another."""
        if self.resume and self.folder.started_config() != self.config.flat():
            self.folder.write_config(self.config, self.folder.experiment)

    def status(self) -> tuple[str, str]:
        """Return status and reason of ``summary.json``; empty while there is none."""
        summary = self.folder.read_summary()
        return str(summary.get("status", "")), str(summary.get("reason", ""))


class Reader:
    """Pass on ``rounds.jsonl`` whenever it has grown, and what the server waits for."""

    def __init__(
        self, folder: RunFolder, on_rounds: OnRounds, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder, self.on_rounds, self.tell = folder, on_rounds, tell
        self.size, self.last = -1, ""

    def read(self) -> None:
        """Look once; tell what is waited for if it was not what was told last."""
        if (text := self.folder.waits_for()) and text != self.last:
            self.last = text
            self.tell(text)
        size = 0
        with contextlib.suppress(FileNotFoundError):
            size = self.folder.rounds.stat().st_size
        if size != self.size:
            self.size = size
            self.on_rounds(self.folder.read_rounds())


def conclude(launch: Launch, ending: tuple[str, str]) -> None:
    """Write ``summary.json`` unless the ServerApp did, or could not tell failed from stopped."""
    status, _ = launch.status()
    if not status or {status, ending[0]} == {"stopped", "failed"}:
        with contextlib.suppress(OSError):  # on a full disk nothing more can be written
            clients = launch.config.clients or len(partition_clients(launch.folder.partition))
            launch.folder.write_summary(launch.config, ending[0], clients, ending[1])


def raise_unless_completed(launch: Launch, where: str, cause: BaseException | None = None) -> None:
    """Raise RunFailed from ``cause``, with the reason in ``summary.json``."""
    status, reason = launch.status()
    if status != "completed":
        if removed := launch.folder.removed():
            raise RunFailed(removed) from cause
        why = f"{status}: {reason}" if status else "failed, and summary.json could not be written"
        raise RunFailed(f"run {why} ({where})") from cause


# --- one run at a time in a process -------------------------------------------------------------

_LOCK = threading.Lock()
_holders: set[int] = set()  # the thread that holds the lock
_PAUSE = 1  # OpenMP's omp_pause_soft


@contextlib.contextmanager
def one_run() -> Iterator[None]:
    """Hold this process for one run, and leave it as it was, without the run's models.

    OpenMP's threads are ended: a child that is forked later would wait for them. A run in another
    thread waits for this one, and says so. Raise UserError if the caller is a part of a run.
    """
    if threading.get_ident() in _holders:
        which = "out of another one (on_round, a metric, a model)"
        raise UserError(f"run: a run cannot be started {which}: start it when that one has ended")
    if not _LOCK.acquire(blocking=False):
        print("fedhet: waiting for another run in this process ...", file=sys.stderr, flush=True)
        _LOCK.acquire()
    _holders.add(threading.get_ident())
    streams = sys.stdin, sys.stdout, sys.stderr  # not those that the run before had put there
    open_streams()
    cudnn, strict = torch.backends.cudnn, torch.get_deterministic_debug_mode()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    before = cudnn.allow_tf32, cudnn.deterministic
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cublas = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    try:
        with one_blas_thread(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        state.forget()
        local_data.forget()
        cudnn.allow_tf32, cudnn.deterministic = before
        for library in threadpool_info():  # it starts other threads when it needs them
            if library["user_api"] == "openmp":
                with contextlib.suppress(AttributeError, OSError):  # older than OpenMP 5
                    ctypes.CDLL(library["filepath"]).omp_pause_resource_all(_PAUSE)
        torch.set_num_threads(threads)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        if cublas is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
        torch.set_float32_matmul_precision(precision)
        torch.set_deterministic_debug_mode(strict)
        sys.stdin, sys.stdout, sys.stderr = streams
        _holders.clear()
        _LOCK.release()


@contextlib.contextmanager
def between_runs() -> Iterator[None]:
    """As :func:`one_run`, for less than a run: part of a run may do it as well."""
    with contextlib.nullcontext() if threading.get_ident() in _holders else one_run():
        yield


# --- the clients' side: messages are answered by the ClientApp, for each node its context -------


def contexts_of(text: str, nodes: int) -> dict[int, Context]:
    """Return Flower's context of each node, by its id; ``text`` is the run's envelope."""
    be_task()
    return {
        FIRST_NODE + k: Context(
            1, FIRST_NODE + k, {"partition-id": k, "num-partitions": nodes}, RecordDict(),
            {"config": text}, 0,
        )
        for k in range(nodes)
    }  # fmt: skip


def answered(
    contexts: Mapping[int, Context], message: Message, *, simulated: bool = True
) -> Message:
    """Return the ClientApp's reply to a message; not ``simulated``: as a deployed node's."""
    with simulating(simulated):
        return client_app.app(message, contexts[message.metadata.dst_node_id])


def order_of(launch: Launch) -> dict[str, Any]:
    """Return what a process that answers messages of a run is told first."""
    config = launch.config
    return {"text": launch.envelope(), "nodes": config.clients, "log": str(launch.folder.log),
            "cwd": os.getcwd(), "objects": packed_objects(config)}  # fmt: skip


def answerer(order: Mapping[str, Any]) -> Callable[[Message], Message]:
    """Return what answers messages in a worker of the same program, by its order."""
    look_here()
    contexts = contexts_of(order["text"], order["nodes"])
    objects = dict(pickle.loads(order["objects"])) if order["objects"] else {}

    def answer(message: Message) -> Message:
        with giving(objects):
            return answered(contexts, message)

    return answer


def packed_objects(config: RunConfig) -> bytes:
    """Return the run's objects for a worker, but no examples; UserError if one cannot be sent."""
    objects = given(name for name in named(config.flat()) if name != config.dataset)
    try:
        return _pickled(objects) if objects else b""
    except Exception as error:
        raise UserError(
            f"{', '.join(objects)}: cannot be sent to another process ({brief(error)}): use "
            "engine=inline, or leave open files, locks and the like out of it"
        ) from error


def _pickled(objects: Mapping[str, Any]) -> bytes:
    """Return the objects by cloudpickle, but with the files of their code, for tracebacks."""
    kind = import_module("cloudpickle").CloudPickler  # only where there are objects

    class Pickler(kind):  # type: ignore[misc, valid-type]
        def reducer_override(self, thing: Any) -> Any:
            if not isinstance(thing, CodeType):
                return super().reducer_override(thing)
            make, parts = self.dispatch_table[CodeType](thing)
            return make, tuple(thing.co_filename if p == "<dynamic-code>" else p for p in parts)

    Pickler(file := BytesIO()).dump(objects)
    return file.getvalue()
