"""Training on a device that is not the CPU, without one: torch's ``meta``, which has no values.

A tensor that is left on the CPU raises there, and so does every wait of the host for the device.
"""

import contextlib

import numpy as np
import pytest
import torch
from helpers.patched import forgotten
from helpers.products import ANY, FIVE, SHORT
from helpers.tiny import tiny
from test_same_bytes import KINDS as OF_FILES

from fedhet.clients.base import MethodClient
from fedhet.clients.fedssa import FedSSAClient
from fedhet.site import local_data
from fedhet.testing import make_client, make_strategy, simulate, small
from fedhet.training import loop

META, ON_CPU = torch.device("meta"), torch.Tensor.cpu
KINDS = {"images": lambda _: {"models": ["cnn-5"], "image_size": 16}} | OF_FILES
MATRIX = pytest.mark.matrix
CASES = [
    pytest.param(method, kind, marks=() if method in FIVE and kind == "images" else MATRIX)
    for method in ANY for kind in KINDS if (method, kind) != ("pfedes", "texts")  # refused
]  # fmt: skip


def descend(parameters, gradients, *_, lr, **__):
    """Plain SGD: the fused kernels know no such device."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.sub_(gradient, alpha=lr)


def drawing(self, purpose):
    """A generator that draws for any device: there is none of ``meta``."""
    self._generators.append(torch.Generator())
    return self._generators[-1]


def fetched(tensor):
    """``Tensor.cpu``, of a tensor without values too: all are 1."""
    return torch.ones(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else ON_CPU(tensor)


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Make a client on the device, which has received; outside training it may copy from there."""
    monkeypatch.setattr(loop, "autocast", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(loop, "sgd", descend)
    monkeypatch.setattr(MethodClient, "torch_generator", drawing)
    monkeypatch.setattr("fedhet.site.local_data._ON_DEVICE", loop.Recent(1 << 20))
    monkeypatch.setattr(torch.Tensor, "cpu", fetched)

    def make(method, kind="images"):
        config = small(
            tmp_path, method=method, local_epochs=1, **{"representation": 128}
            | KINDS[kind](tmp_path) | SHORT.get(method, {}) | {"batch_size": 8},
        )  # fmt: skip
        made = make_client(config, 0, tmp_path, round_=2, device="meta")
        made.receive(payload_for(made))
        return made

    with forgotten():
        yield make


def payload_for(client):
    """What the server sends in round 1; it knows this client only."""
    names, counts = client.setup.classes, client.setup.data.class_counts()
    own = [list(names).index(name) for name in counts]
    made = make_strategy(client.config, [own], [sum(counts.values())], len(names))
    made.roster.inputs = client.setup.data.dataset.inputs
    strategy = type(made)(client.config, made.roster)
    strategy.initialise()
    sent = strategy.download(made.roster.infos["0"], 1).to_ndarrays()
    return client.download_type.from_ndarrays(sent)


def train(client, monkeypatch):
    """Train in all phases, within which nothing may be copied to the host."""
    data, phases = client.examples("train"), client.phases()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", ON_CPU)
        for phase in phases:
            loop.set_trainable(list(client.modules.values()), phase, client._fixed)
            loop.train(phase, data, client.config, np.random.default_rng(0), 2)
        inputs, _ = data.batch(torch.arange(4, device=META))
        assert {out.device for out in client.predict(inputs).values()} == {META}


@pytest.mark.parametrize(("method", "kind"), CASES)
def test_training_predictions_and_uploads_stay_on_the_device(client, monkeypatch, method, kind):
    made = client(method, kind)
    train(made, monkeypatch)
    assert made.upload().to_ndarrays() or method == "standalone"


def test_a_loss_that_waits_for_the_device_is_seen(client, monkeypatch):
    made = client("fedssa")
    loss = type(made).loss
    monkeypatch.setattr(type(made), "loss", lambda *args: loss(*args) * args[1].max().item())
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        train(made, monkeypatch)


def test_out_of_memory_is_one_clients_failure_and_says_what_to_lower(tmp_path, monkeypatch):
    def receive(self, _):
        if self.setup.data.client == "1":
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(FedSSAClient, "receive", receive)
    (failure,) = simulate(tiny(tmp_path, rounds=1))[0].read_summary()["failures"]
    assert failure["client"] == "1" and "smaller batch-size" in failure["reason"]


def test_a_device_keeps_the_examples_of_the_last_clients_within_a_limit(monkeypatch, tmp_path):
    config = small(tmp_path, image_size=16, clients=6, dataset="synthetic:240x4")
    with forgotten():
        clients = [make_client(config, k, tmp_path, device="meta") for k in range(6)]
    one = clients[0].examples("train").examples.nbytes
    kept = loop.Recent(3.5 * one, local_data._ON_DEVICE.size)
    monkeypatch.setattr(local_data, "_ON_DEVICE", kept)
    first, *_, last = [client.examples("train") for client in clients]
    assert one < sum(map(kept.size, kept.values())) <= 3.5 * one
    assert clients[-1].examples("train").examples is last.examples
    assert clients[0].examples("train").examples is not first.examples
