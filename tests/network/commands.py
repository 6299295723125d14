"""``fedhet`` commands in processes of their own, and what they leave."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from network.pace import patience

from fedhet.engines.system import script

ROUNDS = 8
WORK = (
    "dataset=synthetic:160x10",  # an eighth of the work of digits
    "models=cnn-5",
    "clients=4",
    "classes-per-client=5",
    f"rounds={ROUNDS}",
)


@dataclass
class Command:
    """A ``fedhet`` command in a process of its own, and the run folder that it fills."""

    folder: Path
    process: subprocess.Popen[str]
    sockets: set[tuple[str, str]] = field(default_factory=set)  # filled where a test looks
    refusal: str = ""

    def wait(self, rounds: int) -> None:
        """Until that many rounds are finished."""
        self.until(lambda: len(self.rounds()) >= rounds)

    def until(self, condition: Callable[[], object]) -> None:
        """Until the condition holds; the command must still be running then."""
        deadline = time.monotonic() + patience()
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def rounds(self) -> list[dict[str, object]]:
        try:
            lines = (self.folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def pids(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(pid) for pid in (self.folder / "pids").read_text().split()]
        return []

    def pid_of(self, program: str) -> list[int]:
        """Recorded processes whose command line names the program."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(psutil.Error):
                if any(Path(word).name == program for word in psutil.Process(pid).cmdline()[:2]):
                    found.append(pid)
        return found

    def end(self) -> tuple[int, str, str]:
        """Exit code and what was printed, when it has ended by itself; starting is no news."""
        out, err = self.process.communicate(timeout=patience())
        lines = [line for line in err.splitlines(True) if not line.startswith("fedhet: starting ")]
        return self.process.returncode, out, "".join(lines)

    def summary(self) -> dict[str, object]:
        return dict(json.loads((self.folder / "summary.json").read_text()))


def processes_of(folder: Path) -> list[psutil.Process]:
    """Whatever still runs for a run folder, found without fedhet's own lists."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = " ".join(process.cmdline())
            if process.environ().get("FEDHET_RUN_FOLDER") == str(folder) or str(folder) in words:
                found.append(process)
    return found


def assert_gone(folder: Path, pids: list[int]) -> None:
    """No process of the run, recorded or not, is left."""
    assert processes_of(folder) == []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not (folder / "pids").exists()
    assert not (folder / "flwr").exists()


class Commands:
    """Starts ``fedhet`` commands below one folder; ends by pid whatever they may leave."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.started: list[Command] = []

    def run(self, name: str, *words: str) -> Command:
        """Run the quickstart, made small."""
        where = ("--out", str(self.base), "--name", name)
        return self._start(self.base / name, "run", "quickstart", *WORK, *words, *where)

    def resume(self, name: str, *words: str) -> Command:
        return self._start(self.base / name, "resume", str(self.base / name), *words)

    def _start(self, folder: Path, *words: str) -> Command:
        process = subprocess.Popen(
            [script("fedhet"), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.started.append(Command(folder, process))
        return self.started[-1]

    def end(self) -> None:
        for command in self.started:
            command.process.kill()
            command.process.communicate()
            for process in processes_of(command.folder):
                with contextlib.suppress(psutil.Error):
                    process.kill()
