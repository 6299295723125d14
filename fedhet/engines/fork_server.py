"""Worker processes of a simulation, forked from one process that has imported the ClientApp.

The fork server is a plain ``python -c`` child: it imports torch and the ClientApp once, has no
threads, and forks a worker for each connection that it is sent. The caller's main module is not
imported again, so that scripts without a ``__main__`` guard and notebooks work; with
``multiprocessing`` it would be. On Linux the kernel ends workers with the fork server, and the fork
server with the command, however those end.

Only the standard library is imported here: the server is started while the command still imports
torch itself.
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
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fedhet.engines.fork_server import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)
_early: list["ForkServer"] = []


class Worker:
    """The command's end of one worker: a connection, and its process id once it has started."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pid = 0

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
    """Starts the process that forks workers; it ends with this one, at the latest."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        paths = json.dumps([path for path in sys.path if path])
        # Ctrl-C is for the command alone; a blocked signal stays blocked in what it starts.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _START, paths, str(theirs.fileno()),
                     str(os.getpid())],
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2,
                    # Threads of BLAS would be in the way of a fork; a worker uses one anyway.
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def fork(self, order: Mapping[str, Any]) -> Worker:
        """Return a worker that starts as soon as the server is ready; ``order`` as in ``_work``.

        Raises OSError if the server has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"."], [theirs.fileno()])
        connection = Connection(ours.detach())
        connection.send(dict(order))
        return Worker(connection)

    def close(self) -> None:
        """End it, and the workers with it."""
        self.process.kill()
        self.process.wait()
        self._control.close()


def start_early(words: Sequence[str]) -> None:
    """Start a fork server if a command line is likely to need one: torch is imported beside it.

    The run takes it, ends it if it has another engine, or it ends with the command.
    """
    simulates = words[:1] in (["run"], ["resume"])
    other = {"engine=inline", "engine=ray", "--help", "-h"}
    if simulates and not any(w in other or w.startswith("--superlink") for w in words):
        _early.append(ForkServer())


def take_early() -> ForkServer | None:
    """Return the fork server that :func:`start_early` has started, which is the caller's then."""
    return _early.pop() if _early else None


def serve(control: int, command: int) -> NoReturn:
    """Fork a worker for each connection that comes through the socket ``control``."""
    _end_with(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects ended workers
    from fedhet.engines import grid  # noqa: PLC0415  (torch, the ClientApp and all methods)

    gc.collect()
    gc.freeze()  # pages with objects stay shared with the workers
    own = os.getpid()
    with socket.socket(fileno=control) as requests:
        while True:
            _, handles, _, _ = socket.recv_fds(requests, 1, 1)
            if not handles:
                os._exit(0)
            if os.fork() == 0:
                requests.close()
                _work(handles[0], own, grid.answer_all)
            os.close(handles[0])


def _work(handle: int, server: int, answer_all: Any) -> NoReturn:
    """Be a worker: read the order, then answer messages until the connection is closed.

    The order's ``log`` is the file that stdout and stderr go to, ``environment`` what is changed in
    the environment, ``cwd`` the working folder; the rest is ``answer_all``'s.
    """
    _end_with(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        with Connection(handle) as connection:
            order = connection.recv()
            os.chdir(order["cwd"])
            os.environ.update(order["environment"])
            log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            streams: tuple[tuple[int, Any], ...] = ((1, sys.stdout), (2, sys.stderr))
            for number, stream in streams:
                os.dup2(log, number)
                stream.reconfigure(line_buffering=True)
            connection.send(os.getpid())
            answer_all(connection, order)
            code = 0
    except (EOFError, ConnectionError):  # the command has closed it
        code = 0
    except BaseException:
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
