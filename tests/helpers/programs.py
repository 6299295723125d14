"""Programs that a test starts, watches and kills; each is ended by its pid."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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


class Tinyproxy:
    """An HTTP proxy on 127.0.0.1 that lets those through whom :meth:`allow` names, nobody else."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._log, self._hosts = folder / "tinyproxy.log", folder / "tinyproxy.hosts"
        config = folder / "tinyproxy.conf"
        config.write_text(
            f'Port {self.port}\nListen 127.0.0.1\nLogFile "{self._log}"\n'
            f'Filter "{self._hosts}"\nFilterDefaultDeny Yes\n'
        )
        words = ["tinyproxy", "-d", "-c", str(config)]
        self._process = Process(words, folder / "tinyproxy.out", os.environ)

    def allow(self, *hosts: str) -> None:
        """Start it, again if it runs: these hosts may be reached."""
        self._process.end()
        self._hosts.write_text("".join(f"^{re.escape(host)}$\n" for host in hosts or ("none",)))
        self._log.write_text("")
        self._process.start()
        wait_for(lambda: "listen" in self.log().lower(), "tinyproxy runs", pause=0.05)

    def log(self) -> str:
        """What it has done since it was started."""
        return self._log.read_text()

    def stop(self) -> None:
        """End it."""
        self._process.end()
