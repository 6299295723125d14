"""A node's side of the warm server: where it is, start it, hold it, and put its shims into PATH.

One server serves all nodes of a user on a machine that have the same Python, the same fedhet and
the same settings of Flower and of the numerical libraries, which are read when they are imported.
"""

import contextlib
import hashlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedhet.deploy import warm_server, warm_shim
from fedhet.engines.process_groups import script
from fedhet.errors import RunFailedError
from fedhet.files import replacing
from fedhet.protocol.flower import PROGRAMS
from fedhet.reading.structured import parse_object

START = 300.0  # seconds for its imports, on a machine that is busy
# Settings that a library reads when it is imported; what is read later is each message's own.
READ_ONCE = (
    "FLWR_", "OMP_", "OPENBLAS_", "MKL_", "KMP_", "GOMP_", "TORCH_", "PYTORCH_", "PYTHON", "LD_",
)  # fmt: skip
READ_LATER = ("FLWR_HOME", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL")


def available() -> bool:
    """Whether this platform can do it: a fork of a process with torch is safe on Linux only."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def folder(env: Mapping[str, str]) -> Path:
    """The private folder (mode 700) of the server for nodes with this environment.

    Short, since a socket's path may have 107 bytes. Raises RunFailedError if somebody else owns it.
    """
    place = env.get("XDG_RUNTIME_DIR", "")
    base = (
        Path(place) / "fedhet" if place else Path(tempfile.gettempdir()) / f"fedhet-{os.getuid()}"
    )
    settings = {k: v for k, v in env.items() if k.startswith(READ_ONCE) and k not in READ_LATER}
    code = warm_server.digest()
    # One environment's `python` and `python3` are one interpreter.
    python = [sys.prefix, os.path.realpath(sys.executable), sys.version]
    words = json.dumps([*python, code, settings], sort_keys=True)
    path = base / hashlib.sha256(words.encode()).hexdigest()[:12]
    for one in (base, path):
        try:
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = one.lstat()
        except OSError as error:  # a file, or a link to nowhere, has its name
            raise RunFailedError(
                f"'{one}' cannot be a folder of this user's: {error.strerror}"
            ) from error
        private = found.st_uid == os.getuid() and not found.st_mode & 0o077
        if not private or one.is_symlink():
            raise RunFailedError(f"'{one}' is not a private folder of this user: remove it")
    return path


class Warm:
    """A node's hold on the server; the server stays while anybody holds it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)
        self.folder = folder(env)
        self.address = str(self.folder / "socket")
        self._lease: socket.socket | None = None

    def hold(self) -> None:
        """Start the server unless it runs, and make it stay; RunFailedError if it does not."""
        self.release()
        with FileLock(self.folder / "lock"):
            self._lease = _lease(self.address)
            if self._lease is None:
                self._start()

    def held(self) -> bool:
        """Whether the server we hold is still there."""
        if self._lease is None:
            return False
        self._lease.setblocking(False)
        try:
            return bool(self._lease.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def release(self) -> None:
        """Let it go; it ends when nobody holds it."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def programs(self, *, cold: bool = False) -> Path:
        """A folder to put first in PATH: shims by the names of the programs.

        With ``cold`` they ask no server, and become the real programs at once.
        """
        path = self.folder / ("cold" if cold else "bin")
        path.mkdir(exist_ok=True)
        address = "" if cold else self.address
        for name in PROGRAMS:
            words = [sys.executable, "-SIE", warm_shim.__file__, address, script(name)]
            with replacing(path / name, private=True, shared=True) as made:
                made.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
                made.chmod(0o700)
        return path

    def _start(self) -> None:
        """Start it in a session of its own: it outlives the node that needed it first."""
        Path(self.address).unlink(missing_ok=True)
        log = self.folder / "log.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c",
                 f"from fedhet.deploy.warm_server import serve; serve({self.address!r})"],
                env=self.env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                cwd="/", start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START
        while self._lease is None:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()  # not to be left behind when another is started
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                reason = last[-1] if last else f"no answer in {START:g} s"
                raise RunFailedError(f"the warm server did not start: {reason}")
            time.sleep(0.05)
            self._lease = _lease(self.address)


def state(env: Mapping[str, str]) -> dict[str, Any]:
    """What the server says of itself: pid, number of nodes, jobs; empty if there is none."""
    found = _call(str(folder(env) / "socket"), {})
    if found is None:
        return {}
    guest, answer = found
    guest.close()
    return answer


def _lease(address: str) -> socket.socket | None:
    found = _call(address, {"lease": True})
    return found[0] if found is not None else None


def _call(address: str, request: Mapping[str, Any]) -> tuple[socket.socket, dict[str, Any]] | None:
    """Say something to the server; the connection and its answer, or None if there is none."""
    guest = socket.socket(socket.AF_UNIX)
    guest.settimeout(warm_shim.PATIENCE)
    text = json.dumps(request).encode()
    with contextlib.suppress(OSError, ValueError):
        guest.connect(address)
        guest.sendall(len(text).to_bytes(4, "big") + text)
        answer = parse_object(warm_shim.line(guest), "the warm server")
        return guest, answer
    guest.close()
    return None
