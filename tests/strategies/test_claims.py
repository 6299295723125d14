"""Numbers that clients report about themselves: evaluations, what a method records."""

import csv

import pytest
from flwr.app import MetricRecord
from helpers.tiny import tiny
from hostile.lies import counts, liars, says

from fedhet.testing import simulate

NONE = MetricRecord({"num-examples": 0.0})
EVALUATIONS = {
    "no metrics": lambda content, _: content.pop("metrics"),
    "no test accuracy": lambda content, _: content["metrics"].pop("test_accuracy"),
    "another client's": says(client="0"),
    "an error": says(error="no disk"),
    "no test images": lambda content, _: content.update({"metrics": NONE}),
}


@pytest.mark.parametrize("attack", EVALUATIONS)
def test_an_evaluation_that_says_nothing_is_no_evaluation(tmp_path, attack):
    """A round after which client 1 is evaluated; one without test images has no accuracy."""
    config = tiny(tmp_path, rounds=1, method="standalone", fraction=0.34, seed=1)
    folder, _ = simulate(config, tamper=liars({1: EVALUATIONS[attack]}, "evaluate"))
    (record,) = folder.read_rounds()
    assert record["evaluated_clients"] == 2
    if attack == "no test images":
        assert record["failures"] == []
        return
    assert "1" not in {row["client"] for row in csv.DictReader(folder.clients.open())}
    (failure,) = record["failures"]
    assert failure["client"] == "1" and failure["reason"].startswith("evaluation: ")


def test_a_methods_own_number_has_its_own_range(tmp_path):
    lie = liars({1: counts(ensemble_weight=7.0)})
    folder, _ = simulate(tiny(tmp_path, method="fedapen", rounds=1), tamper=lie)
    (failure,) = folder.read_summary()["failures"]
    assert failure["reason"] == "metric 'ensemble_weight' is 7, not within 0 and 1"
