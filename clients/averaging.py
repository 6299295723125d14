"""The client half of weighted averaging: overwrite the shared module, train, send it back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedhet.clients.base import MethodClient
from fedhet.config.schema import P
from fedhet.models.networks import exchanged
from fedhet.models.zoo import small_model
from fedhet.protocol.payload import Array, ModelArrays, Payload
from fedhet.rng import torch_seeded


def set_parameters(module: nn.Module, arrays: Sequence[Array]) -> None:
    """Copy arrays, in the order of ``exchanged``, into a module.

    Noise and rounding may leave a variance below 0, where BatchNorm has no root: it becomes 0.
    """
    with torch.no_grad():
        for (name, tensor), array in zip(exchanged(module).items(), arrays, strict=True):
            tensor.copy_(torch.as_tensor(array))
            if name.endswith("running_var"):
                tensor.clamp_(min=0.0)


def get_parameters(module: nn.Module) -> tuple[Array, ...]:
    """Return copies of a module's sent arrays, float32, in the order of ``exchanged``."""
    return tuple(t.detach().cpu().numpy().copy() for t in exchanged(module).values())


class Mixture(nn.Module):
    """A weight in [0, 1], () or (d,), and the mixture of two tensors (B, d) that it weighs."""

    def __init__(self, name: str, start: Tensor) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(start))

    @property
    def share(self) -> nn.Parameter:
        """The weight."""
        return next(self.parameters())

    def forward(self, own: Tensor, shared: Tensor) -> Tensor:
        """Return weight own + (1 - weight) shared."""
        return self.share * own + (1 - self.share) * shared

    @torch.no_grad()
    def clip(self) -> None:
        """Keep the weight in [0, 1]."""
        self.share.clamp_(0.0, 1.0)


class AveragingClient(MethodClient[P]):
    """Exchanges all parameters of one module, with BatchNorm's running statistics."""

    download_type: type[Payload] = ModelArrays
    mixture_name = "mixture"
    shared_name = ""  # of the module that crosses the wire; empty: the model's header

    def shared(self) -> Any:
        """Return the module that crosses the wire: ``shared_name``'s, by default the header."""
        return self.modules[self.shared_name] if self.shared_name else self.model.head

    @property
    def mixture(self) -> Mixture:
        """The mixture, of a method that has one."""
        return cast("Mixture", self.modules[self.mixture_name])

    def as_sent_first(self, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes, with the weights that the server sends in round 1.

        For one that inference uses: a client that was never sampled has no other. The module's own
        draw is made and thrown away, so that what is drawn after it does not depend on this.
        """
        module = make()
        with torch_seeded(self.config.seed, "global"):
            module.load_state_dict(make().state_dict())
        return module

    def new_extractor(self) -> Any:
        """Return a new small model without header, with the weights that come in round 1."""
        made = partial(small_model, self.config, self.inputs, self.classes, header=False)
        return self.as_sent_first(made)

    def expect_download(self, came: Any) -> Payload | None:
        """Return the shared module's shapes."""
        return ModelArrays(get_parameters(self.shared()))

    def receive(self, payload: Any) -> None:
        """Overwrite the shared module."""
        set_parameters(self.shared(), payload.tensors)

    def upload(self) -> Payload:
        """Return the shared module after training, copied."""
        return ModelArrays(get_parameters(self.shared()))
