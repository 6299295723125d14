"""Clipping against Flower's own local DP mod; what it costs against an independent accountant."""

import importlib
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from fedhet.protocol.flower import be_one_process, posted
from fedhet.site.privacy import (
    epsilon_of,
    epsilon_spent,
    log_delta,
    mu_of,
    noise_multiplier,
    privatise,
    sigma,
)
from fedhet.testing import small

DP = {"dp_clip": 2.0, "dp_epsilon": 0.5, "dp_delta": 1e-5}


@pytest.fixture(scope="module")
def dp_accounting():
    """Imported where it is used: it takes a second, which every worker would take to collect."""
    return importlib.import_module("dp_accounting")


def arrays(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)]


class Silent:
    """A generator whose noise is zero."""

    def normal(self, mean, scale, shape):
        return np.zeros(shape)


def flowers(received, upload, monkeypatch):
    """What LocalDpMod makes of it, without its noise."""
    be_one_process()
    monkeypatch.setattr(np.random, "normal", Silent().normal)
    message = Message(RecordDict({"a": ArrayRecord(received)}), 5, "train")
    posted(message)
    reply = Message(RecordDict({"a": ArrayRecord(upload)}), reply_to=message)
    mod = LocalDpMod(DP["dp_clip"], DP["dp_clip"], DP["dp_epsilon"], DP["dp_delta"])
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}, series_id=0
    )
    noised = mod(message, context, lambda *_: reply)
    return noised.content.array_records["a"].to_numpy_ndarrays()


@pytest.mark.parametrize("size", [0.1, 10.0])
def test_clipping_is_that_of_flowers_mod(tmp_path, monkeypatch, size):
    config = small(tmp_path, **DP)
    received = arrays(0)
    upload = [a + size * b for a, b in zip(received, arrays(1), strict=True)]
    expected = flowers(received, upload, monkeypatch)
    ours = privatise(upload, received, config, Silent())
    for mine, theirs in zip(ours, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    update = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(ours, received, strict=True)))
    assert update <= 2.0 + 1e-5


def test_one_upload_needs_the_noise_of_the_analytic_mechanism(tmp_path):
    config = small(tmp_path, rounds=1, dp_clip=2.0, dp_epsilon=10, dp_delta=1e-5)
    assert noise_multiplier(config) == pytest.approx(0.49989, rel=1e-4)
    assert sigma(config) == 2.0 * noise_multiplier(config)


def test_composition_is_that_of_an_accountant_that_knows_nothing_of_mu(dp_accounting):
    """Privacy loss distributions, discretised, convolved ten times."""
    accountant = dp_accounting.pld.PLDAccountant()
    upload = dp_accounting.GaussianDpEvent(4.84)
    accountant.compose(dp_accounting.SelfComposedDpEvent(upload, 10))
    found = epsilon_of(math.sqrt(10) / 4.84, 1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 0.2), (3, 1e-5), (40, 1e-12), (1e4, 1e-5)])
def test_epsilon_delta_and_noise_agree_with_each_other_and_the_accountant(
    epsilon, delta, dp_accounting
):
    mu = mu_of(epsilon, delta)
    assert log_delta(epsilon, mu) == pytest.approx(math.log(delta), rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    assert 1 / mu == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    assert epsilon_of(mu / 1e6, delta) == pytest.approx(0.0, abs=1e-3)


def test_the_budget_lasts_for_every_round_and_not_longer(tmp_path):
    config = small(tmp_path, rounds=500, fraction=0.5, **DP)
    costs = [epsilon_spent(config, n) for n in (0, 1, 250, 500, 501)]
    assert costs == sorted(costs) and costs[0] == 0.0 and costs[1] > 0.0
    assert costs[3] == pytest.approx(config.dp_epsilon, rel=1e-9) and costs[3] < costs[4]


def test_an_update_that_cannot_be_clipped_does_not_leave(tmp_path):
    config = small(tmp_path, **DP)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="NaN or infinity"):
            privatise([np.array([1e9, bad])], [np.zeros(2)], config, Silent())
