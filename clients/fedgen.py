"""FedGen on the client: the header also learns to recognise what the server's generator makes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedhet.clients.averaging import AveragingClient, set_parameters
from fedhet.protocol.payload import Payload
from fedhet.rng import torch_seeded
from fedhet.strategies.fedgen import FedGenParams, Generator, HeaderAndGenerator
from fedhet.training.loop import Phase


class FedGenClient(AveragingClient[FedGenParams]):
    """Shares the header of its own model; borrows the generator for a round."""

    download_type = HeaderAndGenerator

    def shared(self) -> nn.Module:
        """The last fully connected layer."""
        return self.model.head

    def receive(self, payload: Payload) -> None:
        """Overwrite the header; G and the federation's labels, which are no private state."""
        assert isinstance(payload, HeaderAndGenerator)
        set_parameters(self.shared(), payload.tensors[:2])
        with torch_seeded(self.config.seed, "generator"):
            made = Generator(self.params, self.classes)
        with torch.no_grad():
            for tensor, array in zip(made.floating(), payload.tensors[2:], strict=True):
                tensor.copy_(torch.as_tensor(array))
        self.generator = made.eval().requires_grad_(False).to(self.device)
        self.shares = torch.as_tensor(payload.images).float().to(self.device)

    def phases(self) -> list[Phase]:
        """One phase; its noise and labels come from a generator of this client and round."""
        self.draws = self.torch_generator("generated")
        return super().phases()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the images, and of as many made representations."""
        made, meant = self.generator.sample(self.shares, len(labels), self.draws)
        return F.cross_entropy(self.model(inputs), labels) + F.cross_entropy(
            self.model.head(made), meant
        )
