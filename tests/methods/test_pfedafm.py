"""pFedAFM: both steps of a round in plain torch, the mixture, and what must stay at home."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from byhand import descend, epochs, filled, put, same, shuffler, some_arrays, train_images

from fedhet.clients import base
from fedhet.clients.pfedafm import Mixture
from fedhet.config.load import build_config
from fedhet.errors import UserError
from fedhet.testing import make_client, make_strategy, simulate, small, uploads_of

ROUND = {"round": 1, "generation": 0, "evaluate": False}


def pfedafm(tmp_path, **changes):
    return small(tmp_path, **({"method": "pfedafm", "models": ["cnn-4", "cnn-5"]} | changes))


def test_one_round_by_hand(tmp_path):
    client = make_client(pfedafm(tmp_path, momentum=0.0, lr_alpha=5.0), 0, tmp_path)
    own, g = (deepcopy(client.modules[name]) for name in ("model", "extractor"))
    received = some_arrays(g)
    put(g, received)
    alpha = torch.ones(500, requires_grad=True)
    rng, images = shuffler(client), train_images(client)
    for batches in epochs(rng, images, 1):
        for inputs, labels in batches:
            with torch.no_grad():
                general = g.features(inputs)
            mixed = alpha * own.features(inputs) + (1 - alpha) * general
            loss = F.cross_entropy(own.head(mixed), labels)
            moved = [*own.parameters(), alpha]
            slopes = torch.autograd.grad(loss, moved)
            for parameter, slope in zip(moved, slopes, strict=True):
                parameter.data -= (5.0 if parameter is alpha else 0.01) * slope
            alpha.data.clamp_(0, 1)
    assert alpha.min() < 0.9

    def second(inputs, labels):
        return F.cross_entropy(own.head(g.features(inputs)), labels)

    for batches in epochs(rng, images, 1):
        for inputs, labels in batches:
            moved = list(g.parameters())
            slopes = torch.autograd.grad(second(inputs, labels), moved)
            for parameter, slope in zip(moved, slopes, strict=True):
                parameter.data -= 0.01 * slope
    uploaded, _, metrics = client.fit(received, ROUND)
    assert same(own, client.model) and same(g, client.shared())
    assert torch.allclose(client.mixture.alpha, alpha, atol=1e-4)
    assert metrics["alpha_mean"] == pytest.approx(alpha.mean().item(), abs=1e-5)
    for mine, sent in zip(g.parameters(), uploaded, strict=True):
        assert np.allclose(mine.detach().numpy(), sent, rtol=1e-4, atol=1e-5)


def test_the_extractor_learns_with_momentum_of_its_own(tmp_path):
    """Step 2 starts with fresh momentum, and moves nothing but g."""
    client = make_client(pfedafm(tmp_path, local_epochs=2), 0, tmp_path)
    phases, received = client.phases(), some_arrays(client.shared())
    assert [phase.epochs for phase in phases] == [2, 2]
    assert [module for module, _ in phases[1].groups] == [client.shared()]
    moved = []
    plain = base.train

    def watched(phase, *rest):
        before = deepcopy(client.modules)
        if phase.name == "extractor":
            g, own = deepcopy(before["extractor"]), before["model"]
            client.expected = g

            def loss(inputs, labels):
                return F.cross_entropy(own.head(g.features(inputs)), labels)

            rng = shuffler(client)
            images = train_images(client)
            for _ in range(2):
                rng.permutation(len(images[1]))  # the orders of step 1
            descend([loss], [[g]], [[0.01]], epochs(rng, images, 2))
        found = plain(phase, *rest)
        moved.append({n for n, m in before.items() if not same(m, client.modules[n], 0)})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "train", watched)
        client.fit(received, ROUND)
    assert moved == [{"model", "mixture"}, {"extractor"}]
    assert same(client.expected, client.shared())


@pytest.mark.parametrize("rate", [1e3, 1e6])
def test_alpha_stays_between_0_and_1(tmp_path, rate):
    client = make_client(pfedafm(tmp_path, lr_alpha=rate), 0, tmp_path)
    client.fit(some_arrays(client.shared()), ROUND)
    assert 0 <= client.mixture.alpha.min() < client.mixture.alpha.max() <= 1


def test_the_mixture_is_elementwise(tmp_path):
    mixture = Mixture()
    with torch.no_grad():
        mixture.alpha.copy_(torch.linspace(0, 1, 500))
        found = mixture(torch.ones(2, 500), torch.zeros(2, 500))
    assert torch.allclose(found, torch.linspace(0, 1, 500).expand(2, 500))
    client = make_client(pfedafm(tmp_path), 0, tmp_path)
    inputs = train_images(client)[0][:6]
    with torch.no_grad():
        client.mixture.alpha.fill_(0.25)
        own, general = client.model.features(inputs), client.shared().features(inputs)
        expected = client.model.head(0.25 * own + 0.75 * general)
        assert torch.allclose(client.predict(inputs)[""], expected, atol=1e-6)
    assert set(client.inference_needs().modules) == set(client.modules)


def test_the_mean_is_weighted_one_to_three(tmp_path):
    strategy = make_strategy(pfedafm(tmp_path), [[0], [1]], [100, 300], 4)
    shapes = list(strategy.arrays().values())
    strategy.aggregate(uploads_of(strategy, {"0": filled(shapes, 1), "1": filled(shapes, 5)}), 1)
    assert all((array == 4.0).all() for array in strategy.arrays().values())


@pytest.mark.parametrize(("classes", "floats"), [(10, 665_048), (4, 665_048)])
def test_665048_floats_each_way_and_alpha_stays_at_home(tmp_path, classes, floats):
    config = pfedafm(tmp_path, dataset=f"synthetic:{classes * 40}x{classes}", rounds=1)
    record = simulate(config)[0].read_rounds()[0]
    assert record["uplink_floats"] == record["downlink_floats"] == 3 * floats


def test_alpha_comes_back_next_round(tmp_path):
    client = make_client(pfedafm(tmp_path), 0, tmp_path)
    client.fit(some_arrays(client.shared()), ROUND)
    learned = client.mixture.alpha.detach().clone()
    again = make_client(pfedafm(tmp_path), 0, tmp_path)
    assert (again.mixture.alpha == 1).all()
    again.restore(1)
    assert torch.equal(again.mixture.alpha, learned) and not (learned == 1).all()


def test_the_received_extractor_decides_what_the_own_model_learns(tmp_path):
    """Standalone would learn the same twice."""
    client = make_client(pfedafm(tmp_path, lr_alpha=5.0), 0, tmp_path)
    learned = []
    for seed in (1, 2):
        client.fit(some_arrays(client.shared(), seed), ROUND)
        learned.append(deepcopy(client.model))
    assert not same(*learned)


def test_values_out_of_range():
    with pytest.raises(UserError, match="^lr-alpha: '0' is not allowed"):
        build_config({"method": "pfedafm", "lr-alpha": 0})
