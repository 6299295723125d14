"""What must hold for every method, so that their numbers compare."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hostile.lies import liars, sends
from methods.byhand import same, train_images

from fedhet.protocol.messages import message_bytes
from fedhet.site.local_data import load_partition
from fedhet.testing import make_client, make_strategy, simulate, small

SHARED = {"fedmrl": "small", "fedapen": "small", "fedavg": "model"}


@pytest.mark.parametrize("method", SHARED)
def test_a_client_never_sampled_answers_with_the_servers_first_model(tmp_path, method):
    config = small(tmp_path, method=method)
    strategy = make_strategy(config, [[0], [1]], [10, 10], 4)
    first, second = (deepcopy(make_client(config, k, tmp_path).modules) for k in (0, 1))
    shared = SHARED[method]
    for served, own in zip(strategy.tensors, first[shared].parameters(), strict=True):
        assert np.array_equal(served, own.detach().numpy())
    assert same(first[shared], second[shared], 0)
    assert shared == "model" or not same(first["model"], second["model"])


@pytest.mark.parametrize("method", ["fedapen", "pfedafm"])
def test_a_mixture_is_of_logits_or_elementwise_of_representations(tmp_path, method):
    client = make_client(small(tmp_path, method=method, models=["cnn-4", "cnn-5"]), 0, tmp_path)
    inputs, own, shared = train_images(client)[0][:6], client.model, client.shared()
    a = torch.tensor(0.25) if method == "fedapen" else torch.linspace(0, 1, 500)
    with torch.no_grad():
        client.mixture.share.copy_(a)
        mixed = a * own.features(inputs) + (1 - a) * shared.features(inputs)
        logits = own.head(mixed)
        if method == "fedapen":
            logits = a * own(inputs) + (1 - a) * shared(inputs)
        assert torch.allclose(client.predict(inputs)[""], logits, atol=1e-6)
    assert set(client.inference_needs().modules) == set(client.modules)


def test_a_partition_seed_fixes_the_data_and_nothing_else(tmp_path):
    seeds = [(0, -1), (0, 7), (1, 7), (7, -1)]
    configs = [small(tmp_path, seed=s, partition_seed=p) for s, p in seeds]
    owned = [load_partition(c, 3)[1].clients for c in configs]

    def equal(a, b):
        return all(np.array_equal(x.train, y.train) for x, y in zip(a, b, strict=True))

    assert equal(owned[1], owned[2]) and equal(owned[1], owned[3])
    assert not equal(owned[0], owned[1])
    models = [deepcopy(make_client(c, 0, tmp_path).model) for c in configs]
    assert same(models[0], models[1], 0) and not same(models[1], models[2])


def test_what_a_refused_reply_weighs_is_counted(tmp_path):
    weighed = {}
    lie = liars({1: sends(lambda a, _: [np.zeros(2, np.int64), *(b * np.nan for b in a[1:])])})

    def spoil(node, message, reply):
        reply = lie(node, message, reply)
        if message.metadata.message_type == "train":
            weighed[node] = message_bytes(reply)
        return reply

    record = simulate(small(tmp_path, method="fedssa", rounds=1), tamper=spoil)[0].read_rounds()[0]
    assert record["replied"] == 2 and record["failed"] == 1
    assert record["uplink_bytes"] == record["downlink_bytes"]
    assert record["uplink_floats"] == record["downlink_floats"] * 2 / 3
    assert record["uplink_message_bytes"] == sum(weighed.values())


def test_before_training_a_header_has_been_received(tmp_path):
    client = make_client(small(tmp_path, method="lg_fedavg", evaluate_before=True), 0, tmp_path)
    arrays = [np.zeros((4, 500), np.float32), np.array([0, 0, 0, 9], np.float32)]
    _, _, metrics = client.fit(arrays, {"round": 1, "generation": 0, "evaluate": True})
    labels = client.examples("test").labels
    assert metrics["test_accuracy_before"] == 100 * float((labels == 3).float().mean())


def test_pfedes_remembers_the_statistics_of_raw_images_only(tmp_path):
    keys = {"models": ["shufflenet_v2_x0_5"], "image_size": 16}
    client = make_client(small(tmp_path, method="pfedes", mu=0.5, **keys), 0, tmp_path)
    client.model.train()
    with torch.no_grad():  # an extractor that makes images much brighter
        for parameter in client.shared().parameters():
            parameter.fill_(3.0)
    alone = deepcopy(client.model)
    images, labels = train_images(client)
    for part in range(3):
        inputs, answers = images[part * 16 :][:16], labels[part * 16 :][:16]
        client.loss(inputs, answers).backward()
        alone(inputs)
    assert same(client.model, alone, 0)
    counts = {int(b) for n, b in alone.named_buffers() if n.endswith("num_batches_tracked")}
    assert counts == {3}
    assert all(p.grad is not None for p in client.model.parameters())
