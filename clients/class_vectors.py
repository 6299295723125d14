"""What methods with a vector per class share on the client: it sends them and receives others'."""

from abc import abstractmethod

import torch
from torch import Tensor

from fedhet.clients.base import MethodClient
from fedhet.protocol.payload import ClassVectors, Payload
from fedhet.schema import P
from fedhet.training.loop import class_means


class ClassVectorClient(MethodClient[P]):
    """Uploads the mean of :meth:`outputs` per seen class, in evaluation mode after training."""

    download_type: type[Payload] = ClassVectors
    shares_model = False

    @abstractmethod
    def outputs(self, inputs: Tensor) -> Tensor:
        """The vectors (B, w) whose means per class are sent."""

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
            self.outputs, self.images("train"), self.config, self.classes
        )
        seen, rows, images = self.seen().numpy(), self.means.cpu().numpy(), counts.cpu().numpy()
        return ClassVectors(seen, images[seen], rows[seen])
