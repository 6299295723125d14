"""LG-FedAvg: weighted mean of whole headers, by hand."""

from copy import deepcopy

import numpy as np
import torch.nn.functional as F
from methods.byhand import hand_round

from fedhet.protocol.messages import arrays_of
from fedhet.testing import make_client, simulate, small


def test_one_round_by_hand(tmp_path):
    client = make_client(small(tmp_path, method="lg_fedavg", local_epochs=2), 0, tmp_path)
    own = deepcopy(client.model)
    losses = [lambda x, y: F.cross_entropy(own(x), y)]
    hand_round(client, losses, [{"model": own}], own.head, count=2)


def test_the_mean_of_a_round_is_weighted_by_what_the_clients_declared(tmp_path):
    """End to end: what is sent in round 2 is the weighted mean of round 1's replies."""
    sent = {}

    def watch(node, message, reply):
        if message.metadata.message_type == "train":
            round_ = message.content.config_records["config"]["round"]
            sent[round_, node] = [arrays_of(one) for one in (message, reply)]
        return reply

    config = small(tmp_path, method="lg_fedavg", partition="dirichlet", alpha=0.8)
    simulate(config, tamper=watch)
    images = [len(make_client(config, k, tmp_path).examples("train")) for k in range(3)]
    assert max(images) > 1.2 * min(images)
    for i, received in enumerate(sent[2, 0][0]):
        mean = sum(n * sent[1, k][1][i] for k, n in enumerate(images)) / sum(images)
        assert np.allclose(received, mean, atol=1e-6)
