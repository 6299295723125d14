"""The client half of weighted averaging: overwrite the shared module, train, send it back."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import nn

from clients.base import MethodClient
from fedhet.protocol.payload import Array, ModelArrays, Payload


def set_parameters(module: nn.Module, arrays: Sequence[Array]) -> None:
    """Copy arrays, in the order of ``module.parameters()``, into a module."""
    with torch.no_grad():
        for parameter, array in zip(module.parameters(), arrays, strict=True):
            parameter.copy_(torch.as_tensor(array))


def get_parameters(module: nn.Module) -> tuple[Array, ...]:
    """Copies of a module's parameters as float32 arrays, in the order of ``parameters()``."""
    return tuple(p.detach().cpu().numpy().copy() for p in module.parameters())


class AveragingClient(MethodClient):
    """Exchanges all parameters of one module; BatchNorm buffers stay private."""

    download = ModelArrays

    @abstractmethod
    def shared(self) -> nn.Module:
        """The module that crosses the wire."""

    def receive(self, payload: Payload) -> None:
        """Overwrite the shared module."""
        assert isinstance(payload, ModelArrays)
        set_parameters(self.shared(), payload.tensors)

    def upload(self) -> Payload:
        """The shared module after training, copied."""
        return ModelArrays(get_parameters(self.shared()))
