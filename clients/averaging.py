"""The client half of weighted averaging: overwrite the shared module, train, send it back."""

from collections.abc import Sequence
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
    shares_extractor = False  # whether the small model's header is left out

    def shared(self) -> Any:
        """Return the module that crosses the wire: ``shared_name``'s, by default the header."""
        return self.modules[self.shared_name] if self.shared_name else self.model.head

    @property
    def mixture(self) -> Mixture:
        """The mixture, of a method that has one."""
        return cast("Mixture", self.modules[self.mixture_name])

    def build(self) -> dict[str, nn.Module]:
        """Return the model and the shared module beside it, as the server sends it in round 1.

        A client that was never sampled answers with that one. The module's own draw is made and
        thrown away, so that what is drawn after it does not depend on this.
        """
        modules = {} if self.shared_name == "model" else super().build()
        if self.shared_name:
            modules[self.shared_name] = shared = self.new_shared()
            with torch_seeded(self.config.seed, "global"):
                shared.load_state_dict(self.new_shared().state_dict())
        return modules

    def new_shared(self) -> nn.Module:
        """Return a new module like the shared one beside the model: by default the small model."""
        header = not self.shares_extractor
        return small_model(self.config, self.inputs, self.classes, header=header)

    def expect_download(self, came: Any) -> Payload | None:
        """Return the shared module's shapes."""
        return ModelArrays(get_parameters(self.shared()))

    def receive(self, payload: Any) -> None:
        """Overwrite the shared module."""
        set_parameters(self.shared(), payload.tensors)

    def upload(self) -> Payload:
        """Return the shared module after training, copied."""
        return ModelArrays(get_parameters(self.shared()))
