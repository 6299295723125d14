"""Numbers that clients report about themselves: FLOPs, evaluations, what a method records."""

import csv
import json

import pytest
from flwr.app import Message, MetricRecord

from fedhet.config.registry import METHODS
from fedhet.protocol import flop_claims
from fedhet.testing import simulate, small


def summary(folder) -> dict:
    return json.loads(folder.summary.read_text())


@pytest.mark.parametrize("method", METHODS)
def test_the_server_counts_every_methods_flops_for_itself(tmp_path, monkeypatch, method):
    """Honest clients pass with a third of the slack, and liars by more than that do not."""
    counted, original = [], flop_claims.Work._counted

    def count(self, info, payload, round_):
        counted.append(original(self, info, payload, round_))
        return counted[-1]

    monkeypatch.setattr(flop_claims.Work, "_counted", count)
    monkeypatch.setattr(flop_claims, "FACTOR", 3.0)

    def lie(node, message, reply):
        if node == 2 and message.metadata.message_type == "train":
            metrics = dict(reply.content["metrics"].items())
            metrics["train_flops"] *= 10
            reply.content["metrics"] = MetricRecord(metrics)
            return Message(reply.content, reply_to=message)
        return reply

    folder, _ = simulate(small(tmp_path, method=method, rounds=1), tamper=lie)
    ((own, others),) = counted  # counted once: per training image, and whatever there are
    assert own > 1e6 and others == 0
    (failure,) = summary(folder)["failures"]
    assert failure["client"] == "2" and "the server counts" in failure["reason"]


def test_a_model_that_only_its_node_knows_is_held_against_the_median(tmp_path, monkeypatch):
    """And is not imported by the server on the node's word."""
    monkeypatch.setattr(flop_claims, "ODD", 5.0)

    def own(node, message, reply):
        content = reply.content
        if message.metadata.message_type == "query":
            content["info"]["model"] = "hospital.nets:tiny"
        elif node == 1:
            metrics = dict(content["metrics"].items())
            metrics["train_flops"] *= 6
            content["metrics"] = MetricRecord(metrics)
        return Message(content, reply_to=message)

    folder, _ = simulate(small(tmp_path, rounds=1), tamper=own)
    (failure,) = summary(folder)["failures"]
    assert failure["client"] == "1" and "the median is" in failure["reason"]


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
    "empty metrics": lambda content: content.update({"metrics": MetricRecord()}),
    "no test accuracy": lambda content: content["metrics"].pop("test_accuracy"),
    "no number of images": lambda content: content["metrics"].pop("num-examples"),
    "another client's": lambda content: content["info"].update({"client": "0"}),
    "another round's": lambda content: content["info"].update({"round": 9}),
    "an error": lambda content: content["info"].update({"error": "no disk"}),
}


@pytest.mark.parametrize("attack", EVALUATIONS)
def test_an_evaluation_that_says_nothing_is_no_evaluation(tmp_path, attack):
    config = small(tmp_path, rounds=1, method="standalone", fraction=0.34, seed=1)
    folder, _ = simulate(config, tamper=evaluation(EVALUATIONS[attack]))
    (record,) = folder.read_rounds()
    (failure,) = record["failures"]
    assert failure["client"] == "1" and failure["reason"].startswith("evaluation: ")
    assert record["evaluated_clients"] == 2
    assert "1" not in {row["client"] for row in csv.DictReader(folder.clients.open())}


def test_a_client_without_test_images_is_evaluated_as_such(tmp_path):
    def none(content):
        content["metrics"] = MetricRecord({"num-examples": 0.0})

    config = small(tmp_path, rounds=1, method="standalone", fraction=0.34, seed=1)
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

    folder, _ = simulate(small(tmp_path, method="fedapen", rounds=1), tamper=lie)
    (failure,) = summary(folder)["failures"]
    assert failure["reason"] == "metric 'ensemble_weight' is 7, not within 0 and 1"
