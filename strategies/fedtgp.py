"""FedTGP (Zhang, Liu, Hua and Cao, AAAI 2024, arXiv 2401.03230).

"FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data and
Model Heterogeneity in Federated Learning".

Up: for every class s in S_k, class ids and images per class (|S_k|,) int64 and the prototype, the
mean representation (|S_k|, d) float32: |S_k| d floats (1,000 at two classes, d = 500). The server
keeps trainable prototypes P_c = fc(relu(middle(e_c))), e (C, d) an embedding, middle and fc linear,
d -> d with bias. In every round, q_c being the unweighted mean of this round's prototypes of c,

    margin = min(max_c min_{c' != c} |q_c - q_c'|, ``margin``)       over the classes that were sent

and P moves for ``server-epochs`` epochs over the (prototype u, class y) pairs of the round in
batches of ``batch-size``: cross-entropy of the logits -(|u - P_c| + margin [c = y]) over all C
classes, SGD without momentum (``FedTGPStrategy.aggregate``). Down: P_c of all classes that anybody
has ever sent, at most C d floats (5,000 at C = 10), with the images behind each;
``download-classes: seen``: of the client's own. Round 1 sends none. The client minimises

    CE + lambda mean_i MSE(f(x_i), P_{y_i})        (``PrototypeClient.loss``)

as in FedProto; inference is by the classifier, and the accuracy of the nearest prototype is
recorded beside it.
"""

from collections.abc import Mapping, Sequence

from pydantic import Field

from fedhet.lazy import F, Tensor, torch
from fedhet.strategies.averaging import sum_by_class
from fedhet.strategies.base import Upload
from fedhet.strategies.class_vectors import TrainedPrototypeParams, TrainedPrototypeStrategy

SMALLEST = 1e-12  # of a squared distance: its root has no slope at 0


class FedTGPParams(TrainedPrototypeParams):
    """Hyper-parameters of FedTGP."""

    margin: float = Field(100.0, ge=0)
    """tau, largest margin between prototypes, >= 0; code: 100"""


def distances(vectors: Tensor, prototypes: Tensor) -> Tensor:
    """Return euclidean distances (B, C) of vectors (B, d) to prototypes (C, d)."""
    squares = (vectors[:, None] - prototypes).square().sum(dim=2)
    return squares.clamp(min=SMALLEST).sqrt()


def adaptive_margin(means: Tensor, largest: float) -> float:
    """Return the largest distance of a mean (M, d) to its nearest, at most ``largest``."""
    if len(means) < 2:
        return largest
    apart = distances(means, means).fill_diagonal_(torch.inf)
    return min(float(apart.min(dim=1).values.max()), largest)


class FedTGPStrategy(TrainedPrototypeStrategy[FedTGPParams]):
    """Trains the prototypes to stay apart by this round's margin."""

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Train the prototypes with this round's margin."""
        sums = sum_by_class([upload.payload for upload in uploads], None, self.classes)
        means = torch.from_numpy(sums.means(self.prototypes)[sums.present])
        self.margin = adaptive_margin(means, self.params.margin)
        return {**super().aggregate(uploads, round_), "margin": self.margin}

    def pair_loss(self, labels: Tensor, vectors: Tensor) -> Tensor:
        """Return the contrastive loss of a batch."""
        apart = distances(vectors, self.made()) + self.margin * F.one_hot(labels, self.classes)
        return F.cross_entropy(-apart, labels)
