"""Metrics at the end of a vector, and what is read back of their sum."""

import math

import pytest

from fedhet.config.schema import BESIDE_ACCURACY
from fedhet.sums.contribution import Summed, SumMetrics

SUMMED = SumMetrics(64.0, {"shift": (-128.0, 2.0), "alpha": (0.0, 1.0)})


def test_a_vector_by_hand():
    numbers = {"test_accuracy": 50.0, "train_loss": 99.0, "shift": -64.0, "alpha": math.nan}
    vector = SUMMED.vector({**numbers, "seconds": 3.0, "train_flops": 1e9, "train_images": 2**20})
    assert list(SUMMED.scales) == [
        "test_accuracy", "val_accuracy", "test_accuracy_before", "val_accuracy_before",
        "train_loss", "alpha", "shift",
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
        "test_accuracy": Summed(pytest.approx(70.0), 2),
        "val_accuracy": Summed(pytest.approx(70.0), 1),
        "train_images": Summed(pytest.approx(200.0), 2),
    }
    assert set(SUMMED.means(total, 2, 2)) == {"test_accuracy", "train_images"}  # one's is nobody's
