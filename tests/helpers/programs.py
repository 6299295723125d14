"""Programs that a test starts, watches and kills; each is ended by its pid."""

import contextlib
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import psutil
from helpers.pace import PATIENCE

from fedhet.engines.system import free_ports


def wait_for(what: Callable[[], object], reason: str, pause: float = 0.2) -> None:
    """Return as soon as ``what()`` is true; AssertionError with the reason if it never is."""
    seconds = PATIENCE
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {reason}"
        time.sleep(pause)


class Process:
    """One program with its log; :meth:`kill` is kill -9 of its whole tree, :meth:`end` too."""

    def __init__(self, words: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.words, self.log, self.env = list(words), log, dict(env)
        self.popen: subprocess.Popen[bytes] | None = None
        self.tree: dict[int, psutil.Process] = {}
        self._asked = False

    def start(self) -> "Process":
        self._asked = False
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.log.parent,
            )  # fmt: skip
        return self

    def running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def children(self) -> list[psutil.Process]:
        """Its living descendants, and those that it had when last asked."""
        with contextlib.suppress(psutil.Error):
            if self.popen is not None and self.popen.poll() is None:
                found = psutil.Process(self.popen.pid).children(recursive=True)
                self.tree |= {child.pid: child for child in found}
        return [child for child in self.tree.values() if child.is_running()]

    def child(self, *names: str) -> psutil.Process | None:
        """Its newest descendant of which a word of the command line names or has one of these."""
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                if any(Path(word).name == n or n in word for word in words[:5] for n in names):
                    found.append(child)
        return max(found, key=lambda child: child.create_time(), default=None)

    def kill(self) -> None:
        """Kill -9 of all of it at once, as when a machine loses its power."""
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                child.suspend()  # nobody says good-bye
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
        self._kill_children()

    def _kill_children(self) -> None:
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(list(self.tree.values()), timeout=10)

    def terminate(self) -> None:
        """SIGTERM, once: Flower ends at a second one without a good-bye, and is held for online."""
        self.children()
        if self.running() and not self._asked:
            assert self.popen is not None
            self._asked = True
            self.popen.terminate()

    def end(self) -> None:
        self.terminate()
        if self.popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(30)
            self.popen.kill()
            self.popen.wait()
        self._kill_children()

    def said(self, text: str) -> int:
        """How often ``text`` is in its log."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0


class _Tunnel(BaseHTTPRequestHandler):
    """Answers CONNECT alone."""

    server: "_Tunnels"

    def do_CONNECT(self) -> None:
        self.close_connection = True
        host, _, port = self.path.rpartition(":")
        if host not in self.server.hosts:
            return self.send_error(403)
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: there, there: self.connection}
            self.server.ends |= ends.keys()
            while True:
                for one in select.select(ends, [], [])[0]:
                    if not (data := one.recv(1 << 16)):
                        return None
                    ends[one].sendall(data)

    def log_message(self, form: str, *values: object) -> None:
        self.server.lines.append(form % values)


class _Tunnels(ThreadingHTTPServer):
    def __init__(self, port: int, hosts: Sequence[str]) -> None:
        self.hosts, self.lines, self.ends = hosts, list[str](), set[socket.socket]()
        super().__init__(("127.0.0.1", port), _Tunnel)


class ConnectProxy:
    """An HTTP proxy on 127.0.0.1 that lets those through whom :meth:`allow` names, nobody else."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self._server: _Tunnels | None = None

    def allow(self, *hosts: str) -> None:
        """Start it, again if it runs: these hosts may be reached."""
        self.stop()
        self._server = _Tunnels(self.port, hosts)
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def log(self) -> str:
        """What it has answered since it was started."""
        return "\n".join(self._server.lines) if self._server else ""

    def stop(self) -> None:
        """End it, and what goes through it."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            for one in list(self._server.ends):  # a tunnel may still be opening
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._server = None
