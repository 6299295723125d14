"""FedAPEN: lambda and one round in plain torch, the held-out images, and the fall-back to 0.5."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from methods.byhand import (
    ROUND,
    check_round,
    configs,
    descend,
    divergence,
    epochs,
    overwritten,
    shuffler,
    some_arrays,
    train_images,
)

from fedhet.clients.fedapen import hold_out
from fedhet.testing import make_client

fedapen = configs("fedapen", models=["cnn-4", "cnn-5"])


def learn(own, shared, images, labels, rounds, lr):
    """Lambda by plain SGD; its gradient is the mean of (p - onehot) . (z_p - z_s)."""
    weight = 0.5
    with torch.no_grad():
        a, b = own(images), shared(images)
        for _ in range(rounds):
            p = (weight * a + (1 - weight) * b).softmax(dim=1) - F.one_hot(labels, a.shape[1])
            weight -= lr * float((p * (a - b)).sum(dim=1).mean())
            weight = min(1.0, max(0.0, weight))
    return weight


def test_one_round_by_hand(tmp_path):
    config = fedapen(tmp_path, holdout=0.2, ensemble_epochs=3, lr_ensemble=0.3, weight_decay=0.0)
    client = make_client(config, 0, tmp_path)
    own, theta = deepcopy(client.model), deepcopy(client.modules["small"])
    received = overwritten(theta)
    images, labels = train_images(client)
    held = client.phases()[0].images
    rest = torch.tensor(sorted(set(range(len(labels))) - set(held.tolist())))
    assert 8 <= len(held) <= 16  # one batch
    expected = learn(own, theta, images[held], labels[held], 3, 0.3)
    assert abs(expected - 0.5) > 1e-3

    def private(x, y):
        z_p, z_s = own(x), theta(x)
        mixed = F.cross_entropy(expected * z_p + (1 - expected) * z_s, y)
        return F.cross_entropy(z_p, y) + divergence(z_s, z_p) + mixed

    def shared(x, y):
        z_p, z_s = own(x), theta(x)
        mixed = F.cross_entropy(expected * z_p + (1 - expected) * z_s, y)
        return F.cross_entropy(z_s, y) + divergence(z_p, z_s) + mixed

    rng = shuffler(client)
    for _ in range(3):
        rng.permutation(len(held))  # the orders in which lambda saw its images
    batches = epochs(rng, (images[rest], labels[rest]), 1)
    loss = descend([private, shared], [[own], [theta]], [[0.01], [0.01]], batches)
    metrics = check_round(client, received, {"model": own, "small": theta}, theta, loss)
    assert metrics["ensemble_weight"] == pytest.approx(expected, abs=1e-5)


def test_lambda_stays_between_0_and_1_and_the_held_out_images_the_same(tmp_path):
    client = make_client(fedapen(tmp_path, lr_ensemble=1e6), 0, tmp_path)
    held = client.phases()[0].images
    _, _, metrics = client.fit(some_arrays(client.shared()), ROUND)
    assert metrics["ensemble_weight"] in (0.0, 1.0)
    later = make_client(fedapen(tmp_path), 0, tmp_path, round_=7)
    assert torch.equal(later.phases()[0].images, held)


@pytest.mark.parametrize(
    ("counts", "share", "held"),
    [
        ([200, 200], 0.05, [10, 10]),
        ([19, 21], 0.05, [1, 1]),  # a class of 19 has no whole image in its 5 %, but gets one
        ([380, 4], 0.05, [19, 1]),
        ([19, 20], 0.05, []),  # 1.95 images for two classes
        ([100, 1], 0.05, []),  # holding it out would leave nothing to train on
        ([20], 0.05, [1]),
    ],
)
def test_the_size_of_the_held_out_share(counts, share, held):
    labels = np.repeat(np.arange(len(counts)), counts)
    found = hold_out(labels, share, np.random.default_rng(0))
    assert np.bincount(labels[found], minlength=len(held)).tolist()[: len(held)] == held
    assert len(found) == sum(held) == len(set(found.tolist()))


def test_without_enough_images_lambda_stays_one_half_and_all_images_train(tmp_path):
    config = fedapen(tmp_path, dataset="synthetic:60x4", clients=3)
    client = make_client(config, 0, tmp_path)
    (training,) = client.phases()
    assert training.images is None
    received = some_arrays(client.shared())
    _, _, metrics = client.fit(received, ROUND | {"evaluate": True})
    assert metrics["ensemble_weight"] == 0.5 and "train_loss_ensemble" not in metrics
    assert 0 <= metrics["test_accuracy_before"] <= 100
