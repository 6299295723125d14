"""Metrics at the end of a vector, and what is read back of their sum."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhet.config import build_config
from fedhet.protocol.sum_metrics import LARGEST_LOSS, Mean, MetricLayout

CONFIG = build_config({"max-images": 400})
LAYOUT = MetricLayout.of(CONFIG, {"shift": (-8.0, 2.0), "alpha": (0.0, 1.0)})


def test_a_vector_by_hand():
    numbers = {"test_accuracy": 50.0, "train_loss": 64.0, "shift": -4.0, "alpha": math.nan}
    vector = LAYOUT.vector({**numbers, "seconds": 3.0}, 100)
    assert list(LAYOUT.units) == [
        "test_accuracy", "val_accuracy", "train_loss", "images", "alpha", "shift",
    ]  # fmt: skip
    assert vector.tolist() == [0.5, 0, 1, 0.25, 0, -0.5, 1, 0, 1, 1, 0, 1]
    assert LAYOUT.length == 12


def test_means_are_over_those_who_have_the_number():
    total = LAYOUT.vector({"test_accuracy": 80.0, "val_accuracy": 70.0}, 100)
    total += LAYOUT.vector({"test_accuracy": 60.0}, 300)
    found = LAYOUT.read(total)
    assert found == {
        "test_accuracy": Mean(pytest.approx(70.0), 2),
        "val_accuracy": Mean(pytest.approx(70.0), 1),
        "images": Mean(pytest.approx(200.0), 2),
    }
    assert set(LAYOUT.read(total, least=2)) == {"test_accuracy", "images"}  # one alone is told none


def test_nothing_rides_along_where_metrics_are_told():
    layout = MetricLayout.of(build_config({"sum-metrics": False}), {"alpha": (0.0, 1.0)})
    assert layout.length == 0 and layout.vector({"test_accuracy": 1.0}, 3).shape == (0,)
    assert layout.read(np.zeros(0)) == {}


@given(
    st.lists(
        st.tuples(
            st.one_of(st.just(math.nan), st.floats(0, 100)),
            st.floats(-1e6, 1e6),
            st.integers(1, 400),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_there_and_back(clients):
    vectors = [LAYOUT.vector({"test_accuracy": a, "train_loss": b}, n) for a, b, n in clients]
    assert max(np.abs(vector).max() for vector in vectors) <= 1.0  # no sum-range is too small
    found = LAYOUT.read(np.sum(vectors, axis=0))
    scores = [a for a, _, _ in clients if not math.isnan(a)]
    losses = [min(max(b, -LARGEST_LOSS), LARGEST_LOSS) for _, b, _ in clients]
    assert found["train_loss"].mean == pytest.approx(np.mean(losses), abs=1e-9)
    assert found["images"].mean == pytest.approx(np.mean([n for *_, n in clients]))
    assert ("test_accuracy" in found) == bool(scores)
    if scores:
        assert found["test_accuracy"].mean == pytest.approx(np.mean(scores), abs=1e-9)
        assert found["test_accuracy"].number == len(scores)
