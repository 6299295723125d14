"""The operating system's processes of one run: found, listed in ``pids``, and all stopped.

Flower and Ray start theirs detached, in sessions of their own, so a process group does not hold
them together. They are found by parentage while they run and remembered, because an orphan loses
its parent; a marker in the environment finds those that were never seen. What a file in the run
folder says is never believed: somebody else may have made it, with any pid.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fedhet.errors import UserError
from fedhet.files import write_text

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray would put training behind everything else (15)
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns about this at every start
}
MARKER = "FEDHET_RUN_FOLDER"  # set in the environment of everything that a run starts
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# prctl(PR_SET_PDEATHSIG, SIGTERM), then become the program: unlike a ``preexec_fn``, safe
# beside threads.
_GUARD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def guarded(command: list[str]) -> list[str]:
    """The command such that it gets SIGTERM when we are gone, even by kill -9 (Linux)."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]


def look_away() -> None:
    """From now on no Python that this process starts imports anything from the working folder.

    It may be a stranger's. :mod:`multiprocessing` starts its helpers as ``python -c``, which looks
    there first, for every module.
    """
    os.environ["PYTHONSAFEPATH"] = "1"


def direct() -> dict[str, str]:
    """Return the variables with which no program takes a proxy to reach this machine.

    What is named by another address, such as 127.0.0.2, is reached as the environment says.
    """
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in named.split(",") if host.strip()]
    hosts += [host for host in LOOPBACK if host not in hosts]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(hosts))


def end_with_maker(patience: float) -> None:
    """Get SIGTERM when the process that made this one is gone, even by kill -9, then SIGKILL.

    It is the one that called ``multiprocessing``, whose fork server is the parent and lives on.
    """
    maker = multiprocessing.parent_process()
    assert maker is not None

    def watch() -> None:
        maker.join()
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.kill(os.getpid(), number)
            time.sleep(patience)

    threading.Thread(target=watch, daemon=True).start()


def alive(process: psutil.Process) -> bool:
    """Whether it is the same process and still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@dataclass
class Herd:
    """The processes of the run in ``folder``; ``seen`` holds every one ever noticed, by pid."""

    folder: Path
    seen: dict[int, psutil.Process] = field(default_factory=dict)

    @property
    def pids(self) -> Path:
        """One pid a line, for people and their scripts."""
        return self.folder / "pids"

    def add(self, pid: int) -> None:
        """Take up a process that the caller has just started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen[pid] = psutil.Process(pid)
            self.refresh()

    def refresh(self) -> None:
        """Take up all descendants and rewrite the list."""
        self._look()
        if self.seen:
            write_text(self.pids, "".join(f"{process.pid}\n" for process in self.living()))

    def _look(self) -> None:
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                children.setdefault(process.ppid(), []).append(process)
        ahead = [process for process in self.seen.values() if alive(process)]
        while ahead:
            for child in children.get(ahead.pop().pid, []):
                if child.pid not in self.seen or not alive(self.seen[child.pid]):
                    self.seen[child.pid] = child
                    ahead.append(child)

    def living(self) -> list[psutil.Process]:
        """Those seen that still run."""
        return [process for process in self.seen.values() if alive(process)]

    def adopt_leftovers(self) -> None:
        """Take up what a killed ``fedhet`` left behind: what carries the marker of this folder."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                marked = process.environ().get(MARKER) == str(self.folder)
                if marked and process.pid != os.getpid():
                    self.seen[process.pid] = process

    def stop(self, grace: float) -> None:
        """SIGTERM, up to ``grace`` seconds of patience, SIGKILL; no process is left after it.

        Nothing is written: a full disk keeps nobody alive.
        """
        self._look()
        _signal(self.living(), signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(20):  # what is killed may have started something in the meantime
            self._look()
            self.adopt_leftovers()
            remaining = self.living()
            if not remaining:
                break
            _signal(remaining, signal.SIGKILL)
            time.sleep(0.05)
        self.pids.unlink(missing_ok=True)


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)  # psutil refuses a pid that was given to another process


def script(name: str) -> str:
    """A console script of this Python: beside the interpreter, or where pip puts scripts."""
    found = shutil.which(name, path=os.pathsep.join(_script_folders()))
    if found is None:
        raise UserError(
            f"'{name}' is missing in {' and '.join(_script_folders())}: install fedhet with its "
            "dependencies (flwr, ray)"
        )
    return found


def _script_folders() -> list[str]:
    """In a virtual environment these are the same; a system's Python may keep them apart."""
    return list(dict.fromkeys([str(Path(sys.executable).parent), sysconfig.get_path("scripts")]))


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of what we start: this Python's scripts first, nothing phones home."""
    path = os.pathsep.join([*_script_folders(), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, **direct(), "PATH": path, **(extra or {})}


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on at the moment."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
