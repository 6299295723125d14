"""Programs that a test starts, watches, kills and supervises; each is ended by its pid."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from network.pace import patience

from fedhet.deploy.node import FORGOTTEN, pause
from fedhet.deploy.warm import state

LOOK = 0.2  # seconds


def wait_for(what: Callable[[], object], reason: str, pause: float = 0.2) -> None:
    """Return as soon as ``what()`` is true; AssertionError with the reason if it never is."""
    seconds = patience()
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {reason}"
        time.sleep(pause)


class Process:
    """One program with its log; :meth:`kill` is kill -9 of it alone, :meth:`end` of its tree."""

    def __init__(self, words: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.words, self.log, self.env = list(words), log, dict(env)
        self.popen: subprocess.Popen[bytes] | None = None
        self.tree: dict[int, psutil.Process] = {}
        self._forgot = 0
        self._asked = False

    def start(self) -> "Process":
        self._forgot, self._asked = self._forgotten(), False
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

    def child(self, name: str) -> psutil.Process | None:
        """Its newest descendant that runs the program ``name``."""
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                # interpreter and script, or those of the shim and what it stands for
                if any(Path(word).name == name for word in child.cmdline()[:5]):
                    found.append(child)
        return max(found, key=lambda child: child.create_time(), default=None)

    def trains(self) -> int:
        """Process id of a SuperNode's message that has its examples open; 0 if none has.

        They are mapped after the imports and before the training, whatever the machine's speed.
        """
        mine = {child.pid for child in self.children()}
        jobs = [job["pid"] for job in state(self.env).get("jobs", []) if job["for"] in mine]
        for pid in (*jobs, *mine):
            with contextlib.suppress(OSError):  # `maps` alone: psutil would count their pages, too
                if "examples.npy" in Path(f"/proc/{pid}/maps").read_text():
                    return pid
        return 0

    def caught(self, run: Path, saved: Callable[[int], bool]) -> int:
        """Process id of its message, stopped before it has saved that round's state; 0 if none.

        It is stopped first and looked at then: no training need be long for that. ``saved`` says
        whether there is a state of this round, ``run`` is the run folder.
        """
        pid = self.trains()
        if not pid:
            return 0
        try:
            os.kill(pid, signal.SIGSTOP)
            # The last round may be on its way out.
            rounds = run / "rounds.jsonl"
            # psutil counts from a boot in whole seconds of a clock that was set since.
            booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
            created = psutil.Process(pid).create_time() - psutil.boot_time() + booted
            of_this_round = created > rounds.stat().st_mtime
        except (ProcessLookupError, psutil.NoSuchProcess):  # it ended while it was looked at
            return 0
        if of_this_round and not saved(rounds.read_text().count("\n") + 1):
            return pid
        os.kill(pid, signal.SIGCONT)
        return 0

    def stale(self) -> bool:
        """Whether it is a SuperNode that a client may still answer though it does not wait."""
        return self._forgotten() > self._forgot

    def _forgotten(self) -> int:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return len(FORGOTTEN.findall(text))

    def kill(self) -> None:
        self.children()
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()

    def terminate(self) -> None:
        """SIGTERM, once: Flower ends at a second one without a good-bye, and is held for online."""
        self.children()
        if self.popen is not None and self.popen.poll() is None and not self._asked:
            self._asked = True
            self.popen.send_signal(signal.SIGTERM)

    def end(self) -> None:
        children = self.children()
        self.terminate()
        if self.popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(15)
            self.popen.kill()
            self.popen.wait()
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()

    def said(self, text: str) -> int:
        """How often ``text`` is in its log."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0


class Supervisor:
    """Starts a SuperNode again when it has ended or is stale, as ``fedhet node`` does."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.starts = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop.is_set():
            if self.process.running() and self.process.stale():
                self.process.end()
                self.process.start()
            if not self.process.running():
                self.process.start()
                self.starts += 1
                self._stop.wait(pause(self.starts))  # nearly all are refused but the last
            self._stop.wait(LOOK)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
