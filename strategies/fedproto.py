"""FedProto (Tan et al. 2022, arXiv 2105.00243).

"FedProto: Federated Prototype Learning across Heterogeneous Clients".

Up: for the classes S_k that client k has seen, class ids and images per class (|S_k|,) int64 and
the prototypes C_k^s, mean representations (|S_k|, d) float32, |S_k| d floats (1,000 at two classes,
d = 500). The server takes per class the mean weighted by images, C^s = sum_k |D_k,s| C_k^s / N_s
over the accepted replies (``FedProtoStrategy.aggregate``); a class that nobody sent keeps its
prototype. Down: the prototypes of the client's seen classes that exist (``download-classes: all``:
of every class). The client minimises

    CE + lambda mean_i MSE(f(x_i), C^{y_i})        (``PrototypeClient.loss``)

where an image counts 0 as long as its class has no global prototype, and MSE is the mean over d:
lambda is d times weaker than on a squared norm.

Inference is by the classifier. Beside it the accuracy of the nearest prototype (L2) is recorded as
``test_accuracy_prototype``, over the global prototypes received and, where there was none, the
client's own: with the default download these are of its own classes, an easier task.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedhet.config.schema import RunConfig
from fedhet.protocol.payload import ClassVectors
from fedhet.strategies.averaging import class_totals, sum_by_class
from fedhet.strategies.base import Upload
from fedhet.strategies.class_vectors import PrototypeParams, PrototypeStrategy
from fedhet.strategies.rules import ROBUST
from fedhet.sums.contribution import Own, Summand, Vector


class FedProtoParams(PrototypeParams):
    """Hyper-parameters of FedProto."""


class FedProtoStrategy(PrototypeStrategy[FedProtoParams]):
    """Per-class mean of prototypes."""

    aggregations = ROBUST
    not_summed = ""
    weighs_late = True

    @classmethod
    def ignores(cls, config: RunConfig, params: FedProtoParams) -> Mapping[str, str]:
        """Return that images of a class are its weights; ``max-weight`` bounds them."""
        return {"weighting": super().ignores(config, params)["weighting"]}

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Apply eq. 6 per class over the replies; absent classes keep theirs."""
        payloads = [upload.payload for upload in uploads]
        weights = [upload.payload.counts * upload.late for upload in uploads]
        sums = sum_by_class(payloads, weights, self.classes, self.rule)
        self.prototypes = sums.means(self.prototypes)
        return self.count(uploads)

    @classmethod
    def contribution(cls, upload: ClassVectors, own: Own) -> Summand:
        """Return images x mean (C, d) and images (C,), in units of weights; C ones and zeros."""
        sums = sum_by_class([upload], [own.weigh(upload.counts)], own.classes)
        return sums.summand(own, weighted=True)

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]:
        """Apply eq. 6 to the sums; a class of too few owners keeps its prototype."""
        totals = class_totals(self, total, weighted=True)
        self.prototypes = totals.means(self.prototypes)
        behind = np.maximum(np.rint(totals.weights * self.images_per_weight), 1).astype(np.int64)
        self.counts = np.where(totals.present, behind, self.counts)
        return self.known()
