"""FD worked out by hand: leave-one-out means, a bounded loss, and the traps of public code."""

import math

import numpy as np
import pytest
import torch
from methods.byhand import vectors

from fedhet.errors import Rejected
from fedhet.testing import make_client, make_strategy, small, uploads_of
from fedhet.training.loop import Examples

A = vectors([0, 1], [50, 50], [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2]])
B = vectors([0, 1], [20, 20], [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
C = vectors([0, 2], [30, 30], [[0.2, 0.4, 0.4], [0.0, 0.3, 0.7]])


def three(tmp_path):
    return make_strategy(
        small(tmp_path, method="fd"), [[0, 1], [0, 1], [0, 2]], [100, 40, 60], classes=3
    )


def test_leave_one_out_by_hand_with_three_clients(tmp_path):
    strategy = three(tmp_path)
    infos = strategy.roster.infos
    first = strategy.download(infos["0"], 1)
    assert first.classes.shape == (0,) and first.vectors.shape == (0, 3) and first.floats == 0
    strategy.aggregate(uploads_of(strategy, {"0": A, "1": B, "2": C}), 1)
    down = strategy.download(infos["0"], 2)
    assert down.classes.tolist() == [0, 1] and down.counts.tolist() == [2, 1]
    # class 0: (B + C) / 2, uniform whatever n_k; class 1: B alone
    assert np.allclose(down.vectors, [[0.35, 0.45, 0.2], [0.0, 1.0, 0.0]])
    down = strategy.download(infos["2"], 2)
    assert down.classes.tolist() == [0]  # class 2 has no other owner
    assert np.allclose(down.vectors, [[0.65, 0.3, 0.05]])
    assert (down.vectors >= 0).all() and down.vectors.dtype == np.float32


def test_the_last_vector_of_an_absent_client_stays(tmp_path):
    strategy = three(tmp_path)
    strategy.aggregate(uploads_of(strategy, {"0": A, "1": B, "2": C}), 1)
    newer = vectors([0, 1], [20, 20], [[0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    strategy.aggregate(uploads_of(strategy, {"1": newer}), 2)
    infos = strategy.roster.infos
    assert np.allclose(strategy.download(infos["0"], 3).vectors[0], [0.15, 0.25, 0.6])
    assert np.allclose(strategy.download(infos["1"], 3).vectors[0], [0.5, 0.25, 0.25])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (vectors([0, 2], [50, 50], A.vectors), "it declared"),
        (vectors([0, 1], [50, 49], A.vectors), "images per class"),
        (vectors([0, 1], [50, 50], [[1.2, -0.1, -0.1], [0.2, 0.6, 0.2]]), "distribution"),
        (vectors([0, 1], [50, 50], [[0.8, 0.8, 0.1], [0.2, 0.6, 0.2]]), "distribution"),
    ],
)
def test_what_is_no_distribution_over_declared_classes_is_refused(tmp_path, payload, reason):
    strategy = three(tmp_path)
    strategy.check(strategy.roster.infos["0"], A)
    with pytest.raises(Rejected, match=reason):
        strategy.check(strategy.roster.infos["0"], payload)


def logits_client(tmp_path, **changes):
    client = make_client(small(tmp_path, method="fd", **changes), 0, tmp_path)
    client.modules = {"model": torch.nn.Identity()}
    return client


def test_the_loss_by_hand_and_no_term_without_a_target(tmp_path):
    client = logits_client(tmp_path, gamma=0.5)
    client.receive(vectors([1], [1], [[0.1, 0.6, 0.3, 0.0]]))
    logits = torch.tensor([[1.0, 2.0, 0.0, -1.0], [0.5, 0.5, 3.0, 0.0]])
    labels = torch.tensor([1, 2])  # only the first has a target
    total = [sum(math.exp(v) for v in row) for row in logits.tolist()]
    log_p = [[v - math.log(t) for v in row] for row, t in zip(logits.tolist(), total, strict=True)]
    hard = -(log_p[0][1] + log_p[1][2]) / 2
    soft = -(0.1 * log_p[0][0] + 0.6 * log_p[0][1] + 0.3 * log_p[0][2]) / 2
    assert client.loss(logits, labels).item() == pytest.approx(hard + 0.5 * soft, rel=1e-6)


def test_the_upload_is_the_mean_softmax_per_class(tmp_path, monkeypatch):
    client = logits_client(tmp_path)
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    own = client.seen().tolist()
    labels = torch.tensor([own[i % 2] for i in range(6)])
    monkeypatch.setattr(client, "examples", lambda part: Examples(logits, labels, torch.clone))
    sent = client.upload()
    assert sent.classes.tolist() == own and sent.counts.tolist() == [3, 3]
    expected = torch.stack([torch.softmax(logits[labels == s], 1).mean(0) for s in own])
    assert np.allclose(sent.vectors, expected, atol=1e-6)  # not the softmax of mean logits
