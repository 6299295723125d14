"""FD on the client: cross-entropy with the labels and with the other owners' mean outputs."""

import torch.nn.functional as F
from torch import Tensor

from fedhet.clients.class_vectors import ClassVectorClient
from fedhet.errors import Refused
from fedhet.protocol.payload import ClassVectors
from fedhet.strategies.fd import FDParams


class FDClient(ClassVectorClient[FDParams]):
    """Sends mean softmax outputs."""

    only_seen = True

    def sent_width(self) -> int:
        """Return C probabilities."""
        return self.classes

    def check_download(self, payload: ClassVectors) -> None:
        """Check that vectors are probabilities."""
        if ((payload.vectors < 0) | (payload.vectors > 1)).any():
            raise Refused("a vector has entries outside 0 to 1, which are not probabilities")

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return probabilities (B, C)."""
        return F.softmax(self.model(inputs).float(), dim=1)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return CE(y, p) + gamma CE(F^_k,y, p); a class without target has a zero row."""
        logits = self.model(inputs)
        soft = self.cross_entropy(logits, labels, self.vectors[labels])
        return self.cross_entropy(logits, labels) + self.params.gamma * soft
