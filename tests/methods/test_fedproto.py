"""FedProto worked out by hand: weights by images, prototypes that stay, nearest prototype."""

import numpy as np
import torch
from methods.byhand import vectors
from torch import nn

from fedhet.testing import make_client, make_strategy, small, uploads_of


def prototypes(values, counts):
    """Class s -> a vector filled with values[s], and its images."""
    return vectors(list(values), counts, [[value] * 500 for value in values.values()])


def two(tmp_path, **changes):
    config = small(tmp_path, method="fedproto", **changes)
    return make_strategy(config, [[0, 1], [1, 2]], [100, 300], classes=4)


def test_prototypes_are_weighted_by_images(tmp_path):
    strategy = two(tmp_path)
    infos = strategy.roster.infos
    assert strategy.download(infos["0"], 1).floats == 0
    payloads = {"0": prototypes({0: 1.0, 1: 2.0}, [50, 50]),
                "1": prototypes({1: 4.0, 2: 8.0}, [150, 150])}  # fmt: skip
    strategy.aggregate(uploads_of(strategy, payloads), 1)
    down = strategy.download(infos["0"], 2)
    assert down.classes.tolist() == [0, 1] and down.counts.tolist() == [50, 200]
    assert (down.vectors[0] == 1.0).all()
    assert (down.vectors[1] == 3.5).all()  # (50 * 2 + 150 * 4) / 200
    assert down.vectors.shape == (2, 500) and down.vectors.dtype == np.float32


def test_an_absent_class_keeps_its_prototype(tmp_path):
    strategy = two(tmp_path)
    first = {"0": prototypes({0: 1.0, 1: 2.0}, [50, 50])}
    strategy.aggregate(uploads_of(strategy, first), 1)
    strategy.aggregate(uploads_of(strategy, {"1": prototypes({1: 6.0, 2: 8.0}, [150, 150])}), 2)
    after = strategy.arrays()
    assert after["prototypes"][:, 0].tolist() == [1.0, 6.0, 8.0, 0.0]
    assert after["counts"].tolist() == [50, 150, 150, 0]
    assert strategy.download(strategy.roster.infos["1"], 3).classes.tolist() == [1, 2]
    everything = two(tmp_path / "b", download_classes="all")
    everything.load(after)
    assert everything.download(strategy.roster.infos["1"], 3).classes.tolist() == [0, 1, 2]


def test_inference_is_by_the_classifier_and_the_nearest_prototype_stands_beside(tmp_path):
    client = make_client(small(tmp_path, method="fedproto", download_classes="all"), 0, tmp_path)
    head = nn.Linear(500, 4)
    client.modules["model"] = nn.Module()
    client.model.features, client.model.head = nn.Identity(), head
    x = torch.stack([torch.full((500,), 0.9), torch.full((500,), 3.9)])
    untrained = client.predict(x)
    assert list(untrained) == ["", "prototype"] and torch.equal(untrained[""], head(x))
    assert torch.equal(untrained[""], untrained["prototype"])  # none is known yet
    kept = client.modules["tensors"]
    kept.prototypes[[0, 2, 3], :] = torch.tensor([[1.0], [4.0], [0.9]])
    kept.known[[0, 2]] = True
    answers = client.predict(x)
    assert torch.equal(answers[""], head(x))
    assert answers["prototype"].argmax(1).tolist() == [0, 2]  # 3 would be nearer, but is unknown


def test_own_prototypes_stand_in_for_missing_global_ones(tmp_path):
    client = make_client(small(tmp_path, method="fedproto"), 0, tmp_path)
    own = client.seen().tolist()
    client.receive(prototypes({own[0]: 9.0}, [1]))
    client.model.eval()
    sent = client.upload()
    with torch.no_grad():
        data = client.examples("train")
        inputs, labels = data.batch(torch.arange(len(data)))
        means = [client.model.features(inputs)[labels == s].mean(0) for s in own]
    assert np.allclose(sent.vectors, torch.stack(means), atol=1e-5)
    assert sent.floats == 2 * 500 and sent.counts.sum() == len(data)
    kept = client.modules["tensors"]
    assert (kept.prototypes[own[0]] == 9.0).all()
    assert torch.allclose(kept.prototypes[own[1]], means[1], atol=1e-5)
    assert kept.known.nonzero().flatten().tolist() == own
