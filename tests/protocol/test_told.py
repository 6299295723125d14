"""What nodes and users are told: why a node is refused, and who is waited for."""

import pytest
from helpers.pace import Clock
from helpers.tiny import tiny

from fedhet.config.load import envelope
from fedhet.engines.grid import SimulationGrid
from fedhet.errors import RunFailed
from fedhet.protocol import handshake
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.messages import instruction
from fedhet.testing import LocalGrid


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Three nodes of a network, of which the third claims the first one's name."""
    monkeypatch.setenv("FEDHET_NODE", "1")

    def tamper(node, message, reply):
        if node == 2:
            reply.content["info"]["client"] = "0"
        return reply

    config = tiny(tmp_path)
    made = LocalGrid(envelope(config, {}), 3, tamper)
    made.simulated = False
    monkeypatch.delattr(SimulationGrid, "pull_interval")
    return made


def told(grid):
    """Reasons that were sent to nodes."""
    sent = [(m.metadata.dst_node_id, instruction(m).refused) for m in grid.sent]
    return [(node, why) for node, why in sent if why]


def test_a_node_is_told_once_why_a_run_does_without_it(grid, capsys):
    shake = Handshake(grid, "x", Roster())
    for _ in range(3):
        shake.query(patience=60)
    ((node, reason),) = told(grid)
    assert node == 102 and "client id '0' is already taken by another node" in reason
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedhet: ")]
    assert said == [f"fedhet: this run does without this node: {reason}"]


def test_a_run_that_nobody_can_join_ends_when_they_know_why(grid, capsys):
    def tamper(node, message, reply):
        if "info" in reply.content:
            reply.content["info"]["client"] = "a/b"
        return reply

    grid.tamper = tamper
    with pytest.raises(RunFailed, match="no node can take part in this run: client: 'a/b'"):
        Handshake(grid, "x", Roster()).wait(3, 60)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedhet: ")]
    assert len(said) == 3 and all("this run does without this node: " in line for line in said)


def test_a_simulation_waits_for_nobody_who_was_refused(tmp_path, monkeypatch, caplog):
    """All its nodes are there from the start: what they bring does not change by waiting."""

    def tamper(node, message, reply):
        if node == 2:
            reply.content["info"]["client"] = "a/b"
        return reply

    grid, roster = LocalGrid(envelope(tiny(tmp_path), {}), 3, tamper), Roster()
    monkeypatch.setattr(handshake.time, "sleep", lambda _: pytest.fail("it waits"))
    Handshake(grid, "x", roster).wait(3, 60)
    assert len(roster.nodes) == 2 and len(roster.refused) == 1
    assert "starting with 2 of 3 clients (refused: client: 'a/b'" in caplog.text


def test_missing_nodes_are_waited_for_aloud(grid, monkeypatch):
    monkeypatch.setattr(handshake, "PATIENT", 0.0)
    monkeypatch.setattr(handshake, "time", Clock())
    said = []
    grid.online = {100}
    Handshake(grid, "x", Roster()).wait(3, 0.5, said.append)
    assert said[0].startswith("waiting for 2 of 3 clients since ")
    assert "until start-timeout=0.5 s" in said[0] and said[-1] == ""
    said.clear()
    grid.online = {100, 102}
    Handshake(grid, "x", Roster()).wait(3, 0.5, said.append)
    assert "(refused: client id '0' is already taken" in said[0]
    said.clear()
    grid.online = set()
    with pytest.raises(RunFailed, match="no client joined within start-timeout"):
        Handshake(grid, "x", Roster()).wait(0, 0.3, said.append)
    assert said[0].startswith("waiting for clients since ")
    assert len(said) == 2
