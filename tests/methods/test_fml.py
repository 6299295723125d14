"""FML: one round in plain torch, with two separate losses instead of detached teachers."""

from copy import deepcopy

import numpy as np
import pytest
import torch.nn.functional as F
from byhand import descend, epochs, put, same, shuffler, some_arrays, train_images

from fedhet.testing import make_client, small

ROUND = {"round": 1, "generation": 0, "evaluate": False}


def fml(tmp_path, **changes):
    return small(tmp_path, **({"method": "fml", "models": ["cnn-4", "cnn-5"]} | changes))


def divergence(teacher, student):
    """KL(teacher || student) of probabilities, summed over classes, mean over the batch."""
    p, q = teacher.softmax(dim=1), student.softmax(dim=1)
    return (p * (p.log() - q.log())).sum(dim=1).mean()


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.2, 0.9)])
def test_one_round_by_hand(tmp_path, alpha, beta):
    client = make_client(fml(tmp_path, alpha_local=alpha, beta_meme=beta), 0, tmp_path)
    own, meme = deepcopy(client.model), deepcopy(client.modules["meme"])
    received = some_arrays(meme)
    put(meme, received)

    def local(x, y):
        term = divergence(meme(x), own(x))
        return alpha * F.cross_entropy(own(x), y) + (1 - alpha) * term

    def shared(x, y):
        term = divergence(own(x), meme(x))
        return beta * F.cross_entropy(meme(x), y) + (1 - beta) * term

    # Each loss moves its own network only, so no teacher needs to be detached here.
    batches = epochs(shuffler(client), train_images(client), 1)
    expected = descend([local, shared], [[own], [meme]], [[0.01], [0.01]], batches)
    uploaded, _, metrics = client.fit(received, ROUND)
    assert metrics["train_loss"] == pytest.approx(expected, rel=1e-4)
    assert same(own, client.model) and same(meme, client.modules["meme"])
    for mine, sent in zip(meme.parameters(), uploaded, strict=True):
        assert np.allclose(mine.detach().numpy(), sent, rtol=1e-4, atol=1e-5)
