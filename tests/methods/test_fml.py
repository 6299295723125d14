"""FML: one round in plain torch, with two separate losses instead of detached teachers."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from byhand import descend, epochs, filled, put, same, shuffler, some_arrays, train_images

from fedhet.config.load import build_config
from fedhet.errors import UserError
from fedhet.models import cnn
from fedhet.testing import make_client, make_strategy, simulate, small, uploads_of
from fedhet.training.losses import kl

ROUND = {"round": 1, "generation": 0, "evaluate": False}


def fml(tmp_path, **changes):
    return small(tmp_path, **({"method": "fml", "models": ["cnn-4", "cnn-5"]} | changes))


def divergence(teacher, student):
    """KL(teacher || student) of probabilities, summed over classes, mean over the batch."""
    p, q = teacher.softmax(dim=1), student.softmax(dim=1)
    return (p * (p.log() - q.log())).sum(dim=1).mean()


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.2, 0.9)])
def test_one_round_by_hand(tmp_path, alpha, beta):
    client = make_client(fml(tmp_path, alpha_local=alpha, beta_meme=beta), 0, tmp_path)
    own, meme = deepcopy(client.model), deepcopy(client.modules["meme"])
    received = some_arrays(meme)
    put(meme, received)

    def local(x, y):
        term = divergence(meme(x), own(x))
        return alpha * F.cross_entropy(own(x), y) + (1 - alpha) * term

    def shared(x, y):
        term = divergence(own(x), meme(x))
        return beta * F.cross_entropy(meme(x), y) + (1 - beta) * term

    # Each loss moves its own network only, so no teacher needs to be detached here.
    batches = epochs(shuffler(client), train_images(client), 1)
    expected = descend([local, shared], [[own], [meme]], [[0.01], [0.01]], batches)
    uploaded, _, metrics = client.fit(received, ROUND)
    assert metrics["train_loss"] == pytest.approx(expected, rel=1e-4)
    assert same(own, client.model) and same(meme, client.modules["meme"])
    for mine, sent in zip(meme.parameters(), uploaded, strict=True):
        assert np.allclose(mine.detach().numpy(), sent, rtol=1e-4, atol=1e-5)


def test_the_divergence_by_hand():
    teacher = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])  # (1/4, 3/4) and (1/2, 1/2)
    student = torch.zeros(2, 2)
    row = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert kl(student, teacher).item() == pytest.approx(row / 2)
    assert kl(teacher, teacher).item() == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize(("alpha", "beta", "still"), [(0.0, 1.0, "local"), (1.0, 0.0, "meme")])
def test_no_gradient_reaches_the_teacher(tmp_path, alpha, beta, still):
    """With one share of the labels at 0 and the other at 1 a network's labels alone move it."""
    client = make_client(fml(tmp_path, alpha_local=alpha, beta_meme=beta), 0, tmp_path)
    images, labels = (part[:8] for part in train_images(client))
    teacher = client.modules["meme"] if still == "local" else client.model
    client.loss(images, labels).backward()
    found = [p.grad.clone() for p in teacher.parameters()]
    alone = torch.autograd.grad(
        F.cross_entropy(teacher(images), labels), list(teacher.parameters())
    )
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(found, alone, strict=True))
    other = client.model if teacher is not client.model else client.modules["meme"]
    assert any(p.grad.abs().sum() > 0 for p in other.parameters())


def test_the_received_model_decides_what_the_own_one_learns(tmp_path):
    """Standalone would learn the same twice."""
    client = make_client(fml(tmp_path), 0, tmp_path)
    learned = []
    for seed in (1, 2):
        client.fit(some_arrays(client.modules["meme"], seed), ROUND)
        learned.append(deepcopy(client.model))
    assert not same(*learned, 1e-7)


def test_the_mean_is_weighted_one_to_three(tmp_path):
    strategy = make_strategy(fml(tmp_path), [[0], [1]], [100, 300], 4)
    shapes = list(strategy.arrays().values())
    strategy.aggregate(uploads_of(strategy, {"0": filled(shapes, 1), "1": filled(shapes, 5)}), 1)
    assert all((array == 4.0).all() for array in strategy.arrays().values())


@pytest.mark.parametrize(
    ("classes", "models", "floats"),
    [
        (10, ["cnn-1", "cnn-2"], 670_058),
        (100, ["cnn-1", "cnn-2"], 715_148),
        (10, ["cnn-1", "cnn-1"], sum(p.numel() for p in cnn("cnn-1", 10).parameters())),
    ],
)
def test_floats_each_way(tmp_path, classes, models, floats):
    config = fml(tmp_path, dataset=f"synthetic:{classes * 8}x{classes}", models=models)
    strategy = make_strategy(config, [[0]], [10], classes)
    assert strategy.download(strategy.roster.infos["0"], 1).floats == floats
    assert make_client(config, 0, tmp_path).upload().floats == floats


def test_two_rounds_and_inference_by_the_local_model(tmp_path):
    folder, _ = simulate(fml(tmp_path))
    assert [record["replied"] for record in folder.read_rounds()] == [3, 3]
    client = make_client(fml(tmp_path), 0, tmp_path)
    inputs = train_images(client)[0][:4]
    with torch.no_grad():
        assert torch.equal(client.predict(inputs)[""], client.model(inputs))


def test_uploads_are_copies(tmp_path):
    client = make_client(fml(tmp_path), 0, tmp_path)
    sent = client.upload()
    kept = [array.copy() for array in sent.tensors]
    with torch.no_grad():
        for p in client.modules["meme"].parameters():
            p.fill_(7.0)
    assert all((a == b).all() for a, b in zip(kept, sent.tensors, strict=True))


@pytest.mark.parametrize(
    ("key", "value"), [("alpha-local", -0.1), ("alpha-local", 1.1), ("beta-meme", 2)]
)
def test_values_out_of_range(key, value):
    with pytest.raises(UserError, match=f"^{key}: '{value}' is not allowed"):
        build_config({"method": "fml", key: value})
