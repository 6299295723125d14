"""pFedES: one round in plain torch, and what each of the two steps must leave alone."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from byhand import descend, epochs, filled, put, same, shuffler, some_arrays, train_images

from fedhet.clients import base
from fedhet.config.load import build_config
from fedhet.data.inputs import Inputs
from fedhet.errors import UserError
from fedhet.strategies.pfedes import PFedESParams, extractor
from fedhet.testing import make_client, make_strategy, simulate, small, uploads_of

ROUND = {"round": 1, "generation": 0, "evaluate": False}


def pfedes(tmp_path, **changes):
    return small(tmp_path, **({"method": "pfedes", "extractor_epochs": 2} | changes))


def test_one_round_by_hand(tmp_path):
    config = pfedes(tmp_path, mu=0.3, lr_extractor=0.02)
    client = make_client(config, 1, tmp_path)
    own, g = deepcopy(client.model), deepcopy(client.modules["extractor"])
    received = [array + 0.1 for array in some_arrays(g)]
    put(g, received)

    def enhanced(inputs):
        hidden = F.conv2d(inputs, g[0].weight, g[0].bias, padding=1).relu()
        return F.conv2d(hidden, g[2].weight, g[2].bias, padding=1).relu()

    def local(inputs, labels):
        with torch.no_grad():
            images = enhanced(inputs)
        both = F.cross_entropy(own(images), labels), F.cross_entropy(own(inputs), labels)
        return 0.3 * both[0] + 0.7 * both[1]

    def shared(inputs, labels):
        return F.cross_entropy(own(enhanced(inputs)), labels)

    rng, images = shuffler(client), train_images(client)
    first = descend([local], [[own]], [[0.01]], epochs(rng, images, 1))
    second = descend([shared], [[g]], [[0.02]], epochs(rng, images, 2))
    uploaded, _, metrics = client.fit(received, ROUND)
    assert metrics["train_loss"] == pytest.approx(first, rel=1e-4)
    assert metrics["train_loss_extractor"] == pytest.approx(second, rel=1e-4)
    assert same(own, client.model) and same(g, client.modules["extractor"])
    for mine, sent in zip(g.parameters(), uploaded, strict=True):
        assert np.allclose(mine.detach().numpy(), sent, rtol=1e-4, atol=1e-5)
    assert any((a != b).any() for a, b in zip(received, uploaded, strict=True))


@pytest.mark.parametrize("model", ["cnn-5", "shufflenet_v2_x1_0"])
def test_each_step_leaves_the_other_network_bit_identical(tmp_path, monkeypatch, model):
    client = make_client(
        pfedes(tmp_path, models=[model], dataset="synthetic:80x4", extractor_epochs=1), 0, tmp_path
    )
    trained = []
    plain = base.train

    def watched(phase, *rest):
        before = deepcopy(client.modules)
        loss = plain(phase, *rest)
        changed = {n for n, m in before.items() if not same(m, client.modules[n], 0)}
        frozen = {n for n in before if n not in changed}
        assert all(p.grad is None for n in frozen for p in client.modules[n].parameters())
        trained.append(changed)
        return loss

    monkeypatch.setattr(base, "train", watched)
    client.fit(some_arrays(client.modules["extractor"]), ROUND)
    assert trained == [{"model"}, {"extractor"}]


def test_counting_flops_leaves_everything_as_it_was(tmp_path):
    client = make_client(pfedes(tmp_path, models=["shufflenet_v2_x1_0"]), 0, tmp_path)
    before, data = deepcopy(client.modules), client.examples("train")
    for number, phase in enumerate(client.phases()):
        base.set_trainable(list(client.modules.values()), phase, client._fixed)
        assert client._flops(number, phase, data) > 0
    assert all(same(before[name], module, 0) for name, module in client.modules.items())


def test_the_received_extractor_decides_what_the_model_learns(tmp_path):
    """Standalone would learn the same twice."""
    client = make_client(pfedes(tmp_path), 0, tmp_path)
    learned = []
    for seed in (1, 2):
        arrays = [array + 0.1 for array in some_arrays(client.modules["extractor"], seed)]
        client.fit(arrays, ROUND)
        learned.append(deepcopy(client.model))
    assert not same(*learned, 1e-7)


def test_the_mean_is_weighted_one_to_three(tmp_path):
    strategy = make_strategy(pfedes(tmp_path), [[0], [1]], [100, 300], 4)
    shapes = list(strategy.arrays().values())
    strategy.aggregate(uploads_of(strategy, {"0": filled(shapes, 1), "1": filled(shapes, 5)}), 1)
    for array in strategy.arrays().values():
        assert (array == 4.0).all() and array.dtype == np.float32


def test_443_floats_each_way_whatever_the_model(tmp_path):
    config = pfedes(tmp_path, models=["cnn-1", "cnn-5"], rounds=1)
    for record in simulate(config)[0].read_rounds():
        assert record["uplink_floats"] == record["downlink_floats"] == 3 * 443


@pytest.mark.parametrize(("hidden", "kernel", "depth"), [(8, 3, 2), (4, 5, 1), (2, 1, 4)])
@pytest.mark.parametrize("size", [16, 33])
def test_the_output_has_the_shape_of_the_input(hidden, kernel, depth, size):
    params = PFedESParams(extractor_hidden=hidden, extractor_kernel=kernel, extractor_depth=depth)
    images = torch.randn(2, 3, size, size)
    enhanced = extractor(params, Inputs.image(images.shape[-1]))(images)
    assert enhanced.shape == images.shape and (enhanced >= 0).all()


def test_an_extractor_that_changes_the_shape_is_refused_at_the_start(tmp_path, monkeypatch):
    halving = torch.nn.Conv2d(3, 3, 3, stride=2)
    monkeypatch.setattr("fedhet.strategies.pfedes.extractor", lambda params, inputs: halving)
    with pytest.raises(UserError, match="^extractor: inputs of shape"):
        make_strategy(pfedes(tmp_path), [[0]], [10], 4)


def test_inference_is_the_model_on_raw_images(tmp_path):
    client = make_client(pfedes(tmp_path), 0, tmp_path)
    inputs = train_images(client)[0][:4]
    with torch.no_grad():
        assert torch.equal(client.predict(inputs)[""], client.model(inputs))
    assert tuple(client.inference_needs().modules) == ("model",)


def test_uploads_are_copies(tmp_path):
    client = make_client(pfedes(tmp_path), 0, tmp_path)
    sent = client.upload()
    kept = [array.copy() for array in sent.tensors]
    with torch.no_grad():
        for p in client.modules["extractor"].parameters():
            p.fill_(7.0)
    assert all((a == b).all() for a, b in zip(kept, sent.tensors, strict=True))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mu", 0),
        ("mu", 0.51),
        ("extractor-epochs", 0),
        ("extractor-hidden", 0),
        ("extractor-depth", 0),
        ("lr-extractor", -1),
    ],
)
def test_values_out_of_range(key, value):
    with pytest.raises(UserError, match=f"^{key}: '{value}' is not allowed"):
        build_config({"method": "pfedes", key: value})


def test_an_even_kernel_is_refused():
    with pytest.raises(UserError, match="^extractor-kernel: 4 is not allowed: it must be odd"):
        build_config({"method": "pfedes", "extractor-kernel": 4})
