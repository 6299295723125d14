"""FedGH (Yi et al. 2023, arXiv 2303.13137): the server trains one header for all.

Down: that header, C (d + 1) floats. Up: the mean representation of every class that a client has
seen, |S_k| d floats. The server makes one step of SGD per client, in client order. Shorter than
the package's own `fedgh`, to show all hooks of a strategy at work:
`fedhet run quickstart method=fedgh:METHOD server-lr=0.1`.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedhet.clients.averaging import get_parameters, set_parameters
from fedhet.clients.class_vectors import ClassVectorClient
from fedhet.config.registry import Method
from fedhet.config.schema import REPRESENTATION, Params
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import ClassVectors, ModelArrays, Payload
from fedhet.rng import torch_seeded
from fedhet.strategies.base import Upload
from fedhet.strategies.class_vectors import ClassVectorStrategy


class FedGHParams(Params):
    """Hyper-parameters of FedGH."""

    server_lr: float = Field(0.01, gt=0, description="learning rate of the server's header, > 0")


class FedGHStrategy(ClassVectorStrategy[FedGHParams]):
    """Trains a header on mean representations."""

    broadcasts = True
    state = ("header",)
    width = REPRESENTATION

    def initialise(self) -> None:
        """Draw the header from the run's "global" generator."""
        with torch_seeded(self.config.seed, "global"):
            self.header = nn.Linear(REPRESENTATION, self.classes)

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the header."""
        return ModelArrays(tuple(self.arrays().values()))

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """One step per client."""
        for upload in uploads:
            assert isinstance(upload.payload, ClassVectors)
            vectors = torch.as_tensor(upload.payload.vectors)
            loss = F.cross_entropy(self.header(vectors), torch.as_tensor(upload.payload.classes))
            gradients = torch.autograd.grad(loss, list(self.header.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(self.header.parameters(), gradients, strict=True):
                    parameter.sub_(self.params.server_lr * gradient)
        return {"header_loss": loss.item()}


class FedGHClient(ClassVectorClient[FedGHParams]):
    """Receives a header, sends mean representations."""

    download_type = ModelArrays

    def outputs(self, inputs: Tensor) -> Tensor:
        """Representations (B, d)."""
        return self.model.features(inputs)

    def expect_download(self, came: Payload) -> Payload | None:
        """Return the header's shapes."""
        return ModelArrays(get_parameters(self.model.head))

    def receive(self, payload: Payload) -> None:
        """Overwrite the local header."""
        assert isinstance(payload, ModelArrays)
        set_parameters(self.model.head, payload.tensors)


METHOD = Method(FedGHStrategy, FedGHClient, "one header, trained by the server", FedGHParams)
