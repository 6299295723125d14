"""FedSSA worked out by hand: 3 clients, 4 classes, and the traps of public implementations."""

import math

import numpy as np
import pytest
import torch

from fedhet.clients.fedssa import stabilisation
from fedhet.protocol.payload import HeaderRows
from fedhet.strategies.fedssa import FedSSAParams
from fedhet.testing import make_client, make_strategy, small, uploads_of


def rows(classes, value, width=500):
    """Rows whose weights are value + 10 * class, and biases the negative of that."""
    ids = np.array(classes, dtype=np.int64)
    weight = np.repeat((value + 10.0 * ids)[:, None], width, axis=1).astype(np.float32)
    return HeaderRows(ids, weight, -weight[:, 0].copy())


def test_the_server_takes_the_unweighted_mean_per_class(tmp_path):
    # Client 0 holds classes 0 1 (100 images), 1 holds 1 2 (300), 2 holds 3 and is not sampled.
    strategy = make_strategy(small(tmp_path), [[0, 1], [1, 2], [3]], [100, 300, 50], 4)
    before = strategy.arrays()["header.weight"].copy()
    payloads = {"0": rows([0, 1], 1.0), "1": rows([1, 2], 4.0)}
    strategy.aggregate(uploads_of(strategy, payloads), 1)
    after = strategy.arrays()
    assert (after["header.weight"][0] == 1.0).all()  # only client 0
    assert (after["header.weight"][1] == 12.5).all()  # (11 + 14) / 2, whatever n_k
    assert (after["header.weight"][2] == 24.0).all()  # only client 1
    assert (after["header.weight"][3] == before[3]).all()  # nobody sampled: kept
    assert after["header.bias"][:3].tolist() == [-1.0, -12.5, -24.0]
    assert after["header.weight"].dtype == np.float32


def test_whole_headers_are_averaged_with_sample_weights(tmp_path):
    config = small(tmp_path, upload_rows="whole", download_rows="whole")
    strategy = make_strategy(config, [[0, 1], [1, 2]], [100, 300], 3)
    payloads = {"0": rows([0, 1, 2], 0.0), "1": rows([0, 1, 2], 4.0)}
    strategy.aggregate(uploads_of(strategy, payloads), 1)
    assert np.allclose(strategy.arrays()["header.weight"][:, 0], [3.0, 13.0, 23.0])


def test_mu_follows_the_papers_rounds():
    params = FedSSAParams(mu0=0.8, t_stable=4)
    assert stabilisation(params, 1) == 0.8  # message round 1 is the papers' t = 0
    assert stabilisation(params, 3) == pytest.approx(0.8 * math.cos(math.pi / 4))
    assert stabilisation(params, 5) == 0.0  # t = T_stable
    assert stabilisation(params, 6) == 0.0
    assert stabilisation(FedSSAParams(stabilise=False), 1) == 0.0


@pytest.mark.parametrize(("fusion", "scale"), [("paper", 1.0), ("convex", 1.5)])
def test_fusion_by_hand_and_unseen_rows_bit_identical(tmp_path, fusion, scale):
    client = make_client(small(tmp_path, fusion=fusion), 0, tmp_path)
    head = client.model.head
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    seen = client.seen().tolist()
    unseen = sorted(set(range(4)) - set(seen))
    assert len(seen) == 2
    client.receive(rows(seen, 3.0))
    for s in seen:
        expected = (3.0 + 10 * s + 0.5 * weight[s]) / scale
        assert torch.allclose(head.weight[s], expected)
        assert torch.allclose(head.bias[s], (-(3.0 + 10 * s) + 0.5 * bias[s]) / scale)
    assert torch.equal(head.weight[unseen], weight[unseen])
    assert torch.equal(head.bias[unseen], bias[unseen])


def test_whole_download_overwrites_unseen_rows(tmp_path):
    config = small(tmp_path, download_rows="whole", stabilise=False)
    client = make_client(config, 0, tmp_path)
    client.receive(rows([0, 1, 2, 3], 1.0))
    assert client.model.head.weight[:, 0].tolist() == [1.0, 11.0, 21.0, 31.0]
