"""FedGen on the client: the header also learns from the server's generated representations."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient, get_parameters, set_parameters
from fedhet.errors import Refused
from fedhet.models.networks import exchanged
from fedhet.protocol.handshake import EXACT
from fedhet.protocol.payload import Payload, blank
from fedhet.rng import torch_seeded
from fedhet.strategies.fedgen import FedGenParams, HeaderAndGenerator, new_generator, sampled
from fedhet.training.loop import Phase


class FedGenClient(AveragingClient[FedGenParams]):
    """Shares the header of its own model; uses the server's generator for a round."""

    caches_frozen = True
    download_type = HeaderAndGenerator

    @cached_property
    def generator(self) -> nn.Module:
        """G, for as long as the client is there."""
        with torch_seeded(self.config.seed, "generator"):
            made = new_generator(self.params, self.classes, self.d)
        return made.eval().requires_grad_(False).to(self.device)

    def expect_download(self, came: Payload) -> Payload | None:
        """Return images per class, the header's shapes and G's."""
        tensors = *get_parameters(self.shared()), *get_parameters(self.generator)
        return HeaderAndGenerator(blank((self.classes,), np.int64), tensors)

    def check_download(self, payload: HeaderAndGenerator) -> None:
        """Check that labels can be drawn and that no running variance is below 0."""
        images, names = payload.images, exchanged(self.generator)
        if (images < 0).any() or not 0 < images.astype(np.float64).sum() < EXACT:
            raise Refused("the images per class are not counts")
        for name, array in zip(names, payload.tensors[2:], strict=True):
            if name.endswith("running_var") and (array < 0).any():
                raise Refused("the generator has a variance below 0")

    def receive(self, payload: HeaderAndGenerator) -> None:
        """Overwrite the header; G and the federation's labels, which are no private state."""
        set_parameters(self.shared(), payload.tensors[:2])
        set_parameters(self.generator, payload.tensors[2:])
        self.shares = torch.as_tensor(payload.images).float().to(self.device)

    def phases(self) -> list[Phase]:
        """Return one phase; its noise and labels come from a generator of this client and round."""
        self.draws = self.torch_generator("generated")
        return super().phases()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of the images, and of as many made representations."""
        noise, count = self.params.noise, len(labels)
        made, meant = sampled(self.generator, noise, self.shares, count, self.draws)
        return self.cross_entropy(self.model(inputs), labels) + self.cross_entropy(
            self.model.head(made), meant
        )
