"""Means, those that some liars cannot move, and shares with a ceiling; worked out by hand."""

import numpy as np
import pytest

from fedhet.config.load import build_config
from fedhet.errors import UserError
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import ClassVectors, ModelArrays
from fedhet.strategies.averaging import BLOCK, means_of, sum_by_class, sum_uploads
from fedhet.strategies.base import Upload
from fedhet.strategies.rules import Rule, capped
from fedhet.testing import make_strategy, simulate, small, uploads_of

TRIMMED, MEDIAN = Rule("trimmed-mean", 0.2), Rule("median")


def test_the_weighted_mean_of_many_uploads():
    """More than go through the cache at a time."""
    random, count = np.random.default_rng(0), 2 * BLOCK + 3
    weights, rows = random.random(count), random.random((count, 12), dtype=np.float32)
    weights /= weights.sum()

    def layers(row):
        return row.reshape(3, 4), row[:5], row[0].reshape(())

    info = ClientInfo("0", (), (), (), 1, "cnn-5", "cpu")
    pairs = zip(rows, weights.tolist(), strict=True)
    uploads = [Upload(info, ModelArrays(layers(row)), weight, {}) for row, weight in pairs]
    means = means_of(sum_uploads(uploads), uploads[0].payload.flat)
    for mean, exact in zip(means, layers(weights @ rows.astype(np.float64)), strict=True):
        assert mean.dtype == np.float32 and mean.shape == exact.shape
        np.testing.assert_allclose(mean, exact, rtol=1e-6)


def test_a_trimmed_mean_and_a_median_by_hand():
    values = np.array([[1.0, 5.0], [2.0, 1.0], [3.0, 2.0], [4.0, -9.0], [1e6, 3.0]])
    assert TRIMMED.middle(values).tolist() == [3.0, 2.0]
    assert MEDIAN.middle(values).tolist() == [3.0, 2.0]
    assert MEDIAN.middle(values[:4]).tolist() == [2.5, 1.5]
    assert Rule("trimmed-mean", 0.0).middle(values).tolist() == values.mean(axis=0).tolist()
    # floor(0.2 * 4) = 0: four values are not trimmed
    assert TRIMMED.middle(values[:4]).tolist() == values[:4].mean(axis=0).tolist()
    assert Rule("trimmed-mean", 0.1).middle(np.arange(10.0)).item() == 4.5
    assert Rule("trimmed-mean", 0.1).middle(np.array([*range(9), 1e9])).item() == 4.5


def test_rows_are_combined_class_by_class():
    classes = np.array([0, 2, 0, 2, 0, 2, 0, 0, 3])
    rows = np.array([1, 10, 2, 20, 3, 1e6, 4, -1e6, 7], dtype=np.float32)[:, None] * np.ones(2)
    before = np.full((5, 2), -1, dtype=np.float32)
    split = [rows[:4].astype(np.float32), rows[4:].astype(np.float32)]
    ids = [classes[:4], classes[4:]]
    payloads = [ClassVectors(c, c, r) for c, r in zip(ids, split, strict=True)]
    for rule, wanted in ((TRIMMED, [2, -1, 1e6 / 3 + 10, 7, -1]), (MEDIAN, [2, -1, 20, 7, -1])):
        got = sum_by_class(payloads, None, len(before), rule).means(before)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, np.array(wanted)[:, None] * np.ones(2), rtol=1e-6)


def test_whole_models_are_combined_coordinate_by_coordinate(monkeypatch, tmp_path):
    monkeypatch.setattr("fedhet.strategies.rules.CHUNK", 7)
    random = np.random.default_rng(0)
    strategy = make_strategy(small(tmp_path, method="lg_fedavg"), [[0]] * 5, [1, 2, 3, 4, 5], 2)
    models = random.random((5, 3, 4)).astype(np.float32)
    uploads = uploads_of(strategy, {str(k): ModelArrays((m,)) for k, m in enumerate(models)})
    for rule, wanted in (
        (TRIMMED, np.sort(models, axis=0)[1:4].mean(axis=0, dtype=np.float64)),
        (MEDIAN, np.median(models, axis=0)),
    ):
        (got,) = means_of(sum_uploads(uploads, rule), uploads[0].payload.flat)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_share_above_the_cap_goes_to_the_others_in_proportion():
    np.testing.assert_allclose(capped(np.array([1, 1, 2, 96]), 0.4), [0.15, 0.15, 0.3, 0.4])
    # what is cut off lifts the second above the cap as well
    np.testing.assert_allclose(capped(np.array([1, 30, 69]), 0.45), [0.1, 0.45, 0.45])
    np.testing.assert_allclose(capped(np.array([1, 10**9]), 0.3), [0.5, 0.5])
    sizes, groups = np.array([9, 1, 5, 90, 1, 4]), np.array([0, 0, 0, 1, 1, 1])
    got = capped(sizes, 0.5, groups)
    np.testing.assert_allclose(got, [0.5, 0.5 / 6, 2.5 / 6, 0.5, 0.1, 0.4])
    assert capped(np.array([3, 7, 11]), 1.0).tolist() == [3 / 21, 7 / 21, 11 / 21]


def test_max_weight_bounds_a_client_of_many_images(tmp_path):
    seen, images = [[0]] * 4, [10, 10, 10, 970]
    heads = {str(k): np.float32([[k]]) for k in range(4)}
    means = {}
    for cap in (1.0, 0.25):
        config = small(tmp_path, method="fedproto", max_weight=cap, name=f"cap-{cap}")
        strategy = make_strategy(config, seen, images, 1)
        payloads = {
            c: ClassVectors(np.array([0]), np.array([n]), np.repeat(heads[c], 500, axis=1))
            for c, n in zip(heads, images, strict=True)
        }
        strategy.aggregate(uploads_of(strategy, payloads), 1)
        means[cap] = float(strategy.arrays()["prototypes"][0, 0])
    assert means[1.0] == pytest.approx((10 + 20 + 3 * 970) / 1000)
    assert means[0.25] == pytest.approx((0 + 1 + 2 + 3) / 4)


def test_a_run_with_medians(tmp_path):
    keys = {"method": "fedkd", "rounds": 1, "image_size": 16, "representation": 32}
    one, _ = simulate(small(tmp_path, **keys, aggregation="median", name="a"))
    two, _ = simulate(small(tmp_path, **keys, name="b"))
    assert one.read_rounds()[0]["failures"] == []
    assert one.read_rounds()[0]["sha256"] != two.read_rounds()[0]["sha256"]


MISTAKES = (
    ({"method": "fd", "aggregation": "median"}, "aggregation: 'median' is not allowed with"),
    ({"method": "standalone", "aggregation": "trimmed-mean"}, "allowed: mean"),
    ({"aggregation": "trimmed-mean", "trim": 0.5}, "trim: '0.5' is not allowed"),
    ({"method": "fml", "aggregation": "median", "max-weight": 0.5}, "does not use weights"),
    ({"max-weight": 0.5}, "max-weight: '0.5' has no effect: method=fedssa"),
)


@pytest.mark.parametrize(("keys", "message"), MISTAKES)
def test_settings_that_cannot_work(keys, message):
    with pytest.raises(UserError, match=message):
        build_config(keys)
