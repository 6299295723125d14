"""Replies that a round did not wait for: when they count, with which weight, and their record."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.tiny import tiny

from fedhet.config.load import build_config
from fedhet.engines import session
from fedhet.errors import UserError
from fedhet.protocol import mail
from fedhet.protocol.messages import TRAIN, instruction
from fedhet.protocol.payload import ClassVectors, HeaderRows
from fedhet.strategies import base
from fedhet.testing import LocalGrid, cut_and_resume, make_strategy, simulate, small, uploads_of

LATE = {"late": "next", "late_after": 0.05, "min_replies": 2}


@pytest.fixture
def network(monkeypatch):
    """The server waits as on a network; client 2's reply to round 1 comes in round 3."""
    pull = LocalGrid.pull_messages
    for module in (base, mail):
        monkeypatch.setattr(module, "is_simulated", lambda grid: False)
    monkeypatch.setattr(mail, "NETWORK_POLL", 0.01)
    monkeypatch.setattr(mail, "PULLS", 1)

    def held_back(grid, ids):
        asked = {m.metadata.message_id: m for m in grid.sent if m.metadata.message_type == TRAIN}
        late = max((instruction(m).round for m in asked.values()), default=0) < 3
        slow = [
            key for key in ids
            if key in asked and asked[key].metadata.dst_node_id == 102
            and instruction(asked[key]).round == 1
        ]  # fmt: skip
        if late or not slow:
            return pull(grid, [key for key in ids if key not in slow])
        return pull(grid, slow)

    monkeypatch.setattr(LocalGrid, "pull_messages", held_back)


@pytest.mark.usefixtures("network")
def test_a_late_reply_counts_in_the_round_in_which_it_comes(tmp_path):
    folder, grid = simulate(tiny(tmp_path, rounds=4, **LATE))
    records = folder.read_rounds()
    assert [(r["sampled"], r["replied"], r["failed"]) for r in records] == [
        (3, 2, 0), (2, 2, 0), (2, 3, 0), (3, 3, 0),
    ]  # fmt: skip
    assert [r.get("under_way") for r in records] == [["2"], ["2"], [], None]
    assert records[2]["late"] == [{"client": "2", "round": 1, "weight": 0.25}]
    asked = [instruction(m) for m in grid.sent
             if m.metadata.message_type == TRAIN and m.metadata.dst_node_id == 102]  # fmt: skip
    assert [(one.round, one.generation) for one in asked] == [(1, 0), (4, 1)]
    assert not session.verify(folder.path)[1].findings


@pytest.mark.usefixtures("network")
def test_a_run_that_is_cut_while_a_reply_is_under_way_goes_on(tmp_path):
    """What was under way is not waited for: its client is asked again."""
    folder = cut_and_resume(tiny(tmp_path, rounds=3, **LATE), 2)
    records = folder.read_rounds()
    assert records[0]["under_way"] == ["2"] and records[1]["sampled"] == 3
    assert not session.verify(folder.path)[1].findings


VECTORS = {"fedssa": 2.0, "fedproto": (1 * 50 + 0.5 * 150 * 4) / (50 + 0.5 * 150), "lg_fedavg": 2.8}


@pytest.mark.parametrize("method", VECTORS)
def test_the_weight_of_a_late_upload_by_hand(tmp_path, method):
    """Of 100 and 300 examples and values 1 and 4; the second is one round late."""
    config = small(tmp_path, method=method, late="next")
    strategy = make_strategy(config, [[0, 1], [0, 1]], [100, 300], 2)
    ids = np.arange(2)
    payloads = {}
    for client, value, count in (("0", 1.0, 50), ("1", 4.0, 150)):
        rows = np.full((2, 500), value, np.float32)
        payloads[client] = {
            "fedssa": HeaderRows(ids, rows, rows[:, 0].copy()),
            "fedproto": ClassVectors(ids, np.full(2, count), rows),
        }.get(method) or type(strategy.download(strategy.roster.infos[client], 1))(
            (rows, rows[:, 0].copy())
        )
    first, second = uploads_of(strategy, payloads)
    shares = 100 / 250, 150 / 250  # 300 examples count half
    strategy.aggregate([replace(first, weight=shares[0]),
                        replace(second, weight=shares[1], late=0.5)], 2)  # fmt: skip
    got = next(iter(strategy.arrays().values()))[:2]
    assert np.allclose(got, VECTORS[method])


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"method": "fedtgp"}, "its server uses no weights"),
        ({"aggregation": "median"}, "has no weights"),
        ({"secure-sum": "masked", "clients": 3}, "the sum of a round is that of its members"),
    ],
)
def test_late_replies_are_refused_where_they_could_not_weigh_less(values, why):
    with pytest.raises(UserError, match=f"^late: 'next' is not allowed with .*{why}"):
        build_config({"late": "next"} | values)
