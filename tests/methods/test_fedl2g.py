"""FedL2G: rounds by hand, with the meta-gradient by autograd through the step."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from methods.byhand import ROUND, configs, descend, epochs, same, shuffler, train_images, vectors
from torch.func import functional_call

from fedhet.errors import Rejected
from fedhet.protocol.payload import ClassVectors
from fedhet.rng import generator
from fedhet.strategies.fedl2g import LARGEST
from fedhet.testing import make_client, make_strategy, uploads_of

fedl2g = configs("fedl2g", warm_up=0)


@pytest.mark.parametrize("guide", ["logits", "features"])
def test_one_round_of_a_client_by_hand(tmp_path, guide):
    client = make_client(fedl2g(tmp_path, guide=guide), 0, tmp_path)
    own, images, labels = deepcopy(client.model), *train_images(client)
    own.requires_grad_(True)  # whatever the last phase in this process has left off
    width = 500 if guide == "features" else client.classes
    sent = np.random.default_rng(0).normal(0, 1, (client.classes, width)).astype(np.float32)
    every = np.arange(client.classes)
    payload = ClassVectors(every, np.ones_like(every), sent)
    (classes, marks, rows), _, _ = client.fit(payload.to_ndarrays(), ROUND)

    n, name, guides = len(labels), client.setup.data.client, torch.from_numpy(sent)
    order = generator(client.config.seed, "quiz", name).permutation(n)
    quiz, study = np.sort(order[: min(16, n // 4)]), np.sort(order[min(16, n // 4) :])

    def outputs(model, x):
        features = model.features(x)
        logits = model.head(features)
        return (features if guide == "features" else logits), logits

    def loss(model, x, y):
        guided, logits = outputs(model, x)
        return F.cross_entropy(logits, y) + ((guided - guides[y]) ** 2).mean()

    batches = epochs(shuffler(client), (images[study], labels[study]), 1)
    descend([partial(loss, own)], [[own]], [[client.config.lr]], batches)
    assert same(own, client.model)

    picked = generator(client.config.seed, "study", name, 1).permutation(len(study))[:16]
    picked = torch.from_numpy(study[picked])
    asked = guides.clone().requires_grad_()
    guides = asked
    slopes = torch.autograd.grad(
        loss(own, images[picked], labels[picked]), own.parameters(), create_graph=True
    )
    steps = zip(own.named_parameters(), slopes, strict=True)
    after = {key: p - client.config.lr * g for (key, p), g in steps}
    quizzed = F.cross_entropy(functional_call(own, after, (images[quiz],)), labels[quiz])
    (gradient,) = torch.autograd.grad(quizzed, asked)
    assert classes.tolist() == sorted(set(labels.tolist()))
    assert np.allclose(rows, gradient[classes].numpy(), rtol=1e-3, atol=1e-7)
    assert marks.tolist() == [int((labels[picked] == c).any()) for c in classes]
    assert np.abs(rows).max() > 0


def test_one_step_of_the_server_by_hand(tmp_path):
    strategy = make_strategy(fedl2g(tmp_path, server_lr=0.5), [[0, 1], [1, 2]], [50, 500], 3)
    before = strategy.guides.copy()
    uploads = {
        "0": vectors([0, 1], [1, 1], [[60, 80, 0], [1, 2, 3]]),
        "1": vectors([1, 2], [1, 0], [[3, 0, 1], [0, 0, 0]]),
    }
    strategy.aggregate(uploads_of(strategy, uploads), 1)
    step = np.array([[60, 80, 0], [2, 1, 2], [0, 0, 0]])
    assert np.allclose(strategy.guides, before - 0.5 * step, atol=1e-5)
    sent = strategy.download(strategy.roster.infos["0"], 2)
    assert np.array_equal(sent.vectors, strategy.guides)


@pytest.mark.parametrize(
    ("upload", "says"),
    [
        (vectors([0, 2], [1, 1], np.zeros((2, 3))), "declared"),
        (vectors([0, 1], [1, 7], np.zeros((2, 3))), "0 or 1"),
        (vectors([0, 1], [1, 1], [[60, 81, 0], [0, 0, 0]]), "norm 100.8 is above 100"),
    ],
)
def test_other_classes_and_other_marks_are_refused(tmp_path, upload, says):
    strategy = make_strategy(fedl2g(tmp_path), [[0, 1], [1, 2]], [50, 500], 3)
    with pytest.raises(Rejected, match=says):
        strategy.check(strategy.roster.infos["0"], upload)


def test_a_long_gradient_is_clipped_by_the_client(tmp_path):
    client = make_client(fedl2g(tmp_path), 0, tmp_path)
    client.gradient = torch.ones(client.classes, client.classes) * 1e3
    rows = client.upload().vectors
    assert np.linalg.norm(rows, axis=1) == pytest.approx(LARGEST, rel=1e-5)


def test_nothing_trains_while_warming_up_but_the_guides_move(tmp_path):
    client = make_client(fedl2g(tmp_path, warm_up=1), 0, tmp_path)
    own, c = deepcopy(client.model), client.classes
    sent = ClassVectors(np.arange(c), np.ones(c, np.int64), np.ones((c, c), np.float32))
    (_, marks, rows), _, _ = client.fit(sent.to_ndarrays(), ROUND)
    assert same(own, client.model, 0) and marks.any() and np.abs(rows).max() > 0
