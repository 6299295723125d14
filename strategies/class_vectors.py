"""What FD and FedProto share on the server: one vector per seen class comes up from a client."""

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from fedhet.protocol.checks import Rejected
from fedhet.protocol.payload import Array, ClassVectors, Payload
from fedhet.protocol.people import ClientInfo
from fedhet.schema import P, RunConfig
from strategies.base import MethodStrategy


def declared(info: ClientInfo) -> tuple[Array, Array]:
    """Class ids (S,), ascending, and training images of each (S,), int64, as a client declared."""
    order = np.argsort(np.array(info.seen, dtype=np.int64))
    return (
        np.array(info.seen, dtype=np.int64)[order],
        np.array(info.images, dtype=np.int64)[order],
    )


class ClassVectorStrategy(MethodStrategy[P]):
    """Accepts exactly the declared classes, each once, with the declared numbers of images."""

    upload_type = ClassVectors

    @classmethod
    def ignores(cls, config: RunConfig, params: P) -> Mapping[str, str]:
        """A client's number of images weighs nothing here."""
        return {"weighting": "vectors are combined class by class"}

    @property
    @abstractmethod
    def width(self) -> int:
        """w, floats per vector."""

    def expect(self, info: ClientInfo) -> Payload | None:
        """|S_k| vectors."""
        own, images = declared(info)
        return ClassVectors(own, images, np.zeros((len(own), self.width), dtype=np.float32))

    def check(self, info: ClientInfo, payload: Payload) -> None:
        """The declared classes and counts; shapes are checked before."""
        assert isinstance(payload, ClassVectors)
        own, images = declared(info)
        for what, got, meant in (
            ("vectors of classes", payload.classes, own),
            ("images per class", payload.counts, images),
        ):
            if not np.array_equal(got, meant):
                raise Rejected(f"{what} {got.tolist()}, but it declared {meant.tolist()}")
