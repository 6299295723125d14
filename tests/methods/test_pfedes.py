"""pFedES: one round in plain torch, and what each of the two steps must leave alone."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from methods.byhand import by_hand, check_round, configs, overwritten, shuffler

from fedhet.data.inputs import SIGNAL, Inputs
from fedhet.records.formats import without_gone
from fedhet.strategies.pfedes import PFedESParams, extractor
from fedhet.testing import make_client

pfedes = configs("pfedes", extractor_epochs=2)


def test_one_round_by_hand(tmp_path):
    config = pfedes(tmp_path, mu=0.3)
    client = make_client(config, 1, tmp_path)
    own, g = deepcopy(client.model), deepcopy(client.modules["extractor"])
    received = overwritten(g, plus=0.1)

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

    rng = shuffler(client)
    first = by_hand(client, [local], [[own]], rng=rng)
    second = by_hand(client, [shared], [[g]], count=2, rng=rng)
    metrics = check_round(client, received, {"model": own, "extractor": g}, g, first)
    assert metrics["train_loss_extractor"] == pytest.approx(second, rel=1e-4)
    assert any(
        (a != p.detach().numpy()).any() for a, p in zip(received, g.parameters(), strict=True)
    )


def test_the_extractor_of_signals_is_two_convolutions_over_time():
    module = extractor(PFedESParams(), Inputs(SIGNAL, (6, 32)))
    first, _, second = module
    assert [p.shape for p in module.parameters()] == [(8, 6, 3), (8,), (6, 8, 3), (6,)]
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(3))
    expected = F.conv1d(F.relu(F.conv1d(x, first.weight, first.bias, padding=1)),
                       second.weight, second.bias, padding=1)  # fmt: skip
    assert torch.allclose(module(x), expected) and (module(x) < 0).any()


def test_the_extractor_of_rows_is_a_linear_map_beside_the_identity():
    module = extractor(PFedESParams(), Inputs.table(("a", "b")))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(module(x), x + x @ module.map.weight.T + module.map.bias)
    assert sum(p.numel() for p in module.parameters()) == 4 * 4 + 4


def test_older_runs_may_name_keys_that_are_gone_at_their_last_value():
    older = {"mu": 0.1, "extractor-kernel": 3, "extractor-depth": 2, "lr-extractor": 0.0}
    assert without_gone("pfedes", older) == {"mu": 0.1}
    assert "extractor_kernel" in without_gone("pfedes", {"extractor_kernel": 5})
