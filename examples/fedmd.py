"""FedMD (Li and Wang 2019, arXiv 1910.03581): models meet on a public data set, in their outputs.

No model crosses the wire and none is shared: clients send their logits on some public images, the
server averages them, and every client comes closer to that consensus before it trains on its own
images. Up: (n, C) floats for the n = `alignment` public images of the next round; down: as many,
their unweighted mean (nothing in round 1). Run it here with

    fedhet run quickstart method=fedmd:METHOD public=digits alignment=500

Digestion minimises the mean absolute error between logits, as the authors' code does. Differs from
the paper: a round is one exchange, so the logits on round t's images are those after round t - 1
(with `fraction=1` the paper's, whose clients do nothing in between); public labels are not trained
on before round 1, since public classes need not be the clients'. `aggregation=median` is a
consensus that some liars cannot move (as in Cronus, Chang et al. 2019, arXiv 1912.11279).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedhet.clients.base import MethodClient
from fedhet.config.registry import Method
from fedhet.config.schema import Params, RunConfig
from fedhet.data.cache import Dataset, open_dataset
from fedhet.data.preparation import preparation
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, Payload
from fedhet.rng import generator
from fedhet.strategies.averaging import means_of, sum_uploads
from fedhet.strategies.base import MethodStrategy, Reference, Upload
from fedhet.strategies.rules import ROBUST
from fedhet.training.loop import Examples, Phase, outputs_on


class FedMDParams(Params):
    """Hyper-parameters of FedMD."""

    public: str = Field(
        "digits", pattern=r"^(digits|cifar100?|fashion-mnist|synthetic:[0-9]+x[0-9]+)$",
        description="public data set, which every site has by its name",
    )  # fmt: skip
    alignment: int = Field(5000, ge=1, description="public images per round; authors: 5000")
    digest_epochs: int = Field(1, ge=1, description="epochs towards the consensus; authors: 1")


@lru_cache(maxsize=2)
def public_set(config: RunConfig, name: str) -> Dataset:
    """Return the public images; of another seed than the clients', should both be synthetic."""
    return open_dataset(
        name, image_size=config.image_size, grey=config.grey, seed=config.data_seed + 1
    )


def aligned(config: RunConfig, params: FedMDParams, round_: int, device: torch.device) -> Examples:
    """Return a round's public images, the same at every client; labels are places among them."""
    dataset = public_set(config, params.public)
    drawn = generator(config.seed, "public", round_=round_).permutation(len(dataset.labels))
    chosen = np.sort(drawn[: params.alignment])
    images = torch.from_numpy(np.ascontiguousarray(dataset.examples[chosen]))
    places = torch.arange(len(chosen), device=device)
    return Examples(images.to(device), places, preparation(dataset.inputs))


@dataclass(frozen=True)
class Scores(Payload):
    """Logits (n, C) float32 on the public images of a round (1,) int64; (0, C): none yet."""

    round: Array
    logits: Array


class FedMDStrategy(MethodStrategy[FedMDParams]):
    """Averages logits."""

    broadcasts = True
    upload_type = Scores
    aggregations = ROBUST
    unweighted = "every client's logits count the same"
    growing = ("logits",)  # none before anybody has spoken

    def initialise(self) -> None:
        """There is no consensus before anybody has spoken."""
        self.consensus = Scores(np.array([1]), np.zeros((0, self.classes), dtype=np.float32))

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the consensus of the last round that counted."""
        return self.consensus

    def reference(self, info: ClientInfo) -> Reference:
        """Logits on as many images as a round takes."""
        public = public_set(self.config, self.params.public)
        images = min(self.params.alignment, len(public.labels))
        logits = np.zeros((images, self.classes), dtype=np.float32)
        return Reference(replace(self.consensus, logits=logits))

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Return the unweighted mean."""
        equal = [replace(upload, weight=1 / len(uploads)) for upload in uploads]
        _, mean = means_of(sum_uploads(equal, self.rule), equal[0].payload.flat)
        self.consensus = Scores(np.array([round_ + 1]), mean)
        return {}

    def arrays(self) -> dict[str, Array]:
        """Return the consensus."""
        return {"round": self.consensus.round, "logits": self.consensus.logits}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        self.consensus = Scores(**arrays)


class FedMDClient(MethodClient[FedMDParams]):
    """Digests the consensus, trains on its own images, says what it thinks of the next ones."""

    download_type = Scores
    shares_model = False

    def receive(self, payload: Payload) -> None:
        """Keep the consensus."""
        assert isinstance(payload, Scores)
        self.exchanged = int(payload.round[0])
        self.consensus = torch.as_tensor(payload.logits).to(self.device)

    def phases(self) -> list[Phase]:
        """Digest, then revisit the private images."""
        private = super().phases()
        if not len(self.consensus):
            return private
        images = aligned(self.config, self.params, self.exchanged, self.device)
        groups, epochs = [(self.model, self.config.lr)], self.params.digest_epochs
        digest = Phase(self.digest, groups, epochs, name="digest", data=images)
        return [digest, *private]

    def digest(self, inputs: Tensor, places: Tensor) -> Tensor:
        """Mean absolute error between logits (B, C) and the consensus."""
        return F.l1_loss(self.model(inputs).float(), self.consensus[places])

    def upload(self) -> Payload:
        """Logits on the next round's public images."""
        following = self.round + 1
        images = aligned(self.config, self.params, following, self.device)
        logits = outputs_on(self.model, images, self.config)
        return Scores(np.array([following]), logits.cpu().numpy())


METHOD = Method(FedMDStrategy, FedMDClient, "logits on public images are averaged", FedMDParams)
