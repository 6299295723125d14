"""LG-FedAvg: weighted mean of whole headers, by hand."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from byhand import descend, epochs, put, same, shuffler, some_arrays, train_images

from fedhet.protocol.messages import arrays_of
from fedhet.protocol.payload import ModelArrays
from fedhet.testing import make_client, make_strategy, simulate, small, uploads_of


def header(value):
    return ModelArrays((np.full((3, 500), value, np.float32), np.full(3, -value, np.float32)))


def test_the_mean_is_weighted_by_images(tmp_path):
    strategy = make_strategy(small(tmp_path, method="lg_fedavg"), [[0], [1]], [100, 300], 3)
    strategy.aggregate(uploads_of(strategy, {"0": header(1.0), "1": header(5.0)}), 1)
    weight, bias = strategy.arrays().values()
    assert (weight == 4.0).all() and (bias == -4.0).all()
    assert weight.dtype == np.float32


def test_the_mean_of_equal_uploads_is_the_upload(tmp_path):
    strategy = make_strategy(small(tmp_path, method="lg_fedavg"), [[0]] * 3, [10, 20, 33], 3)
    same = header(0.1)
    strategy.aggregate(uploads_of(strategy, {"0": same, "1": same, "2": same}), 1)
    assert (strategy.arrays()["weight"] == same.tensors[0]).all()


def test_the_header_is_overwritten_and_the_upload_is_a_copy(tmp_path):
    client = make_client(small(tmp_path, method="lg_fedavg"), 0, tmp_path)
    extractor = client.model.fc2.weight.detach().clone()
    arrays = ModelArrays((np.ones((4, 500), np.float32), np.zeros(4, np.float32)))
    client.receive(arrays)
    assert (client.model.head.weight == 1).all() and (client.model.head.bias == 0).all()
    assert torch.equal(client.model.fc2.weight, extractor)
    sent = client.upload()
    with torch.no_grad():
        client.model.head.weight.zero_()
    assert (sent.tensors[0] == 1).all()


def test_5010_floats_each_way_and_not_standalone(tmp_path):
    config = small(tmp_path, method="lg_fedavg", dataset="synthetic:600x10", clients=5)
    folder, _ = simulate(config)
    for record in folder.read_rounds():
        assert record["uplink_floats"] == record["downlink_floats"] == 5 * 5010
    alone, _ = simulate(small(tmp_path, method="standalone", dataset="synthetic:600x10", clients=5))
    assert alone.read_rounds()[-1]["train_loss"] != folder.read_rounds()[-1]["train_loss"]


def test_one_round_by_hand(tmp_path):
    """The received header, then all layers by SGD with momentum; the header goes up."""
    client = make_client(small(tmp_path, method="lg_fedavg", local_epochs=2), 0, tmp_path)
    own = deepcopy(client.model)
    received = some_arrays(own.head)
    put(own.head, received)

    def loss(inputs, labels):
        return F.cross_entropy(own(inputs), labels)

    batches = epochs(shuffler(client), train_images(client), 2)
    expected = descend([loss], [[own]], [[0.01]], batches)
    rounds = {"round": 1, "generation": 0, "evaluate": False}
    uploaded, _, metrics = client.fit(received, rounds)
    assert metrics["train_loss"] == pytest.approx(expected, rel=1e-4)
    assert same(own, client.model)
    for mine, sent in zip(own.head.parameters(), uploaded, strict=True):
        assert np.allclose(mine.detach().numpy(), sent, rtol=1e-4, atol=1e-5)


def test_the_mean_of_a_round_is_weighted_by_what_the_clients_declared(tmp_path):
    """End to end: what is sent in round 2 is the weighted mean of round 1's replies."""
    sent = {}

    def watch(node, message, reply):
        if message.metadata.message_type == "train":
            round_ = message.content.config_records["config"]["round"]
            sent[round_, node] = [arrays_of(one) for one in (message, reply)]
        return reply

    config = small(tmp_path, method="lg_fedavg", partition="dirichlet", alpha=0.8)
    simulate(config, tamper=watch)
    images = [len(make_client(config, k, tmp_path).examples("train")) for k in range(3)]
    assert max(images) > 1.2 * min(images)
    for i, received in enumerate(sent[2, 0][0]):
        mean = sum(n * sent[1, k][1][i] for k, n in enumerate(images)) / sum(images)
        assert np.allclose(received, mean, atol=1e-6)
