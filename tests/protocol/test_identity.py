"""What a node says in the handshake: nothing of it is believed, nobody is admitted half."""

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedhet.config.load import envelope
from fedhet.config.schema import RunConfig
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.testing import LocalGrid, simulate, small


@pytest.fixture
def grid(tmp_path):
    return LocalGrid(envelope(small(tmp_path), {}), 3)


def test_a_refused_answer_leaves_no_ghost_in_the_way_of_the_real_owner(grid):
    context = grid.contexts[102]
    grid.contexts[50] = Context(
        run_id=1, node_id=50, node_config=dict(context.node_config), state=RecordDict(),
        run_config=context.run_config, series_id=0,
    )  # fmt: skip
    grid.online = {50, 100}

    def ghost(node, message, reply):
        if node == -50:
            info = reply.content["info"]
            info["clients"], info["device"] = "abc", "cuda:3"
            return Message(RecordDict({"info": info}), reply_to=message)
        return reply

    grid.tamper = ghost
    roster = Roster()
    handshake = Handshake(grid, "x", roster)
    handshake.query()
    grid.online |= {101, 102}
    assert sorted(handshake.query()) == ["1", "2"]
    assert roster.nodes["2"] == 102


def test_a_run_that_hides_classes_is_told_none(grid):
    roster = Roster()
    assert Handshake(grid, "x", roster, RunConfig(secure_sum="unmasked")).query() == []
    assert "this run hides" in roster.refused[100]

    def silent(node, message, reply):
        info = {k: v for k, v in reply.content["info"].items()
                if k not in ("seen", "images", "train-images")}  # fmt: skip
        return Message(RecordDict({"info": ConfigRecord(info)}), reply_to=message)

    grid.tamper = silent
    assert len(Handshake(grid, "x", Roster(), RunConfig(secure_sum="unmasked")).query()) == 3


def test_max_images_is_the_most_that_a_client_may_declare(grid):
    roster = Roster()
    Handshake(grid, "x", roster).query()
    sizes = {client: info.train_images for client, info in roster.infos.items()}
    most = sorted(sizes.values())[1]
    second = Roster()
    found = Handshake(grid, "x", second, RunConfig(max_images=most)).query()
    assert found == [client for client, size in sizes.items() if size <= most]


def test_the_union_of_classes_is_bounded(grid):
    """Two clients bring names of their own, one of them too many: it goes, the other stays."""

    def more(node, message, reply):
        count = {1: 60, 2: 10}.get(node, 0)
        info = reply.content["info"]
        info["classes"] = [*info["classes"], *(f"{node}-{i}" for i in range(count))]
        return Message(RecordDict({"info": info}), reply_to=message)

    grid.tamper = more
    roster = Roster()
    Handshake(grid, "x", roster, RunConfig(max_classes=64)).query()
    assert roster.ids == ["0", "1", "2"]
    roster.fix_classes((), 64)
    assert roster.ids == ["0", "2"] and len(roster.classes) == 14
    assert "has 60 classes that no other client has" in roster.refused[101]


def test_a_node_of_other_examples_is_refused_in_the_handshake(tmp_path):
    """In one line that says what they are and stands in the failures; the run goes on."""
    wrong = {
        '{"kind": "image", "shape": [3, 16, 16]}': (
            "client '1': its examples are image of shape (3, 16, 16), but this run's are image of "
            "shape (3, 32, 32)"
        ),
        '{"kind": "signal", "shape": [6, 128]}': "signal of shape (6, 128), but this run's are",
        "nonsense": "inputs: not a description of examples",
    }

    def lie(node, message, reply):
        if node and message.metadata.message_type == "query":
            reply.content["info"]["inputs"] = list(wrong)[node - 1]
        return reply

    config = small(tmp_path, rounds=1, start_timeout=1, clients=4)
    folder, _ = simulate(config, tamper=lie)
    (record,), summary = folder.read_rounds(), folder.read_summary()
    assert (summary["status"], summary["clients"], record["replied"]) == ("completed", 1, 1)
    assert [failure["client"] for failure in record["failures"]] == [
        f"node {node}" for node in (101, 102, 103)
    ]
    for reason, failure in zip(wrong.values(), record["failures"], strict=True):
        assert reason in failure["reason"]
