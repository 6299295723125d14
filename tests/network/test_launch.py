"""``fedhet run`` for real: SuperLink, Ray and their processes.

Every test of the quickstart leaves one run folder per command; ``base`` is the undisturbed run
that the others must reproduce to the byte.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from network.commands import ROUNDS, WORK, Command, assert_gone
from network.pace import patience

from fedhet.config.load import load_config
from fedhet.engines.session import find_preset
from fedhet.engines.system import script
from fedhet.testing import simulate

pytestmark = pytest.mark.network

FILES = {
    "config.yaml", "environment.json", "partition.csv", "rounds.jsonl", "clients.csv",
    "checkpoint", "state", "summary.json", "log.txt",
}  # fmt: skip


@pytest.fixture(scope="module")
def base(fedhet):
    """An undisturbed run with one actor."""
    command = fedhet.run("base", "actors=1")
    seen: set[int] = set()
    with intruder() as process:
        while command.process.poll() is None:
            seen |= set(command.pids())
            for pid in command.pids():
                command.sockets |= listening(pid)
            if not command.refusal and (port := ray_port(command)):
                _, command.refusal = process.communicate(f"{port}\n", timeout=120)
                command.refusal = command.refusal if process.returncode else "it was let in"
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


def ray_port(command: Command) -> int:
    """Where Ray's server listens once clients train; 0 before."""
    if command.rounds():
        for pid in command.pid_of("gcs_server"):
            with contextlib.suppress(psutil.Error):  # it may end meanwhile
                for connection in psutil.Process(pid).net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        return int(connection.laddr.port)
    return 0


def intruder() -> subprocess.Popen[str]:
    """A process of the same user that has everything but the token; it waits for the port."""
    program = (
        "from ray._raylet import GcsClient\n"
        "client = GcsClient(address=f'127.0.0.1:{int(input())}')\n"
        "client.internal_kv_keys(b'', namespace=None, timeout=5)"
    )
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", program]
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


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
    """Training processes, idle or at work; one may go to work between the two looks."""
    names = ("ray::ClientAppActor", "ray::ClientAppActor.run")
    return sorted({pid for name in names for pid in command.pid_of(name)})


OWN_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests were started with nohup
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


def test_a_run_that_fails_says_why_and_leaves_no_process(fedhet):
    """On Ray it is the ServerApp that says so, in summary.json: tests/engines/test_ray_start.py."""
    words = ("engine=inline", "max-update-norm=1e-6", "max-skipped-rounds=0", "name=fails")
    command = fedhet.run("failed", *words)
    code, out, err = command.end()
    assert code == 3
    assert "max-update-norm" in err
    assert command.summary()["status"] == "failed"
    assert "max-update-norm" in str(command.summary()["reason"])
    assert_gone(command.folder, [])
