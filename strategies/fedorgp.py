"""FedORGP (Guo et al. 2025, arXiv 2502.16119).

"FedORGP: Guiding Heterogeneous Federated Learning with Orthogonality Regularization on Global
Prototypes".

Up: for every class s in S_k, class ids and images per class (|S_k|,) int64 and the prototype P_k^s,
the mean representation (|S_k|, d) float32 after training, in evaluation mode (eq. 2): |S_k| d
floats (1,000 at two classes, d = 500). The server keeps trainable prototypes P^_c, made as in
FedTGP from an embedding by two layers. In every round it trains them by SGD for ``server-epochs``
epochs over the pairs (P_k^s, s) of the round in batches of ``batch-size``. With cos(u, v) =
u.v / (|u| |v|), B the batch and C the number of classes (``FedORGPStrategy.pair_loss``)

    s    = 1/|B| sum cos(P_k^c, P^_c)                                                    (eq. 3)
    d_   = 1/(|B| (C - 1)) sum over pairs, sum over c' != c of |cos(P_k^c, P^_c')|       (eq. 4)
    L_OR = lambda_s (1 - s) + gamma d_                                                   (eq. 5)

Down: P^_c of all classes that anybody has ever sent, at most C d floats (5,000 at C = 10);
``download-classes: seen``: of the client's own. Round 1 sends none, as in the authors' code. The
client minimises CE + lambda_c mean_i (1 - cos(f(x_i), P^_{y_i})) (eq. 8, ``FedORGPClient.loss``);
an image whose class nobody has sent yet counts 0. Inference is by the header.

Every pair counts once. Differences from the paper: docs/reference/method-notes.md.
"""

from pydantic import Field

from fedhet.lazy import F, Tensor
from fedhet.strategies import class_vectors

TINY = 1e-12  # shortest length that a vector is divided by


class FedORGPParams(class_vectors.TrainedPrototypeParams):
    """Hyper-parameters of FedORGP."""

    lam: float = Field(10.0, ge=0)
    """lambda_c, weight of 1 - cos to the prototypes, >= 0; paper: 100"""
    lam_server: float = Field(1.0, ge=0)
    """lambda_s, weight of the server's attracting term, >= 0; paper: 1"""
    gamma: float = Field(10.0, ge=0)
    """weight of the server's repelling term, >= 0; paper: 10"""
    server_epochs: int = Field(10, ge=1, le=class_vectors.MOST_EPOCHS)
    """epochs of the server's prototypes per round; paper: 1, with more pairs"""


def cosines(vectors: Tensor, prototypes: Tensor) -> Tensor:
    """Return cos (B, C) of vectors (B, d) and prototypes (C, d); 0 of a vector of zeros."""
    return F.normalize(vectors, eps=TINY) @ F.normalize(prototypes, eps=TINY).T


class FedORGPStrategy(class_vectors.TrainedPrototypeStrategy[FedORGPParams]):
    """Trains the prototypes to point where the clients' do, and across the other classes'."""

    def pair_loss(self, labels: Tensor, vectors: Tensor) -> Tensor:
        """Return L_OR of a batch (eq. 3 to 5)."""
        cos, own = cosines(vectors, self.made()), labels[:, None]
        attracted = cos.gather(1, own).mean()
        repelled = cos.abs().scatter(1, own, 0.0).sum(dim=1).mean() / max(1, self.classes - 1)
        return self.params.lam_server * (1 - attracted) + self.params.gamma * repelled
