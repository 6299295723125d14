"""FedKD: gradients in plain torch, the traps of public compression, both directions."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import Error, Message
from methods.byhand import filled
from safetensors.numpy import load_file

from fedhet.errors import Rejected, RunFailed
from fedhet.protocol.messages import arrays_of
from fedhet.protocol.payload import LowRank
from fedhet.records.ledger import load_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.strategies.fedkd import FedKDParams, compress, dense, smallest_rank, whole
from fedhet.testing import cut_and_resume, make_client, make_strategy, simulate, small, uploads_of

TINY = {"method": "fedkd", "image_size": 16, "dataset": "synthetic:120x4"}


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def of_rank(m, n, singular, seed=0):
    u, _ = np.linalg.qr(random(m, len(singular), seed=seed))
    v, _ = np.linalg.qr(random(n, len(singular), seed=seed + 1))
    return ((u * np.array(singular)) @ v.T).astype(np.float32)


def test_each_network_gets_the_gradient_of_its_own_loss(tmp_path):
    client = make_client(small(tmp_path, **TINY), 0, tmp_path)
    mentor, student, projector = (client.modules[n] for n in ("model", "student", "projector"))
    with torch.no_grad():  # networks that disagree, so that no term is negligible
        mentor.head.weight.mul_(40.0)
        student.head.weight.mul_(-30.0)
        projector.weight.mul_(20.0)
    x, y = client.examples("train").batch(torch.arange(12))
    client.loss(x, y).backward()
    got = {name: [p.grad.clone() for p in module.parameters()]
           for name, module in client.modules.items()}  # fmt: skip

    hidden_t, hidden_s = mentor.features(x), student.features(x)
    z_t, z_s = mentor.head(hidden_t), student.head(hidden_s)
    ce_t, ce_s = F.cross_entropy(z_t, y), F.cross_entropy(z_s, y)
    n = ce_t.item() + ce_s.item()
    p_t, p_s = torch.softmax(z_t, 1), torch.softmax(z_s, 1)
    align = (hidden_t - hidden_s @ projector.weight.T).square().mean() / n
    to_t = (p_s.detach() * (p_s.detach().log() - p_t.log())).sum(1).mean()
    to_s = (p_t.detach() * (p_t.detach().log() - p_s.log())).sum(1).mean()
    of_t, of_s = ce_t + to_t / n + align, ce_s + to_s / n + align
    for name, loss, module in (
        ("model", of_t, mentor), ("student", of_s, student), ("projector", align, projector)
    ):  # fmt: skip
        expected = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        for one, other in zip(got[name], expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-7), name


def test_certain_and_right_networks_do_not_divide_by_zero(tmp_path):
    client = make_client(small(tmp_path, **TINY), 0, tmp_path)
    with torch.no_grad():
        for name in ("model", "student"):
            client.modules[name].head.weight.zero_()
            client.modules[name].head.bias.copy_(torch.tensor([200.0, 0.0, 0.0, 0.0]))
    x, _ = client.examples("train").batch(torch.arange(4))
    assert torch.isfinite(client.loss(x, torch.zeros(4, dtype=torch.int64)))


# --- compression -------------------------------------------------------------------------------


def test_the_energy_grows_and_the_smallest_rank_holds_it_by_hand():
    assert FedKDParams().share(1, 10) == 0.95
    assert FedKDParams().share(6, 10) == pytest.approx(0.965)
    s = np.array([3.0, 2.0, 1.0])  # squares 9, 4, 1 of 14
    assert [smallest_rank(s, e) for e in (0.5, 9 / 14, 0.9, 13 / 14, 0.99, 1.0)] == [
        1, 1, 2, 2, 3, 3
    ]  # fmt: skip
    assert smallest_rank(np.zeros(3), 0.95) == 0
    assert smallest_rank(np.full(4, 1e-200), 0.95) == 4


def test_kernels_become_matrices():
    kernel = of_rank(16, 75, [10.0, 3.0, 0.1]).reshape(16, 3, 5, 5)
    packed = compress([kernel], 0.95)
    assert packed.ranks.tolist() == [2] and packed.floats == 2 * (16 + 75 + 1)
    assert [t.shape for t in packed.tensors] == [(16, 2), (2,), (2, 75)]
    (back,) = dense(packed, [kernel.shape])
    assert np.linalg.norm(back - kernel) == pytest.approx(0.1, rel=1e-3)


def test_rank_0_only_for_a_zero_delta_and_never_more_than_dense():
    """Public code cuts the flat spectrum of a fresh classifier to rank 0."""
    zero, small_, flat = np.zeros((20, 30), np.float32), random(20, 30) * 1e-30, random(3, 2)
    vectors = [np.zeros(7, np.float32), random(1, 9), np.array(3, np.float32)]
    deltas = [zero, small_, of_rank(20, 30, [1.0]), flat, random(10, 500), *vectors]
    for share in (0.01, 0.5, 0.95, 0.999, 1.0):
        packed = compress(deltas, share)
        assert [rank == 0 for rank in packed.ranks.tolist()] == [True] + [False] * 7
        assert all(compress([delta], share).floats <= delta.size for delta in deltas)
        for back, delta in zip(dense(packed, [d.shape for d in deltas]), deltas, strict=True):
            lost = math.sqrt(1 - share + 1e-6) * np.linalg.norm(delta.astype(np.float64))
            assert np.linalg.norm(back - delta) <= lost and bool(back.any()) == bool(delta.any())


def test_a_delta_that_cannot_be_decomposed_is_an_error_with_a_reason(monkeypatch):
    with pytest.raises(RunFailed, match="not finite"):
        compress([np.array([[np.nan, 1.0]], np.float32)], 0.95)
    fail = Mock(side_effect=torch.linalg.LinAlgError("did not converge"))
    monkeypatch.setattr(torch.linalg, "svd", fail)
    with pytest.raises(RunFailed, match="does not converge"):
        compress([random(20, 30)], 0.95)


# --- server ------------------------------------------------------------------------------------


def server(tmp_path, **changes):
    return make_strategy(small(tmp_path, **TINY, **changes), [[0, 1], [1, 2]], [100, 300], 4)


def deltas_like(strategy, value):
    return filled(list(strategy.arrays().values()), value).tensors


def test_the_weighted_mean_of_updates_moves_the_student(tmp_path):
    strategy = server(tmp_path)
    before = {name: array.copy() for name, array in strategy.arrays().items()}
    payloads = {"0": compress(deltas_like(strategy, 1.0), 0.95),
                "1": compress(deltas_like(strategy, 5.0), None)}  # fmt: skip
    assert payloads["0"].floats < payloads["1"].floats
    for client, payload in payloads.items():
        strategy.check(strategy.roster.infos[client], payload)
    strategy.aggregate(uploads_of(strategy, payloads), 1)
    for name, array in strategy.arrays().items():
        assert np.allclose(array, before[name] + 4.0, atol=1e-5)  # (100 x 1 + 300 x 5) / 400
        assert array.dtype == np.float32


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("ranks are", lambda ranks, tensors: (ranks.astype(np.float64), tensors)),
        ("rank -2", lambda ranks, tensors: (np.array([-2, *ranks[1:]]), tensors)),
        ("rank 9223", lambda ranks, tensors: (np.array([2**63 - 1, *ranks[1:]]), tensors)),
        ("rank 0 ", lambda ranks, tensors: (np.array([ranks[0], 0, *ranks[2:]]), tensors)),
        ("array 0 is", lambda ranks, tensors: (ranks, (tensors[0].T, *tensors[1:]))),
        ("norm", lambda ranks, tensors: (ranks, tuple(t * 0 + 3e3 for t in tensors))),
    ],
)  # fmt: skip
def test_hostile_shapes_are_rejected(tmp_path, reason, change):
    strategy = server(tmp_path)
    info = strategy.roster.infos["0"]
    packed = compress(deltas_like(strategy, 1.0), 0.95)
    strategy.check(info, packed)
    payload = LowRank(*change(packed.ranks, packed.tensors))
    with pytest.raises(Rejected, match=reason):
        strategy.check(info, payload)
        strategy.reference(info).step(payload)


# --- rounds ------------------------------------------------------------------------------------


def test_the_upload_is_after_minus_received(tmp_path):
    client = make_client(small(tmp_path, **TINY, compress="off"), 0, tmp_path)
    start = [np.zeros(p.shape, np.float32) for p in client.shared().parameters()]
    client.receive(whole(start))
    assert all(not p.any() for p in client.shared().parameters())
    with torch.no_grad():
        for parameter in client.shared().parameters():
            parameter.add_(0.5)
    assert all((t == 0.5).all() for t in client.upload().tensors)


def test_compressed_downlink_keeps_everybody_on_the_servers_bits(tmp_path):
    """Client 1 fails in round 2: in round 3 it alone is sent the dense student."""
    fixed = {**TINY, "compress_down": True, "t_start": 0.9, "t_end": 0.9, "representation": 64}
    after = {}  # the checkpoint that is there when a round begins, by round

    def fail(node, message, reply):
        what = message.content.config_records["config"]
        if message.metadata.message_type == "train":
            after.setdefault(what["round"] - 1, load_checkpoint(run.checkpoint))
        if node == 1 and what["round"] == 2 and message.metadata.message_type == "train":
            return Message(Error(code=7, reason="gone"), reply_to=message)
        return reply

    config = small(tmp_path, **fixed, rounds=4, name="run")
    run = RunFolder(tmp_path / "runs" / "run")
    long, grid = simulate(config, tamper=fail)
    arrays = after[3].arrays
    for client in ("0", "1", "2"):  # what everybody held in round 4 is the student after round 3
        (path,) = long.path.glob(f"state/*/{client}/00000004.safetensors")
        kept = {n.removeprefix("received/"): a for n, a in load_file(path).items()}
        held = kept.keys() & arrays.keys()
        assert all((kept[name] == arrays[name]).all() for name in held) and len(held) == 10
    sizes = [[], [], []]
    for message in grid.sent:
        if message.metadata.message_type == "train":
            shapes = [a.shape for a in arrays_of(message)]
            size = sum(math.prod(shape) for shape in shapes[1:])
            sizes[message.metadata.dst_node_id - 100].append(size)
    student = sum(a.size for n, a in arrays.items() if n in held)
    assert all(own[0] == student for own in sizes)  # round 1: nobody holds a student
    assert sizes[1][2] == student  # it missed round 2's update
    updates = [*sizes[0][1:], *sizes[2][1:], sizes[1][1], sizes[1][3]]
    assert max(updates) < student


def test_a_resumed_run_with_compressed_downlink_has_the_same_hash_and_traffic(tmp_path):
    keys = {**TINY, "compress_down": True, "representation": 64, "rounds": 3}
    whole, _ = simulate(small(tmp_path, **keys, name="whole"))
    cut = cut_and_resume(small(tmp_path, **keys, name="cut"), 3)
    for key in ("sha256", "downlink_floats"):
        assert whole.read_rounds()[-1][key] == cut.read_rounds()[-1][key]
