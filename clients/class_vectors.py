"""The client half of one vector per class: it sends its own and receives others'.

Prototypes are mean representations, to which the model is drawn (FedProto, FedTGP, FedORGP).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedhet.clients.base import MethodClient
from fedhet.config.schema import P
from fedhet.errors import Refused
from fedhet.protocol.checks import check_ids
from fedhet.protocol.handshake import EXACT
from fedhet.protocol.payload import Array, ClassVectors, Payload, blank
from fedhet.strategies.class_vectors import PP
from fedhet.training.loop import mean_outputs


class ClassVectorClient(MethodClient[P]):
    """Uploads the mean of :meth:`outputs` per seen class, in evaluation mode after training."""

    download_type: type[Payload] = ClassVectors
    shares_model = False
    caches_frozen = True
    only_seen = False  # whether vectors of its own classes alone may come

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return vectors (B, w) float32 of ``inputs``, by default representations, to be sent."""
        return self.model.features(inputs)

    def sent_classes(self) -> Array:
        """Return ids (S,) int64 of the classes whose vectors may come."""
        return self.seen() if self.only_seen else np.arange(self.classes)

    def sent_width(self) -> int:
        """Return the width of a received vector; by default the representation's d."""
        return self.d

    def expect_download(self, came: Any) -> Payload | None:
        """Return as many vectors as ids, each id once, with images or owners of each."""
        check_ids(came.classes, self.sent_classes())
        if not ((came.counts > 0) & (came.counts < EXACT)).all():
            raise Refused("the count of a class is not a positive number")
        ids = blank((len(came.classes),), np.int64)
        return ClassVectors(ids, ids, blank((len(ids), self.sent_width())))

    def receive(self, payload: Any) -> None:
        """``vectors`` (C, w), zero where nothing came, and ``known`` (C,) bool, of this round."""
        vectors = torch.zeros(self.classes, payload.vectors.shape[1])
        vectors[payload.classes] = torch.as_tensor(payload.vectors)
        known = torch.zeros(self.classes, dtype=torch.bool)
        known[payload.classes] = True
        self.vectors, self.known = vectors.to(self.device), known.to(self.device)

    def upload(self) -> Payload:
        """Return the mean of every seen class over the training images, and their numbers."""
        data = self.examples("train")
        self.means, counts = mean_outputs(self.outputs, data, self.config, self.classes)
        seen, rows, images = self.seen(), self.means.cpu().numpy(), counts.cpu().numpy()
        return ClassVectors(seen, images[seen], rows[seen])


class PrototypeClient(ClassVectorClient[PP]):
    """Sends mean representations, and is drawn to the prototypes that come."""

    def sent_classes(self) -> Array:
        """Ids of the classes that the configuration asks for."""
        whole = self.params.download_classes == "all" or self.sent_all
        return super().sent_classes() if whole else self.seen()

    def receive(self, payload: Any) -> None:
        """Receive vectors; of vectors for all clients only those of its classes if configured."""
        if self.params.download_classes != "all":
            own = np.isin(payload.classes, self.seen())
            payload = ClassVectors(*(array[own] for array in payload.flat))
        super().receive(payload)

    def distance(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Return the distances (B,) of features and their prototypes (B, d): mean squares."""
        return (features - prototypes).square().mean(dim=1)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return CE + lambda distance, the latter 0 for images whose class has no prototype."""
        features = self.model.features(inputs)
        distance = self.distance(features.float(), self.vectors[labels])
        pulled = (distance * self.known[labels]).mean()
        return self.cross_entropy(self.model.head(features), labels) + self.params.lam * pulled


class NearestPrototypeClient(PrototypeClient[PP]):
    """Keeps the prototypes, for answers by the nearest one beside the header's."""

    def build(self) -> dict[str, nn.Module]:
        """Return the model, and blank prototypes, none of them known."""
        kept = nn.Module()
        kept.register_buffer("prototypes", torch.zeros(self.classes, self.d))
        kept.register_buffer("known", torch.zeros(self.classes, dtype=torch.bool))
        return super().build() | {"tensors": kept}

    def upload(self) -> Payload:
        """Return own prototypes, which also stand in for global ones that do not exist yet."""
        payload, known = super().upload(), self.known.clone()
        known[self.seen()] = True
        kept = self.modules["tensors"]
        kept.prototypes = torch.where(self.known[:, None], self.vectors, self.means)
        kept.known = known
        return payload

    def predict(self, inputs: Tensor) -> Mapping[str, Tensor]:
        """Return the logits, and as "prototype" minus the distance to each prototype (B, C)."""
        features = self.model.features(inputs)
        logits = self.model.head(features)
        prototypes, known = self.modules["tensors"].buffers()
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(features.float(), prototypes, compute_mode=exact)
        nearest = (-distance).masked_fill(~known, -torch.inf)
        return {"": logits, "prototype": torch.where(known.any(), nearest, logits)}
