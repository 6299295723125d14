"""Average one homogeneous module (LG-FedAvg, FedMRL, pFedES, ...), or rows per class.

A method gives whole payloads to :func:`sum_uploads`, or rows of classes to :func:`sum_by_class`,
and the result to its ``combine``, which is also given the sums of ``secure-sum``. A trimmed mean or
a median (``aggregation``) is returned as the sum of one upload of weight 1.

theta^t = sum_k (n_k / n) theta_k^t with n summed over the accepted replies of the round
(FedAvg, McMahan et al. 2017, arXiv 1602.05629, Algorithm 1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedhet.config.schema import P
from fedhet.lazy import nn, torch
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, ModelArrays, Payload
from fedhet.rng import torch_seeded
from fedhet.strategies.base import MethodStrategy, Reference, Upload
from fedhet.strategies.rules import MEAN, ROBUST, Rule, capped
from fedhet.sums.contribution import Own, Summand, Vector, too_few

BLOCK = 8  # uploads whose numbers are float64 at a time: they stay in the cache


def sum_uploads(uploads: Sequence[Upload], rule: Rule = MEAN) -> Vector:
    """Return the :func:`weighted_sum` of uploads, whose shares add up to 1 but for rounding.

    A rule other than the mean is taken coordinate by coordinate, without weights.
    """
    payloads = [upload.payload for upload in uploads]
    if rule.name != "mean":
        columns = zip(*(payload.flat for payload in payloads), strict=True)
        return np.append(np.concatenate([rule.middle(c).ravel() for c in columns]), 1.0)
    total = weighted_sum(payloads, [upload.weight for upload in uploads])
    total[-1] = 1.0
    return total


def weighted_sum(payloads: Sequence[Payload], weights: Sequence[float]) -> Vector:
    """Return the weighted sum (L + 1,) float64 of flat payloads, and at its end of the weights.

    Block by block over the payloads, so that no second copy of all is made.
    """
    shares = np.array(weights, dtype=np.float64)
    parts = []
    for stack in zip(*(payload.flat for payload in payloads), strict=True):
        part = np.zeros(stack[0].shape)
        for first in range(0, len(stack), BLOCK):  # by BLAS: other orders differ in the last bits
            block = np.stack(stack[first : first + BLOCK], dtype=np.float64)
            part += np.tensordot(shares[first : first + BLOCK], block, axes=1)
        parts.append(part.ravel())
    return np.concatenate([*parts, [shares.sum()]])


def means_of(total: Vector, like: Sequence[Array]) -> tuple[Array, ...]:
    """Return :func:`weighted_sum`'s sum over the weights: float32, of the shapes of ``like``.

    Without any weight ``like`` stays as it is.
    """
    if not total[-1] > 0:
        return tuple(like)
    return pieces_of((total[:-1] / total[-1]).astype(np.float32), like)


def pieces_of(flat: Array, like: Sequence[Array]) -> tuple[Array, ...]:
    """Return ``flat`` (L,) cut into the shapes of ``like``; ValueError for another length."""
    *parts, left = np.split(flat, np.cumsum([one.size for one in like], dtype=np.int64))
    if left.size:
        raise ValueError(f"{left.size} numbers are left over")
    return tuple(part.reshape(one.shape) for part, one in zip(parts, like, strict=True))


@dataclass(frozen=True)
class ClassSums:
    """Weighted rows (C, w) summed by class, their weights (C,) and owners (C,), all float64.

    If every row weighs 1 the weights are the owners. A class with a weight has a mean.
    """

    rows: Vector
    weights: Vector
    owners: Vector

    def summand(self, own: Own, *, weighted: bool = False) -> Summand:
        """Return the rows of the classes that ``own`` shares, zeros of the others.

        The counts are the weights, if not equal to the owners, and the owners.
        """
        kept = own.shares(np.arange(own.classes))
        owners, weights = np.where(kept, self.owners, 0.0), np.where(kept, self.weights, 0.0)
        counts = np.concatenate([weights, owners]) if weighted else owners
        return Summand(np.where(kept[:, None], self.rows, 0.0).ravel(), counts)

    @property
    def present(self) -> Array:
        """Return which classes (C,) have a mean."""
        return np.asarray(self.weights > 0)

    def means(self, before: Array, *, steps: bool = False) -> Array:
        """Return means (C, w) float32; classes without one keep theirs of ``before``.

        With ``steps`` the rows are steps from there.
        """
        present, result = self.present, before.copy()
        means = (self.rows[present] / self.weights[present, None]).astype(np.float32)
        result[present] = before[present] + means if steps else means
        return result


def class_totals(
    strategy: MethodStrategy[Any], total: Vector, *, weighted: bool = False
) -> ClassSums:
    """Return a round's total by class: the inverse of :meth:`ClassSums.summand`.

    A class with fewer than ``sum-owners`` owners has no weight.
    """
    classes, least = strategy.classes, strategy.min_owners
    rows, counts = np.split(total, [-classes * (2 if weighted else 1)])
    owners = counts[-classes:]
    strategy.short_classes = too_few(owners, least)
    weights = np.where(owners >= least, counts[:classes], 0.0)
    return ClassSums(rows.reshape(classes, -1), weights, owners)


def sum_by_class(
    payloads: Sequence[Any], weights: Sequence[Array | float] | None, count: int, rule: Rule = MEAN
) -> ClassSums:
    """Return sums by class, float64 and in the order given, of payloads with ``classes`` (S_i,).

    A row is all floats that a payload has for a class; the ``weights`` () or (S_i,) of its rows are
    one if None. ``max-weight`` bounds the share of one row in its class. A rule other than the mean
    is taken without weights, as if one client had each class.
    """
    ids = np.concatenate([one.classes for one in payloads])
    floats = ([a for a in one.flat if a.dtype.kind == "f"] for one in payloads)
    rows = np.concatenate(list(map(np.column_stack, floats)))
    owners = np.bincount(ids, minlength=count).astype(np.float64)
    if rule.name != "mean":
        middles, present = np.zeros((count, rows.shape[1])), np.minimum(owners, 1.0)
        for one in np.unique(ids):
            middles[one] = rule.middle(rows[ids == one])
        return ClassSums(middles, present, present)
    wide, behind = rows.astype(np.float64), owners
    if weights is not None:
        pairs = zip(payloads, weights, strict=True)
        each = np.concatenate([np.full(len(one.classes), weight) for one, weight in pairs])
        if rule.max_weight < 1:
            each = capped(each, rule.max_weight, ids)
        behind = np.bincount(ids, each, count).astype(np.float64)
        wide *= each[:, None]
    sums = torch.zeros((count, wide.shape[1]), dtype=torch.float64)
    sums.index_add_(0, torch.from_numpy(ids), torch.from_numpy(wide))
    return ClassSums(sums.numpy(), behind, owners)


class AveragingStrategy(MethodStrategy[P]):
    """Sends a shared module with running statistics, and averages the uploads."""

    upload_type: type[Payload] = ModelArrays
    aggregations: ClassVar[Sequence[str]] = ROBUST
    not_summed = ""
    broadcasts = True
    noise_on_steps = True
    weighs_late = True
    shares_extractor = False  # whether the small model's header is left out

    def shared_module(self) -> "nn.Module":
        """Return a new module that crosses the wire (called inside a seeded context).

        By default the small model if ``shares_small_model``, without its header if
        ``shares_extractor``; else a header d -> C.
        """
        if self.shares_extractor or self.shares_small_model:
            from fedhet.models.zoo import small_model  # noqa: PLC0415  (torch)

            header = not self.shares_extractor
            return small_model(self.config, self.inputs, self.classes, header=header)
        return nn.Linear(self.d, self.classes)

    def initialise(self) -> None:
        """Draw the shared module from the run's "global" generator."""
        from fedhet.models.networks import exchanged  # noqa: PLC0415  (torch)

        with torch_seeded(self.config.seed, "global"):
            module = self.shared_module()
        named = exchanged(module)
        self.names = list(named)
        self.tensors = tuple(t.detach().numpy().copy() for t in named.values())

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the shared module's arrays."""
        return ModelArrays(self.tensors)

    def reference(self, info: ClientInfo) -> Reference:
        """Return the same arrays, whose shapes an upload has."""
        return Reference(ModelArrays(self.tensors))

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Replace the shared module by the uploads' mean, trimmed mean or median."""
        return self.combine(sum_uploads(uploads, self.rule), round_)

    @classmethod
    def contribution(cls, upload: Payload, own: Own) -> Summand:
        """Return w_k times the shared arrays, flat, and w_k."""
        total = weighted_sum([upload], [own.weight])
        return Summand(total[:-1], total[-1:])

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]:
        """Replace the shared module by the weighted mean."""
        means = means_of(total, self.tensors)
        if self.adds_steps and total[-1] > 0:
            means = tuple(old + step for old, step in zip(self.tensors, means, strict=True))
        self.tensors = means
        return {}

    def arrays(self) -> dict[str, Array]:
        """Return the shared module's parameters and running statistics by name."""
        return dict(zip(self.names, self.tensors, strict=True)) | super().arrays()

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`; ``arrays`` may hold others as well."""
        super().load(arrays)
        self.tensors = tuple(arrays[name] for name in self.names)
