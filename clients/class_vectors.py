"""What methods with a vector per class share on the client: it sends them and receives others'."""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from fedhet.clients.base import MethodClient
from fedhet.config.schema import P
from fedhet.protocol.checks import check_ids
from fedhet.protocol.handshake import EXACT
from fedhet.protocol.payload import Array, ClassVectors, Payload, blank
from fedhet.protocol.reasons import Refused
from fedhet.training.loop import class_means


class ClassVectorClient(MethodClient[P]):
    """Uploads the mean of :meth:`outputs` per seen class, in evaluation mode after training."""

    download_type: type[Payload] = ClassVectors
    shares_model = False

    @abstractmethod
    def outputs(self, inputs: Tensor) -> Tensor:
        """The vectors (B, w) whose means per class are sent."""

    def sent_classes(self) -> Array:
        """Ids of the classes whose vectors may come; by default of all."""
        return np.arange(self.classes)

    def sent_width(self) -> int:
        """Floats of a vector that comes; by default the representation's d."""
        return self.d

    def expect_download(self, came: Payload) -> Payload | None:
        """As many vectors as there are ids, of the classes that may come at most."""
        if not isinstance(came, ClassVectors):
            return super().expect_download(came)
        rows = min(came.classes.size, len(self.sent_classes()))
        ids = blank((rows,), np.int64)
        return ClassVectors(ids, ids, blank((rows, self.sent_width())))

    def check_download(self, payload: Payload) -> None:
        """Classes that may come, each once, and a positive number of images or owners of each."""
        if isinstance(payload, ClassVectors):
            check_ids(payload.classes, self.sent_classes())
            if not ((payload.counts > 0) & (payload.counts < EXACT)).all():
                raise Refused("a class came with a count that is none")

    def receive(self, payload: Payload) -> None:
        """``vectors`` (C, w), zero where nothing came, and ``known`` (C,) bool, of this round."""
        assert isinstance(payload, ClassVectors)
        sent = torch.as_tensor(payload.classes)
        vectors = torch.zeros(self.classes, payload.vectors.shape[1])
        vectors[sent] = torch.as_tensor(payload.vectors)
        known = torch.zeros(self.classes, dtype=torch.bool)
        known[sent] = True
        self.vectors, self.known = vectors.to(self.device), known.to(self.device)

    def upload(self) -> Payload:
        """Means over the training images of every seen class, with their numbers of images."""
        self.means, counts = class_means(
            self.outputs, self.examples("train"), self.config, self.classes
        )
        seen, rows, images = self.seen().numpy(), self.means.cpu().numpy(), counts.cpu().numpy()
        return ClassVectors(seen, images[seen], rows[seen])
