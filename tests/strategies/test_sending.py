"""What the round loop sends: in which order, and encoded how often."""

import pytest
from flwr.app import MetricRecord
from helpers.tiny import tiny

from fedhet.testing import simulate

SECONDS = {0: 1.0, 1: 9.0, 2: 4.0}


def slow(node, message, reply):
    """Replies that claim to have taken long, each node its own time per image."""
    if message.metadata.message_type == "train":
        numbers = dict(reply.content.metric_records["metrics"].items())
        numbers["seconds"] = SECONDS[node] * numbers["num-examples"]
        reply.content["metrics"] = MetricRecord(numbers)
    return reply


def train_messages(grid, round_):
    """The round's train messages in the order in which they were sent."""
    return [
        message for message in grid.sent
        if message.metadata.message_type == "train"
        and message.content.config_records["config"]["round"] == round_
    ]  # fmt: skip


def test_long_jobs_are_sent_longest_first_once_their_time_is_known(tmp_path):
    config = tiny(tmp_path, models=["cnn-3", "cnn-4", "cnn-5"], rounds=2)
    _, grid = simulate(config, tamper=slow)
    order = {
        round_: [message.metadata.dst_node_id - 100 for message in train_messages(grid, round_)]
        for round_ in (1, 2)
    }
    assert order == {1: [0, 1, 2], 2: [1, 2, 0]}


@pytest.mark.parametrize(("method", "records"), [("lg_fedavg", 1), ("fedssa", 3)])
def test_what_all_clients_get_is_encoded_once(tmp_path, method, records):
    _, grid = simulate(tiny(tmp_path, method=method, rounds=1))
    sent = [message.content["arrays"] for message in train_messages(grid, 1)]
    assert len(sent) == 3 and len({id(record) for record in sent}) == records
