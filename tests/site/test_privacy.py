"""Clipping against Flower's own local DP mod; what it costs against an independent accountant."""

import importlib
import json
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from fedhet.config.load import resumed_config
from fedhet.errors import UserError
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
from fedhet.testing import simulate, small

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


def test_integers_stay_and_other_classes_are_no_reference(tmp_path):
    config = small(tmp_path, **DP)
    ids, rows = np.array([1, 3]), np.full((2, 4), 5.0, np.float32)
    same = privatise([ids, rows], [ids, rows], config, Silent())
    np.testing.assert_array_equal(same[1], rows)  # no update, nothing to clip
    other = privatise([ids, rows], [np.array([1, 2]), rows], config, Silent())
    np.testing.assert_array_equal(other[0], ids)
    assert np.linalg.norm(other[1]) == pytest.approx(2.0)


@pytest.mark.parametrize(("epsilon", "multiplier"), [(1, 3.7306), (10, 0.49989), (100, 0.094670)])
def test_one_upload_needs_the_noise_of_the_analytic_mechanism(
    tmp_path, epsilon, multiplier, dp_accounting
):
    config = small(tmp_path, rounds=1, dp_clip=2.0, dp_epsilon=epsilon, dp_delta=1e-5)
    assert noise_multiplier(config) == pytest.approx(multiplier, rel=1e-4)
    assert noise_multiplier(config) == pytest.approx(
        dp_accounting.get_sigma_gaussian(epsilon, 1e-5), rel=1e-9
    )
    assert sigma(config) == 2.0 * noise_multiplier(config)


@pytest.mark.parametrize(
    ("label", "once", "ten"), [(1, 0.751, 2.688), (10, 10.39, 48.37), (100, 300.1, 2407.6)]
)
def test_what_the_classical_noise_really_costs(label, once, ten, dp_accounting):
    """sigma/S = sqrt(2 ln(1.25/delta))/epsilon promises ``label`` for one upload."""
    multiplier = math.sqrt(2 * math.log(1.25e5)) / label
    for uploads, epsilon in ((1, once), (10, ten)):
        mu = math.sqrt(uploads) / multiplier
        assert epsilon_of(mu, 1e-5) == pytest.approx(epsilon, rel=1e-3)
        independent = dp_accounting.get_epsilon_gaussian(1 / mu, 1e-5)
        assert epsilon_of(mu, 1e-5) == pytest.approx(independent, rel=1e-9)


def test_composition_is_that_of_an_accountant_that_knows_nothing_of_mu(dp_accounting):
    """Privacy loss distributions, discretised, convolved ten times."""
    accountant = dp_accounting.pld.PLDAccountant()
    upload = dp_accounting.GaussianDpEvent(4.84)
    accountant.compose(dp_accounting.SelfComposedDpEvent(upload, 10))
    assert epsilon_of(math.sqrt(10) / 4.84, 1e-5) == pytest.approx(2.69, abs=0.005)
    assert accountant.get_epsilon(1e-5) == pytest.approx(
        epsilon_of(math.sqrt(10) / 4.84, 1e-5), rel=1e-5
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3, 40, 1e4])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.2])
def test_epsilon_delta_and_noise_agree_with_each_other_and_the_accountant(
    epsilon, delta, dp_accounting
):
    mu = mu_of(epsilon, delta)
    assert log_delta(epsilon, mu) == pytest.approx(math.log(delta), rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    assert 1 / mu == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    assert epsilon_of(mu / 1e6, delta) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("rounds", [1, 7, 500])
def test_the_budget_lasts_for_every_round_and_not_longer(tmp_path, rounds):
    config = small(tmp_path, rounds=rounds, fraction=0.5, **DP)
    costs = [epsilon_spent(config, n) for n in (0, 1, rounds // 2, rounds, rounds + 1)]
    assert costs[0] == 0.0 and costs[1] > 0.0
    assert costs[3] == pytest.approx(config.dp_epsilon, rel=1e-9)
    assert costs[2] < costs[3] < costs[4]


def test_an_update_that_cannot_be_clipped_does_not_leave(tmp_path):
    config = small(tmp_path, **DP)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="NaN or infinity"):
            privatise([np.array([1e9, bad])], [np.zeros(2)], config, Silent())


def test_a_run_with_noise(tmp_path, dp_accounting):
    mild = {"dp_clip": 1.0, "dp_epsilon": 50.0, "dp_delta": 1e-3}
    runs = [
        json.loads(simulate(small(tmp_path, **more))[0].summary.read_text())
        for more in (mild, mild, {})
    ]
    assert runs[0]["failures"] == []
    assert runs[0]["run_sha256"] == runs[1]["run_sha256"] != runs[2]["run_sha256"]
    assert runs[2]["privacy"] is None
    told = runs[0]["privacy"]
    assert told["epsilon_spent"] == pytest.approx({"0": 50.0, "1": 50.0, "2": 50.0})
    assert told["sigma"] == pytest.approx(dp_accounting.get_sigma_gaussian(50.0, 1e-3) * 2**0.5)
    assert any("class ids" in line for line in told["not_covered"])


def test_who_uploads_less_often_has_spent_less(tmp_path):
    config = small(tmp_path, fraction=0.34, rounds=4, dp_clip=1.0, dp_epsilon=9.0, dp_delta=1e-3)
    folder, _ = simulate(config)
    asked = [set(record["epsilon_spent"]) for record in folder.read_rounds()]
    times = {client: sum(client in one for one in asked) for client in ("0", "1", "2")}
    told = json.loads(folder.summary.read_text())["privacy"]["epsilon_spent"]
    assert sum(times.values()) == 4 and told == {
        client: epsilon_spent(config, times[client]) for client in ("0", "1", "2")
    }


@pytest.mark.parametrize("missing", DP)
def test_the_three_keys_are_needed_together(tmp_path, missing):
    with pytest.raises(UserError, match=f"^{missing.replace('_', '-')}: .* needed together"):
        small(tmp_path, **{key: value for key, value in DP.items() if key != missing})


def test_a_run_with_noise_is_not_resumed_for_more_rounds(tmp_path):
    started = small(tmp_path, **DP).flat()
    assert resumed_config(started, []).rounds == 2
    with pytest.raises(UserError, match="^rounds: 9 is not allowed: the noise of this run"):
        resumed_config(started, ["rounds=9"])
