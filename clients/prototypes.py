"""What FedProto and FedTGP share on the client: representations are drawn to global prototypes."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from fedhet.clients.class_vectors import ClassVectorClient
from fedhet.config.schema import P
from fedhet.protocol.payload import Array, Payload


class PrototypeClient(ClassVectorClient[P]):
    """Sends mean representations; keeps the prototypes that it answers by."""

    @property
    @abstractmethod
    def lam(self) -> float:
        """Lambda, weight of the distance to the prototypes."""

    @property
    @abstractmethod
    def download_classes(self) -> str:
        """Whose prototypes come: of its ``seen`` classes, or of ``all``."""

    def sent_classes(self) -> Array:
        """Those that the configuration says."""
        if self.download_classes == "all" or self.config.summed:
            return super().sent_classes()
        own: Array = self.seen().numpy()
        return own

    def receive(self, payload: Payload) -> None:
        """As of any vectors; of those that come to everybody, its own classes' where asked for."""
        super().receive(payload)
        if self.download_classes != "all":
            own = torch.zeros_like(self.known)
            own[self.seen().to(self.device)] = True
            self.known &= own
            self.vectors = self.vectors * self.known[:, None]

    def initial_tensors(self) -> dict[str, Tensor]:
        """No prototype is known."""
        return {
            "prototypes": torch.zeros(self.classes, self.d),
            "known": torch.zeros(self.classes, dtype=torch.bool),
        }

    def outputs(self, inputs: Tensor) -> Tensor:
        """Representations (B, d)."""
        return self.model.features(inputs)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """CE + lambda MSE, the latter 0 for images whose class has no global prototype."""
        features = self.model.features(inputs)
        distance = (features.float() - self.vectors[labels]).square().mean(dim=1)
        pulled = (distance * self.known[labels]).mean()
        return self.cross_entropy(self.model.head(features), labels) + self.lam * pulled

    def upload(self) -> Payload:
        """Own prototypes, which also stand in for global ones that do not exist yet."""
        payload = super().upload()
        known = self.known.clone()
        known[self.seen().to(self.device)] = True
        self.tensors["prototypes"] = torch.where(self.known[:, None], self.vectors, self.means)
        self.tensors["known"] = known
        return payload

    def predict(self, inputs: Tensor) -> Mapping[str, Tensor]:
        """The classifier's logits; as "prototype" minus the distance to each prototype (B, C)."""
        features = self.model.features(inputs)
        logits = self.model.head(features)
        prototypes, known = self.tensors["prototypes"], self.tensors["known"]
        distance = torch.cdist(
            features.float(), prototypes, compute_mode="donot_use_mm_for_euclid_dist"
        )
        nearest = (-distance).masked_fill(~known, -torch.inf)
        return {"": logits, "prototype": torch.where(known.any(), nearest, logits)}
