"""FedClassAvg: SupCon against a double loop, the proximal term, views, doubled FLOPs."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from byhand import descend, epochs, put, same, shuffler, some_arrays, train_images

from fedhet.clients.fedclassavg import contrastive
from fedhet.config.load import build_config
from fedhet.errors import UserError
from fedhet.protocol.payload import ModelArrays
from fedhet.rng import torch_seed
from fedhet.testing import make_client, make_strategy, simulate, small, uploads_of
from fedhet.training import flop_cost
from fedhet.training.augment import crop, jitter, two_views, view

ADAM = ({}, {"optimizer": "adam", "lr": 1e-4})  # what legacy needs


def header(value, classes=4):
    return ModelArrays((np.full((classes, 500), value, np.float32), np.full(classes, value)))


def naive(features, labels, tau):
    """Khosla et al. 2020, L_out, anchor by anchor and positive by positive."""
    total = 0.0
    for a in range(len(labels)):
        others = [b for b in range(len(labels)) if b != a]
        below = sum(math.exp(float(features[a] @ features[b]) / tau) for b in others)
        positives = [p for p in others if labels[p] == labels[a]]
        terms = [
            math.log(math.exp(float(features[a] @ features[p]) / tau) / below) for p in positives
        ]
        total -= sum(terms) / len(terms)
    return total / len(labels)


@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_supcon_equals_a_naive_double_loop(tau):
    features = F.normalize(torch.randn(10, 6, generator=torch.Generator().manual_seed(1)).double())
    labels = torch.tensor([0, 1, 2, 1, 0] * 2)
    assert contrastive(features.float(), labels, tau).item() == pytest.approx(
        naive(features, labels, tau), rel=1e-5
    )


def test_the_server_averages_headers_by_images(tmp_path):
    config = small(tmp_path, method="fedclassavg")
    strategy = make_strategy(config, [[0], [1]], [100, 300], 4)
    strategy.aggregate(uploads_of(strategy, {"0": header(1.0), "1": header(5.0)}), 1)
    assert all((array == 4.0).all() for array in strategy.arrays().values())


def trained_client(tmp_path, **changes):
    client = make_client(small(tmp_path, method="fedclassavg", **changes), 0, tmp_path)
    client.receive(header(0.25))
    client.phases()
    return client


@pytest.mark.parametrize(("legacy", "expected"), [(False, 2004 * 0.01), (True, 0.02)])
def test_the_proximal_term_is_the_squared_norm_to_the_received_header(tmp_path, legacy, expected):
    client = trained_client(tmp_path, legacy=legacy, **ADAM[legacy])
    assert client.distance().item() == 0.0
    with torch.no_grad():
        for parameter in client.model.head.parameters():
            parameter.add_(0.1)
    assert client.distance().item() == pytest.approx(expected, rel=1e-5)  # 4 x 501 x 0.1^2
    client.distance().backward()
    scale = 2 * 0.1 / np.array([2000, 4]) if legacy else np.array([0.2, 0.2])
    assert torch.allclose(client.model.head.weight.grad, torch.tensor(scale[0]).float())
    assert torch.allclose(client.model.head.bias.grad, torch.tensor(scale[1]).float())


@pytest.mark.parametrize("legacy", [False, True])
def test_the_loss_in_plain_torch(tmp_path, legacy):
    client = trained_client(tmp_path, legacy=legacy, rho=0.3, **ADAM[legacy])
    with torch.no_grad():
        client.model.head.weight.add_(torch.linspace(-0.02, 0.02, 2000).view(4, 500))
        client.model.conv1.weight.mul_(3.0)
    inputs, labels = client.examples("train").batch(torch.arange(8))
    views = two_views(inputs, client.torch_generator("views"))
    loss = client.loss(inputs, labels).item()
    with torch.no_grad():
        features = client.model.features(views)
        ce = F.cross_entropy(client.model.head(features[:8]), labels).item()
        drift = client.model.head.weight - 0.25, client.model.head.bias - 0.25
    twice = torch.cat([labels, labels])
    if legacy:
        contrast = naive(features.double(), twice, 100.0) * 100.0 / 0.07
        proximal = sum(d.square().mean().item() for d in drift)
    else:
        contrast = naive(F.normalize(features).double(), twice, 0.5)
        proximal = sum(d.square().sum().item() for d in drift)
    assert loss == pytest.approx(ce + contrast + 0.15 * proximal, rel=1e-4)


def images(count=64, side=32):
    draws = torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(3))
    return draws.mul(2).sub(1)


def test_views_keep_shape_and_range_and_differ():
    x = images()
    made = torch.Generator().manual_seed(0)
    views = two_views(x, made)
    assert views.shape == (128, 3, 32, 32) and views.dtype == torch.float32
    assert views.min() >= -1 and views.max() <= 1
    assert (views[:64] - views[64:]).abs().amax(dim=(1, 2, 3)).min() > 0
    gray = (views - views.mean(1, keepdim=True)).abs().amax(dim=(1, 2, 3)) < 1e-5
    assert 0.05 < gray.float().mean() < 0.4
    again = two_views(x, torch.Generator().manual_seed(0))
    assert torch.equal(views, again)
    assert not torch.equal(views, two_views(x, made))


def test_a_crop_of_everything_is_the_image_and_can_be_flipped():
    x = images(2)
    whole = torch.tensor([[1.0], [0.5], [0.5], [0.5], [0.9]]).expand(5, 2)
    assert torch.allclose(crop(x, whole), x, atol=1e-5)
    flipped = whole.clone()
    flipped[4] = 0.1
    assert torch.allclose(crop(x, flipped), x.flip(3), atol=1e-5)


def test_a_quarter_crop_is_the_corner_upsampled():
    x = images(1, 16)
    # area 0.25, ratio 1, as far left and up as it goes: the top left 8 x 8 pixels
    draws = torch.tensor([[0.05 / 0.8], [0.5], [0.0], [0.0], [0.9]])
    upsampled = F.interpolate(x[:, :, :8, :8], scale_factor=2, mode="bilinear")
    assert torch.allclose(crop(x, draws)[:, :, :15, :15], upsampled[:, :, :15, :15], atol=1e-5)


def test_jitter_by_hand():
    pixel = torch.tensor([0.2, 0.4, 0.6]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    middle = torch.full((4, 1, 1, 1, 1), 0.5)
    assert torch.allclose(jitter(pixel, middle), pixel, atol=1e-6)  # no change at all
    bright = middle.clone()
    bright[0] = 1.0  # factor 1.4
    assert torch.allclose(jitter(pixel, bright), 1.4 * pixel, atol=1e-6)
    gray = 0.2989 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6
    strong = middle.clone()
    strong[2] = 0.0  # saturation 0.6
    expected = gray + 0.6 * (pixel - gray)
    assert torch.allclose(jitter(pixel, strong), expected, atol=1e-5)
    turned = middle.clone()
    turned[3] = 1.0  # hue by 36 degrees keeps the mean and the distance to gray
    after = jitter(pixel, turned)
    assert torch.allclose(after.mean(1), pixel.mean(1), atol=1e-6)
    spread = (after - after.mean(1, keepdim=True)).square().sum(1)
    assert torch.allclose(spread, torch.tensor(0.08), atol=1e-5)
    assert not torch.allclose(after, pixel, atol=0.02)


def test_a_batch_does_not_share_its_draws():
    same = images(1).expand(32, -1, -1, -1)
    views = view(same, torch.Generator().manual_seed(0))
    assert len({v.numpy().tobytes() for v in views}) == 32


def test_two_views_double_the_flops_and_leave_no_trace(tmp_path):
    flop_cost._FLOPS.clear()
    alone, _ = simulate(small(tmp_path, method="standalone", rounds=1))
    config = small(tmp_path, method="fedclassavg", rounds=1)
    counted, _ = simulate(config)
    ratio = counted.read_rounds()[0]["train_flops"] / alone.read_rounds()[0]["train_flops"]
    assert 1.9 < ratio < 2.1
    # The second run finds the FLOPs in the cache: the counted step must not have drawn views.
    cached, _ = simulate(config)
    assert cached.read_rounds()[0]["sha256"] == counted.read_rounds()[0]["sha256"]


def test_5010_floats_each_way_copies_and_not_lg_fedavg(tmp_path):
    changes = {"dataset": "synthetic:600x10", "clients": 5}
    folder, _ = simulate(small(tmp_path, method="fedclassavg", **changes))
    for record in folder.read_rounds():
        assert record["uplink_floats"] == record["downlink_floats"] == 5 * 5010
    for other in ("standalone", "lg_fedavg"):
        plain, _ = simulate(small(tmp_path, method=other, **changes))
        assert plain.read_rounds()[-1]["train_loss"] != folder.read_rounds()[-1]["train_loss"]
    client = trained_client(tmp_path)
    sent = client.upload()
    with torch.no_grad():
        client.model.head.weight.zero_()
    assert (sent.tensors[0] == 0.25).all()


def test_rho_pulls_the_header_to_the_received_one(tmp_path):
    """One round of training moves the header less the larger rho is."""
    moved = []
    for rho in (0.0, 5.0):
        client = trained_client(tmp_path, rho=rho, lr=0.02)
        head = client.model.head
        x, y = client.examples("train").batch(torch.arange(16))
        sgd = torch.optim.SGD(head.parameters(), lr=0.02)
        for _ in range(20):
            sgd.zero_grad()
            client.loss(x, y).backward()
            sgd.step()
        moved.append((head.weight - 0.25).norm().item())
    assert moved[1] < 0.5 * moved[0]


def test_keys_are_checked():
    with pytest.raises(UserError, match="rho"):
        build_config({"method": "fedclassavg", "rho": -1})
    with pytest.raises(UserError, match="tau: 0.07 is not allowed: legacy"):
        build_config({"method": "fedclassavg", "tau": 0.07, "legacy": True})
    with pytest.raises(UserError, match="^legacy: true .*optimizer=adam lr=0.0001"):
        build_config({"method": "fedclassavg", "legacy": True})


def test_legacy_learns_with_adam(tmp_path):
    values = {"rounds": 2, "local_epochs": 4, "optimizer": "adam", "lr": 1e-4}
    config = small(tmp_path, method="fedclassavg", legacy=True, **values)
    first, second = simulate(config)[0].read_rounds()
    assert first["failures"] == second["failures"] == []
    assert second["train_loss"] < first["train_loss"]


def test_one_round_by_hand(tmp_path):
    """Both views, cross-entropy of the first, SupCon of both, the distance to what was received."""
    config = small(tmp_path, method="fedclassavg", rho=5.0, tau=0.3)
    client = make_client(config, 0, tmp_path)
    own = deepcopy(client.model)
    received = some_arrays(own.head)
    put(own.head, received)
    anchor = [torch.from_numpy(array) for array in received]
    draws = torch.Generator().manual_seed(torch_seed(config.seed, "views", "0", 1))

    def loss(inputs, labels):
        features = own.features(two_views(inputs, draws))
        logits = own.head(features[: len(labels)])
        unit = features / features.norm(dim=1, keepdim=True)
        twice = labels.repeat(2)
        likeness = (unit @ unit.T / 0.3).exp() * (1 - torch.eye(len(twice)))
        shares = likeness / likeness.sum(dim=1, keepdim=True)
        pairs = (twice[:, None] == twice) & ~torch.eye(len(twice), dtype=torch.bool)
        terms = [-shares[a][pairs[a]].log().mean() for a in range(len(twice))]
        away = sum(
            (p - a).square().sum() for p, a in zip(own.head.parameters(), anchor, strict=True)
        )
        return F.cross_entropy(logits, labels) + torch.stack(terms).mean() + 2.5 * away

    batches = epochs(shuffler(client), train_images(client), 1)
    expected = descend([loss], [[own]], [[0.01]], batches)
    uploaded, _, metrics = client.fit(received, {"round": 1, "generation": 0, "evaluate": False})
    assert metrics["train_loss"] == pytest.approx(expected, rel=1e-4)
    assert same(own, client.model, 1e-4)
    for mine, sent in zip(own.head.parameters(), uploaded, strict=True):
        assert np.allclose(mine.detach().numpy(), sent, rtol=1e-4, atol=1e-4)
