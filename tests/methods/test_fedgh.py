"""FedGH: one round of client and server in plain torch, and what may come up."""

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from methods.byhand import check_prototypes, configs, drawn, overwritten, serve

from fedhet.testing import make_client, make_strategy, uploads_of

fedgh = configs("fedgh")


def test_one_round_of_a_client_by_hand(tmp_path):
    client = make_client(fedgh(tmp_path, local_epochs=2), 0, tmp_path)
    own = deepcopy(client.model)
    received = overwritten(own.head)

    def loss(inputs, labels):
        return F.cross_entropy(own(inputs), labels)

    check_prototypes(client, received, own, loss)


@pytest.mark.parametrize("passes", [1, 3])
def test_one_round_of_the_server_by_hand(tmp_path, passes):
    config = fedgh(tmp_path, server_epochs=passes, server_lr=0.1, batch_size=2)
    strategy = make_strategy(config, [[0, 1], [1, 3]], [50, 500], 4)
    weight, bias = (torch.tensor(a, requires_grad=True) for a in strategy.arrays().values())
    uploads = {"0": drawn([0, 1]), "1": drawn([1, 3], 1, 250)}
    numbers = strategy.aggregate(uploads_of(strategy, uploads), 5)
    x = torch.from_numpy(np.concatenate([u.vectors for u in uploads.values()]))
    y = torch.tensor([0, 1, 1, 3])
    losses = serve(
        config, 5, (weight, bias), lambda i: F.cross_entropy(x[i] @ weight.T + bias, y[i])
    )
    for mine, theirs in zip((weight, bias), strategy.arrays().values(), strict=True):
        assert np.allclose(mine.detach().numpy(), theirs, atol=1e-5)
    assert numbers["server_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
