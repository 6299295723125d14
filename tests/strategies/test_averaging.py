"""Means over more uploads than go through the cache at a time."""

import numpy as np

from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import ModelArrays
from fedhet.strategies.averaging import BLOCK, weighted_mean
from fedhet.strategies.base import Upload


def test_the_weighted_mean_of_many_uploads():
    random, count = np.random.default_rng(0), 2 * BLOCK + 3
    weights = random.random(count)
    weights /= weights.sum()
    layers = [(3, 4), (5,), ()]
    given = [tuple(random.random(shape, dtype=np.float32) for shape in layers) for _ in weights]
    info = ClientInfo("0", (), (), (), 1, "cnn-5", "cpu")
    uploads = [
        Upload(info, ModelArrays(arrays), weight, {})
        for arrays, weight in zip(given, weights.tolist(), strict=True)
    ]
    means = weighted_mean(uploads)
    for i, mean in enumerate(means):
        exact = sum(
            w * arrays[i].astype(np.float64) for w, arrays in zip(weights, given, strict=True)
        )
        assert mean.dtype == np.float32 and mean.shape == layers[i]
        np.testing.assert_allclose(mean, exact, rtol=1e-6)
