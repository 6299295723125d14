"""FedMRL: one round in plain torch, nested slices, and what must stay at home."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from methods.byhand import check_round, descend, epochs, overwritten, shuffler, train_images

from fedhet.testing import make_client, make_strategy, simulate, small

ALL = ("mix-large", "mix-small", "single-small", "single-large")


def fedmrl(tmp_path, **changes):
    return small(tmp_path, **({"method": "fedmrl", "models": ["cnn-4", "cnn-5"]} | changes))


@pytest.mark.parametrize("nested", [True, False])
def test_one_round_by_hand(tmp_path, nested):
    config = fedmrl(
        tmp_path, matryoshka=nested, m_global=0.7, m_local=1.3, lr_global=0.02, lr_projector=0.005
    )
    client = make_client(config, 0, tmp_path)
    own, g, p = (deepcopy(client.modules[name]) for name in ("model", "small", "projector"))
    received = overwritten(g)

    def loss(inputs, labels):
        spliced = torch.cat([g.features(inputs), own.features(inputs)], dim=1)
        fused = spliced @ p.weight.T + p.bias
        fine = fused @ own.head.weight.T + own.head.bias
        if not nested:
            return 1.3 * F.cross_entropy(fine, labels)
        coarse = fused[:, :100] @ g.head.weight.T + g.head.bias
        return 0.7 * F.cross_entropy(coarse, labels) + 1.3 * F.cross_entropy(fine, labels)

    batches = epochs(shuffler(client), train_images(client), 1)
    expected = descend([loss], [[own, g, p]], [[0.01, 0.02, 0.005]], batches)
    check_round(client, received, {"model": own, "small": g, "projector": p}, g, expected)


@pytest.mark.parametrize(
    ("classes", "changes", "floats"),
    [
        (10, {}, 465_658),
        (100, {}, 474_748),
        (10, {"matryoshka": False}, 465_658 - 1_010),
        (10, {"models": ["cnn-1"]}, 1_817_158),
        (10, {"models": ["resnet18"]}, 1_817_158),
    ],
)
def test_floats_each_way(tmp_path, classes, changes, floats):
    config = fedmrl(tmp_path, dataset=f"synthetic:{classes * 8}x{classes}", **changes)
    strategy = make_strategy(config, [[0]], [10], classes)
    assert strategy.download(strategy.roster.infos["0"], 1).floats == floats
    if "resnet18" not in config.models:
        assert make_client(config, 0, tmp_path).upload().floats == floats


def eye(projector):
    """R~ becomes the first d2 entries of R."""
    with torch.no_grad():
        projector.weight.copy_(torch.eye(*projector.weight.shape))
        projector.bias.zero_()


def test_g_comes_first_and_the_global_header_sees_only_the_first_d1_entries(tmp_path):
    client = make_client(fedmrl(tmp_path, report_all_inference=True), 0, tmp_path)
    inputs = train_images(client)[0][:8]
    projector = client.modules["projector"]
    eye(projector)
    with torch.no_grad():
        before = client.predict(inputs)
        g, f = client.small.features(inputs), client.model.features(inputs)
        assert torch.allclose(before["mix-small"], client.small.head(g), atol=1e-6)
        expected = client.model.head(torch.cat([g, f[:, :400]], dim=1))
        assert torch.allclose(before["mix-large"], expected, atol=1e-6)
        projector.weight[100:] *= 3.0
        projector.bias[100:] += 1.0
        after = client.predict(inputs)
        assert torch.equal(after["mix-small"], before["mix-small"])
        assert not torch.allclose(after["mix-large"], before["mix-large"])
        projector.bias[99] += 1.0
        assert not torch.allclose(client.predict(inputs)["mix-small"], after["mix-small"])


def test_all_inference_models_are_reported(tmp_path):
    config = fedmrl(tmp_path, report_all_inference=True, inference="mix-small", rounds=1)
    record = simulate(config)[0].read_rounds()[-1]
    for kind in ALL:
        assert 0 <= record[f"test_accuracy_{kind}_mean"] <= 100
    assert record["test_accuracy_mean"] == record["test_accuracy_mix-small_mean"]
    client = make_client(config, 0, tmp_path)
    inputs = train_images(client)[0][:4]
    with torch.no_grad():
        found = client.predict(inputs)
        assert next(iter(found)) == "" and torch.equal(found[""], client.infer(inputs))
        assert torch.equal(found["single-small"], client.small(inputs))
        assert torch.equal(found["single-large"], client.model(inputs))
    less = make_client(fedmrl(tmp_path, report_all_inference=True, matryoshka=False), 0, tmp_path)
    assert set(less.predict(inputs)) == {"", "mix-large", "single-large"}
