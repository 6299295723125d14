"""Standalone: nothing crosses the wire, and a client's training is plain SGD."""

import torch
import torch.nn.functional as F
from methods.byhand import ROUND, train_images

from fedhet.rng import generator
from fedhet.testing import make_client, small


def test_one_round_is_plain_sgd(tmp_path):
    """The base's loop against a loop written here: order of batches, momentum, weight decay."""
    config = small(tmp_path, method="standalone", local_epochs=2, weight_decay=0.01)
    client = make_client(config, 1, tmp_path)
    model = client.local_model()
    model.load_state_dict(client.model.state_dict())
    client.fit([], ROUND)

    inputs, labels = train_images(client)
    order = generator(config.seed, "shuffle", "1", 1)
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(2):
        shuffled = torch.from_numpy(order.permutation(len(labels)))
        for index in shuffled.split(16):
            loss = F.cross_entropy(model(inputs[index]), labels[index])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g, v in zip(model.parameters(), gradients, velocity, strict=True):
                    v.mul_(0.9).add_(g + 0.01 * p)
                    p.sub_(0.01 * v)
    for mine, theirs in zip(model.parameters(), client.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
