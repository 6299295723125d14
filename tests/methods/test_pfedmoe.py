"""pFedMoE: the worked example, a round in plain torch, the gate and the controls."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from methods.byhand import configs, hand_round, same, train_images
from torch import nn

from fedhet.clients.pfedmoe import Gate
from fedhet.data.inputs import TOKENS, Inputs
from fedhet.testing import make_client

pfedmoe = configs("pfedmoe", models=["cnn-4", "cnn-5"])


def test_the_worked_example(tmp_path):
    """a = (.25, .75), R_g = (4, 0), R_F = (0, 4), an identity as the header, the second class."""
    client = make_client(pfedmoe(tmp_path), 0, tmp_path)
    logits = torch.tensor([[0.0, 3.0]]).log().clamp(min=0.0).requires_grad_()
    general = torch.tensor([[4.0, 0.0]], requires_grad=True)
    own = torch.tensor([[0.0, 4.0]], requires_grad=True)
    client.modules = {
        "model": SimpleNamespace(features=lambda _: own, head=nn.Identity()),
        "extractor": SimpleNamespace(features=lambda _: general),
        "gate": lambda inputs, general: logits.softmax(dim=1),
    }
    loss = client.loss(torch.zeros(1), torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(0.126928, abs=1e-6)
    for tensor, expected in (
        (general, (0.029801, -0.029801)), (own, (0.089402, -0.089402)),
        (logits, (0.178804, -0.178804)),
    ):  # fmt: skip
        assert tensor.grad[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_one_round_by_hand(tmp_path):
    client = make_client(pfedmoe(tmp_path, lr_gate=0.5, lr_proxy=0.02), 0, tmp_path)
    own, g, gate = (deepcopy(client.modules[name]) for name in ("model", "extractor", "gate"))

    def loss(inputs, labels):
        x = F.layer_norm(inputs.flatten(1), (inputs[0].numel(),))
        linear, norm, _ = gate.hidden
        z = F.linear(x, linear.weight, linear.bias)
        z = F.layer_norm(z, (64,), norm.weight, norm.bias).sigmoid()
        a = F.linear(z, gate.last.weight, gate.last.bias).softmax(dim=1)
        mixed = a[:, 0:1] * g.features(inputs) + a[:, 1:2] * own.features(inputs)
        return F.cross_entropy(own.head(mixed), labels)

    trained = {"model": own, "extractor": g, "gate": gate}
    starts = {name: deepcopy(module) for name, module in client.modules.items()}
    metrics = hand_round(client, [loss], [trained], g, [[0.01, 0.02, 0.5]])
    assert not any(same(starts[name], client.modules[name]) for name in starts)
    assert 0 < metrics["gate_global_mean"] < 1 and metrics["gate_global_std"] > 0


def test_a_weight_is_the_samples_own_and_half_at_first(tmp_path):
    client = make_client(pfedmoe(tmp_path), 0, tmp_path)
    gate, inputs = client.modules["gate"], train_images(client)[0][:6]
    general = client.shared().features(inputs)
    assert torch.equal(gate(inputs, general), torch.full((6, 2), 0.5))
    assert sum(p.numel() for p in gate.parameters() if p.requires_grad) == 196_930
    nn.init.normal_(gate.last.weight, std=0.01, generator=torch.Generator().manual_seed(0))
    weights = gate(inputs, general)
    assert (
        torch.allclose(weights.sum(dim=1), torch.ones(6)) and len(set(weights[:, 0].tolist())) == 6
    )
    assert torch.allclose(gate(inputs[:2], general[:2]), weights[:2], atol=1e-6)
    texts = Gate(Inputs(TOKENS, (9,), 30), 5, 64)
    nn.init.normal_(texts.last.weight)
    rows = torch.rand(3, 5, requires_grad=True)
    texts(torch.zeros(3, 9, dtype=torch.int64), rows).sum().backward()
    assert rows.grad is None and texts.hidden[0].in_features == 5
