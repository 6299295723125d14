"""The client half of weighted averaging: overwrite the shared module, train, send it back."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn

from fedhet.clients.base import MethodClient
from fedhet.errors import HookError
from fedhet.protocol.payload import Array, ModelArrays, Payload, blank
from fedhet.rng import torch_seeded
from fedhet.schema import P

Shared = TypeVar("Shared", bound=nn.Module)


def set_parameters(module: nn.Module, arrays: Sequence[Array]) -> None:
    """Copy arrays, in the order of ``module.parameters()``, into a module.

    Raises HookError if they are another module's.
    """
    own, sent = [tuple(p.shape) for p in module.parameters()], [a.shape for a in arrays]
    if own != sent:
        raise HookError(
            f"the client's module has {len(own)} parameters {own[:3]}..., the strategy sends "
            f"{len(sent)} {sent[:3]}...: 'shared' and 'shared_module' must give the same module"
        )
    with torch.no_grad():
        for parameter, array in zip(module.parameters(), arrays, strict=True):
            parameter.copy_(torch.as_tensor(array))


def get_parameters(module: nn.Module) -> tuple[Array, ...]:
    """Copies of a module's parameters as float32 arrays, in the order of ``parameters()``."""
    return tuple(p.detach().cpu().numpy().copy() for p in module.parameters())


def blanks_of(module: nn.Module) -> tuple[Array, ...]:
    """Stand-ins for a module's parameters as they are sent, float32."""
    return tuple(blank(p.shape) for p in module.parameters())


class AveragingClient(MethodClient[P]):
    """Exchanges all parameters of one module; BatchNorm buffers stay private."""

    download_type: type[Payload] = ModelArrays

    @abstractmethod
    def shared(self) -> nn.Module:
        """The module that crosses the wire."""

    def as_sent_first(self, make: Callable[[], Shared]) -> Shared:
        """A shared module with the weights that the server sends in round 1.

        For one that inference uses: a client that was never sampled has no other. The module's own
        draw is made and thrown away, so that what is drawn after it does not depend on this.
        """
        module = make()
        with torch_seeded(self.config.seed, "global"):
            module.load_state_dict(make().state_dict())
        return module

    def expect_download(self, came: Payload) -> Payload | None:
        """The shared module's shapes."""
        return ModelArrays(blanks_of(self.shared()))

    def receive(self, payload: Payload) -> None:
        """Overwrite the shared module."""
        assert isinstance(payload, ModelArrays)
        set_parameters(self.shared(), payload.tensors)

    def upload(self) -> Payload:
        """The shared module after training, copied."""
        return ModelArrays(get_parameters(self.shared()))
