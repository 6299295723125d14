"""FedORGP on the client: turn representations towards the global prototypes of their classes."""

import torch.nn.functional as F
from torch import Tensor

from fedhet.clients.class_vectors import PrototypeClient
from fedhet.strategies.fedorgp import TINY, FedORGPParams


class FedORGPClient(PrototypeClient[FedORGPParams]):
    """Sends mean representations, is turned towards trained prototypes; its header predicts."""

    def distance(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Return 1 - cos (B,), by which :meth:`loss` is eq. 8."""
        return 1 - F.cosine_similarity(features, prototypes, eps=TINY)
