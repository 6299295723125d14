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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field

from fedhet.config.schema import Params, RunConfig
from fedhet.errors import Rejected, UserError
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, ClassTotals, ClassVectors, Payload
from fedhet.strategies.averaging import class_totals, sum_by_class
from fedhet.strategies.base import Reference, Upload
from fedhet.strategies.class_vectors import ClassVectorStrategy, declared
from fedhet.sums.contribution import Vector

_ID = 64  # bytes of the longest client id
_TOLERANCE = 1e-3  # of the sum of probabilities; bf16 and sums over many images stay far below


class FDParams(Params):
    """Hyper-parameters of FD."""

    gamma: float = Field(1.0, ge=0)
    """gamma, weight of the distillation term, >= 0; HtFLlib: 1"""


class FDStrategy(ClassVectorStrategy[FDParams]):
    """Keeps the last vector of every (client, class); sends means over the other owners.

    Of sums it keeps the last of every class, and sends them.
    """

    not_summed = ""

    @property
    def width(self) -> int:
        """C probabilities."""
        return self.classes

    def initialise(self) -> None:
        """Start without vectors."""
        nothing = np.zeros((0, self.classes), dtype=np.float32)
        self._keep(np.zeros(0, dtype=f"<U{_ID}"), np.zeros(0, dtype=np.int64), nothing)
        self.sum_rounds = np.zeros(self.classes, dtype=np.int64)  # of each class's sum, if summed

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the other owners' means of the client's classes, or with sums all sums."""
        if self.sends_all:
            return ClassTotals(self.counts, self.sum_rounds, self.sums.astype(np.float32))
        own = self.owners == info.client
        sums, others = self.sums.copy(), self.counts.copy()
        sums[self.labels[own]] -= self.vectors[own]  # a client holds a class once
        others[self.labels[own]] -= 1
        seen, _ = declared(info)
        sent = seen[others[seen] > 0]
        return ClassVectors(sent, others[sent], mean_of_others(sums[sent], others[sent]))

    @classmethod
    def check_config(cls, config: RunConfig, params: FDParams) -> None:
        """Refuse noise on single uploads: vectors with noise are not distributions."""
        if config.dp_clip and not config.summed:
            raise UserError(
                f"dp-clip: {config.dp_clip:g} is not allowed with method={config.method}, whose "
                "uploads are probabilities: use secure-sum=masked, which adds the noise to sums"
            )

    def check(self, info: ClientInfo, payload: Payload) -> None:
        """Check also that every vector is a probability distribution."""
        super().check(info, payload)
        assert isinstance(payload, ClassVectors)
        sums = payload.vectors.sum(axis=1, dtype=np.float64)
        if (payload.vectors < 0).any() or (np.abs(sums - 1) > _TOLERANCE).any():
            raise Rejected("a vector is not a probability distribution")

    def reference(self, info: ClientInfo) -> Reference:
        """Return |S_k| vectors; probabilities need no bound."""
        return replace(super().reference(info), bounded=False)

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Replace what the same clients sent before; keep the others' vectors."""
        stale = ~np.isin(self.owners, [upload.info.client for upload in uploads])
        owners, labels, vectors = [self.owners[stale]], [self.labels[stale]], [self.vectors[stale]]
        for upload in uploads:
            assert isinstance(upload.payload, ClassVectors)
            owners.append(np.full(len(upload.payload.classes), upload.info.client))
            labels.append(upload.payload.classes)
            vectors.append(upload.payload.vectors)
        self._keep(np.concatenate(owners), np.concatenate(labels), np.concatenate(vectors))
        return {"shared_classes": float((self.counts > 1).sum())}

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]:
        """Replace the sums of classes with enough owners; keep the others."""
        found = class_totals(self, total)
        present = found.present
        self.sums[present] = found.rows[present]
        self.counts[present] = np.rint(found.owners[present]).astype(np.int64)
        self.sum_rounds[present] = round_
        return {"shared_classes": float((self.counts > 1).sum())}

    def arrays(self) -> dict[str, Array]:
        """Return owners as ASCII (M, 64) uint8, class ids (M,), vectors (M, C), sorted.

        Of sums: owners (C,) and rounds (C,) int64, sums (C, C) float64.
        """
        if self.sends_all:
            return {"owners": self.counts, "rounds": self.sum_rounds, "sums": self.sums}
        owners = np.char.encode(self.owners, "ascii").astype(f"S{_ID}")
        names = owners.view(np.uint8).reshape(len(owners), _ID)
        return {"owners": names, "labels": self.labels, "vectors": self.vectors}

    @property
    def growing(self) -> Collection[str]:
        """All, unless sums are kept: one entry per owner and class."""
        return () if self.sends_all else ("owners", "labels", "vectors")

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        if self.sends_all:
            self.counts, self.sum_rounds = arrays["owners"].copy(), arrays["rounds"].copy()
            self.sums = arrays["sums"].copy()
            return
        names = np.ascontiguousarray(arrays["owners"]).view(f"S{_ID}").reshape(-1)
        self._keep(np.char.decode(names, "ascii"), arrays["labels"], arrays["vectors"])

    def _keep(self, owners: Array, labels: Array, vectors: Array) -> None:
        """Store vectors in a fixed order, and their sums and numbers per class."""
        order = np.lexsort((owners, labels))
        self.owners, self.labels, self.vectors = owners[order], labels[order], vectors[order]
        found = sum_by_class(self.labels, [self.vectors], None, self.classes)
        self.sums, self.counts = found.rows, np.bincount(self.labels, minlength=self.classes)


def mean_of_others(sums: Array, others: Array) -> Array:
    """Return means (S, C) float32 of sums (S, C) over so many owners (S,), each at least 1.

    A difference of sums may fall below 0 by rounding; the loss is bounded only without that.
    """
    means: Array = np.clip(sums / others[:, None], 0.0, 1.0).astype(np.float32)
    return means
