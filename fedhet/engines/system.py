"""Signals, programs, their environment and ports."""

import contextlib
import importlib
import math
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from fedhet.errors import UserError, brief

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
ANSWER = 5.0  # seconds within which the address of a Ray cluster takes a connection
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# prctl(PR_SET_PDEATHSIG, SIGTERM), then become the program: unlike a ``preexec_fn``, safe
# beside threads.
_GUARD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Interrupted(BaseException):
    """Ctrl-C, or a signal that asks to end; no Exception, so that nothing swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C (also an ignored one), SIGTERM and SIGHUP without ``nohup`` into Interrupted."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handling(interrupt):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore further signals while cleaning up, which takes a few seconds at most."""
    with _handling(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Python hands signals to the main thread only; in another one there is nothing to do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = [number for number in _SIGNALS if hangup or number != signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def open_streams() -> None:
    """Open the standard streams that are closed (``>&-``), or a later file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # the null device gets this number: the ones below are open
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            nowhere = open(os.devnull, "w" if number else "r", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nowhere)


def guarded(command: list[str]) -> list[str]:
    """Return the command such that it gets SIGTERM when we are gone, even by kill -9 (Linux)."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]


def look_away() -> None:
    """Keep every Python that this process starts from importing out of the working folder."""
    os.environ["PYTHONSAFEPATH"] = "1"


def end_with_maker(patience: float) -> None:
    """Get SIGTERM when the process that made this one is gone, even by kill -9, then SIGKILL."""
    maker = multiprocessing.parent_process()  # which the parent, the fork server, outlives
    assert maker is not None

    def watch() -> None:
        maker.join()
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.kill(os.getpid(), number)
            time.sleep(patience)

    threading.Thread(target=watch, daemon=True).start()


def script(name: str) -> str:
    """Return a console script of this Python: beside the interpreter, or where pip puts them."""
    path = shutil.which(name, path=_scripts())
    if path is None:
        raise UserError(f"'{name}' is missing in {_scripts()}: install fedhet with flwr and ray")
    return path


def _scripts() -> str:
    folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    return os.pathsep.join(dict.fromkeys(folders))


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of what we start: our scripts first, no proxy here, no telemetry."""
    path = os.pathsep.join([_scripts(), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, **direct(), "PATH": path, **(extra or {})}


def direct() -> dict[str, str]:
    """Return ``no_proxy`` as it is, with this machine's own addresses; both spellings are read."""
    said = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    hosts = [host.strip() for host in said.split(",") if host.strip()]
    if "*" not in hosts:
        hosts += [host for host in LOOPBACK if host not in hosts]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(hosts))


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on at the moment."""
    with contextlib.ExitStack() as stack:
        here = ("127.0.0.1", 0)
        probes = [stack.enter_context(socket.create_server(here)) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def gpu_part(tasks: int, gpus: int) -> float:
    """Return the part of a GPU for each of so many tasks of Ray, rounded down: none is split."""
    return math.floor(1e4 / math.ceil(tasks / gpus)) / 1e4


def check_ray_address(address: str, key: str = "RAY_ADDRESS") -> None:
    """Raise UserError if ``key`` names a place where nothing takes a connection."""
    if address in {"", "auto", "local"}:
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        with socket.create_connection((str(parts.hostname), int(parts.port or 0)), ANSWER):
            pass
    except (OSError, ValueError) as error:
        how = "start that cluster, or correct the address (HOST:PORT)"
        raise UserError(f"{key}: nothing answers at '{address}' ({error}): {how}") from error


def start_ray(what: str, tries: int = 1, **words: Any) -> Any:
    """Start or join Ray, leaving signals alone; return its module, or UserError with ``what``."""
    # `uv run` would have Ray pack the current folder and send it to every machine.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # else it warns about this
    ray = importlib.import_module("ray")
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for left in reversed(range(tries)):
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **words)
            break
        except Exception as error:  # Ray raises plain ones, too
            ray.shutdown()
            if not left:
                raise UserError(f"{what}: {brief(error)}") from error
        finally:
            for number, handler in handlers.items():  # Ray sets its own
                if signal.getsignal(number) is not handler:
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)
    return ray
