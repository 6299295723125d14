"""Training on a device that is not the CPU, without one: torch's fake tensors on ``lazy``.

A tensor that is left on the CPU, and every wait of the host for the device, is named.
"""

import contextlib

import numpy as np
import pytest
import torch
from helpers.built import forgotten
from test_same_bytes import FIVE, METHODS, SHORT, signals, table, texts
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedhet.clients.base import MethodClient
from fedhet.clients.fedssa import FedSSAClient
from fedhet.config.load import find_method
from fedhet.protocol.handshake import ClientInfo, Roster
from fedhet.testing import make_client, simulate, small
from fedhet.training import loop, optimisers

if torch.cuda.is_available():
    pytest.skip("test_cuda.py trains on the CUDA device", allow_module_level=True)

NUMPY = torch.Tensor.numpy
LAZY = torch.device("lazy")
KINDS = {
    "images": lambda _: {"models": ["cnn-5"], "image_size": 16},
    "table": table, "signals": signals, "texts": texts,
}  # fmt: skip
CASES = [
    pytest.param(
        method, kind, marks=() if method in FIVE and kind == "images" else pytest.mark.matrix
    )
    for method in METHODS for kind in KINDS if (method, kind) != ("pfedes", "texts")  # refused
]  # fmt: skip


class Waits(TorchDispatchMode):
    """Collects the operations by which a tensor of the device comes to the CPU."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = (x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor))
        comes = isinstance(out, torch.Tensor) and out.device.type == "cpu"
        if comes and any(x.device == LAZY for x in given):
            self.found.append(str(func))
        return out


def moved(module, device=None, **_):
    """``nn.Module.to`` for fake tensors, which torch cannot swap in place; ties stay."""
    made = {}
    for child in module.modules() if device is not None else ():
        for name, own in child._parameters.items():
            if own is not None:
                again = nn.Parameter(own.detach().to(device), requires_grad=own.requires_grad)
                child._parameters[name] = made.setdefault(id(own), again)
        for name, own in child._buffers.items():
            child._buffers[name] = None if own is None else own.to(device)
    return module


def descend(parameters, gradients, *_, lr, **__):
    """Plain SGD: the fused kernels know no such device."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.sub_(gradient, alpha=lr)


def drawing(self, purpose):
    """A generator that draws for any device: there is none of ``lazy``."""
    self._generators.append(torch.Generator())
    return self._generators[-1]


def valueless(tensor, **_):
    """``Tensor.numpy`` of a fake tensor too, which has no values: all are 1."""
    if not isinstance(tensor, FakeTensor):
        return NUMPY(tensor)
    assert tensor.device.type == "cpu", "a tensor of the device is no array"
    return np.ones(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


@pytest.fixture
def device(monkeypatch):
    """Within it there is a device ``lazy``; gives the waits for it."""
    monkeypatch.setattr(nn.Module, "to", moved)
    monkeypatch.setattr(loop, "autocast", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(optimisers, "sgd", descend)
    monkeypatch.setattr(MethodClient, "torch_generator", drawing)
    monkeypatch.setattr(torch.Tensor, "numpy", valueless)
    monkeypatch.setattr("fedhet.site.local_data._ON_DEVICE", {})
    with forgotten(), FakeTensorMode(allow_non_fake_inputs=True), Waits() as waits:
        yield waits


def client_on_device(tmp_path, method, kind):
    config = small(
        tmp_path, method=method, local_epochs=1, **{"representation": 128} | KINDS[kind](tmp_path)
        | SHORT.get(method, {}) | {"batch_size": 8},
    )  # fmt: skip
    client = make_client(config, 0, tmp_path, round_=2, device="lazy")
    client.receive(payload_for(client))
    return client


def payload_for(client):
    """Return what the server sends in round 1; it knows this client only."""
    data, names = client.setup.data, tuple(client.setup.classes)
    counts = data.class_counts()
    info = ClientInfo(
        data.client, names, tuple(counts), tuple(counts.values()), sum(counts.values()),
        client.setup.model, "cpu", tuple(names.index(name) for name in counts),
    )  # fmt: skip
    roster = Roster()
    roster.classes, roster.inputs = names, data.dataset.inputs
    roster.infos[data.client], roster.generations[data.client] = info, 0
    with unset_fake_temporarily():
        strategy = find_method(client.config.method).strategy(client.config, roster)
        strategy.initialise()
        return client.download_type.from_ndarrays(strategy.download(info, 1).to_ndarrays())


def trained(client, waits=None):
    """Train in all phases; ``waits`` forgets those before the first, which are once a round."""
    data, phases = client.examples("train"), client.phases()
    if waits is not None:
        waits.found.clear()
    for phase in phases:
        loop.set_trainable(list(client.modules.values()), phase, client._fixed)
        loop.train(phase, data, client.config, np.random.default_rng(0), 2)


@pytest.mark.parametrize(("method", "kind"), CASES)
def test_training_predictions_and_uploads_stay_on_the_device(tmp_path, device, method, kind):
    client = client_on_device(tmp_path, method, kind)
    trained(client, device)
    inputs, _ = client.examples("train").batch(torch.arange(4, device=LAZY))
    assert {out.device for out in client.predict(inputs).values()} == {LAZY}
    assert not device.found
    assert client.upload().to_ndarrays() or method == "standalone"


def test_a_wait_in_a_loss_is_seen(tmp_path, device, monkeypatch):
    client = client_on_device(tmp_path, "fedssa", "images")
    loss = type(client).loss
    monkeypatch.setattr(type(client), "loss", lambda *args: loss(*args) + 0 * args[1].cpu().max())
    with contextlib.suppress(RuntimeError):
        trained(client, device)
    assert any("_to_copy" in one for one in device.found)
    monkeypatch.setattr(type(client), "loss", lambda *args: loss(*args) * args[1].max().item())
    with pytest.raises(DataDependentOutputException):
        trained(client)


def test_a_tensor_left_on_the_cpu_is_seen(tmp_path, device, monkeypatch):
    client = client_on_device(tmp_path, "fedssa", "images")
    loss = type(client).loss
    left = torch.ones(2, device="cpu")
    monkeypatch.setattr(type(client), "loss", lambda *args: (loss(*args) * left).sum())
    with pytest.raises(RuntimeError, match=r"device"):
        trained(client)


def test_out_of_memory_is_one_clients_failure_and_says_what_to_lower(tmp_path, monkeypatch):
    def receive(self, _):
        if self.setup.data.client == "1":
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(FedSSAClient, "receive", receive)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 16 << 30))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 5 << 30)
    folder, _ = simulate(small(tmp_path, rounds=1))
    (failure,) = folder.read_summary()["failures"]
    assert failure["client"] == "1"
    assert "5.0 GiB of 16.0 GiB" in failure["reason"]
    assert "set actors=3 or a smaller batch-size" in failure["reason"]
