"""Numbers that clients report about themselves: evaluations, what a method records."""

import csv

import pytest
from flwr.app import Message, MetricRecord
from helpers.tiny import tiny

from fedhet.testing import simulate


def evaluation(change):
    """Tamper with the evaluate replies of client 1."""

    def tamper(node, message, reply):
        if node == 1 and message.metadata.message_type == "evaluate":
            change(reply.content)
            return Message(reply.content, reply_to=message)
        return reply

    return tamper


EVALUATIONS = {
    "no metrics": lambda content: content.pop("metrics"),
    "no test accuracy": lambda content: content["metrics"].pop("test_accuracy"),
    "another client's": lambda content: content["info"].update({"client": "0"}),
    "an error": lambda content: content["info"].update({"error": "no disk"}),
}


@pytest.mark.parametrize("attack", EVALUATIONS)
def test_an_evaluation_that_says_nothing_is_no_evaluation(tmp_path, attack):
    config = tiny(tmp_path, rounds=1, method="standalone", fraction=0.34, seed=1)
    folder, _ = simulate(config, tamper=evaluation(EVALUATIONS[attack]))
    (record,) = folder.read_rounds()
    (failure,) = record["failures"]
    assert failure["client"] == "1" and failure["reason"].startswith("evaluation: ")
    assert record["evaluated_clients"] == 2
    assert "1" not in {row["client"] for row in csv.DictReader(folder.clients.open())}


def test_a_client_without_test_images_is_evaluated_as_such(tmp_path):
    def none(content):
        content["metrics"] = MetricRecord({"num-examples": 0.0})

    config = tiny(tmp_path, rounds=1, method="standalone", fraction=0.34, seed=1)
    folder, _ = simulate(config, tamper=evaluation(none))
    (record,) = folder.read_rounds()
    assert record["failures"] == [] and record["evaluated_clients"] == 2


def test_a_methods_own_number_has_its_own_range(tmp_path):
    def lie(node, message, reply):
        if node == 1 and message.metadata.message_type == "train":
            metrics = dict(reply.content["metrics"].items()) | {"ensemble_weight": 7.0}
            reply.content["metrics"] = MetricRecord(metrics)
            return Message(reply.content, reply_to=message)
        return reply

    folder, _ = simulate(tiny(tmp_path, method="fedapen", rounds=1), tamper=lie)
    (failure,) = folder.read_summary()["failures"]
    assert failure["reason"] == "metric 'ensemble_weight' is 7, not within 0 and 1"
