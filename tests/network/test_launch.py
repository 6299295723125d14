"""``fedhet run`` for real: SuperLink, Ray and their processes, killed in every way.

Every test of the quickstart leaves one run folder per command; ``base`` is the undisturbed run
that the others must reproduce to the byte.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from network.pace import patience

from fedhet.config import load_config
from fedhet.runtime.session import find_preset
from fedhet.runtime.superlink import script
from fedhet.testing import simulate

pytestmark = pytest.mark.network

ROUNDS = 20
WORK = (
    "models=cnn-5",
    "clients=4",
    "classes-per-client=5",
    f"rounds={ROUNDS}",
)
FILES = {
    "config.yaml", "environment.json", "partition.csv", "rounds.jsonl", "clients.csv",
    "checkpoint", "state", "summary.json", "log.txt",
}  # fmt: skip


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


@pytest.fixture(scope="module")
def fedhet(tmp_path_factory):
    commands = Commands(tmp_path_factory.mktemp("runs"))
    yield commands
    commands.end()


@pytest.fixture(scope="module")
def base(fedhet):
    """An undisturbed run with one actor."""
    command = fedhet.run("base", "actors=1")
    seen: set[int] = set()
    while command.process.poll() is None:
        seen |= set(command.pids())
        for pid in command.pids():
            command.sockets |= listening(pid)
        if command.rounds() and not command.refusal:
            command.refusal = join_without_token(command)
        time.sleep(0.1)
    code, out, err = command.end()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == str(command.folder)
    assert len(seen) >= 6  # SuperLink, SuperExec, simulation, Ray's server and node, an actor
    assert_gone(command.folder, sorted(seen))
    return command


def listening(pid: int) -> set[tuple[str, str]]:
    """Program and address of every socket on which a process listens."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return {
            (process.name(), connection.laddr.ip)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
        }
    return set()


def join_without_token(command: Command) -> str:
    """What Ray says to a process of the same user that has everything but the token."""
    (pid,) = command.pid_of("gcs_server")
    (server, *_) = (
        connection.laddr.port
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    )
    program = (
        "from ray._raylet import GcsClient\n"
        f"GcsClient(address='127.0.0.1:{server}').internal_kv_keys(b'', namespace=None, timeout=5)"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return done.stderr if done.returncode else "it was let in"


def test_a_run_listens_on_loopback_only_and_lets_nobody_in(base):
    programs = {program for program, _ in base.sockets}
    assert {"gcs_server", "raylet"} <= programs and len(programs) >= 4, programs
    addresses = {address.removeprefix("::ffff:") for _, address in base.sockets}
    assert addresses == {"127.0.0.1"}, base.sockets
    assert "InvalidAuthToken" in base.refusal


def test_a_run_leaves_a_complete_folder(base):
    assert {path.name for path in base.folder.iterdir() if path.name[0] != "."} == FILES
    summary = base.summary()
    assert (summary["status"], summary["rounds"], summary["failures"]) == ("completed", ROUNDS, [])
    assert summary["run_sha256"] == base.rounds()[-1]["sha256"]
    assert [record["round"] for record in base.rounds()] == list(range(1, ROUNDS + 1))
    log = (base.folder / "log.txt").read_text()
    assert f"fedssa: 4 clients, 4 per round, rounds 1 to {ROUNDS}" in log


def test_one_process_gives_the_same_bytes_and_another_seed_others(base, tmp_path):
    """The in-process simulation of other tests stands for one on Ray."""
    where = ("rounds=1", f"out={tmp_path}")
    first = {}
    for seed in (0, 1):
        config = load_config(find_preset("quickstart"), [*WORK, *where, f"seed={seed}"])
        first[seed] = simulate(config)[0].read_rounds()[0]["sha256"]
    assert first[0] == base.rounds()[0]["sha256"] != first[1]


def test_a_run_that_was_killed_in_every_way_ends_with_the_same_bytes(fedhet, base):
    """It begins and ends in one process, without Ray: the engines take over from each other."""
    _interrupted(fedhet.run("killed", "engine=inline"), signal.SIGTERM)
    _two_commands(fedhet, "killed", "engine=ray")
    # First what a simulation survives for a while: enough rounds are left for it to be noticed.
    _program_killed(fedhet.resume("killed"), "flower-superexec", "SuperExec ended unexpectedly")
    _program_killed(fedhet.resume("killed"), "flower-superlink", "SuperLink ended unexpectedly")
    _program_killed(fedhet.resume("killed"), "flwr-simulation", "simulation ended unexpectedly")
    _program_killed(fedhet.resume("killed"), "raylet", "")  # who notices first says it
    _program_killed(fedhet.resume("killed"), "gcs_server", "")
    _everything_killed(fedhet.resume("killed"))
    _command_killed(fedhet.resume("killed"))
    last = fedhet.resume("killed", "engine=inline")
    code, out, err = last.end()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == str(last.folder)
    assert last.summary()["status"] == "completed"
    assert last.summary()["run_sha256"] == base.summary()["run_sha256"]
    assert len(last.rounds()) == ROUNDS
    assert_gone(last.folder, [])


def test_neither_the_number_of_actors_nor_their_death_changes_a_bit(fedhet, base):
    """A dead one's client is asked again, from the generation that the server means."""
    command = fedhet.run("actors", "actors=2")
    command.until(lambda: actors(command))
    for rounds in (0, 2):
        command.wait(rounds)
        assert len(actors(command)) <= 2
        for pid in actors(command):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert command.end()[0] == 0
    assert command.summary()["run_sha256"] == base.summary()["run_sha256"]
    assert command.summary()["failures"] == []
    assert_gone(command.folder, [])


def actors(command: Command) -> list[int]:
    """Training processes, idle or at work."""
    names = ("ray::ClientAppActor", "ray::ClientAppActor.run")
    return [pid for name in names for pid in command.pid_of(name)]


OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_closing_the_terminal_stops_the_run(fedhet):
    """SIGHUP, and a terminal that takes no more text."""
    master, slave = os.openpty()
    folder = fedhet.base / "terminal"
    where = ("--out", str(fedhet.base), "--name", "terminal", "engine=inline", "rounds=400")
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, script("fedhet"), "run", "quickstart", *WORK, *where],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True, text=True,
    )  # fmt: skip
    os.close(slave)
    command = Command(folder, process)
    fedhet.started.append(command)
    deadline = time.monotonic() + patience()
    while not command.rounds():
        assert time.monotonic() < deadline and process.poll() is None
        with contextlib.suppress(OSError):
            os.read(master, 1 << 16) if select.select([master], [], [], 0.1)[0] else None
    os.close(master)
    assert process.wait(patience()) == 128 + signal.SIGHUP
    assert command.summary()["status"] == "stopped"


def _program_killed(command: Command, program: str, reason: str) -> None:
    """The command notices, cleans up and says how to go on."""
    command.until(lambda: command.pid_of("flwr-simulation"))
    command.wait(len(command.rounds()) + 1)
    pids = command.pids()
    for pid in command.pid_of(program):
        os.kill(pid, signal.SIGKILL)
    code, _, err = command.end()
    assert code == 3
    assert reason in err
    assert f"fedhet resume {command.folder}" in err
    assert str(command.folder / "log.txt") in err
    assert command.summary()["status"] == "failed"
    assert_gone(command.folder, pids)


def _everything_killed(command: Command) -> None:
    """Power cut: nobody is left to clean up, the next ``resume`` finds only files."""
    rounds = len(command.rounds())
    command.until(lambda: command.pid_of("flwr-simulation"))
    command.wait(rounds + 1)
    for pid in [command.process.pid, *command.pids()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert command.end()[0] == -signal.SIGKILL
    assert command.pids()


def _command_killed(command: Command) -> None:
    """Without its owner everything ends by itself."""
    command.until(lambda: command.pid_of("flwr-simulation") and command.pid_of("raylet"))
    command.process.kill()
    assert command.end()[0] == -signal.SIGKILL
    deadline = time.monotonic() + patience()
    while processes_of(command.folder):
        assert time.monotonic() < deadline, processes_of(command.folder)
        time.sleep(0.2)


def _interrupted(command: Command, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM: nothing is left, and the run is marked."""
    command.wait(len(command.rounds()) + 1)
    pids = command.pids()
    command.process.send_signal(number)
    code, _, err = command.end()
    assert code == 128 + number
    assert err == f"fedhet: continue it with: fedhet resume {command.folder}\n"
    assert command.summary()["status"] == "stopped"
    assert_gone(command.folder, pids)


def _two_commands(fedhet: Commands, name: str, *words: str) -> None:
    """While one command has the run folder, no other gets it."""
    first = fedhet.resume(name, *words)
    first.until(lambda: first.pid_of("flower-superlink"))
    for second in (fedhet.run(name), fedhet.resume(name)):
        code, out, err = second.end()
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "already exists" in err or "in use by another process" in err
    _interrupted(first, signal.SIGINT)


def test_a_run_that_fails_says_why_and_leaves_no_process(fedhet):
    words = ("max-update-norm=1e-6", "max-skipped-rounds=0", "name=fails")
    command = fedhet.run("failed", *words)
    code, out, err = command.end()
    assert code == 3
    assert "max-update-norm" in err
    assert command.summary()["status"] == "failed"
    assert "max-update-norm" in str(command.summary()["reason"])
    assert_gone(command.folder, [])
