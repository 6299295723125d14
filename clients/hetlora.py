"""HetLoRA on the client: adapters of its own rank are received, trained and sent."""

import hashlib

import numpy as np
import torch
from torch import nn

from fedhet.clients.base import MethodClient
from fedhet.errors import Refused, UserError
from fedhet.models.pretrained import Backbone, adapters
from fedhet.protocol.payload import Adapters, Array, Payload, blank
from fedhet.rng import generator
from fedhet.strategies.hetlora import DIGITS, HetLoRAParams


class HetLoRAClient(MethodClient[HetLoRAParams]):
    """Shares the adapters of its pretrained network; projection and header stay private."""

    download_type: type[Payload] = Adapters

    def build(self) -> dict[str, nn.Module]:
        """Return the model, with the A that all clients start from, nested by rows, and B = 0."""
        model = self.local_model()
        if not isinstance(model, Backbone) or not adapters(model):
            raise UserError(f"model '{self.setup.model}' has no adapters: it needs lora=RANK")
        for name, (a, _) in adapters(model).items():
            rows = generator(self.config.seed, "adapters", name).random((len(a), a[0].numel()))
            bound = a[0].numel() ** -0.5
            with torch.no_grad():
                a.copy_(torch.from_numpy((2 * rows - 1) * bound).view_as(a))
        return {"model": model}

    def _factors(self) -> list[nn.Parameter]:
        """Return what is sent of each layer: A and B, or A alone."""
        alone = self.params.aggregate == "share-a"
        pairs = adapters(self.model).values()
        return [one for pair in pairs for one in (pair[:1] if alone else pair)]

    def _digest(self) -> Array:
        """Return digits of a digest of the network, of the adapted layers and of their shapes."""
        layers = {n: (a[0].shape, b.shape[0]) for n, (a, b) in adapters(self.model).items()}
        assert isinstance(self.model, Backbone)
        text = hashlib.sha256(f"{self.model.network_digest} {layers}".encode()).hexdigest()
        return np.array([int(digit, 16) for digit in text[:DIGITS]], dtype=np.int64)

    def expect_download(self, came: Adapters) -> Payload | None:
        """Return own shapes, for adapters of the same network, or no factors, as in round 1."""
        if not came.tensors:
            return Adapters(blank((DIGITS,), np.int64), ())
        if not np.array_equal(came.digest, digest := self._digest()):
            raise Refused("the adapters are of another network, or of other layers")
        return Adapters(digest, tuple(blank(tuple(p.flatten(1).shape)) for p in self._factors()))

    def receive(self, payload: Adapters) -> None:
        """Overwrite the adapters, from round 2 on."""
        with torch.no_grad():
            for parameter, array in zip(self._factors(), payload.tensors, strict=False):
                parameter.copy_(torch.as_tensor(array).view_as(parameter))

    def upload(self) -> Payload:
        """Return the adapters after training, copied."""
        factors = (p.detach().flatten(1).cpu().numpy().copy() for p in self._factors())
        return Adapters(self._digest(), tuple(factors))
