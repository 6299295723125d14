"""FedGen (Zhu, Hong and Zhou 2021, arXiv 2105.10056), in its form for heterogeneous models.

"Data-Free Knowledge Distillation for Heterogeneous Federated Learning".

Shared are the header and a generator of representations G(z, y): the noise z, 32 numbers uniform in
[0, 1), and the one-hot label -> Linear -> 512 -> BatchNorm -> ReLU -> Linear -> d. Down: the images
per class that the federation's clients declared (C,) int64, the mean header, weight (C, d) and bias
(C,), and G's parameters and running statistics, float32: 5,010 + 280,564 floats at C = 10, d = 500.
The client overwrites its header and minimises, with labels y' drawn by those images per class,

    CE(header(f(x)), y) + CE(header(G(z, y')), y')        (``FedGenClient.loss``)

for E epochs, G frozen in evaluation mode. Up: its header, 5,010 floats. Server: the header's
n_k-weighted mean; then ``server-epochs`` steps of Adam for G on

    CE(sum_k (n_k / n) header_k(G(z, y)), y)              (``FedGenStrategy.aggregate``)

with ``batch-size`` labels each. Headers are linear, so that this sum is the mean header's answer.
Adam goes on with its moments from round to round, as HtFLlib's does: started anew, its first steps
are as long for a gradient of rounding as for any. Inference is by the local model.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from fedhet.config.schema import Params
from fedhet.lazy import F, Tensor, nn, torch
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, Float32, Int64, Payload, rest
from fedhet.rng import torch_seed, torch_seeded
from fedhet.strategies.averaging import AveragingStrategy
from fedhet.strategies.base import Upload
from fedhet.strategies.class_vectors import MOST_EPOCHS, train_on_server
from fedhet.strategies.rules import ROBUST

MOMENTS = "adam."  # before the names of Adam's arrays in a checkpoint


class FedGenParams(Params):
    """Hyper-parameters of FedGen."""

    server_epochs: int = Field(100, ge=1, le=MOST_EPOCHS)
    """steps of the generator per round; HtFLlib: 100"""
    server_lr: float = Field(0.005, gt=0)
    """learning rate of the generator, Adam; HtFLlib: 0.005"""
    noise: int = Field(32, ge=1, le=4096, description="numbers of noise; HtFLlib: 512")
    hidden: int = Field(512, ge=1, le=4096, description="width of the generator; HtFLlib: 512")


@dataclass(frozen=True)
class HeaderAndGenerator(Payload):
    """Images per class (C,) int64; then header weight and bias and G's floating state, float32."""

    images: Int64
    tensors: tuple[Float32, ...] = rest()


def new_generator(params: FedGenParams, classes: int, d: int) -> "nn.Module":
    """Return G: noise (B, z) beside labels, one-hot (B, C), to representations (B, d)."""
    layers = nn.Sequential(
        nn.Linear(params.noise + classes, params.hidden),
        nn.BatchNorm1d(params.hidden),
        nn.ReLU(),
        nn.Linear(params.hidden, d),
    )
    return nn.Sequential(OrderedDict(body=layers))


def sampled(
    generator: "nn.Module", noise: int, shares: Tensor, count: int, draws: "torch.Generator"
) -> tuple[Tensor, Tensor]:
    """Return representations (count, d) and their labels (count,), drawn by ``shares`` (C,).

    ``noise`` is z. The labels are where uniform numbers fall among the sums of the shares, which a
    CUDA graph can draw.
    """
    uniform = torch.rand(count, generator=draws, device=shares.device)
    edges = shares.cumsum(0)
    labels = torch.searchsorted(edges, uniform * edges[-1], right=True).clamp(max=len(shares) - 1)
    drawn = torch.rand(count, noise, generator=draws, device=shares.device)
    return generator(torch.cat([drawn, F.one_hot(labels, len(shares))], dim=1)), labels


class FedGenStrategy(AveragingStrategy[FedGenParams]):
    """Averages headers and trains a generator whose representations their mean classifies."""

    not_summed = "its server needs each client's images per class; use method=lg_fedavg"
    aggregations = ROBUST
    state = ("generator",)

    def initialise(self) -> None:
        """Draw the header and G."""
        super().initialise()
        with torch_seeded(self.config.seed, "generator"):
            self.generator = new_generator(self.params, self.classes, self.d).eval()
        self._forget_moments()

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return images per class, header and G."""
        from fedhet.models.networks import exchanged  # noqa: PLC0415  (torch)

        arrays = (tensor.detach().numpy() for tensor in exchanged(self.generator).values())
        return HeaderAndGenerator(self._images(), (*self.tensors, *arrays))

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Set the mean header; then train G by that header's answers."""
        super().aggregate(uploads, round_)
        weight, bias = (torch.from_numpy(tensor) for tensor in self.tensors)
        shares = torch.from_numpy(self._images()).float()
        draws = torch.Generator().manual_seed(torch_seed(self.config.seed, "server", round_=round_))

        def loss(count: Tensor) -> Tensor:
            features, labels = sampled(self.generator, self.params.noise, shares, int(count), draws)
            return F.cross_entropy(F.linear(features, weight, bias), labels)

        steps = torch.full((self.params.server_epochs,), self.config.batch_size)
        numbers = train_on_server(self.generator, self.optimiser, loss, steps)
        if numbers["server_discarded"]:
            self._forget_moments()
        return numbers

    def arrays(self) -> dict[str, Array]:
        """Return the header by name, G's whole state, and Adam's moments."""
        moments = {name: tensor.numpy().copy() for name, tensor in self._moments()}
        return super().arrays() | moments

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        super().load(arrays)
        for name, tensor in self._moments():
            tensor.copy_(torch.tensor(arrays[name]))

    def _forget_moments(self) -> None:
        from fedhet.training.loop import Adam  # noqa: PLC0415  (torch)

        self.optimiser = Adam([(list(self.generator.parameters()), self.params.server_lr)])

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.generator.named_parameters():
            kinds = ("first", "second", "steps")
            for kind, tensor in zip(kinds, self.optimiser.of(parameter), strict=True):
                yield f"{MOMENTS}{kind}.{name}", tensor.detach()

    def _images(self) -> Array:
        """Return images per class (C,) int64 over the clients that are known."""
        total = np.zeros(self.classes, dtype=np.int64)
        for info in self.roster.infos.values():
            np.add.at(total, list(info.seen), list(info.images))
        return total
