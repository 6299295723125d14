"""FD, federated distillation (Jeong et al. 2018, arXiv 1811.11479).

"Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data".

Up: for the classes S_k that client k has seen, class ids and images per class (|S_k|,) int64 and
the mean softmax output F_k,s (|S_k|, C) float32, |S_k| C floats (20 at 2 classes of 10). Down: the
means of the other owners' vectors,

    F^_k,s = sum_{j != k, j owns s} F_j,s / (M_s - 1)        (``FDStrategy.payload``)

for the s in S_k that somebody else has uploaded, with the number of those owners; in round 1 there
is none. The client minimises CE(y, p) + gamma CE(F^_k,y, p), without the second term for a class
that came without a vector (``FDClient.loss``); inference is by the local model.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from fedhet.config.schema import Params, RunConfig
from fedhet.errors import Rejected, UserError
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, ClassVectors, Payload
from fedhet.strategies.averaging import sum_by_class
from fedhet.strategies.base import Upload
from fedhet.strategies.class_vectors import ClassVectorStrategy, declared

_ID = "S64"  # bytes of the longest client id
_TOLERANCE = 1e-3  # of the sum of probabilities; bf16 and sums over many images stay far below


class FDParams(Params):
    """Hyper-parameters of FD."""

    gamma: float = Field(1.0, ge=0)
    """gamma, weight of the distillation term, >= 0; HtFLlib: 1"""


class FDStrategy(ClassVectorStrategy[FDParams]):
    """Keeps the last vector of every (client, class); sends means over the other owners."""

    not_summed = "its clients are sent means over the others alone; use method=fedproto"
    bounded = False  # probabilities need no bound
    growing = ("owners", "labels", "vectors")
    state = ("owners", "labels", "vectors")  # ASCII (M, 64), class ids (M,), (M, C), sorted

    @property
    def width(self) -> int:
        """C probabilities."""
        return self.classes

    def initialise(self) -> None:
        """Start without vectors."""
        self.owners: Array = np.zeros((0, np.dtype(_ID).itemsize), dtype=np.uint8)
        self.labels: Array = np.zeros(0, dtype=np.int64)
        self.vectors: Array = np.zeros((0, self.classes), dtype=np.float32)

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the other owners' means of the client's classes."""
        every = ClassVectors(self.labels, self.labels, self.vectors)
        total = sum_by_class([every], None, self.classes)
        sums, others = total.rows, total.owners.astype(np.int64)
        mine = self.owners.view(_ID).ravel() == info.client.encode()
        sums[self.labels[mine]] -= self.vectors[mine]  # a client holds a class once
        others[self.labels[mine]] -= 1
        seen, _ = declared(info)
        sent = seen[others[seen] > 0]
        # A difference of sums may fall below 0 by rounding; the loss is bounded only without that.
        means = np.clip(sums[sent] / others[sent, None], 0.0, 1.0).astype(np.float32)
        return ClassVectors(sent, others[sent], means)

    @classmethod
    def check_config(cls, config: RunConfig, params: FDParams) -> None:
        """Refuse noise on single uploads: vectors with noise are not distributions."""
        if config.dp_clip:
            what = f"dp-clip: {config.dp_clip:g} is not allowed with method={config.method}"
            raise UserError(f"{what}, whose uploads are probabilities: use method=fedproto")

    def check(self, info: ClientInfo, payload: ClassVectors) -> None:
        """Check also that every vector is a probability distribution."""
        super().check(info, payload)
        sums = payload.vectors.sum(axis=1, dtype=np.float64)
        if (payload.vectors < 0).any() or (np.abs(sums - 1) > _TOLERANCE).any():
            raise Rejected("a vector is not a probability distribution")

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Check also that every vector has its owner and its class."""
        super().check_arrays(arrays)
        if not len(self.owners) == len(self.labels) == len(self.vectors):
            raise Rejected("owners, labels and vectors are not equally many")

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Replace what the same clients sent before; keep the others' vectors."""
        owners = self.owners.view(_ID).ravel()
        stale = ~np.isin(owners, [upload.info.client.encode() for upload in uploads])
        parts = [(owners[stale], self.labels[stale], self.vectors[stale])]
        for upload in uploads:
            owner = np.full(len(upload.payload.classes), upload.info.client.encode(), _ID)
            parts.append((owner, upload.payload.classes, upload.payload.vectors))
        owners, labels, vectors = map(np.concatenate, zip(*parts, strict=True))
        order = np.lexsort((owners, labels))
        self.owners = owners[order].view(np.uint8).reshape(-1, owners.itemsize)
        self.labels, self.vectors = labels[order], vectors[order]
        return {"shared_classes": float((np.bincount(labels) > 1).sum())}
