"""Averages: of one homogeneous module (LG-FedAvg, FedMRL, pFedES, ...) and of rows per class.

theta^t = sum_k (n_k / n) theta_k^t with n summed over the accepted replies of the round
(FedAvg, McMahan et al. 2017, arXiv 1602.05629, Algorithm 1).
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from fedhet.models.base import exchanged
from fedhet.protocol.identity import ClientInfo
from fedhet.protocol.payload import Array, ModelArrays, Payload
from fedhet.rng import torch_seeded
from fedhet.schema import P
from fedhet.strategies.base import MethodStrategy, Upload
from fedhet.strategies.robust import MEAN, ROBUST, Rule, capped

BLOCK = 8  # uploads whose numbers are float64 at a time: they stay in the cache


def weighted_mean(uploads: Sequence[Upload], rule: Rule = MEAN) -> tuple[Array, ...]:
    """Mean of payloads of equal shapes with the uploads' weights: float64 sums, float32 result.

    A rule other than the mean is taken coordinate by coordinate, without weights.
    """
    if rule.kind != "mean":
        columns = zip(*(upload.payload.flat for upload in uploads), strict=True)
        return tuple(rule.middle_of(list(column)) for column in columns)
    weights = np.array([upload.weight for upload in uploads], dtype=np.float64)
    stacks = zip(*(upload.payload.flat for upload in uploads), strict=True)
    return tuple(_weighted_sum(weights, stack).astype(np.float32) for stack in stacks)


def _weighted_sum(weights: Array, arrays: Sequence[Array]) -> Array:
    """sum_i weights_i arrays_i, float64; block by block, so that no second copy of all is made."""
    total = np.zeros(arrays[0].shape)
    for start in range(0, len(arrays), BLOCK):
        block = np.stack(arrays[start : start + BLOCK], dtype=np.float64)
        total += np.tensordot(weights[start : start + BLOCK], block, axes=1)
    return total


def class_means(
    classes: Array,
    rows: Sequence[Array],
    weights: Array | None,
    before: Array,
    rule: Rule = MEAN,
) -> Array:
    """Weighted mean of rows by class; classes without a row keep theirs of ``before``.

    ``rows`` are arrays (S_i, w) or (S_i,) float32 whose class ids, one after the other, are
    ``classes`` (M,); ``weights`` (M,) are all one if None. ``before`` and the result are (C, w) or
    (C,) float32. Sums are float64, in the order given. Rows pass through the processor's cache in
    blocks, so that 10,000 uploads cost little more than reading them. A rule other than the mean
    is taken row by row of a class and coordinate by coordinate, without weights; ``max-weight``
    bounds the share of one row in its class.
    """
    if rule.kind != "mean":
        return rule.middle_by_class(classes, np.concatenate(rows), before)
    if weights is not None and rule.max_weight < 1:
        weights = capped(weights, rule.max_weight, classes)
    shares = np.ones(len(classes)) if weights is None else weights
    totals = np.bincount(classes, shares, minlength=len(before))
    if before.ndim == 1:
        sums = np.bincount(classes, np.concatenate(rows) * shares, minlength=len(before))
    else:
        sums = _row_sums(classes, rows, weights, before.shape)
    present = totals > 0
    result = before.copy()
    means = sums[present] / totals[present].reshape(-1, *[1] * (before.ndim - 1))
    result[present] = means.astype(np.float32)
    return result


def _row_sums(
    classes: Array, rows: Sequence[Array], weights: Array | None, shape: tuple[int, ...]
) -> Array:
    """Sums (C, w) float64 of weighted rows by class."""
    sums = torch.zeros(shape, dtype=torch.float64)
    ids = torch.from_numpy(np.asarray(classes, dtype=np.int64))
    stops = np.cumsum([0, *(len(own) for own in rows)])
    edges = [*stops[:-1:BLOCK].tolist(), int(stops[-1])]
    buffer = np.empty((int(np.diff(edges).max()), *shape[1:]), dtype=np.float64)
    for i, (start, stop) in enumerate(pairwise(edges)):
        block = buffer[: stop - start]
        np.concatenate(rows[i * BLOCK : (i + 1) * BLOCK], out=block)
        if weights is not None:
            block *= weights[start:stop, None]
        sums.index_add_(0, ids[start:stop], torch.from_numpy(block))
    return sums.numpy()


class AveragingStrategy(MethodStrategy[P]):
    """Sends a shared module down, running statistics included, and averages what comes back."""

    upload_type: type[Payload] = ModelArrays
    aggregations = ROBUST

    @abstractmethod
    def shared_module(self) -> nn.Module:
        """A new instance of the module that crosses the wire (called inside a seeded context)."""

    def initialise(self) -> None:
        """Draw the shared module from the run's "global" generator."""
        with torch_seeded(self.config.seed, "global"):
            module = self.shared_module()
        named = exchanged(module)
        self.names = list(named)
        self.tensors = tuple(t.detach().numpy().copy() for t in named.values())

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """The shared module's arrays."""
        return ModelArrays(self.tensors)

    def audience(self, info: ClientInfo) -> Hashable:
        """The same for everybody."""
        return "all"

    def expect(self, info: ClientInfo) -> Payload | None:
        """The same shapes come back."""
        return ModelArrays(self.tensors)

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """The weighted mean replaces the shared module."""
        self.tensors = weighted_mean(uploads, self.rule)
        return {}

    def arrays(self) -> dict[str, Array]:
        """The shared module's parameters and running statistics by name."""
        return dict(zip(self.names, self.tensors, strict=True))

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        self.names, self.tensors = list(arrays), tuple(arrays.values())
