"""Plain torch for the tests that work a round out by hand, and the comparison with a client's."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedhet.clients.base import MethodClient
from fedhet.config.schema import RunConfig
from fedhet.protocol.payload import Array, ClassVectors, ModelArrays
from fedhet.rng import generator, torch_seed
from fedhet.testing import small, uploads_of

Batch = tuple[Tensor, Tensor]
ROUND = {"round": 1, "generation": 0, "evaluate": False}


def train_images(client: MethodClient) -> Batch:
    """Return all training images (n, 3, s, s) in [-1, 1] and labels (n,)."""
    data = client.setup.data
    pixels = torch.from_numpy(np.array(data.dataset.examples[data.split.train]))
    labels = torch.from_numpy(data.dataset.labels[data.split.train])
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1, labels


def shuffler(client: MethodClient) -> np.random.Generator:
    """Return the generator of the round's batches; phases take from it one after the other."""
    return generator(client.config.seed, "shuffle", client.setup.data.client, 1)


def epochs(
    rng: np.random.Generator, images: Batch, count: int, size: int = 16
) -> Iterator[list[Batch]]:
    """Yield the batches of ``count`` epochs; sizes must not leave a last batch of one image."""
    for _ in range(count):
        order = torch.from_numpy(rng.permutation(len(images[1])))
        assert len(order) % size != 1
        yield [(images[0][index], images[1][index]) for index in order.split(size)]


def descend(
    losses: Sequence[Callable[[Tensor, Tensor], Tensor]],
    networks: Sequence[Sequence[nn.Module]],
    rates: Sequence[Sequence[float]],
    all_epochs: Iterator[list[Batch]],
    decay: float = 0.0,
) -> float:
    """Train ``networks[i]`` on ``losses[i]`` by SGD on the same batches; the last mean loss."""
    descents = []
    for group, lrs in zip(networks, rates, strict=True):
        pairs = zip(group, lrs, strict=True)
        parts = [{"params": [*one.parameters()], "lr": lr} for one, lr in pairs]
        descents.append(torch.optim.SGD(parts, momentum=0.9, weight_decay=decay))
    for batches in all_epochs:
        total = 0.0
        for inputs, labels in batches:
            values = [loss(inputs, labels) for loss in losses]
            for value, descent in zip(values, descents, strict=True):
                own = [p for part in descent.param_groups for p in part["params"]]
                slopes = torch.autograd.grad(value, own, retain_graph=True)
                for parameter, slope in zip(own, slopes, strict=True):
                    parameter.grad = slope
            total += sum(value.item() for value in values) * len(labels)
            for descent in descents:
                descent.step()
                descent.zero_grad()
    return total / sum(len(labels) for _, labels in batches)


def by_hand(
    client: MethodClient,
    losses: Sequence[Callable[[Tensor, Tensor], Tensor]],
    networks: Sequence[Sequence[nn.Module]],
    rates: Sequence[Sequence[float]] | None = None,
    count: int = 1,
    rng: np.random.Generator | None = None,
    decay: float = 0.0,
) -> float:
    """Train on the images and batches that a client's round has; all at rate 0.01 by default."""
    rates = rates or [[0.01] * len(group) for group in networks]
    batches = epochs(rng or shuffler(client), train_images(client), count)
    return descend(losses, networks, rates, batches, decay)


def configs(method: str, **keys: Any) -> Callable[..., RunConfig]:
    """Return :func:`fedhet.testing.small` with a method and keys that a test may change."""
    return partial(small, method=method, **keys)


def serve(
    config: RunConfig, round_: int, parameters: Sequence[Tensor], loss: Callable[[Tensor], Tensor]
) -> list[float]:
    """Train a server's parameters by plain SGD on four vectors, two at a time; the losses."""
    draws = torch.Generator().manual_seed(torch_seed(config.seed, "server", round_=round_))
    losses = []
    for _ in range(config.params.server_epochs):
        for chosen in torch.randperm(4, generator=draws).split(2):
            value = loss(chosen)
            losses.append(value.item())
            slopes = torch.autograd.grad(value, parameters)
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.data -= config.params.server_lr * slope
    return losses


def vectors(classes: Sequence[int], counts: Sequence[int], rows: Any) -> ClassVectors:
    """Return one vector per class, with its images."""
    whole = (np.array(one, dtype=np.int64) for one in (classes, counts))
    return ClassVectors(*whole, np.array(rows, dtype=np.float32))


def drawn(classes: Sequence[int], seed: int = 0, images: int = 25) -> ClassVectors:
    """Return random vectors of these classes."""
    rows = np.random.default_rng(seed).normal(0, 1, (len(classes), 500))
    return vectors(classes, [images] * len(classes), rows)


def some_arrays(module: nn.Module, seed: int = 5) -> list[Array]:
    """Return what a server might send for ``module``; the client has nothing like it."""
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.05, tuple(p.shape)).astype(np.float32) for p in module.parameters()]


def overwritten(module: nn.Module, plus: float = 0.0) -> list[Array]:
    """Overwrite the parameters of a module with what a server might send, and return that."""
    arrays = [array + np.float32(plus) for array in some_arrays(module)]
    with torch.no_grad():
        for parameter, array in zip(module.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(array))
    return arrays


def filled(arrays: Sequence[Array], value: float) -> ModelArrays:
    """Return a payload of these shapes, every number ``value``."""
    return ModelArrays(tuple(np.full(a.shape, value, np.float32) for a in arrays))


def same(mine: nn.Module, theirs: nn.Module, tolerance: float = 1e-5) -> bool:
    """Return whether parameters are equal; for tolerance 0 to the bit, buffers included."""
    a, b = mine.state_dict(), theirs.state_dict()
    if not tolerance:
        return all(torch.equal(a[key], b[key]) for key in a)
    return all(torch.allclose(a[key], b[key], rtol=1e-4, atol=tolerance) for key in a)


def check_round(
    client: MethodClient,
    received: Sequence[Array],
    by_hand: dict[str, nn.Module],
    sent: nn.Module,
    loss: float | None = None,
    tolerance: float = 1e-5,
) -> dict[str, float]:
    """Train a client's round; compare its networks, upload and loss with those by hand."""
    uploaded, count, metrics = client.fit(list(received), ROUND)
    assert count == len(client.examples("train"))
    if loss is not None:
        assert metrics["train_loss"] == pytest.approx(loss, rel=1e-4)
    for name, network in by_hand.items():
        assert same(network, client.modules[name], tolerance), name
    for parameter, array in zip(sent.parameters(), uploaded, strict=True):
        assert np.allclose(parameter.detach().numpy(), array, rtol=1e-4, atol=tolerance)
    return metrics


def hand_round(
    client: MethodClient,
    losses: Sequence[Callable[[Tensor, Tensor], Tensor]],
    networks: Sequence[dict[str, nn.Module]],
    sent: nn.Module,
    rates: Sequence[Sequence[float]] | None = None,
    count: int = 1,
) -> dict[str, float]:
    """Overwrite ``sent``, train copies of a client's networks by hand, and compare its round."""
    received = overwritten(sent)
    expected = by_hand(client, losses, [list(one.values()) for one in networks], rates, count)
    every = {name: module for one in networks for name, module in one.items()}
    return check_round(client, received, every, sent, expected)


def check_server(
    strategy: Any,
    uploads: dict[str, ClassVectors],
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> dict[str, float]:
    """Compare a server's round with one by hand; ``loss`` of prototypes, vectors, their classes."""
    names = ("embedding.weight", "middle.weight", "middle.bias", "fc.weight", "fc.bias")
    start = {f"trainable.{n}": strategy.arrays()[f"trainable.{n}"] for n in names}
    tensors = [torch.tensor(array, requires_grad=True) for array in start.values()]
    embedding, w1, b1, w2, b2 = tensors
    numbers = strategy.aggregate(uploads_of(strategy, uploads), 2)
    x, y = torch.from_numpy(np.concatenate([u.vectors for u in uploads.values()])), [0, 1, 1, 3]

    def made() -> Tensor:
        return (embedding @ w1.T + b1).relu() @ w2.T + b2

    serve(strategy.config, 2, tensors, lambda i: loss(made(), x[i], torch.tensor(y)[i]))
    found = strategy.arrays()
    for (name, before), mine in zip(start.items(), tensors, strict=True):
        assert np.allclose(mine.detach().numpy(), found[name], atol=1e-4), name
        assert not np.array_equal(before, found[name])
    assert np.allclose(found["prototypes"], made().detach().numpy(), atol=1e-4)
    return numbers


def check_prototypes(
    client: MethodClient,
    received: Sequence[Array],
    own: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, float]:
    """Compare a client's round with one by hand; what goes up are mean representations."""
    images, labels = train_images(client)
    expected = by_hand(client, [loss], [[own]], count=client.config.local_epochs)
    arrays, _, metrics = client.fit(list(received), ROUND | {"evaluate": True})
    classes, counts, means = arrays
    assert metrics["train_loss"] == pytest.approx(expected, rel=1e-4) and same(own, client.model)
    seen = sorted(set(labels.tolist()))
    assert classes.tolist() == seen and counts.sum() == len(labels)
    with torch.no_grad():
        features = own.features(images)
    for row, label in enumerate(seen):
        assert np.allclose(means[row], features[labels == label].mean(dim=0), atol=1e-4)
    return metrics


def check_pull(client: MethodClient, away: Callable[[Tensor, Tensor], Tensor]) -> dict[str, float]:
    """Compare a round with lam=0.7 with one by hand: one of its classes has a prototype (d,)."""
    own, first = deepcopy(client.model), client.seen().tolist()[0]
    sent = drawn([first])

    def loss(inputs: Tensor, answers: Tensor) -> Tensor:
        features = own.features(inputs)
        apart = away(features, torch.from_numpy(sent.vectors[0])) * (answers == first)
        return F.cross_entropy(own.head(features), answers) + 0.7 * apart.mean()

    return check_prototypes(client, sent.to_ndarrays(), own, loss)


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(teacher || student) of the logits' probabilities, mean over the batch."""
    p, q = teacher.softmax(dim=1), student.softmax(dim=1)
    return (p * (p.log() - q.log())).sum(dim=1).mean()
