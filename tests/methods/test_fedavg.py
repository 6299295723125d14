"""FedAvg: one round in plain torch, the weighted mean, and the one model that all have."""

from copy import deepcopy

import numpy as np
import torch.nn.functional as F
from methods.byhand import ROUND, configs, filled, hand_round

from fedhet.protocol.payload import ModelArrays
from fedhet.testing import make_client, make_strategy, uploads_of

fedavg = configs("fedavg", models=["cnn-4", "cnn-5"])


def test_one_round_by_hand(tmp_path):
    client = make_client(fedavg(tmp_path, local_epochs=2), 0, tmp_path)
    theta = deepcopy(client.model)
    losses = [lambda x, y: F.cross_entropy(theta(x), y)]
    hand_round(client, losses, [{"model": theta}], theta, count=2)


def test_running_statistics_are_sent_averaged_and_never_below_zero(tmp_path):
    """A model with BatchNorm is sent whole: by name, two arrays more for each such layer."""
    keys = {"dataset": "synthetic:96x4", "image_size": 16, "representation": 16}
    config = fedavg(tmp_path, small_model="shufflenet_v2_x0_5", **keys)
    strategy = make_strategy(config, [[0], [1]], [100, 300], 4)
    names = list(strategy.arrays())
    client = make_client(config, 0, tmp_path)
    down = strategy.download(strategy.roster.infos["0"], 1).to_ndarrays()
    sent = dict(zip(names, client.fit(down, ROUND)[0], strict=True))
    moved = [n for n in names if n.endswith(("running_mean", "running_var"))]
    assert moved and not any(np.array_equal(sent[n], strategy.arrays()[n]) for n in moved)
    both = {k: ModelArrays(tuple(v * a for a in sent.values())) for k, v in (("0", 1), ("1", 5))}
    strategy.aggregate(uploads_of(strategy, both), 1)
    assert all(np.allclose(a, 4 * sent[n], rtol=1e-6) for n, a in strategy.arrays().items())
    # Noise on an upload may leave a variance below zero, of which BatchNorm takes a root.
    client.receive(filled(list(sent.values()), -0.1))
    state = client.model.state_dict()
    assert all((v == 0).all() for n, v in state.items() if n.endswith("running_var"))
    assert all((v < 0).all() for n, v in state.items() if n.endswith("running_mean"))
