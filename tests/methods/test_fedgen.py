"""FedGen: one round of client and server in plain torch, and the draws of labels."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from methods.byhand import by_hand, check_round, configs

from fedhet.models.networks import exchanged
from fedhet.protocol.payload import ModelArrays
from fedhet.rng import torch_seed
from fedhet.testing import make_client, make_strategy, uploads_of

fedgen = configs("fedgen", server_epochs=3, noise=8)


def header(seed, classes=4):
    rng = np.random.default_rng(seed)
    weight = rng.normal(0, 0.1, (classes, 500)).astype(np.float32)
    return ModelArrays((weight, rng.normal(0, 0.1, classes).astype(np.float32)))


def make(state, noise, labels, *, training):
    """G by its tensors: linear, BatchNorm, ReLU, linear."""
    x = torch.cat([noise, F.one_hot(labels, 4)], dim=1) @ state["0.weight"].T + state["0.bias"]
    if training:
        mean, variance = x.mean(dim=0), x.var(dim=0, unbiased=False)
    else:
        mean, variance = state["1.running_mean"], state["1.running_var"]
    x = (x - mean) / (variance + 1e-5).sqrt() * state["1.weight"] + state["1.bias"]
    return x.relu() @ state["3.weight"].T + state["3.bias"]


def draw(draws, edges, count, noise):
    """Labels where uniform numbers fall among the edges, then noise."""
    numbers = torch.rand(count, generator=draws)
    labels = torch.tensor([sum(float(u) >= e for e in edges) for u in numbers])
    return torch.rand(count, noise, generator=draws), labels


def server_by_hand(state, strategy, uploads, rounds):
    """G's tensors after some rounds of three steps, by one Adam; mean losses."""
    trained = [n for n in state if n.endswith(("weight", "bias"))]
    for name in trained:
        state[name].requires_grad_()
    adam = torch.optim.Adam([state[n] for n in trained], lr=strategy.params.server_lr)
    losses, edges = [], [50 / 400, 250 / 400, 250 / 400]  # of 50, 50 + 150, 0 and 150 images
    for round_ in rounds:
        headers = [[torch.from_numpy(t) for t in one.tensors] for one in uploads[round_]]
        seed = torch_seed(strategy.config.seed, "server", round_=round_)
        draws = torch.Generator().manual_seed(seed)
        for _ in range(strategy.params.server_epochs):
            noise, labels = draw(draws, edges, strategy.config.batch_size, 8)
            made = make(state, noise, labels, training=True)
            logits = sum(
                w * (made @ a.T + b) for w, (a, b) in zip((0.25, 0.75), headers, strict=True)
            )
            loss = F.cross_entropy(logits, labels)
            losses.append(loss.item())
            adam.zero_grad()
            loss.backward()
            adam.step()
    return state, trained, losses


def start_of(strategy):
    return {
        name.removeprefix("generator.body."): torch.tensor(array)
        for name, array in strategy.arrays().items()
        if name.startswith("generator.")
    }


def test_two_rounds_of_the_server_by_hand(tmp_path):
    """By one Adam, which goes on: in between the strategy is put away and taken up again."""
    config = fedgen(tmp_path, server_lr=0.02, batch_size=6)
    strategy = make_strategy(config, [[0, 1], [1, 3]], [100, 300], 4)
    sent = {4: (header(1), header(2)), 5: (header(3), header(4))}
    state, trained, losses = server_by_hand(start_of(strategy), strategy, sent, (4, 5))
    for round_, both in sent.items():
        arrays = strategy.arrays()
        strategy = make_strategy(config, [[0, 1], [1, 3]], [100, 300], 4)
        strategy.load(arrays)
        uploads = uploads_of(strategy, dict(zip("01", both, strict=True)))
        numbers = strategy.aggregate(uploads, round_)
    found = strategy.arrays()
    # BatchNorm takes the first bias out again: Adam scales up nothing but rounding there.
    for name in set(trained) - {"0.bias"}:
        mine = state[name].detach().numpy()
        assert np.allclose(mine, found[f"generator.body.{name}"], atol=2e-4), name
    assert numbers["server_loss"] == pytest.approx(np.mean(losses[3:]), rel=1e-3)
    for i, name in enumerate(("weight", "bias")):
        mean = 0.25 * sent[5][0].tensors[i] + 0.75 * sent[5][1].tensors[i]
        assert np.allclose(found[name], mean, atol=1e-6)
    assert int(found["generator.body.1.num_batches_tracked"]) == 6
    assert found["adam.steps.body.3.weight"] == 6


def test_one_round_of_a_client_by_hand(tmp_path):
    config = fedgen(tmp_path)
    strategy = make_strategy(config, [[0, 1], [1, 3]], [100, 300], 4)
    client = make_client(config, 0, tmp_path)
    own = deepcopy(client.model)
    payload = strategy.download(strategy.roster.infos["0"], 1)
    with torch.no_grad():
        for parameter, array in zip(own.head.parameters(), payload.tensors, strict=False):
            parameter.copy_(torch.from_numpy(array))
    state = start_of(strategy)
    draws = torch.Generator().manual_seed(torch_seed(config.seed, "generated", "0", 1))
    edges = [50 / 400, 250 / 400, 250 / 400]

    def loss(inputs, labels):
        noise, meant = draw(draws, edges, len(labels), 8)
        made = make(state, noise, meant, training=False)
        return F.cross_entropy(own(inputs), labels) + F.cross_entropy(own.head(made), meant)

    expected = by_hand(client, [loss], [[own]])
    check_round(client, payload.to_ndarrays(), {"model": own}, own.head, expected)
    frozen = [tensor.numpy() for tensor in exchanged(client.generator).values()]
    assert all(np.array_equal(a, b) for a, b in zip(frozen, payload.tensors[2:], strict=True))
