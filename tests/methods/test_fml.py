"""FML: one round in plain torch, with two separate losses instead of detached teachers."""

from copy import deepcopy

import pytest
import torch.nn.functional as F
from methods.byhand import configs, divergence, hand_round

from fedhet.testing import make_client

fml = configs("fml", models=["cnn-4", "cnn-5"])


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.2, 0.9)])
def test_one_round_by_hand(tmp_path, alpha, beta):
    client = make_client(fml(tmp_path, alpha_local=alpha, beta_meme=beta), 0, tmp_path)
    own, meme = deepcopy(client.model), deepcopy(client.modules["meme"])

    def local(x, y):
        term = divergence(meme(x), own(x))
        return alpha * F.cross_entropy(own(x), y) + (1 - alpha) * term

    def shared(x, y):
        term = divergence(own(x), meme(x))
        return beta * F.cross_entropy(meme(x), y) + (1 - beta) * term

    # Each loss moves its own network only, so no teacher needs to be detached here.
    hand_round(client, [local, shared], [{"model": own}, {"meme": meme}], meme)
