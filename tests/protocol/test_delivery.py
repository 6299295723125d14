"""Collecting replies: time limits hold even where Flower's own calls block."""

import threading

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from helpers.pace import Clock

from fedhet.engines.grid import SimulationGrid
from fedhet.protocol import mail as delivery
from fedhet.protocol.flower import DAMAGED, be_task, posted, take_damaged_replies
from fedhet.protocol.mail import exchange


class Network:
    """A grid as on a network (no ``pull_interval``); node 2's reply never arrives completely."""

    def __init__(self, refuse=False):
        be_task()
        self.sent, self.refuse, self.release = {}, refuse, threading.Event()

    def push_messages(self, messages):
        if self.refuse:
            return []
        for message in messages:
            self.sent[posted(message)] = message
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        for identity in message_ids:
            message = self.sent[identity]
            if message.metadata.dst_node_id == 2:
                self.release.wait(60)
            if message.metadata.dst_node_id == 3:
                raise ConnectionError("the SuperLink is gone")
            yield Message(RecordDict(), reply_to=message)


def messages(*nodes):
    return {str(node): Message(RecordDict(), node, "train", ttl=60) for node in nodes}


def test_a_reply_that_hangs_in_flower_holds_up_nobody():
    grid = Network()
    came = exchange(grid, messages(1, 2, 4), timeout=5.0)
    assert not grid.release.is_set()  # Flower's call still hangs
    grid.release.set()
    assert [client for client, _ in came] == ["1", "4", "2"]
    assert [reply.says("undelivered") for _, reply in came] == [False, False, True]


def test_an_error_of_the_connection_is_not_swallowed():
    with pytest.raises(ConnectionError, match="is gone"):
        exchange(Network(), messages(1, 3), timeout=5.0)


def test_what_cannot_be_sent_is_answered_with_an_error():
    came = exchange(Network(refuse=True), messages(1, 4), timeout=5.0)
    assert [reply.error for _, reply in came] == ["the message could not be sent"] * 2


def test_only_a_window_is_under_way_in_flowers_simulation_and_all_elsewhere():
    flowers, ours, network = Network(), Network(), Network()
    flowers.pull_interval = ours.pull_interval = 0.0  # as Flower's in-memory grid has one
    ours.window = SimulationGrid.window
    many = list(range(10, 210))
    for simulator, sent in ((flowers, delivery.WINDOW), (ours, 200)):
        simulator.pull_messages = lambda ids: []
        mail = delivery.Mail(simulator)
        mail.waiting.extend(messages(*many).values())
        assert mail.poll() == [] and len(simulator.sent) == sent
    came = exchange(network, messages(*many), timeout=5.0)
    assert sorted(int(client) for client, _ in came) == many
    assert not any(reply.says("undelivered") for _, reply in came)


def test_an_exchange_ends_when_enough_has_come_and_reads_within_each_clients_limit():
    grid = Network()
    came = exchange(grid, messages(1, 2, 4), 60.0, {"1": -1, "4": 99}.get, lambda c, _: c == "4")
    grid.release.set()
    assert [client for client, _ in came] == ["1", "4"]
    assert "more than the -1 allowed" in came[0][1].error


class Forgetful(Network):
    """Drops the first ``drops`` replies of node 4, as a SuperLink without CPU does."""

    def __init__(self, drops):
        super().__init__()
        self.drops = drops

    @property
    def asked(self):
        return [message.metadata.dst_node_id for message in self.sent.values()]

    def pull_messages(self, message_ids):
        for message in [self.sent[identity] for identity in message_ids]:
            if message.metadata.dst_node_id != 4 or self.asked.count(4) > self.drops:
                yield Message(RecordDict(), reply_to=message)


@pytest.fixture
def clock(monkeypatch):
    """Time that does not depend on the machine: it passes between two polls."""
    monkeypatch.setattr(delivery, "time", Clock())
    monkeypatch.setattr(delivery, "PULL_PATIENCE", 60.0)  # these pulls end by themselves


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("drops", "asked"), [(0, 1), (1, 2), (2, 3), (9, 3)])
def test_a_lost_reply_is_asked_for_again_and_counted_once(monkeypatch, drops, asked):
    monkeypatch.setattr(delivery, "REMIND_AFTER", 0.3)
    grid = Forgetful(drops)
    came = exchange(grid, messages(1, 4, 5), timeout=5.0)
    assert sorted(client for client, _ in came) == ["1", "4", "5"]
    assert [client for client, reply in came if reply.says("undelivered")] == ["4"] * (drops > 2)
    assert grid.asked.count(4) == asked and grid.asked.count(1) == 1


@pytest.mark.usefixtures("clock")
def test_nobody_is_asked_again_while_most_are_still_at_work(monkeypatch):
    monkeypatch.setattr(delivery, "REMIND_AFTER", 0.1)
    grid = Forgetful(9)
    exchange(grid, {**messages(4, 5), "again": messages(4)["4"]}, timeout=1.0)
    # one of three has answered: half of the time counts, once
    assert grid.asked.count(4) == 4


def packed(message):
    """What a node pushes of a message: the contents of its objects by their ids."""
    found, ahead = {}, [message]
    while ahead:
        one = ahead.pop()
        found[one.object_id] = one.deflate()
        ahead += list((one.children or {}).values())
    return found


@pytest.mark.parametrize("kind", ["ConfigRecord", "ArrayRecord", "RecordDict", "Array", "Message"])
def test_a_reply_that_flower_cannot_unpack_is_its_nodes_error(kind):
    be_task()
    asked = messages(5)["5"]
    identity = posted(asked)
    info = {"info": ConfigRecord({"client": "5"}), "arrays": ArrayRecord([np.ones(2)])}
    reply = Message(RecordDict(info), reply_to=asked)
    contents, whole = packed(reply), reply.object_id
    damaged = next(k for k, c in contents.items() if c.startswith(f"{kind} ".encode()))
    head, _, body = contents[damaged].partition(b"\x00")
    contents[damaged] = head + b"\x00" + b"\xff" * len(body)  # of the length that the head says
    made = take_damaged_replies()(whole, contents)
    assert made.has_error() and made.error.code == DAMAGED
    answers = made.metadata.reply_to_message_id == identity
    assert answers == (kind != "Message")  # nobody can say what that one answers
