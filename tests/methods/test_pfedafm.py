"""pFedAFM: both steps of a round in plain torch, the mixture, and what must stay at home."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from methods.byhand import check_round, configs, epochs, overwritten, shuffler, train_images

from fedhet.testing import make_client

pfedafm = configs("pfedafm", models=["cnn-4", "cnn-5"])


def test_one_round_by_hand(tmp_path):
    client = make_client(pfedafm(tmp_path, momentum=0.0, lr_alpha=5.0), 0, tmp_path)
    own, g = (deepcopy(client.modules[name]) for name in ("model", "extractor"))
    received = overwritten(g)
    alpha = torch.ones(500, requires_grad=True)

    def step(loss, parameters):
        slopes = torch.autograd.grad(loss, parameters)
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter.data -= (5.0 if parameter is alpha else 0.01) * slope

    rng, images = shuffler(client), train_images(client)
    for batches in epochs(rng, images, 1):
        for inputs, labels in batches:
            with torch.no_grad():
                general = g.features(inputs)
            mixed = alpha * own.features(inputs) + (1 - alpha) * general
            step(F.cross_entropy(own.head(mixed), labels), [*own.parameters(), alpha])
            alpha.data.clamp_(0, 1)
    assert alpha.min() < 0.9
    for batches in epochs(rng, images, 1):
        for inputs, labels in batches:
            logits = own.head(g.features(inputs))
            step(F.cross_entropy(logits, labels), list(g.parameters()))
    metrics = check_round(client, received, {"model": own, "extractor": g}, g)
    assert torch.allclose(client.mixture.share, alpha, atol=1e-4)
    assert metrics["alpha_mean"] == pytest.approx(alpha.mean().item(), abs=1e-5)
