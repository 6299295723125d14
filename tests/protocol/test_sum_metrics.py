"""Metrics at the end of a vector, and what is read back of their sum."""

import math
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest

from fedhet.config.schema import BESIDE_ACCURACY
from fedhet.sums.contribution import SumMetrics, coarse

SUMMED = SumMetrics(64.0, {"shift": (-128.0, 2.0), "alpha": (0.0, 1.0)})


def test_a_vector_by_hand():
    numbers = {"test_accuracy": 50.0, "train_loss": 99.0, "shift": -64.0, "alpha": math.nan}
    vector = SUMMED.vector({**numbers, "seconds": 3.0, "train_flops": 1e9, "train_images": 2**20})
    assert list(SUMMED.scales)[:8] == [
        "test_accuracy", "val_accuracy", "test_accuracy_before", "val_accuracy_before",
        "train_loss", "alpha", "shift", "train_images",
    ]  # fmt: skip
    assert vector[:10].tolist() == [0.5, 1, 0, 0, 0, 0, 0, 0, 64, 1]
    assert vector[10:16].tolist() == [0, 0, -32, 1, 2.0**-10, 0]
    assert not vector[16:].any()  # the other figures of an evaluation, which nobody has here
    # Two entries a number: eight are in the chain, with images; nothing of FLOPs.
    assert len(SUMMED) == len(vector) == 16 + 2 * len(BESIDE_ACCURACY)


def test_means_are_over_those_who_have_the_number():
    total = SUMMED.vector({"test_accuracy": 80.0, "val_accuracy": 70.0, "train_images": 100})
    total += SUMMED.vector({"test_accuracy": 60.0, "train_images": 300})
    found = SUMMED.means(total, 2)
    assert found == {
        "test_accuracy": (pytest.approx(70.0), 2),
        "val_accuracy": (pytest.approx(70.0), 1),
        "train_images": (pytest.approx(200.0), 2),
    }
    assert set(SUMMED.means(total, 2, 2)) == {"test_accuracy", "train_images"}  # one's is nobody's


def explanations(total, rounded):
    """Return how many triples of accuracies of 20 to 30 test rows have this sum."""
    each = {Fraction(right, n) for n in range(20, 31) for right in range(n + 1)}
    values = np.array(sorted({rounded(float(one)) for one in each}))
    pairs = np.array([a + b for a, b in combinations_with_replacement(values, 2)])
    return sum(int((np.abs(pairs + one - total) < 2.0**-21).sum()) for one in values) // 3


def test_the_sum_of_few_test_rows_tells_no_single_accuracy():
    """Exact, the accuracies of hospitals with 23, 25 and 29 test rows follow from their sum."""
    sizes = {23: 19, 25: 21, 29: 22}
    own = [{"test_accuracy": 100 * right / n} for n, right in sizes.items()]
    total = sum(SUMMED.vector(one)[0] for one in own)
    assert explanations(total, float) == 1
    shared = [coarse(one, {"test": n}, 5) for one, n in zip(own, sizes, strict=True)]
    total = sum(SUMMED.vector(one)[0] for one in shared)
    assert explanations(total, lambda value: round(value, 2)) > 100


def test_metrics_of_too_few_examples_are_absent_and_others_coarse():
    own = {"test_auroc": 66.66, "test_log_loss": 0.6666, "test_ece": math.nan}
    own |= {"val_accuracy": 50.0, "train_loss": 0.6666}
    shared = coarse(own, {"test": 30, "val": 4}, 5)
    assert shared == {"test_auroc": 67.0, "test_log_loss": 0.67, "train_loss": 0.6666}
