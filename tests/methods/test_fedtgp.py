"""FedTGP: the server's round in plain torch, the margin, the roots, and what is sent down."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from methods.byhand import check_pull, check_server, configs, drawn

from fedhet.strategies.fedtgp import adaptive_margin, distances
from fedhet.testing import make_client, make_strategy

fedtgp = configs("fedtgp", server_epochs=3)


@pytest.mark.parametrize("largest", [100.0, 2.5])
def test_one_round_of_the_server_by_hand(tmp_path, largest):
    config = fedtgp(tmp_path, batch_size=2, server_lr=0.05, margin=largest)
    strategy = make_strategy(config, [[0, 1], [1, 3]], [50, 500], 4)
    uploads = {"0": drawn([0, 1]), "1": drawn([1, 3], 1, 250)}
    x = torch.from_numpy(np.concatenate([u.vectors for u in uploads.values()]))
    q = [x[0], (x[1] + x[2]) / 2, x[3]]  # clients count alike, whatever their images
    nearest = [min((a - b).norm() for b in q if b is not a) for a in q]
    margin = min(float(max(nearest)), largest)

    def loss(prototypes, vectors, labels):
        rows = []
        for u, label in zip(vectors, labels, strict=True):
            apart = torch.stack([(u - p).norm() for p in prototypes])
            rows.append(-(apart + margin * (torch.arange(4) == label)))
        return F.cross_entropy(torch.stack(rows), labels)

    numbers = check_server(strategy, uploads, loss)
    assert numbers["margin"] == pytest.approx(margin, rel=1e-5)
    assert strategy.arrays()["counts"].tolist() == [25, 275, 0, 250]


def test_one_round_of_a_client_by_hand(tmp_path):
    client = make_client(fedtgp(tmp_path, lam=0.7), 0, tmp_path)
    metrics = check_pull(client, lambda features, one: (features - one).square().mean(dim=1))
    assert 0 <= metrics["test_accuracy_prototype"] <= 100


def test_no_root_of_a_negative_number_and_no_slope_at_zero():
    """Of equal vectors; |u|^2 - 2 u P + |P|^2 may fall below 0 in float32."""
    far = torch.full((2, 500), 1e3) + torch.linspace(0, 1, 500)
    points = far.clone().requires_grad_()
    found = distances(far, points)
    found.sum().backward()
    assert found.detach().numpy() == pytest.approx(1e-6) and (points.grad == 0).all()


def test_the_margin_of_one_class_is_the_largest():
    assert adaptive_margin(torch.ones(1, 5), 7.0) == 7.0
