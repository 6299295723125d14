"""Worker processes of a simulation, forked from one process that has imported the ClientApp.

``fedhet run`` forks that process, the fork server, from itself once everything is imported; a
script or a notebook, which may have threads and a GPU in use, starts a ``python -c`` child. Neither
imports the caller's main module again, as ``multiprocessing`` and loky would. It has no threads. On
Linux the kernel ends workers with the fork server, and the fork server with the command.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fedhet.engines.system import open_streams

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fedhet.engines.fork_server import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # they would be in the way of a fork
# Imports make a million objects that stay; looking for garbage among them costs a tenth of them.
RARELY = (50_000, 20, 20)
_early: list["ForkServer"] = []


class Worker:
    """The command's end of one worker, which has a process id once it has started."""

    pid = 0
    message: Any = None  # that it is answering

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection, self.number = connection, number

    def end(self) -> None:
        """Kill it and return when it has gone."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(EOFError, OSError):
                while self.connection.poll(5.0):  # the connection is closed when it has ended
                    self.connection.recv_bytes()
        self.connection.close()


class ForkServer:
    """The process that forks workers; it ends with this one, at the latest."""

    def __init__(self, *, forked: bool = False) -> None:
        """Start it: as a child of its own, or ``forked`` from this process."""
        self._control, theirs = socket.socketpair()
        # Ctrl-C is for the command alone; a blocked signal stays blocked in what it starts.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self._pid, self._wait = (_forked if forked else _spawned)(theirs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def fork(self, number: int, order: Mapping[str, Any]) -> Worker:
        """Return a worker that starts as soon as the server is ready; OSError if that has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"."], [theirs.fileno()])
        connection = Connection(ours.detach())
        connection.send(dict(order))
        return Worker(connection, number)

    def close(self) -> None:
        """End it, and the workers with it."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it was collected
            os.kill(self._pid, signal.SIGKILL)
            self._wait()
        self._control.close()


def _spawned(control: socket.socket) -> tuple[int, Callable[[], object]]:
    """Start a fork server as a child that imports everything; return its id and how to wait."""
    paths = json.dumps([path for path in sys.path if path])
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START, paths, str(control.fileno()), str(os.getpid())],
        pass_fds=[control.fileno()],
        env={**os.environ, **NO_THREADS},
    )
    return process.pid, process.wait


def _forked(control: socket.socket) -> tuple[int, Callable[[], object]]:
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid == 0:
        try:
            serve(control.detach(), parent)
        finally:
            os._exit(1)
    return pid, partial(os.waitpid, pid, 0)


def start_early() -> None:
    """Fork a server for the next run, while there is one thread and torch has not worked."""
    with contextlib.suppress(OSError):  # not on Linux
        if len(os.listdir("/proc/self/task")) == 1:
            _early.append(ForkServer(forked=True))


def take_early() -> ForkServer | None:
    """Return the fork server that :func:`start_early` has started; the caller owns it."""
    return _early.pop() if _early else None


def serve(control: int, command: int) -> NoReturn:
    """Fork a worker for each connection that comes through the socket ``control``."""
    _end_with(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects ended workers
    open_streams()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    gc.set_threshold(*RARELY)
    from fedhet.engines.launch import answerer  # noqa: PLC0415  (torch and the ClientApp)
    from fedhet.models.flops import torchs_formulas  # noqa: PLC0415  (torch)

    torchs_formulas()
    gc.collect()
    gc.freeze()  # pages with objects stay shared with the workers
    pid = os.getpid()
    with socket.socket(fileno=control) as requests:
        while True:
            _, handles, _, _ = socket.recv_fds(requests, 1, 1)
            if not handles:
                os._exit(0)
            if os.fork() == 0:
                requests.close()
                _work(handles[0], pid, answerer)
            os.close(handles[0])


def _work(handle: int, server: int, answerer: Any) -> NoReturn:
    """Be a worker: set up by the order, then answer messages until the connection is closed."""
    _end_with(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 0
    try:
        with Connection(handle) as connection:
            order = connection.recv()
            os.chdir(order["cwd"])
            os.environ.update(order["environment"])
            log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            for number, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(log, number)
                stream = open(number, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)  # that of the command may be closed
            connection.send(os.getpid())
            answer = answerer(order)
            while True:
                connection.send(answer(connection.recv()))
    except (EOFError, ConnectionError):  # the command has closed it
        pass
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end now if it has already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
