"""Training on a device that is not the CPU, without one: torch's fake tensors on ``lazy``.

A tensor that is left on the CPU, and every wait of the host for the device, is named.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_same_bytes import SHORT, signals, table, texts

from fedhet.clients.base import Setup
from fedhet.config.load import find_method
from fedhet.site.local_data import assigned_model, load_local
from fedhet.site.state import FileStore, forgotten
from fedhet.testing import small
from fedhet.training import loop, optimisers

LAZY = torch.device("lazy")
KINDS = {
    "images": lambda _: {"models": ["cnn-5"], "image_size": 16},
    "table": table, "signals": signals, "texts": texts,
}  # fmt: skip
# Methods whose losses need nothing that came from the server: receiving it waits, once a round.
METHODS = ("fedssa", "fedmrl", "fml", "pfedes", "fedavg", "lg_fedavg", "standalone")
QUICK = (("fedssa", "images"), ("fedmrl", "images"))
CASES = [
    pytest.param(method, kind, marks=() if (method, kind) in QUICK else pytest.mark.matrix)
    for method in METHODS for kind in KINDS
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


@pytest.fixture
def device(monkeypatch):
    """Within it there is a device ``lazy``; gives the waits for it."""
    monkeypatch.setattr(nn.Module, "to", moved)
    monkeypatch.setattr(loop, "autocast", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(optimisers, "sgd", descend)
    monkeypatch.setattr("fedhet.site.local_data._ON_DEVICE", {})
    with forgotten(), FakeTensorMode(allow_non_fake_inputs=True), Waits() as waits:
        yield waits


def client_on_device(tmp_path, method, kind):
    config = small(
        tmp_path, method=method, local_epochs=1, **{"representation": 128} | KINDS[kind](tmp_path)
        | SHORT.get(method, {}) | {"batch_size": 8},
    )  # fmt: skip
    data = load_local(config, {"partition-id": 0, "num-partitions": 3}, simulated=True)
    setup = Setup(
        config=config, data=data, classes=data.dataset.classes,
        model=assigned_model(config, {}, data), device=LAZY, store=FileStore(tmp_path, sync=False),
    )  # fmt: skip
    client = find_method(method).client(setup)
    client.round = 2
    client.restore(0)
    return client


def trained(client):
    data = client.examples("train")
    for phase in client.phases():
        loop.set_trainable(list(client.modules.values()), phase, client._fixed)
        loop.train(phase, data, client.config, np.random.default_rng(0), 2)


@pytest.mark.parametrize(("method", "kind"), CASES)
def test_phases_and_predictions_stay_on_the_device(tmp_path, device, method, kind):
    client = client_on_device(tmp_path, method, kind)
    device.found.clear()  # what is done once a round may wait
    trained(client)
    inputs, _ = client.examples("train").batch(torch.arange(4, device=LAZY))
    assert {out.device for out in client.predict(inputs).values()} == {LAZY}
    assert not device.found


def test_a_wait_in_a_loss_is_seen(tmp_path, device, monkeypatch):
    client = client_on_device(tmp_path, "fedssa", "images")
    loss = type(client).loss
    monkeypatch.setattr(type(client), "loss", lambda *args: loss(*args) + 0 * args[1].cpu().max())
    device.found.clear()
    with contextlib.suppress(RuntimeError):
        trained(client)
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
