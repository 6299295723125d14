"""FedGH: one round of client and server in plain torch, and what may come up."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from methods.byhand import ROUND, by_hand, overwritten, same, train_images

from fedhet.protocol.payload import ClassVectors
from fedhet.rng import torch_seed
from fedhet.testing import make_client, make_strategy, small, uploads_of


def fedgh(tmp_path, **changes):
    return small(tmp_path, **({"method": "fedgh"} | changes))


def vectors(classes, seed=0, images=25):
    rows = np.abs(np.random.default_rng(seed).normal(0, 1, (len(classes), 500)))
    counts = np.full(len(classes), images, dtype=np.int64)
    return ClassVectors(np.array(classes, dtype=np.int64), counts, rows.astype(np.float32))


def test_one_round_of_a_client_by_hand(tmp_path):
    client = make_client(fedgh(tmp_path, local_epochs=2), 0, tmp_path)
    own = deepcopy(client.model)
    received = overwritten(own.head)

    def loss(inputs, labels):
        return F.cross_entropy(own(inputs), labels)

    images, labels = train_images(client)
    by_hand(client, [loss], [[own]], count=2)
    (classes, counts, means), _, _ = client.fit(received, ROUND)
    assert same(own, client.model)
    seen = sorted(set(labels.tolist()))
    assert classes.tolist() == seen and counts.sum() == len(labels)
    with torch.no_grad():
        features = own.features(images)
    for row, label in enumerate(seen):
        assert np.allclose(means[row], features[labels == label].mean(dim=0), atol=1e-4)


@pytest.mark.parametrize("passes", [1, 3])
def test_one_round_of_the_server_by_hand(tmp_path, passes):
    config = fedgh(tmp_path, server_epochs=passes, server_lr=0.1, batch_size=2)
    strategy = make_strategy(config, [[0, 1], [1, 3]], [50, 500], 4)
    weight, bias = (torch.tensor(a, requires_grad=True) for a in strategy.arrays().values())
    uploads = {"0": vectors([0, 1]), "1": vectors([1, 3], 1, 250)}
    numbers = strategy.aggregate(uploads_of(strategy, uploads), 5)
    x = torch.from_numpy(np.concatenate([u.vectors for u in uploads.values()]))
    y = torch.tensor([0, 1, 1, 3])
    draws = torch.Generator().manual_seed(torch_seed(config.seed, "server", round_=5))
    losses = []
    for _ in range(passes):
        order = torch.randperm(4, generator=draws)
        for chosen in (order[:2], order[2:]):
            loss = F.cross_entropy(x[chosen] @ weight.T + bias, y[chosen])
            losses.append(loss.item())
            for parameter, slope in zip(
                (weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True
            ):
                parameter.data -= 0.1 * slope
    for mine, theirs in zip((weight, bias), strategy.arrays().values(), strict=True):
        assert np.allclose(mine.detach().numpy(), theirs, atol=1e-5)
    assert numbers["server_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
