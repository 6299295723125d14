"""HetLoRA: the worked example of unequal ranks, what each mean loses, and whole runs."""

import numpy as np
import pytest
import torch
from helpers.pretrained import bert, texts, vit

from fedhet.config.registry import METHODS
from fedhet.errors import Rejected, RunFailed, UserError
from fedhet.models.pretrained import adapters
from fedhet.protocol.handshake import ClientInfo, Roster
from fedhet.protocol.payload import Adapters
from fedhet.strategies.hetlora import DIGITS, HetLoRAStrategy, decompose
from fedhet.testing import cut_and_resume, make_client, simulate, small, uploads_of

ONE = (np.array([[1.0], [0.0]]), np.array([[2.0, 0.0]]))  # B and A of rank 1
TWO = (np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 2.0]]))
M = np.array([[1.0, 1.0], [0.5, 0.0]])


def strategy(tmp_path, ranks=(1, 2), **keys):
    config = small(tmp_path, method="hetlora", clients=len(ranks), **keys)
    roster = Roster()
    roster.classes = ("a", "b")
    for k, rank in enumerate(ranks):
        about = str(k), roster.classes, roster.classes, (10, 10), 20, f"hf:bert/lora-{rank}", "cpu"
        roster.infos[str(k)] = ClientInfo(*about)
    made = HetLoRAStrategy(config, roster)
    made.initialise()
    return made


def payload(*pairs, digit=0):
    digest = np.full(DIGITS, digit, dtype=np.int64)
    tensors = [one.astype(np.float32) for b, a in pairs for one in (a, b)]
    return Adapters(digest, tuple(tensors))


def combine(made, *payloads):
    return made.aggregate(uploads_of(made, dict(zip(made.roster.infos, payloads, strict=True))), 1)


def map_of(made, rank):
    (b, a) = made.layers[0]
    return b[:, :rank] @ a[:rank]


def test_the_worked_example(tmp_path):
    u, s, v = decompose([ONE, TWO], [0.5, 0.5])
    assert s[:2] == pytest.approx([1.460405, 0.342371], abs=1e-6)
    assert np.allclose(u * s @ v.T, M)
    assert (u[np.abs(u).argmax(axis=0), np.arange(len(s))] > 0).all()
    by_svd = strategy(tmp_path / "svd")
    numbers = combine(by_svd, payload(ONE), payload(TWO))
    assert np.allclose(map_of(by_svd, 2), M, atol=1e-6)
    rank_1 = [[1.058156, 0.934122], [0.281009, 0.248069]]
    assert np.allclose(map_of(by_svd, 1), rank_1, atol=1e-5)
    assert numbers["lost_by_averaging"] == pytest.approx(0.6124 / np.linalg.norm(M), abs=1e-4)
    tail = 0.342371**2 / (1.460405**2 + 0.342371**2)
    assert numbers["lost_by_ranks"] == pytest.approx(tail / 2, abs=1e-5)
    by_padding = strategy(tmp_path / "pad", aggregate="pad")
    assert combine(by_padding, payload(ONE), payload(TWO)) == pytest.approx(
        {"left_out_networks": 0.0, "lost_by_averaging": numbers["lost_by_averaging"]}
    )
    assert np.allclose(map_of(by_padding, 2), [[0.75, 0.5], [0.75, 0.0]])
    a_alone = strategy(tmp_path / "a", aggregate="share-a")
    combine(a_alone, *(Adapters(np.zeros(DIGITS, np.int64), (x[1],)) for x in (ONE, TWO)))
    assert np.allclose(a_alone.layers[0][1], [[1.5, 0.0], [0.0, 2.0]]), "a row's own owners"


def test_with_one_a_the_means_agree_and_order_changes_nothing(tmp_path):
    rng = np.random.default_rng(0)
    a, b1, b2 = rng.normal(size=(2, 5)), rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    maps = []
    for how in ("svd", "pad"):
        made = strategy(tmp_path / how, (2, 2), aggregate=how)
        lost = combine(made, payload((b1, a)), payload((b2, a)))["lost_by_averaging"]
        assert lost == pytest.approx(0.0, abs=1e-6)
        maps.append(map_of(made, 2))
    assert np.allclose(maps[0], (b1 + b2) / 2 @ a, atol=1e-6) and np.allclose(*maps, atol=1e-6)
    other = strategy(tmp_path / "turned", (2, 2))
    combine(other, payload((b2, a)), payload((b1, a)))
    assert np.allclose(map_of(other, 2), maps[0], atol=1e-6)


def test_adapters_that_nobody_moved_stay_alive(tmp_path):
    made = strategy(tmp_path)
    a = np.arange(1.0, 7.0).reshape(2, 3)
    combine(made, payload((np.zeros((2, 1)), a[:1])), payload((np.zeros((2, 2)), a)))
    b, kept = made.layers[0]
    assert not b.any() and np.allclose(kept, a)


def test_a_client_of_another_network_is_left_out_and_then_refused(tmp_path):
    made = strategy(tmp_path, (1, 2, 2))
    numbers = combine(made, payload(ONE), payload(TWO), payload(TWO, digit=3))
    assert numbers["left_out_networks"] == 1 and np.allclose(map_of(made, 2), M, atol=1e-6)
    infos = list(made.roster.infos.values())
    for wrong in (payload(TWO, digit=3), payload(ONE), Adapters(np.zeros(DIGITS, np.int64), ())):
        with pytest.raises(Rejected):
            made.check(infos[1], wrong)
    made.check(infos[1], payload(TWO))
    again = strategy(tmp_path / "again", (1, 2, 2))
    again.load(made.arrays())
    flat, wanted = again.download(infos[1], 2).flat, made.download(infos[1], 2).flat
    assert all(map(np.array_equal, flat, wanted)) and len(flat) == len(wanted)


@pytest.mark.parametrize("how", ["svd", "pad", "share-a"])
def test_a_run_of_unequal_ranks(tmp_path, how):
    """Only adapters cross the wire; all start from one A; resuming changes no byte."""
    folder = bert(tmp_path / "bert")
    keys = {
        "method": "hetlora", "aggregate": how, "clients": 2, "rounds": 3, "lr": 0.05,
        "models": [f"hf:{folder} lora={rank} layers=query|value" for rank in (1, 3)],
        **texts(tmp_path / "data"), "partition": "iid", "batch_size": 8, "representation": 16,
    }  # fmt: skip
    config = small(tmp_path / "whole", **keys)
    clients = (make_client(config, k, tmp_path / "s") for k in (0, 1))
    one, other = (next(iter(adapters(c.model).values()))[0].clone() for c in clients)
    assert torch.equal(one, other[:1])
    run, _ = simulate(config)
    lines = run.read_rounds()
    assert [line["replied"] for line in lines] == [2, 2, 2]
    each = 4 * (1 + 3) * (16 if how == "share-a" else 32)  # two layers, each query and value
    assert lines[0]["downlink_floats"] == 0 and lines[-1]["uplink_floats"] == each
    assert ("lost_by_averaging" in lines[-1]) == (how != "share-a")
    cut = cut_and_resume(small(tmp_path / "cut", **keys), 2)
    assert cut.read_rounds()[-1]["sha256"] == lines[-1]["sha256"]


def test_models_without_adapters_are_one_line(tmp_path):
    config = small(tmp_path, method="hetlora", models=["cnn-5"], rounds=1)
    with pytest.raises((UserError, RunFailed), match="needs lora=RANK"):
        simulate(config)
    assert METHODS["hetlora"].strategy.not_summed


def test_the_same_frozen_network_is_told_from_another(tmp_path):
    keys = {"method": "hetlora", "image_size": 16, "dataset": "synthetic:60x3", "clients": 2}
    one, other = vit(tmp_path / "one"), vit(tmp_path / "other", seed=5)
    digests = []
    for folder, rank in ((one, 2), (one, 4), (other, 2)):
        config = small(tmp_path / "c", **keys, models=[f"hf:{folder} lora={rank}"])
        digests.append(make_client(config, 0, tmp_path / f"s{len(digests)}")._digest().tolist())
    assert digests[0] == digests[1] != digests[2]
