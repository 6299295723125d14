"""FedORGP: the worked example, both halves of a round in plain torch, and the controls."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from methods.byhand import check_prototypes, check_server, configs, drawn

from fedhet.strategies.fedorgp import cosines
from fedhet.testing import make_client, make_strategy

fedorgp = configs("fedorgp", server_epochs=3)


UPLOADS = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
PROTOTYPES = torch.tensor([[1.0, 1.0], [0.0, 2.0]])


def server_loss(tmp_path, uploads, prototypes):
    """L_OR of pairs whose classes are 0, 1, ...; ``prototypes`` are what the layers give."""
    strategy = make_strategy(fedorgp(tmp_path), [[0, 1]], [50], len(prototypes))
    strategy.made = lambda: prototypes
    return strategy.pair_loss(torch.arange(len(uploads)), uploads)


def test_the_worked_example(tmp_path):
    prototypes = PROTOTYPES.clone().requires_grad_()
    cos = cosines(UPLOADS, PROTOTYPES)
    assert cos.diag().mean().item() == pytest.approx(0.753553, abs=1e-6)
    assert (cos[0, 1] + cos[1, 0]).item() / 2 == pytest.approx(0.494975, abs=1e-6)
    loss = server_loss(tmp_path, UPLOADS, prototypes)
    loss.backward()
    assert loss.item() == pytest.approx(5.196194, abs=1e-5)
    expected = torch.tensor([[-0.530330, 0.530330], [-0.15, 0.0]])
    # lambda_s = 1, gamma = 10; the second prototype's gradient is of both terms
    ours = torch.autograd.functional.jacobian(
        lambda p: 1 - cosines(UPLOADS, p).diag().mean()
        + 10 * (cosines(UPLOADS, p).abs().sum() - cosines(UPLOADS, p).abs().diag().sum()) / 2,
        PROTOTYPES,
    )  # fmt: skip
    assert torch.allclose(prototypes.grad, ours, atol=1e-5)
    assert prototypes.grad[0] @ PROTOTYPES[0] == pytest.approx(0.0, abs=1e-5)
    attracting = torch.autograd.functional.jacobian(
        lambda p: 1 - cosines(UPLOADS, p).diag().mean(), PROTOTYPES
    )
    assert torch.allclose(attracting[1], expected[1], atol=1e-5)


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
    own = deepcopy(client.model)
    seen = client.seen().tolist()
    sent = drawn(seen[:1])  # nobody has sent the other class yet

    def loss(inputs, answers):
        features = own.features(inputs)
        cos = F.cosine_similarity(features, torch.from_numpy(sent.vectors[:1]))
        turned = ((1 - cos) * (answers == seen[0])).mean()
        return F.cross_entropy(own.head(features), answers) + 0.7 * turned

    metrics = check_prototypes(client, sent.to_ndarrays(), own, loss)
    assert "test_accuracy_prototype" not in metrics and set(client.modules) == {"model"}
