"""The metrics of an evaluation are scikit-learn's, and one that is not defined is absent."""

from typing import get_args

import numpy as np
import pytest
import torch

from fedhet.config.schema import METRICS, MetricName, RunConfig
from fedhet.records.summary import headline
from fedhet.training.loop import Examples
from fedhet.training.metrics import evaluate


def evaluated(logits, labels, majority=None):
    """Evaluate given logits (n, C): the examples are their own answers."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    data = Examples(logits, torch.as_tensor(labels), prepare=lambda rows: rows)
    return evaluate(lambda rows: {"": rows}, data, RunConfig(), majority)


def softmax(logits):
    return torch.as_tensor(logits, dtype=torch.float32).double().softmax(1).numpy()


@pytest.mark.parametrize(("count", "classes"), [(60, 2), (40, 30)])
def test_metrics_are_those_of_scikit_learn(count, classes):
    from sklearn import metrics as sk  # late: a second, which every worker would take to collect

    draws = np.random.default_rng(count)
    labels = draws.integers(0, classes, count)
    logits = draws.normal(size=(count, classes)).round(1)  # with equal scores
    logits[np.arange(count), labels] += draws.random(count) * 2
    logits[:20] = logits[0]
    found = evaluated(logits, labels).metrics
    p, answers = softmax(logits), logits.argmax(1)
    occur = np.unique(labels)
    aurocs = [sk.roc_auc_score(labels == c, p[:, c]) for c in occur]
    auroc = aurocs[-1] if classes == 2 else np.mean(aurocs)
    recalls = [(answers[labels == c] == c).mean() for c in occur]
    wanted = {
        "accuracy": 100 * sk.accuracy_score(labels, answers),
        "balanced_accuracy": 100 * np.mean(recalls),
        "macro_f1": 100 * sk.f1_score(labels, answers, average="macro", zero_division=0),
        "auroc": 100 * auroc,
        "log_loss": sk.log_loss(labels, p, labels=range(classes)),
        "ece": 100 * calibration_error(p, labels),
    }
    assert found == pytest.approx(wanted, rel=1e-9)
    assert set(found) == set(METRICS) == set(get_args(MetricName))


def calibration_error(p, labels):
    confidence, right = p.max(1), p.argmax(1) == labels
    bins = np.clip(np.ceil(confidence * 15).astype(int), 1, 15)
    inside = ([bins == k] for k in range(1, 16))
    return sum(abs((confidence[i] - right[i]).sum()) for (i,) in inside) / len(labels)


def test_what_is_not_defined_is_absent():
    found = evaluated([[2.0, 1.0], [0.0, 1.0]], [0, 0]).metrics
    assert not {"auroc", "balanced_accuracy"} & set(found), "one class fills the split"
    assert found["accuracy"] == 50
    broken = evaluated([[float("nan"), 1.0], [0.0, 1.0]], [0, 1]).metrics
    assert set(broken) == {"accuracy", "balanced_accuracy", "macro_f1"}


def test_the_majority_class_is_the_train_splits_and_others_have_an_accuracy_alone():
    data = Examples(torch.eye(3), torch.tensor([0, 1, 1]), prepare=lambda rows: rows)
    found = evaluate(lambda rows: {"": rows, "twin": rows}, data, RunConfig(), 1).metrics
    assert found["majority_accuracy"] == pytest.approx(200 / 3)
    assert found["accuracy_twin"] == found["accuracy"]
    assert not [name for name in found if name.endswith("twin") and name != "accuracy_twin"]


def test_the_headline_says_over_how_many_clients_a_mean_is():
    line = {"test_auroc_mean": 62.5, "test_auroc_clients": 1, "test_log_loss_clients": 2}
    assert headline("auroc", line).endswith("62.50 % (of 1 of 2 clients)")
