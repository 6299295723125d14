"""What is said of a wait, and by a server that is started again."""

import threading
from types import SimpleNamespace

import pytest

from fedhet.deploy import network
from fedhet.deploy.control import ServerFolder
from fedhet.deploy.network import Waiting
from fedhet.deploy.node import Node, NodePlan
from fedhet.deploy.server import FederationServer
from fedhet.errors import RunFailed
from fedhet.protocol.flower import NodeInfo, RunStatus

OLD, NEW = "2020-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"


def test_a_wait_is_silent_for_ten_seconds_and_its_end_is_told_to_who_read_of_it(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr(network, "time", SimpleNamespace(monotonic=lambda: now[0]))
    waiting = Waiting("h:8443", said.append)
    for now[0] in (0.0, 5.0, 9.9):
        waiting.failed("refused")
    waiting.over()
    assert said == []
    for now[0] in (20.0, 29.9, 30.0, 31.0):  # a wait of its own
        waiting.failed("refused")
    waiting.failed("timed out")
    assert [line.partition(": ")[2] for line in said] == ["refused", "timed out"]
    assert said[0].startswith("waiting for h:8443 since ")
    waiting.over()
    waiting.over()
    assert said[2:] == ["h:8443 answered"]


def test_one_answer_that_is_slow_is_waited_for_aloud(monkeypatch):
    monkeypatch.setattr(network, "TOLD_AFTER", 0.05)
    said, told = [], threading.Event()
    with Waiting("'tls'", lambda line: (said.append(line), told.set())).answer():
        assert told.wait(20)
    assert len(said) == 2 and "no answer yet" in said[0] and said[1] == "'tls' answered"
    monkeypatch.setattr(network, "TOLD_AFTER", 20.0)
    with Waiting("'tls'", said.append).answer():
        pass
    assert len(said) == 2


def node(number, name, status, since):
    return NodeInfo(node_id=number, name=name, status=status, last_activated_at=since)


class Link:
    """A SuperLink whose database is of a server that was killed."""

    def __init__(self):
        self.stopped = []
        self.all = [
            RunStatus(1, "finished:completed", OLD, {}, "/runs/old"),
            RunStatus(2, "running", OLD, {}, "/runs/first"),
        ]
        self.known = [node(7, "a", "online", OLD), node(8, "b", "offline", OLD)]

    def nodes(self):
        return self.known

    def runs(self):
        return self.all

    def stop(self, run):
        self.stopped.append(run)
        if len(self.stopped) == 1:
            raise RunFailed("busy")


def test_a_server_that_is_started_again_repeats_no_news_and_ends_what_died_with_it(tmp_path):
    link, said = Link(), []
    server = FederationServer(ServerFolder(tmp_path), "h", 1, tmp_path / "db", said.append)
    link.all.append(RunStatus(3, "running", NEW, {}, "/runs/fresh"))  # submitted since
    with pytest.raises(RunFailed, match="busy"):
        server._look(link)
    server._look(link)  # it is tried again
    assert link.stopped == [2, 2]
    assert said == [
        "a: online before this start",
        "run first ended with the last server; to go on: fedhet resume /runs/first --superlink "
        f"{tmp_path}",
        "run fresh: running",
    ]
    link.all[1:] = [RunStatus(2, "finished:stopped", OLD, {}, "/runs/first")]
    link.known = [node(7, "a", "offline", OLD), node(8, "b", "online", NEW)]
    server._look(link)
    assert said[3:] == ["a: offline", "b: online"]


def test_a_node_says_that_a_run_waits_for_another(tmp_path):
    said = []
    plan = NodePlan(tmp_path, tmp_path, "h:1", {}, tmp_path / "node.log")
    node = Node(plan, said.append)
    node._heard("INFO :      [RUN 22]\n")
    node._answers = 11
    for run in (11, 22, 22):
        node._heard(f"INFO :      [RUN {run}, ROUND 3]\n")
    assert said == ["another run asks, and waits until this node has answered run 11"]
