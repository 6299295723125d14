"""The server half of methods whose clients send one vector per class that they have seen."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, cast

import numpy as np
from pydantic import Field

from fedhet.config.schema import P, Params
from fedhet.lazy import Tensor, nn, torch
from fedhet.protocol.checks import check_declared
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, ClassVectors, Payload, blank
from fedhet.rng import one_thread, torch_seed, torch_seeded
from fedhet.strategies.base import MethodStrategy, Reference, Upload

if TYPE_CHECKING:
    from fedhet.training.loop import SGD

log = logging.getLogger("fedhet")
MOST_EPOCHS = 10_000  # of the keys `server-epochs`
PairLoss = Callable[[Tensor, Tensor], Tensor]  # of labels (B,) int64 and vectors (B, w) float32


def declared(info: ClientInfo) -> tuple[Array, Array]:
    """Return the class ids (S,), ascending, that a client declared, and images of each, int64."""
    return np.array(info.seen, dtype=np.int64), np.array(info.images, dtype=np.int64)


class ClassVectorStrategy(MethodStrategy[P]):
    """Accepts exactly the declared classes, each once, with the declared numbers of images."""

    upload_type: type[Payload] = ClassVectors
    sends_class_rows = True
    unweighted = "vectors are combined class by class"
    bounded = True  # whether `max-update-ratio` holds; else `check` bounds the vectors

    @property
    def width(self) -> int:
        """w, floats per vector: by default the representation's d."""
        return self.d

    def reference(self, info: ClientInfo) -> Reference:
        """Return |S_k| vectors."""
        own, images = declared(info)
        vectors = ClassVectors(own, images, blank((len(own), self.width)))
        return Reference(vectors, bounded=self.bounded)

    def check(self, info: ClientInfo, payload: ClassVectors) -> None:
        """Check the declared classes and counts."""
        own, images = declared(info)
        check_declared("vectors of classes", payload.classes, own)
        check_declared("images per class", payload.counts, images)

    def train_on_pairs(
        self, module: "nn.Module", loss: PairLoss, uploads: Sequence[Upload], round_: int
    ) -> dict[str, float]:
        """Train ``module`` by ``server-epochs`` of SGD on ``loss(labels, vectors)`` of ``uploads``.

        In batches of ``batch-size``, shuffled for round ``round_``. Return the numbers of
        :func:`train_on_server`.
        """
        from fedhet.training.loop import SGD, batches  # noqa: PLC0415  (torch)

        labels = torch.from_numpy(np.concatenate([one.payload.classes for one in uploads]))
        vectors = torch.from_numpy(np.concatenate([one.payload.vectors for one in uploads]))
        params = cast("TrainedPrototypeParams", self.params)
        draws = torch.Generator().manual_seed(torch_seed(self.config.seed, "server", round_=round_))
        orders = (torch.randperm(len(labels), generator=draws) for _ in range(params.server_epochs))
        steps = (batch for order in orders for batch in batches(order, self.config.batch_size))
        optimiser = SGD([(list(module.parameters()), params.server_lr)])
        return train_on_server(module, optimiser, lambda i: loss(labels[i], vectors[i]), steps)


class PrototypeParams(Params):
    """Hyper-parameters of methods that pull representations towards prototypes."""

    lam: float = Field(1.0, ge=0)
    """lambda, weight of the mean-MSE to the prototypes, >= 0; code: 1"""
    download_classes: Literal["seen", "all"] = "seen"
    """prototypes sent down: of the client's classes, or of every class"""


PP = TypeVar("PP", bound=PrototypeParams)


class PrototypeStrategy(ClassVectorStrategy[PP]):
    """Keeps a prototype per class (C, d) and its images (C,) int64; sends the known ones."""

    state: ClassVar[Sequence[str]] = ("prototypes", "counts")

    def initialise(self) -> None:
        """Start without prototypes."""
        self.prototypes: Array = np.zeros((self.classes, self.d), dtype=np.float32)
        self.counts: Array = np.zeros(self.classes, dtype=np.int64)

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the known prototypes, with the number of images of each."""
        whole = self.params.download_classes == "all" or self.sends_all
        wanted = np.arange(self.classes, dtype=np.int64) if whole else declared(info)[0]
        sent = wanted[self.counts[wanted] > 0]
        return ClassVectors(sent, self.counts[sent], self.prototypes[sent])

    def count(self, uploads: Sequence[Upload]) -> Mapping[str, float]:
        """Keep the number of images of each class that came; return how many classes are known."""
        behind = np.zeros_like(self.counts)
        for upload in uploads:
            behind[upload.payload.classes] += upload.payload.counts
        self.counts = np.where(behind > 0, behind, self.counts)
        return self.known()

    def known(self) -> dict[str, float]:
        """Return how many classes have a prototype."""
        return {"known_classes": float((self.counts > 0).sum())}


# --- training on the server (FedGH, FedTGP, FedORGP, FedGen) ------------------------------------
# It is deterministic (draws by purpose "server" and round, float32, one thread of the CPU), bounded
# (a fixed number of steps; what is not finite after them is thrown away), and outlives a crash:
# what it moves are the strategy's `arrays`.


def train_on_server(
    module: "nn.Module", optimiser: "SGD", loss: Callable[[Tensor], Tensor], steps: Iterable[Tensor]
) -> dict[str, float]:
    """Make one step on ``loss(batch)`` for every batch of ``steps``; return numbers.

    ``module`` is what the optimiser moves. If it ends with NaN or infinity it is put back as it was
    and ``server_discarded`` is 1; otherwise ``server_loss`` is the mean loss of the steps.
    """
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    total, count = torch.zeros((), dtype=torch.float64), 0
    module.train()
    with one_thread():
        for batch in steps:
            optimiser.clear()
            value = loss(batch)
            torch.autograd.backward(value)
            optimiser.step()
            total += value.detach()
            count += 1
    optimiser.clear()
    module.eval()
    if not all(bool(tensor.isfinite().all()) for tensor in module.state_dict().values()):
        log.warning("the server's training did not stay finite and is thrown away")
        module.load_state_dict(before)
        return {"server_discarded": 1.0}
    return {"server_discarded": 0.0, "server_loss": float(total) / max(1, count)}


# --- prototypes that the server trains (FedTGP, FedORGP) ----------------------------------------


class TrainedPrototypeParams(PrototypeParams):
    """Hyper-parameters of methods whose server trains its prototypes."""

    server_epochs: int = Field(100, ge=1, le=MOST_EPOCHS)
    """S, epochs of the server's prototypes per round; paper: 100"""
    server_lr: float = Field(0.01, gt=0)
    """learning rate of the server's prototypes, plain SGD; code: 0.01"""
    download_classes: Literal["seen", "all"] = "all"
    """prototypes sent down: of the client's classes, or of every class"""


TP = TypeVar("TP", bound=TrainedPrototypeParams)


class TrainedPrototypeStrategy(PrototypeStrategy[TP]):
    """Trains the prototypes that it sends on the pairs (prototype, class) of each round."""

    not_summed = "its server trains on each client's prototypes; use method=fedproto"
    state = ("prototypes", "counts", "trainable")

    def initialise(self) -> None:
        """Draw embedding and layers from the run's "global" generator; no class is known."""
        super().initialise()
        with torch_seeded(self.config.seed, "global"):
            embedding = nn.Embedding(self.classes, self.d)
            middle, fc = (nn.Linear(self.d, self.d) for _ in range(2))
        self.trainable = nn.ModuleDict({"embedding": embedding, "middle": middle, "fc": fc})

    def made(self) -> Tensor:
        """Return all prototypes (C, d), made from the embedding by two layers."""
        embedding, middle, last = self.trainable.values()
        prototypes: Tensor = last(middle(embedding.weight).relu())
        return prototypes

    def pair_loss(self, labels: Tensor, vectors: Tensor) -> Tensor:
        """Return the loss of a batch of the round's pairs, (B,) and (B, d)."""
        raise NotImplementedError

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Train the prototypes on those of this round."""
        trained = self.train_on_pairs(self.trainable, self.pair_loss, uploads, round_)
        with torch.inference_mode():
            self.prototypes = self.made().numpy().copy()
        return {**self.count(uploads), **trained}
