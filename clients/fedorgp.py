"""FedORGP on the client: turn representations towards the global prototypes of their classes."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from fedhet.clients.class_vectors import ClassVectorClient, PrototypeClient
from fedhet.protocol.payload import Payload
from fedhet.strategies.fedorgp import TINY, FedORGPParams


class FedORGPClient(PrototypeClient[FedORGPParams]):
    """Sends mean representations, is turned towards trained prototypes; its header predicts."""

    def initial_tensors(self) -> dict[str, Tensor]:
        """Return nothing: no prediction uses the prototypes."""
        return {}

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return eq. 8: CE + lambda_c (1 - cos), the latter 0 for images of unknown classes."""
        features = self.model.features(inputs)
        cos = F.cosine_similarity(features.float(), self.vectors[labels], eps=TINY)
        turned = ((1 - cos) * self.known[labels]).mean()
        return self.cross_entropy(self.model.head(features), labels) + self.params.lam * turned

    def upload(self) -> Payload:
        """Return the mean of every seen class, and their numbers."""
        return ClassVectorClient.upload(self)

    def predict(self, inputs: Tensor) -> Mapping[str, Tensor]:
        """Return the header's logits."""
        return {"": self.infer(inputs)}
