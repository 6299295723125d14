"""FD on the client: cross-entropy with the labels and with the other owners' mean outputs."""

import torch.nn.functional as F
from torch import Tensor

from fedhet.clients.class_vectors import ClassVectorClient
from fedhet.protocol.payload import Array, ClassVectors, Payload
from fedhet.protocol.reasons import Refused
from fedhet.strategies.fd import FDParams


class FDClient(ClassVectorClient[FDParams]):
    """Sends mean softmax outputs."""

    def sent_classes(self) -> Array:
        """Its own."""
        own: Array = self.seen().numpy()
        return own

    def sent_width(self) -> int:
        """C probabilities."""
        return self.classes

    def check_download(self, payload: Payload) -> None:
        """Also: probabilities, without which the loss has no bound."""
        super().check_download(payload)
        assert isinstance(payload, ClassVectors)
        if ((payload.vectors < 0) | (payload.vectors > 1)).any():
            raise Refused("a vector holds what is no probability")

    def outputs(self, inputs: Tensor) -> Tensor:
        """Probabilities (B, C)."""
        return F.softmax(self.model(inputs).float(), dim=1)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """CE(y, p) + gamma CE(F^_k,y, p); a class without target has a zero row, so no term."""
        logits = self.model(inputs)
        soft = F.cross_entropy(logits, self.vectors[labels])
        return F.cross_entropy(logits, labels) + self.params.gamma * soft
