"""FedGH (Yi, Wang, Liu, Shi and Yu 2023, arXiv 2303.13137).

"FedGH: Heterogeneous Federated Learning with Generalized Global Header".

Down: the global header, weight (C, d) and bias (C,) float32, C (d + 1) floats (5,010 at C = 10,
d = 500). The client overwrites its own header by it and trains all layers for E epochs. Up: for
every class s in S_k, class ids and images per class (|S_k|,) int64 and the mean representation
(|S_k|, d) float32, after training and in evaluation mode: |S_k| d floats (1,000 at two classes).
Server: one header, taken up where it was the round before, on the (mean representation, class)
pairs of the round in shuffled batches of ``batch-size``, cross-entropy, SGD without momentum
(``FedGHStrategy.aggregate``). Inference is by the local model.

A class that nobody sent has no pair of its own, and its row moves only by the softmax of the
others: as published. Clients count alike, whatever their number of images.
"""

from collections.abc import Mapping, Sequence

from pydantic import Field

from fedhet.config.schema import Params
from fedhet.lazy import F, Tensor, nn
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, ModelArrays, Payload
from fedhet.rng import torch_seeded
from fedhet.strategies.base import Upload, load_state, state_arrays
from fedhet.strategies.class_vectors import MOST_EPOCHS, ClassVectorStrategy


class FedGHParams(Params):
    """Hyper-parameters of FedGH."""

    server_epochs: int = Field(1, ge=1, le=MOST_EPOCHS)
    """epochs of the server's header per round; HtFLlib: 100"""
    server_lr: float = Field(0.01, gt=0)
    """learning rate of the server's header, plain SGD; HtFLlib: 0.01"""


class FedGHStrategy(ClassVectorStrategy[FedGHParams]):
    """Trains one header on the clients' mean representations."""

    broadcasts = True
    not_summed = "its server trains on each client's representations; use method=fedproto"

    def initialise(self) -> None:
        """Draw the header from the run's "global" generator."""
        with torch_seeded(self.config.seed, "global"):
            self.header = nn.Linear(self.d, self.classes)

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the header."""
        return ModelArrays(tuple(self.arrays().values()))

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Train the header for ``server-epochs`` over the pairs of this round."""
        return self.train_on_pairs(self.header, self.pair_loss, uploads, round_)

    def pair_loss(self, labels: Tensor, vectors: Tensor) -> Tensor:
        """Return the header's cross-entropy on mean representations."""
        return F.cross_entropy(self.header(vectors), labels)

    def arrays(self) -> dict[str, Array]:
        """Return the global header: weight (C, d), bias (C,)."""
        return state_arrays(self.header)

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        load_state(self.header, arrays)
