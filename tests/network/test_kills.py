"""A simulation killed in every way, one process after the other."""

import os
import signal
import time

import pytest
from network.commands import WORK, Command, Commands, assert_gone, processes_of
from network.pace import patience

from fedhet.config.load import load_config
from fedhet.engines.session import find_preset
from fedhet.testing import simulate

pytestmark = pytest.mark.network

ROUNDS = 120  # more than pass in all before kills are noticed, however slowly that is
LONG = (*WORK, f"rounds={ROUNDS}")


def test_a_run_that_was_killed_in_every_way_ends_with_the_same_bytes(fedhet, tmp_path):
    """It begins and ends in one process, without Ray: the engines take over from each other.

    That Ray's server and Flower's other programs are missed as Ray's node manager is says
    tests/engines/test_ray_start.py; a start of all of them takes 23 seconds of a processor.
    """
    undisturbed = simulate(load_config(find_preset("quickstart"), [*LONG, f"out={tmp_path}"]))[0]
    _interrupted(fedhet.run("killed", "engine=inline", *LONG), signal.SIGTERM)
    _power_cut(fedhet.resume("killed"))
    _two_commands(fedhet, "killed", "engine=ray", "actors=1")
    # What a simulation survives for a while: enough rounds are left for it to be noticed.
    _program_killed(fedhet.resume("killed"), "flower-superlink", "SuperLink ended unexpectedly")
    _program_killed(fedhet.resume("killed"), "flwr-simulation", "simulation ended unexpectedly")
    _program_killed(fedhet.resume("killed"), "raylet", "")  # who notices first says it
    _command_killed(fedhet.resume("killed"))
    last = fedhet.resume("killed", "engine=inline")
    code, out, err = last.end()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == str(last.folder)
    assert last.summary()["status"] == "completed"
    assert last.summary()["run_sha256"] == undisturbed.read_summary()["run_sha256"]
    assert len(last.rounds()) == ROUNDS
    assert_gone(last.folder, [])


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


def _power_cut(command: Command) -> None:
    """Nobody is left to clean up, the next ``resume`` finds only files."""
    command.wait(len(command.rounds()) + 1)
    command.process.kill()
    assert command.end()[0] == -signal.SIGKILL
    assert not (command.folder / "summary.json").exists()


def _command_killed(command: Command) -> None:
    """Without its owner everything ends by itself, and leaves files to the next ``resume``."""
    command.until(lambda: command.pid_of("flwr-simulation") and command.pid_of("raylet"))
    command.process.kill()
    assert command.end()[0] == -signal.SIGKILL
    deadline = time.monotonic() + patience()
    while processes_of(command.folder):
        assert time.monotonic() < deadline, processes_of(command.folder)
        time.sleep(0.2)
    assert command.pids() and (command.folder / "flwr").exists()


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
