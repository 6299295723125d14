"""The client half of one vector per class: it sends its own and receives others'.

Prototypes (FedProto, FedTGP) are mean representations, to which the model is drawn.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

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

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return vectors (B, w) float32 of ``inputs``, by default representations, to be sent."""
        return self.model.features(inputs)

    def sent_classes(self) -> Array:
        """Return ids (S,) int64 of the classes whose vectors may come; by default of all."""
        return np.arange(self.classes)

    def sent_width(self) -> int:
        """Return the width of a received vector; by default the representation's d."""
        return self.d

    def expect_download(self, came: Any) -> Payload | None:
        """Return a payload with as many vectors as ids, at most one per class that may come."""
        rows = min(came.classes.size, len(self.sent_classes()))
        ids = blank((rows,), np.int64)
        return ClassVectors(ids, ids, blank((rows, self.sent_width())))

    def check_download(self, payload: Any) -> None:
        """Check ids, each once, and a positive number of images or owners of each."""
        if isinstance(payload, ClassVectors):  # a method's own kind of download has no ids
            check_ids(payload.classes, self.sent_classes())
            if not ((payload.counts > 0) & (payload.counts < EXACT)).all():
                raise Refused("the count of a class is not a positive number")

    def receive(self, payload: Any) -> None:
        """``vectors`` (C, w), zero where nothing came, and ``known`` (C,) bool, of this round."""
        sent = torch.as_tensor(payload.classes)
        vectors = torch.zeros(self.classes, payload.vectors.shape[1])
        vectors[sent] = torch.as_tensor(payload.vectors)
        known = torch.zeros(self.classes, dtype=torch.bool)
        known[sent] = True
        self.vectors, self.known = vectors.to(self.device), known.to(self.device)

    def upload(self) -> Payload:
        """Return the mean of every seen class over the training images, and their numbers."""
        data = self.examples("train")
        self.means, counts = mean_outputs(self.outputs, data, self.config, self.classes)
        seen, rows, images = self.seen().numpy(), self.means.cpu().numpy(), counts.cpu().numpy()
        return ClassVectors(seen, images[seen], rows[seen])


class PrototypeClient(ClassVectorClient[PP]):
    """Sends mean representations; keeps the prototypes for its predictions."""

    def sent_classes(self) -> Array:
        """Ids of the classes that the configuration asks for."""
        if self.params.download_classes == "all" or self.sent_all:
            return super().sent_classes()
        own: Array = self.seen().numpy()
        return own

    def receive(self, payload: Any) -> None:
        """Receive vectors; of vectors for all clients keep only its own classes' if configured."""
        super().receive(payload)
        if self.params.download_classes != "all":
            own = torch.zeros_like(self.known)
            own[self.seen().to(self.device)] = True
            self.known &= own
            self.vectors = self.vectors * self.known[:, None]

    def initial_tensors(self) -> dict[str, Tensor]:
        """Return blank prototypes, none of them known."""
        return {
            "prototypes": torch.zeros(self.classes, self.d),
            "known": torch.zeros(self.classes, dtype=torch.bool),
        }

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return CE + lambda MSE, the latter 0 for images whose class has no global prototype."""
        features = self.model.features(inputs)
        distance = (features.float() - self.vectors[labels]).square().mean(dim=1)
        pulled = (distance * self.known[labels]).mean()
        return self.cross_entropy(self.model.head(features), labels) + self.params.lam * pulled

    def upload(self) -> Payload:
        """Return own prototypes, which also stand in for global ones that do not exist yet."""
        payload = super().upload()
        known = self.known.clone()
        known[self.seen().to(self.device)] = True
        self.tensors["prototypes"] = torch.where(self.known[:, None], self.vectors, self.means)
        self.tensors["known"] = known
        return payload

    def predict(self, inputs: Tensor) -> Mapping[str, Tensor]:
        """Return the logits, and as "prototype" minus the distance to each prototype (B, C)."""
        features = self.model.features(inputs)
        logits = self.model.head(features)
        prototypes, known = self.tensors["prototypes"], self.tensors["known"]
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(features.float(), prototypes, compute_mode=exact)
        nearest = (-distance).masked_fill(~known, -torch.inf)
        return {"": logits, "prototype": torch.where(known.any(), nearest, logits)}
