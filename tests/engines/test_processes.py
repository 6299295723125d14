"""Worker processes: the same bytes, whatever dies; nothing outlives the command."""

import os
import signal
from types import SimpleNamespace

import psutil
import pytest
import torch
from engines.commands import BARE, PROXIES, WORK, launched, run, summary
from flwr.app import Error, Message
from helpers.tiny import tiny

from fedhet.cli.app import execute
from fedhet.config.load import build_config, find_preset, load_config
from fedhet.engines import grid
from fedhet.testing import simulate


@pytest.fixture
def workers():
    """Return those of the run in this process; the first is their fork server."""
    before = psutil.Process().children()

    def found():
        own = [child for child in psutil.Process().children() if child not in before]
        return [process for child in own for process in (child, *child.children(recursive=True))]

    return found


def test_workers_that_die_cost_nothing_but_time_and_who_kills_them_is_left_out(
    tmp_path, bad_net, workers
):
    """One is killed after the first round, all of them after the second; client 2's always die."""
    bad_net("os._exit(9)")
    keys = {"models": ["cnn-5", "cnn-5", "bad_net:make"], "rounds": 3}

    def lose(node, message, reply):
        lost = node == 2 and message.metadata.message_type == "train"
        return Message(Error(code=1, reason="lost"), reply_to=message) if lost else reply

    twin, _ = simulate(tiny(tmp_path, **keys), tamper=lose)
    killed = set()

    def kill(records):
        if len(records) in {1, 2} - killed:
            killed.add(len(records))
            server, *others = workers()
            (others[0] if len(records) == 1 else server).kill()

    folder = launched(tiny(tmp_path, actors=3, **keys), "run", kill)
    assert killed == {1, 2}
    assert summary(folder.path)["run_sha256"] == summary(twin.path)["run_sha256"]
    failures = summary(folder.path)["failures"]
    assert [one["client"] for one in failures] == ["2"] * 3
    assert all("ended twice without an answer" in one["reason"] for one in failures)
    assert "the net is called" in folder.log.read_text()
    assert not workers()


def test_a_killed_command_leaves_nothing_and_its_run_goes_on(tmp_path):
    """In a bare environment and on one CPU, as `taskset -c`: with one worker."""
    env = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"} | PROXIES | BARE
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    command = run(tmp_path, "cut", "rounds=4000", "actors=0", env=env)
    os.sched_setaffinity(0, cpus)
    command.wait_rounds(1)
    assert len(command.children()) == 2
    command.popen.kill()
    code, said = command.ended()
    assert code == -signal.SIGKILL and "2 clients, 1 training process(es)" in said
    rounds = f"rounds={len(command.rounds()) + 1}"
    assert execute(["resume", str(command.folder), rounds, "engine=inline"]) == 0
    twin, _ = simulate(load_config(find_preset("quickstart"), [*WORK, rounds, f"out={tmp_path}"]))
    assert summary(command.folder)["run_sha256"] == summary(twin.path)["run_sha256"]


@pytest.mark.parametrize(
    ("keys", "memory", "count"),
    [({"clients": 2}, [], 2), ({"threads": 4}, [], 16), ({"threads": 4, "actors": 20}, [], 20),
     ({"engine": "ray"}, [], 100), ({}, [], 64), ({}, [16 << 30, 5 << 30], 4), ({}, [1 << 30], 1)],
)  # fmt: skip
def test_workers_are_as_many_as_cpus_gpus_and_clients_allow(monkeypatch, keys, memory, count):
    monkeypatch.setattr(grid, "cpus", lambda: 64)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # a cluster's size is not known here
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(memory))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(memory))
    of = {number: SimpleNamespace(total_memory=size) for number, size in enumerate(memory)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", of.get)
    config = build_config({"clients": 100, "engine": "processes", **keys})
    assert grid.processes(config) == (count, len(memory))


def test_workers_take_turns_with_the_gpus_that_are_visible(monkeypatch):
    assert grid.device_of(0, 0) == {}
    for visible, wanted in (("", ["0", "1", "0"]), ("GPU-a,3", ["GPU-a", "3", "GPU-a"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [grid.device_of(i, 2)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == wanted
