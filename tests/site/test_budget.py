"""A client's own account of its noised uploads."""

import numpy as np
import pytest
from helpers.tiny import tiny

from fedhet.config.schema import kebab
from fedhet.engines.launch import answered
from fedhet.errors import Refused
from fedhet.protocol.messages import arrays_of, to_record
from fedhet.site.privacy import Budget, sigma, spent
from fedhet.site.state import FileStore
from fedhet.testing import simulate

DP = {"dp_clip": 2.0, "dp_epsilon": 4.0, "dp_delta": 1e-5, "rounds": 3}
SUMS = {"secure_sum": "masked", "sum_owners": 1}
ZEROS = [np.array([1, 2]), np.zeros(50_000, np.float32)]


def epsilon_spent(config, uploads):
    return spent(uploads, config.rounds, config.dp_epsilon, config.dp_delta)


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "state", sync=False)


def upload(budget, round_, values=ZEROS, *, source=None):
    budget.check(round_, round_ - 1 if source is None else source)
    return budget.noised(values, ZEROS, round_)


def opened(store, config, *, simulated=False):
    """As the next message finds it: nothing is remembered but what was stored."""
    return Budget(store, config, "0", simulated=simulated)


def test_every_upload_is_booked_until_the_budget_is_spent(tmp_path, store):
    config = tiny(tmp_path, **DP)
    for round_ in (1, 2, 3):
        budget = opened(store, config)
        upload(budget, round_)
        assert budget.epsilon == opened(store, config).epsilon == epsilon_spent(config, round_)
    with pytest.raises(Refused, match="3 uploads .* epsilon 4 of dp-epsilon=4"):
        opened(store, config).check(4, 3)


def test_another_upload_in_the_same_round_costs_and_has_its_own_noise(tmp_path, store):
    """The same again is the same bytes, and free."""
    config = tiny(tmp_path, **DP)
    first, again = (upload(opened(store, config), 1) for _ in "ab")
    np.testing.assert_array_equal(first[0], ZEROS[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert first[1].std() == pytest.approx(sigma(config), rel=0.02)
    assert opened(store, config).epsilon == epsilon_spent(config, 1)
    other = [ZEROS[0], ZEROS[1] + np.float32(1e-4)]
    second = upload(opened(store, config), 1, other)
    assert abs(np.corrcoef(first[1], second[1])[0, 1]) < 0.05
    assert opened(store, config).epsilon == epsilon_spent(config, 2)
    upload(opened(store, config), 1)  # it was not the last one: nothing is remembered of it
    with pytest.raises(Refused, match="budget spent"):
        upload(opened(store, config), 1, other)


def test_the_noise_is_secret_in_a_deployment_and_repeats_in_a_simulation(tmp_path):
    config = tiny(tmp_path, **DP)
    stores = [FileStore(tmp_path / name, sync=False) for name in "abcd"]
    budgets = (opened(one, config, simulated=k > 1) for k, one in enumerate(stores))
    a, b, c, d = (upload(budget, 1)[1] for budget in budgets)
    assert (a != b).all() and (c == d).all()


def test_what_the_run_began_with_is_what_counts(tmp_path, store):
    plain, summed = tiny(tmp_path, **DP), tiny(tmp_path, **DP | SUMS)
    upload(opened(store, plain), 1)
    other = FileStore(tmp_path / "sums", sync=False)
    opened(other, summed).check(1, 0)
    opened(other, summed).share(np.ones(5), 100, 1, attempt=1)
    opened(other, summed).check(2, 1)
    sums = ({"sum_min": 2}, {"secure_sum": "off"})
    own = ({"dp_epsilon": 40.0}, {"rounds": 300}, {"dp_clip": 20.0}, {"dp_delta": 0.1})
    for where, began, changes in ((store, {}, own), (other, SUMS, sums)):
        for change in changes:
            (key,) = change
            now = tiny(tmp_path, **DP | began | change)
            with pytest.raises(Refused, match=f"{kebab(key)} is .* now, but this run began with"):
                opened(where, now).check(2, 1)


def test_an_account_that_is_gone_or_damaged_stops_the_client(tmp_path, store):
    config, path = tiny(tmp_path, **DP), tmp_path / "state" / "privacy.json"
    upload(opened(store, config), 1)
    for damage in ("{", "[]", "{}", '{"uploads": 0}', None):
        path.unlink() if damage is None else path.write_text(damage)
        with pytest.raises(Refused):
            opened(store, config).check(2, 1)


def test_a_server_that_asks_twice_uses_the_budget_up(tmp_path):
    """Round 1 with another payload once more: client 0 then has nothing left for round 2."""
    config = tiny(tmp_path, **DP | {"rounds": 2})
    grid = []

    def twice(node, message, reply):
        record = message.content.config_records["config"]
        if node == 0 and record["round"] == 1 and len(grid) == 1:
            arrays = arrays_of(message)
            message.content["arrays"] = to_record([arrays[0], arrays[1] * 2, *arrays[2:]])
            answered(grid.pop().contexts, message)
        return reply

    folder, _ = simulate(config, tamper=twice, before=grid.append)
    summary = folder.read_summary()
    [failure] = summary["failures"]
    assert (failure["round"], failure["client"]) == (2, "0")
    assert "privacy budget spent: 2 uploads" in failure["reason"]
    # What the answer that nobody waited for has cost, the client alone knows.
    assert summary["privacy"]["epsilon_spent"] == {
        "0": epsilon_spent(config, 1), "1": epsilon_spent(config, 2), "2": epsilon_spent(config, 2)
    }  # fmt: skip
