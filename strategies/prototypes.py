"""What FedProto and FedTGP share on the server: prototypes, mean representations per class."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from fedhet.config.schema import P
from fedhet.protocol.checks import Rejected
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, ClassVectors, Payload
from fedhet.strategies.averaging import class_means
from fedhet.strategies.base import Upload
from fedhet.strategies.class_vectors import ClassVectorStrategy, declared, payloads_of


class PrototypeStrategy(ClassVectorStrategy[P]):
    """Keeps a prototype per class and the images behind it; sends those that exist."""

    @property
    @abstractmethod
    def download_classes(self) -> str:
        """Whose prototypes are sent down: of the client's ``seen`` classes, or of ``all``."""

    @property
    def width(self) -> int:
        """The representation's d."""
        return self.d

    def initialise(self) -> None:
        """No class has a prototype."""
        self.prototypes: Array = np.zeros((self.classes, self.d), dtype=np.float32)
        self.counts: Array = np.zeros(self.classes, dtype=np.int64)

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """The prototypes that exist, with the images behind each."""
        whole = self.download_classes == "all" or self.config.summed
        wanted = np.arange(self.classes, dtype=np.int64) if whole else declared(info)[0]
        sent = wanted[self.counts[wanted] > 0]
        return ClassVectors(sent, self.counts[sent], self.prototypes[sent])

    def means_of(self, uploads: Sequence[Upload], weights: Array | None) -> Array:
        """Means (C, d) per class of what came; absent classes keep their prototype."""
        payloads = payloads_of(uploads)
        classes = np.concatenate([p.classes for p in payloads])
        return class_means(
            classes, [p.vectors for p in payloads], weights, self.prototypes, self.rule
        )

    def count(self, uploads: Sequence[Upload]) -> Mapping[str, float]:
        """Remember the images behind each class that came; how many classes are known."""
        payloads = payloads_of(uploads)
        classes = np.concatenate([p.classes for p in payloads])
        counts = np.concatenate([p.counts for p in payloads])
        behind = np.bincount(classes, counts, self.classes).astype(np.int64)
        self.counts = np.where(behind > 0, behind, self.counts)
        return self.known()

    def known(self) -> dict[str, float]:
        """How many classes have a prototype, for the record."""
        return {"known_classes": float((self.counts > 0).sum())}

    def arrays(self) -> dict[str, Array]:
        """Prototypes (C, d), zero where unknown, and images behind each (C,) int64."""
        return {"prototypes": self.prototypes, "counts": self.counts}

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Also: no class has fewer than no images."""
        super().check_arrays(arrays)
        if (arrays["counts"] < 0).any():
            raise Rejected("a number of images is below 0")

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        self.prototypes, self.counts = arrays["prototypes"], arrays["counts"]
