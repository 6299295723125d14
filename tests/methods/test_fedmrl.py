"""FedMRL: one round in plain torch, nested slices, and what must stay at home."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from methods.byhand import configs, hand_round, train_images

from fedhet.testing import make_client, simulate

fedmrl = configs("fedmrl", models=["cnn-4", "cnn-5"])


@pytest.mark.parametrize("nested", [True, False])
def test_one_round_by_hand(tmp_path, nested):
    config = fedmrl(tmp_path, matryoshka=nested, m_global=0.7, m_local=1.3)
    client = make_client(config, 0, tmp_path)
    own, g, p = (deepcopy(client.modules[name]) for name in ("model", "small", "projector"))

    def loss(inputs, labels):
        spliced = torch.cat([g.features(inputs), own.features(inputs)], dim=1)
        fused = spliced @ p.weight.T + p.bias
        fine = fused @ own.head.weight.T + own.head.bias
        if not nested:
            return 1.3 * F.cross_entropy(fine, labels)
        coarse = fused[:, :100] @ g.head.weight.T + g.head.bias
        return 0.7 * F.cross_entropy(coarse, labels) + 1.3 * F.cross_entropy(fine, labels)

    hand_round(client, [loss], [{"model": own, "small": g, "projector": p}], g)


def test_all_inference_models_are_reported(tmp_path):
    keys = {"image_size": 16, "dataset": "synthetic:120x4", "rounds": 1}
    config = fedmrl(tmp_path, report_all_inference=True, inference="mix-small", **keys)
    record = simulate(config)[0].read_rounds()[-1]
    for kind in ("mix-large", "mix-small", "single-small", "single-large"):
        assert 0 <= record[f"test_accuracy_{kind}_mean"] <= 100
    assert record["test_accuracy_mean"] == record["test_accuracy_mix-small_mean"]
    client = make_client(config, 0, tmp_path)
    inputs = train_images(client)[0][:4]
    with torch.no_grad():
        found = client.predict(inputs)
        assert next(iter(found)) == "" and torch.equal(found[""], client.infer(inputs))
        fused = client.fuse(inputs)
        for kind, expected in (
            ("mix-small", client.shared().head(fused[:, :100])),
            ("mix-large", client.model.head(fused)), ("single-large", client.model(inputs)),
            ("single-small", client.shared()(inputs)),
        ):  # fmt: skip
            assert torch.equal(found[kind], expected), kind
    config = fedmrl(tmp_path, report_all_inference=True, matryoshka=False, **keys)
    less = make_client(config, 0, tmp_path)
    assert set(less.predict(inputs)) == {"", "mix-large", "single-large"}
