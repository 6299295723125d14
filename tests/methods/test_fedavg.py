"""FedAvg: one round in plain torch, the weighted mean, and the one model that all have."""

from copy import deepcopy

import numpy as np
import pytest
import torch.nn.functional as F
from methods.byhand import check_round, descend, epochs, overwritten, same, shuffler, train_images

from fedhet.protocol.messages import arrays_of
from fedhet.testing import make_client, make_strategy, simulate, small


def fedavg(tmp_path, **changes):
    return small(tmp_path, **({"method": "fedavg", "models": ["cnn-4", "cnn-5"]} | changes))


def test_one_round_by_hand(tmp_path):
    client = make_client(fedavg(tmp_path, local_epochs=2), 0, tmp_path)
    theta = deepcopy(client.model)
    received = overwritten(theta)

    def loss(inputs, labels):
        return F.cross_entropy(theta(inputs), labels)

    batches = epochs(shuffler(client), train_images(client), 2)
    expected = descend([loss], [[theta]], [[0.01]], batches)
    check_round(client, received, {"model": theta}, theta, expected)


def test_all_clients_have_the_one_model_and_670058_floats_cross_each_way(tmp_path):
    config = fedavg(tmp_path, dataset="synthetic:400x10", rounds=1, clients=4)
    record = simulate(config)[0].read_rounds()[0]
    assert record["uplink_floats"] == record["downlink_floats"] == 4 * 670_058
    first, second = (deepcopy(make_client(config, k, tmp_path).model) for k in (0, 1))
    strategy = make_strategy(config, [[0]], [10], 10)
    assert same(first, second, 0)  # never sampled, both answer by what the server has
    for mine, theirs in zip(first.parameters(), strategy.arrays().values(), strict=True):
        assert np.array_equal(mine.detach().numpy(), theirs)


@pytest.mark.parametrize(
    ("changes", "width"),
    [({}, 500), ({"models": ["cnn-4"]}, 800), ({"common_model": "cnn-3"}, 1000)],
)
def test_which_model_that_is(tmp_path, changes, width):
    client = make_client(fedavg(tmp_path, **changes), 0, tmp_path)
    assert client.model.fc1.out_features == width


def test_running_statistics_are_sent_and_averaged_like_the_rest(tmp_path):
    """A model with BatchNorm is sent whole: by name, two arrays more for each such layer."""
    sent = {}

    def watch(node, message, reply):
        config = message.content.config_records["config"]
        if message.metadata.message_type == "train":
            sent[config["round"], node] = [arrays_of(one) for one in (message, reply)]
        return reply

    keys = {"common_model": "resnet4", "weighting": "uniform"}
    keys["dataset"] = "synthetic:72x4"
    config = fedavg(tmp_path, **keys, evaluate_every=9)
    simulate(config, tamper=watch)
    strategy = make_strategy(config, [[0, 1]], [50], 4)
    names = list(strategy.arrays())
    layers = [n for n in names if n.endswith("running_mean")]
    assert layers and len(names) == len(sent[2, 0][0]) == len(sent[1, 0][1])
    for name in (layers[0], layers[0].replace("mean", "var")):
        i = names.index(name)
        mean = sum(sent[1, k][1][i].astype(np.float64) for k in range(3)) / 3
        assert np.allclose(sent[2, 0][0][i], mean, rtol=1e-6)
        assert not np.allclose(mean, sent[1, 0][0][i]), "training moved it"


def test_a_variance_below_zero_becomes_zero(tmp_path):
    """As noise on an upload may leave one; BatchNorm takes a root of it."""
    client = make_client(fedavg(tmp_path, common_model="resnet4"), 0, tmp_path)
    arrays = [np.full(a.shape, -0.1, np.float32) for a in client.upload().to_ndarrays()]
    client.receive(type(client.upload())(tuple(arrays)))
    state = client.model.state_dict()
    assert all((v == 0).all() for n, v in state.items() if n.endswith("running_var"))
    assert all((v < 0).all() for n, v in state.items() if n.endswith("running_mean"))
