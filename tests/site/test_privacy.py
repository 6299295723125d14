"""Clipping by hand; what noise costs against an independent accountant."""

import importlib
import math
from types import SimpleNamespace

import numpy as np
import pytest

from fedhet.site.privacy import epsilon_of, log_delta, mu_of, privatise
from fedhet.testing import small

DP = {"dp_clip": 2.0, "dp_epsilon": 0.5, "dp_delta": 1e-5}


@pytest.fixture(scope="module")
def dp_accounting():
    """Imported where it is used: it takes a second, which every worker would take to collect."""
    return importlib.import_module("dp_accounting")


SILENT = SimpleNamespace(normal=lambda mean, scale, shape: np.zeros(shape))


@pytest.mark.parametrize(("size", "kept"), [(0.2, 0.2), (5.0, 0.4)])
def test_an_update_is_scaled_to_the_norm_of_dp_clip_at_most(tmp_path, size, kept):
    config, ids = small(tmp_path, **DP), np.array([3, 9])
    received = [ids, np.ones((2, 2), np.float32), np.full(2, 5.0)]
    update = [np.float32([[3, 0], [0, 0]]), np.array([0.0, 4.0])]  # of norm 5
    upload = [ids, *(a + size * b for a, b in zip(received[1:], update, strict=True))]
    ours = privatise(upload, received, config, SILENT)
    assert ours[0] is ids
    for mine, before, step in zip(ours[1:], received[1:], update, strict=True):
        np.testing.assert_allclose(mine, before + kept * step, rtol=1e-6)
        assert mine.dtype == before.dtype


def test_composition_is_that_of_an_accountant_that_knows_nothing_of_mu(dp_accounting):
    """Privacy loss distributions, discretised, convolved ten times."""
    accountant = dp_accounting.pld.PLDAccountant()
    upload = dp_accounting.GaussianDpEvent(4.84)
    accountant.compose(dp_accounting.SelfComposedDpEvent(upload, 10))
    found = epsilon_of(math.sqrt(10) / 4.84, 1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 0.2), (3, 1e-5), (40, 1e-12), (1e4, 1e-5)])
def test_epsilon_delta_and_noise_agree_with_the_accountant(epsilon, delta, dp_accounting):
    mu = mu_of(epsilon, delta)
    assert log_delta(epsilon, mu) == pytest.approx(math.log(delta), rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    assert 1 / mu == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    assert epsilon_of(mu / 1e6, delta) == pytest.approx(0.0, abs=1e-3)


def test_an_update_that_cannot_be_clipped_does_not_leave(tmp_path):
    config = small(tmp_path, **DP)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="NaN or infinity"):
            privatise([np.array([1e9, bad])], [np.zeros(2)], config, SILENT)
