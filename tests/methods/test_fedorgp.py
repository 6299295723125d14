"""FedORGP: the worked example, both halves of a round in plain torch, and the controls."""

import pytest
import torch
import torch.nn.functional as F
from methods.byhand import check_pull, check_server, configs, drawn

from fedhet.strategies.fedorgp import cosines
from fedhet.testing import make_client, make_strategy

fedorgp = configs("fedorgp", server_epochs=3)


def test_the_worked_example(tmp_path):
    uploads = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    prototypes = torch.tensor([[1.0, 1.0], [0.0, 2.0]], requires_grad=True)
    cos = cosines(uploads, prototypes)
    assert cos.diag().mean().item() == pytest.approx(0.753553, abs=1e-6)
    assert (cos[0, 1] + cos[1, 0]).item() / 2 == pytest.approx(0.494975, abs=1e-6)
    (slope,) = torch.autograd.grad(1 - cos.diag().mean(), prototypes)
    assert torch.allclose(slope[1], torch.tensor([-0.15, 0.0]), atol=1e-5)
    strategy = make_strategy(fedorgp(tmp_path), [[0, 1]], [50], 2)
    strategy.made = lambda: prototypes
    loss = strategy.pair_loss(torch.arange(2), uploads)
    assert loss.item() == pytest.approx(5.196194, abs=1e-5)
    loss.backward()
    turned = (prototypes.grad * prototypes).sum(dim=1)  # a length has no effect
    assert torch.allclose(turned, torch.zeros(2), atol=1e-5) and prototypes.grad.abs().max() > 0.1


def test_one_round_of_the_server_by_hand(tmp_path):
    config = fedorgp(tmp_path, batch_size=2, server_lr=0.05, lam_server=2.0, gamma=3.0)
    strategy = make_strategy(config, [[0, 1], [1, 3]], [50, 50], 4)

    def loss(prototypes, vectors, labels):
        s = apart = 0
        for vector, label in zip(vectors, labels.tolist(), strict=True):
            cos = F.cosine_similarity(vector[None], prototypes)
            s = s + cos[label] / 2
            apart = apart + sum(cos[c].abs() for c in range(4) if c != label) / 2 / 3
        return 2.0 * (1 - s) + 3.0 * apart

    check_server(strategy, {"0": drawn([0, 1]), "1": drawn([1, 3], 1)}, loss)
    assert strategy.arrays()["counts"].tolist() == [25, 50, 0, 25]


def test_one_round_of_a_client_by_hand(tmp_path):
    client = make_client(fedorgp(tmp_path, lam=0.7), 0, tmp_path)
    metrics = check_pull(client, lambda features, one: 1 - F.cosine_similarity(features, one[None]))
    assert "test_accuracy_prototype" not in metrics and set(client.modules) == {"model"}
