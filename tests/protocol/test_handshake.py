"""The handshake: ghosts, silent nodes, lies, what is told, keys, sites with their own data."""

import csv

import pytest
from flwr.app import Context, RecordDict
from helpers.pace import Clock
from helpers.pictures import image_folder
from helpers.tiny import deployed, tiny
from hostile.lies import liars, says

from fedhet.config.load import envelope
from fedhet.config.schema import RunConfig
from fedhet.engines.grid import SimulationGrid
from fedhet.errors import RunFailed
from fedhet.protocol import handshake as handshakes
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.messages import TRAIN, Instruction, instruction, request
from fedhet.testing import LocalGrid, simulate


@pytest.fixture
def grid(tmp_path):
    """Three nodes of a simulated federation, no round loop."""
    return LocalGrid(envelope(tiny(tmp_path), {}), 3)


def queries(grid) -> list[int]:
    return [message.metadata.dst_node_id for message in grid.sent]


def test_a_node_refused_because_of_a_ghost_is_asked_again_when_the_ghost_is_gone(grid):
    """Without a persistent key a restarted node has a new id while the old one looks online."""
    twin = grid.contexts[102]
    own = dict(twin.node_config)
    grid.contexts[200] = Context(1, 200, own, RecordDict(), twin.run_config, series_id=0)
    roster = Roster()
    handshake = Handshake(grid, "x", roster)
    handshake.query()
    grid.online.add(200)
    assert handshake.query() == [] and "already taken" in roster.refused[200]
    assert handshake.query() == [] and queries(grid).count(200) == 1
    grid.online.discard(102)
    assert handshake.query() == ["2"]
    assert roster.nodes == {"0": 100, "1": 101, "2": 200} and not roster.refused


def test_a_silent_node_is_waited_for_once_and_its_late_answer_counts(grid):
    held = []

    grid.tamper = lambda node, _message, reply: held.append(reply) if node == 2 else reply
    roster = Roster()
    handshake = Handshake(grid, "x", roster)
    assert sorted(handshake.query(patience=0.3)) == ["0", "1"]
    answers, pulls = grid.pull_messages, []
    grid.pull_messages = lambda ids: pulls.append(ids) or answers(ids)
    assert handshake.query(patience=0.3) == [] and len(pulls) == 1
    grid.pull_messages = lambda ids: [*answers(ids), *held]
    assert handshake.query(patience=0.3) == ["2"]
    assert queries(grid).count(102) == 1


def test_a_refused_answer_leaves_no_ghost_in_the_way_of_the_real_owner(grid):
    grid.tamper, roster = liars({0: says(client="2", clients="abc")}, "query"), Roster()
    assert sorted(Handshake(grid, "x", roster).query()) == ["1", "2"]
    assert roster.nodes == {"1": 101, "2": 102} and list(roster.refused) == [100]


def test_a_run_that_hides_classes_is_told_none(grid):
    roster = Roster()
    assert Handshake(grid, "x", roster, RunConfig(secure_sum="masked")).query() == []
    assert "this run hides" in roster.refused[100]

    grid.tamper = liars({
        k: says(seen=None, images=None, train_images=None, sum_key=[bytes([k + 1]) * 32, b"", b""])
        for k in range(3)
    }, "query")  # fmt: skip
    assert len(Handshake(grid, "x", Roster(), RunConfig(secure_sum="masked")).query()) == 3


def test_the_union_of_classes_is_bounded(grid):
    """Two clients bring names of their own, one of them too many: it goes, the other stays."""

    def more(node, count):
        own = [f"{node}-{i}" for i in range(count)]
        return says(classes=[*(f"class-{k}" for k in range(4)), *own])

    grid.tamper = liars({1: more(1, 60), 2: more(2, 10)}, "query")
    roster = Roster()
    Handshake(grid, "x", roster, RunConfig(max_classes=64)).query()
    assert roster.ids == ["0", "1", "2"]
    roster.fix_classes((), 64)
    assert roster.ids == ["0", "2"] and len(roster.classes) == 14
    assert "has 60 classes that no other client has" in roster.refused[101]


def test_a_node_of_other_examples_is_refused_in_one_line(grid):
    lies = {1: '{"kind": "image", "shape": [3, 32, 32]}', 2: "nonsense"}
    grid.tamper = liars({node: says(inputs=text) for node, text in lies.items()}, "query")
    roster = Roster()
    Handshake(grid, "x", roster).query()
    roster.fix_classes(())
    assert roster.ids == ["0"] and "inputs: no description" in roster.refused[102]
    other = "its examples are image of shape (3, 32, 32), but this run's are image of shape (3, 16"
    assert f"client '1': {other}" in roster.refused[101]


def claiming(names):
    """Nodes that give themselves names."""
    return liars({node: says(client=name) for node, name in names.items()}, "query")


@pytest.fixture
def network(grid, monkeypatch, tmp_path):
    """Three nodes of a network, of which the third claims the first one's name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDHET_NODE", "1")

    grid.tamper, grid.simulated = claiming({2: "0"}), False
    monkeypatch.delattr(SimulationGrid, "pull_interval")
    return grid


def told(grid):
    sent = [(m.metadata.dst_node_id, instruction(m).refused) for m in grid.sent]
    return [(node, why) for node, why in sent if why]


def test_a_node_is_told_once_why_a_run_does_without_it(network, capsys):
    shake = Handshake(network, "x", Roster())
    for _ in range(3):
        shake.query(patience=60)
    ((node, reason),) = told(network)
    assert node == 102 and "client id '0' is already taken by another node" in reason
    said = capsys.readouterr().err
    assert said.count("fedhet: question: ") == 3  # each answers otherwise
    assert said.count("fedhet: this run does without this node: ") == 1 and reason in said


def test_a_run_that_nobody_can_join_ends_when_they_know_why(network, capsys):
    network.tamper = claiming(dict.fromkeys(range(3), "a/b"))
    with pytest.raises(RunFailed, match="no node can take part in this run: client: 'a/b'"):
        Handshake(network, "x", Roster()).wait(3, 60)
    assert capsys.readouterr().err.count("this run does without this node: ") == 3


def test_a_simulation_waits_for_nobody_who_was_refused(network, monkeypatch, caplog):
    """All its nodes are there from the start: what they bring does not change by waiting."""
    monkeypatch.setattr(SimulationGrid, "pull_interval", 0.0, raising=False)
    network.simulated = True
    clock = Clock()
    monkeypatch.setattr(handshakes, "time", clock)
    roster = Roster()
    Handshake(network, "x", roster).wait(3, 60)
    assert len(roster.nodes) == 2 and len(roster.refused) == 1 and clock.now == 0.0
    assert "starting with 2 of 3 clients (refused: client id '0' is already taken" in caplog.text


def test_missing_nodes_are_waited_for_and_the_run_starts_without_them_or_ends(network, monkeypatch):
    monkeypatch.setattr(handshakes, "time", Clock())
    said, network.online = [], {100, 102}
    Handshake(network, "x", Roster()).wait(3, 0.5, said.append)
    assert "1 of 3 have come" in said[0] and "is already taken" in said[0]
    assert "starting with 1 of 3 clients" in said[-1]
    network.online = set()
    with pytest.raises(RunFailed, match="no client joined within start-timeout"):
        Handshake(network, "x", Roster()).wait(0, 0.3)


def test_what_a_run_waits_for_or_starts_without_is_said(network, monkeypatch):
    """Nodes that train for another run are no nodes that are off; two of three are no sum."""
    monkeypatch.setattr(handshakes, "time", Clock())
    waiting = Handshake(network, "x", Roster(), RunConfig(secure_sum="masked"))
    monkeypatch.setattr(waiting, "query", lambda patience: [])
    waiting._asked = {100: 0.0, 101: 0.0}
    with pytest.raises(RunFailed, match="2 online, without an answer yet: starting, or in anoth"):
        waiting.wait(3, 0.5)
    said, waiting._asked, waiting.roster.nodes = [], {}, {"a": 100, "b": 101}
    waiting.roster.infos = dict.fromkeys("abc")  # of a run that goes on
    with pytest.raises(RunFailed, match=r"2 of 3 clients \(without c\) came .* sum-min=3 are need"):
        waiting.wait(3, 0.5, said.append)
    assert "2 of 3 have come (without c); start-timeout=0.5 s" in said[0]
    waiting.config = RunConfig(min_replies=2)
    waiting.wait(3, 0.5, said.append)
    assert said[-1] == "starting with 2 of 3 clients (without c)"


def asked(network, policy):
    """Who is admitted when the liar is asked first; reasons by node."""
    roster = Roster()
    handshake = Handshake(network, "x", roster, RunConfig(client_keys=str(policy)))
    network.online = {102}
    handshake.query(patience=60)
    network.online = {100, 101, 102}
    handshake.query(patience=60)
    return roster.nodes, roster.refused


@pytest.mark.parametrize("policy", ["auto", "registered"])
def test_a_member_with_another_members_name_is_refused(network, policy):
    if policy == "auto":  # without keys the first is believed
        assert asked(network, policy)[0] == asked(network, "off")[0] == {"0": 102, "1": 101}
    network.identities = {100 + k: (str(k), b"") for k in range(3)}
    nodes, refused = asked(network, policy)
    assert nodes == {"0": 100, "1": 101}
    assert refused[102].startswith("2: ")  # the name that its key has
    assert "this node's key is registered under the name" in refused[102]


def test_a_key_without_a_name_cannot_take_a_registered_one(network):
    network.identities = {100: ("0", b"")}
    roster = Roster()
    Handshake(network, "x", roster, RunConfig(client_keys="auto")).query(patience=60)
    assert roster.nodes == {"0": 100, "1": 101}
    assert "the name of another node's key" in roster.refused[102]
    nodes, refused = asked(network, "registered")
    assert nodes == {"0": 100}
    assert "is not registered under a name" in refused[101] + refused[102]


def test_the_content_of_a_message_cannot_be_guessed():
    """Its id is the hash of it, and whoever knows the id may answer in the addressee's name."""
    made = [request(TRAIN, 7, Instruction("x"), 60).content.object_id for _ in range(2)]
    assert made[0] != made[1]


def test_private_folders_unite_their_classes(tmp_path):
    """Models and devices that cannot work: tests/site/test_reasons.py."""
    folders = (("cat", "dog"), ("dog", "emu"), ("ant",))
    own = {
        k: {"data-dir": str(image_folder(tmp_path / f"images-{k}", c, 10, size=24 + 16 * k)),
            "name": f"hospital-{k}"}
        for k, c in enumerate(folders)
    }  # fmt: skip
    own[0]["model"] = "cnn-4"
    run, _ = simulate(tiny(tmp_path), before=deployed(tmp_path, own), simulated=False)
    assert run.partition.read_text().splitlines()[0] == "client,ant,cat,dog,emu"
    assert {(row["client"], row["model"]) for row in csv.DictReader(run.clients.open())} == {
        ("hospital-0", "cnn-4"), ("hospital-1", "cnn-5"), ("hospital-2", "cnn-5")
    }  # fmt: skip
    assert (tmp_path / "states" / "101").is_dir()


def test_a_deployed_client_ignores_paths_of_the_run(tmp_path, capfd):
    """A server does not choose paths on a hospital's disk."""
    images = image_folder(tmp_path / "server", "ab", 10)
    config = tiny(tmp_path, dataset="image-folder", data_path=str(images), start_timeout=1.0)

    with pytest.raises(RunFailed, match="this run: data: its data are missing[^;]*$"):
        simulate(config, before=deployed(tmp_path), simulated=False)
    assert capfd.readouterr().err.count("data-path is empty") == 3
