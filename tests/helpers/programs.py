"""Programs that a test starts, watches and kills; each is ended by its pid."""

import contextlib
import select
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
from helpers.pace import PATIENCE

from fedhet.engines.system import free_ports


def wait_for(what, reason, pause=0.2):
    """Return as soon as ``what()`` is true; AssertionError with the reason if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {reason}"
        time.sleep(pause)


def python(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these words; AssertionError with all that it said if it fails."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


class Process:
    """One program with its log; :meth:`kill` is kill -9 of its whole tree, :meth:`end` too."""

    popen = None
    _asked = False

    def __init__(self, words, log, env):
        self.words, self.log, self.env, self.tree = list(words), log, dict(env), {}

    def start(self):
        self._asked = False
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.log.parent,
            )  # fmt: skip
        return self

    def running(self):
        return self.popen is not None and self.popen.poll() is None

    def children(self):
        """Its living descendants, and those that it had when last asked."""
        with contextlib.suppress(psutil.Error):
            if self.running():
                found = psutil.Process(self.popen.pid).children(recursive=True)
                self.tree |= {child.pid: child for child in found}
        return [child for child in self.tree.values() if child.is_running()]

    def child(self, *names):
        """Its newest descendant of which a word of the command line names or has one of these."""
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                if any(Path(word).name == n or n in word for word in words[:5] for n in names):
                    found.append(child)
        return max(found, key=lambda child: child.create_time(), default=None)

    def kill(self):
        """Kill -9 of all of it at once, as when a machine loses its power."""
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                child.suspend()  # nobody says good-bye
        self._kill()

    def _kill(self):
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(list(self.tree.values()), timeout=10)

    def terminate(self):
        """SIGTERM, once: Flower ends at a second one without a good-bye, and is held for online."""
        self.children()
        if self.running() and not self._asked:
            self._asked = True
            self.popen.terminate()

    def end(self):
        self.terminate()
        if self.popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(30)
        self._kill()

    def said(self, text):
        """How often ``text`` is in its log."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0


class _Tunnel(BaseHTTPRequestHandler):
    """Answers CONNECT alone."""

    def do_CONNECT(self):
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

    def log_message(self, form, *values):
        self.server.lines.append(form % values)


class ConnectProxy:
    """An HTTP proxy on 127.0.0.1 that lets those through whom :meth:`allow` names, nobody else."""

    _server = None

    def __init__(self):
        (self.port,) = free_ports(1)

    def allow(self, *hosts):
        """Start it, again if it runs: these hosts may be reached."""
        self.stop()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _Tunnel)
        vars(self._server).update(hosts=hosts, lines=[], ends=set())
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def log(self):
        """What it has answered since it was started."""
        return "\n".join(self._server.lines) if self._server else ""

    def stop(self):
        """End it, and what goes through it."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            for one in list(self._server.ends):  # a tunnel may still be opening
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._server = None
