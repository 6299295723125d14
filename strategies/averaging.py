"""Weighted averaging of one homogeneous module: what LG-FedAvg, FedMRL, pFedES and others do.

theta^t = sum_k (n_k / n) theta_k^t with n summed over the accepted replies of the round
(FedAvg, McMahan et al. 2017, arXiv 1602.05629, Algorithm 1).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from fedhet.payload import Array, ModelArrays, Payload
from fedhet.rng import torch_seeded
from fedhet.roster import ClientInfo
from strategies.base import MethodStrategy, Upload


def weighted_mean(uploads: Sequence[Upload]) -> tuple[Array, ...]:
    """Mean of payloads of equal shapes with the uploads' weights: float64 sums, float32 result."""
    weights = np.array([upload.weight for upload in uploads], dtype=np.float64)
    stacks = zip(*(upload.payload.to_ndarrays() for upload in uploads), strict=True)
    return tuple(
        np.tensordot(weights, np.stack(stack).astype(np.float64), axes=1).astype(np.float32)
        for stack in stacks
    )


class AveragingStrategy(MethodStrategy):
    """Sends all parameters of a shared module down and averages what comes back."""

    upload_type = ModelArrays

    @abstractmethod
    def shared_module(self) -> nn.Module:
        """A new instance of the module that crosses the wire (called inside a seeded context)."""

    def initialise(self) -> None:
        """Draw the shared module from the run's "global" generator."""
        with torch_seeded(self.config.seed, "global"):
            module = self.shared_module()
        named = list(module.named_parameters())
        self.names = [name for name, _ in named]
        self.tensors = tuple(p.detach().numpy().copy() for _, p in named)

    def payload(self, info: ClientInfo, round_: int) -> Payload:
        """The shared module's parameters, the same for everybody."""
        return ModelArrays(self.tensors)

    def expect(self, info: ClientInfo) -> Payload | None:
        """The same shapes come back."""
        return ModelArrays(self.tensors)

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """The weighted mean replaces the shared module."""
        self.tensors = weighted_mean(uploads)
        return {}

    def arrays(self) -> dict[str, Array]:
        """The shared module's parameters by name."""
        return dict(zip(self.names, self.tensors, strict=True))

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        self.tensors = tuple(arrays[name] for name in self.names)
