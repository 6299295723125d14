"""Two methods as the authors' programs compute them, by hand, and as methods of one's own."""

import numpy as np
import pytest

from fedhet.protocol.payload import ModelArrays
from fedhet.testing import check_method, make_client, make_strategy, small, uploads_of

FOLDER = "as_published"
TINY = {"image_size": 16, "representation": 64}
pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("changes", [{"d1": 8}, {"t_stable": 2}], ids=["fedmrl", "fedssa"])
def test_they_keep_the_contract(tmp_path, changes, request):
    name = request.node.callspec.id
    check_method(f"{name}:METHOD", tmp_path, **TINY, **changes)


def test_fedmrl_takes_the_model_of_one_participant(tmp_path):
    config = small(tmp_path, method="fedmrl:METHOD", d1=8, **TINY)
    strategy = make_strategy(config, [[0], [1], [2]], [50, 100, 150], 4)
    like = strategy.download(strategy.roster.infos["0"], 1).flat
    sent = {str(k): ModelArrays(tuple(np.full_like(a, k) for a in like)) for k in range(3)}
    taken = []
    for round_ in range(1, 21):
        strategy.aggregate(uploads_of(strategy, sent), round_)
        values = np.concatenate([a.ravel() for a in strategy.arrays().values()])
        assert len(set(values.tolist())) == 1  # a mean of weights would be 4 / 3
        taken.append(values[0])
    assert set(taken) == {0, 1, 2}


def test_fedssa_averages_stored_rows_and_hands_a_model_on(tmp_path):
    config = small(tmp_path, method="fedssa:METHOD", t_stable=2, models=["cnn-5"], **TINY)
    strategy = make_strategy(config, [[0, 1], [1, 2], [1]], [50, 50, 50], 4)
    infos = strategy.roster.infos
    first = strategy.arrays()["header.weight"].copy()
    sent = strategy.download(infos["0"], 1)
    trained = type(sent)(
        sent.classes, sent.weight + 3, sent.bias, tuple(a + 1 for a in sent.tensors)
    )
    strategy.aggregate(uploads_of(strategy, {"0": trained}), 1)
    weight = strategy.arrays()["header.weight"]
    np.testing.assert_allclose(weight[0], first[0] + 3, rtol=1e-6)  # its only owner
    np.testing.assert_allclose(weight[1], first[1] + 1, rtol=1e-5)  # two owners have not trained
    np.testing.assert_allclose(weight[2], first[2], rtol=1e-6)
    assert strategy.download(infos["0"], 2).tensors == ()
    handed_on = strategy.download(infos["1"], 2).tensors
    assert all(np.array_equal(a, b) for a, b in zip(handed_on, trained.tensors, strict=True))
    client = make_client(config, 1, tmp_path / "state", round_=2)
    own = strategy.download(infos["1"], 2)
    client.receive(type(own)(client.seen(), *own.flat[1:3], handed_on))
    extractor = client.upload().tensors[0]
    assert np.array_equal(extractor, trained.tensors[0])
