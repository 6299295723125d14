"""Standalone: nothing crosses the wire, and a client's training is plain SGD."""

from copy import deepcopy

import torch.nn.functional as F
from methods.byhand import ROUND, by_hand, same

from fedhet.testing import make_client, small


def test_one_round_is_plain_sgd(tmp_path):
    """The base's loop against one in plain torch: order of batches, momentum, weight decay."""
    config = small(tmp_path, method="standalone", local_epochs=2, weight_decay=0.01)
    client = make_client(config, 1, tmp_path)
    own = deepcopy(client.model)
    by_hand(client, [lambda x, y: F.cross_entropy(own(x), y)], [[own]], count=2, decay=0.01)
    sent, _, _ = client.fit([], ROUND)
    assert not sent and same(own, client.model)
