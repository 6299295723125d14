"""The handshake: ghosts, silent nodes, restarts, private folders, nodes with own choices."""

import csv
import json

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from helpers.pace import PATIENCE, Clock
from helpers.tiny import tiny
from PIL import Image

from fedhet.config.load import envelope
from fedhet.engines.grid import SimulationGrid
from fedhet.errors import RunFailed
from fedhet.protocol import handshake as handshakes
from fedhet.protocol import messages
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.testing import LocalGrid, simulate


@pytest.fixture
def grid(tmp_path):
    """Three nodes of a simulated federation, no round loop."""
    return LocalGrid(envelope(tiny(tmp_path), {}), 3)


def queries(grid) -> list[int]:
    return [message.metadata.dst_node_id for message in grid.sent]


def test_a_node_refused_because_of_a_ghost_is_asked_again_when_the_ghost_is_gone(grid):
    """Without a persistent key a restarted node has a new id while the old one looks online."""
    twin = dict(grid.contexts[102].node_config)
    grid.contexts[200] = Context(
        run_id=1, node_id=200, node_config=twin, state=RecordDict(),
        run_config=grid.contexts[102].run_config, series_id=0,
    )  # fmt: skip
    roster = Roster()
    handshake = Handshake(grid, "x", roster)
    handshake.query()
    grid.online.add(200)
    assert handshake.query() == [] and "already taken" in roster.refused[200]
    assert handshake.query() == [] and queries(grid).count(200) == 1
    grid.online.discard(102)
    assert handshake.query() == ["2"]
    assert roster.nodes == {"0": 100, "1": 101, "2": 200} and not roster.refused


def test_only_strangers_are_asked_and_only_once(grid):
    roster = Roster()
    handshake = Handshake(grid, "x", roster)
    assert sorted(handshake.query()) == ["0", "1", "2"]
    assert handshake.query() == []
    assert sorted(queries(grid)) == [100, 101, 102]


def test_a_silent_node_is_waited_for_once_and_its_late_answer_counts(grid):
    held = []

    def mute(node, message, reply):
        if node == 2:
            held.append(reply)
            return None
        return reply

    grid.tamper = mute
    roster = Roster()
    handshake = Handshake(grid, "x", roster)
    assert sorted(handshake.query(patience=0.3)) == ["0", "1"]
    answers, pulls = grid.pull_messages, []
    grid.pull_messages = lambda ids: pulls.append(ids) or answers(ids)
    assert handshake.query(patience=0.3) == [] and len(pulls) == 1
    grid.pull_messages = lambda ids: [*answers(ids), *held]
    assert handshake.query(patience=0.3) == ["2"]
    assert queries(grid).count(102) == 1


def test_a_node_whose_answer_was_lost_on_a_network_is_reminded(grid, monkeypatch):
    lost = []

    def lose_two(node, message, reply):
        if node == 2 and len(lost) < 2:
            return lost.append(reply)
        return reply

    grid.tamper = lose_two
    monkeypatch.delattr(SimulationGrid, "pull_interval")  # as on a network
    monkeypatch.setattr(messages, "REMIND_AFTER", 0.2)
    monkeypatch.setattr(messages, "PULL_PATIENCE", PATIENCE)  # its pulls end by themselves
    clock, roster, asked_at = Clock(), Roster(), []
    for module in (messages, handshakes):
        monkeypatch.setattr(module, "time", clock)
    handshake = Handshake(grid, "x", roster)
    while "2" not in roster.nodes:
        handshake.query(patience=0.05)
        asked_at += [clock.now] * (queries(grid).count(102) - len(asked_at))
        clock.sleep(0.01)
    assert [queries(grid).count(node) for node in (100, 101, 102)] == [1, 1, 3]
    assert asked_at[1] > 0.2 and asked_at[2] > 0.4
    answers = grid.pull_messages
    grid.pull_messages = lambda ids: [*answers(ids), *lost]  # at last, and too late
    assert handshake.query(patience=0.05) == [] and not roster.refused


def folder(path, classes, size=40):
    rng = np.random.default_rng(0)
    for name in classes:
        (path / name).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (size, size + 3, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / name / f"{i}.png")
    return str(path)


def private(tmp_path, folders, own=None, **changes):
    """A run over nodes with image folders of different sizes; ``own``: more node config."""

    def give(grid):
        for k, classes in enumerate(folders):
            node = {
                "data-dir": folder(tmp_path / f"images-{k}", classes, 24 + 16 * k),
                "name": f"hospital-{k}",
                "state-dir": str(tmp_path / f"state-{k}"),
            } | (own or {}).get(k, {})
            grid.contexts[100 + k].node_config.clear()
            grid.contexts[100 + k].node_config.update(node)

    config = tiny(tmp_path, clients=len(folders), **{"start_timeout": 1.0, **changes})
    run, _ = simulate(config, before=give, simulated=False)
    rows = list(csv.DictReader(run.clients.open()))
    summary = json.loads(run.summary.read_text())
    header = (run.path / "partition.csv").read_text().splitlines()[0]
    return header, summary, {(row["client"], row["model"]) for row in rows}


def test_the_handshake_unites_the_classes_of_private_folders(tmp_path):
    header, summary, clients = private(tmp_path, (("cat", "dog"), ("dog", "emu"), ("ant",)))
    assert header == "client,ant,cat,dog,emu" and summary["failures"] == []
    assert {client for client, _ in clients} == {"hospital-0", "hospital-1", "hospital-2"}
    assert (tmp_path / "state-1").is_dir()


def test_a_node_chooses_its_model_and_a_choice_that_cannot_work_is_refused(tmp_path, caplog, capfd):
    own = {0: {"model": "cnn-4"}, 1: {"model": "cnn-7"}, 2: {"device": "cuda:7"}}
    _, _, clients = private(tmp_path, (("a", "b"), ("a", "b"), ("a", "b")), own)
    assert clients == {("hospital-0", "cnn-4")}
    assert "model (its log: no. " in caplog.text and "device (its log: no. " in caplog.text
    said = capfd.readouterr().err
    assert "model 'cnn-7' is unknown" in said and "device: 'cuda:7' is not available" in said


def test_a_deployed_client_ignores_paths_of_the_run(tmp_path, capfd):
    """A server does not choose paths on a hospital's disk."""
    config = tiny(tmp_path, dataset="image-folder", data_path=folder(tmp_path / "server", "ab"))

    def keep(grid):
        for k, context in grid.contexts.items():
            context.node_config["state-dir"] = str(tmp_path / f"state-{k}")

    with pytest.raises(RunFailed, match="this run: data: its data cannot be used: [^;]*$"):
        simulate(config.model_copy(update={"start_timeout": 1.0}), before=keep, simulated=False)
    assert capfd.readouterr().err.count("data-path is empty") == 3
