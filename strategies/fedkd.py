"""FedKD (Wu et al. 2022, arXiv 2108.13323).

"Communication-efficient federated learning via knowledge distillation".

Private are the mentor w_k, which is the client's own model, and W_h, a linear map d -> d without
bias; shared is a student theta (CNN-5; in a homogeneous run the clients' CNN). Per batch,
with n = CE_t + CE_s, the client minimises at once

    L_t = CE_t + KL(p_s || p_t) / n + L_h,    L_s = CE_s + KL(p_t || p_s) / n + L_h,
    L_h = MSE(H_t, W_h H_s) / n               (``FedKDClient.loss``)

n, at least 0.001, and the target side of each KL are constants. L_h is one term of two losses: its
gradients at w_k, theta and W_h are each added once. Inference is by the mentor.

Up: the student's update (after minus received), every matrix truncated to the smallest rank r that
holds the share E(t) = T_start + (T_end - T_start) t / T of its energy (t counts from 0; see
``fedhet.protocol.low_rank``): U (m, r), S (r,), V (r, n) float32, or dense where that is no more;
at most 670,058 floats at C = 10. Ranks travel as integers. The server adds the weighted mean of the
updates to the student. Down: the student, dense. ``compress-down: true`` sends the mean update
instead, decomposed with the same E, which the server applies in its truncated form too; a client
that was not in the round of that update, and so holds another student, is sent the dense one. It
needs every client in every round.

Differs from the authors' code (NLP only), where t runs one ahead, a full-rank matrix becomes zero,
kernels are not reshaped and nothing is detached; where public ones (HtFLlib, PFLlib) decompose
weights instead of updates; and from the paper, whose downlink is always compressed.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field
from torch import nn

from fedhet.config.schema import Params, RunConfig
from fedhet.errors import UserError
from fedhet.models.small import small_model
from fedhet.protocol.checks import Rejected, check_shapes, size
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.low_rank import (
    Shape,
    apply,
    blanks,
    compress,
    dense,
    energy,
    update_norm,
    whole,
)
from fedhet.protocol.payload import Array, LowRank, Payload
from fedhet.strategies.averaging import AveragingStrategy
from fedhet.strategies.base import Upload

if TYPE_CHECKING:
    from fedhet.protocol.handshake import Roster


class FedKDParams(Params):
    """Hyper-parameters of FedKD."""

    student: str = Field("", description="shared architecture; empty: small-model")
    compress: Literal["svd", "off"] = Field("svd", description="how updates go up: svd, or dense")
    compress_down: bool = Field(
        False, description="also send updates down as svd; needs fraction=1 and compress=svd"
    )
    t_start: float = Field(
        0.95, gt=0, le=1, description="T_start, energy kept in round 1, in (0, 1]; paper: 0.95"
    )
    t_end: float = Field(
        0.98, gt=0, le=1, description="T_end, energy kept in the end, in [T_start, 1]; paper: 0.98"
    )

    def share(self, round_: int, rounds: int) -> float | None:
        """E(t) of message round t + 1; None where updates are not compressed."""
        if self.compress == "off":
            return None
        return energy(self.t_start, self.t_end, round_, rounds)


class FedKDStrategy(AveragingStrategy[FedKDParams]):
    """Adds the mean of compressed updates to the student."""

    not_summed = (
        "uploads are factors of low rank, and a sum of factors is none of their products; whole "
        "updates would undo the method's compression: take fml, which shares a model as it is"
    )

    upload_type = LowRank
    shares_small_model = True
    plans_rounds = True  # the energy grows from t-start to t-end over all rounds

    @classmethod
    def own_small(cls, params: FedKDParams) -> str:
        """``student``."""
        return params.student

    @classmethod
    def check_config(cls, config: RunConfig, params: FedKDParams) -> None:
        """Energies that grow, a compressed downlink only at C = 100 %."""
        if params.t_end < params.t_start:
            raise UserError(
                f"t-end: {params.t_end:g} is not allowed: t-start is {params.t_start:g}"
            )
        if params.compress_down and params.compress == "off":
            raise UserError("compress-down: true is not allowed with compress=off")
        if params.compress_down and config.fraction < 1:
            raise UserError(
                f"compress-down: true is not allowed with fraction={config.fraction:g}: a client "
                "that skips a round holds another student; it needs fraction=1"
            )

    def __init__(self, config: RunConfig, roster: "Roster") -> None:
        super().__init__(config, roster)
        self.update = LowRank(np.zeros(0, dtype=np.int64), ())
        self.updated = 0  # the round of that update: who took part in it holds the student before

    def shared_module(self) -> nn.Module:
        """A student."""
        return small_model(self.config, self.inputs, self.params.student, self.classes)

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """The student, or the last update for a client that holds the student before it."""
        return self.update if self._is_current(info) else whole(self.tensors)

    def audience(self, info: ClientInfo) -> Hashable:
        """Those who are sent the student, and those who are sent the update."""
        return self._is_current(info)

    def expect(self, info: ClientInfo) -> Payload | None:
        """Shapes follow from the ranks: see :meth:`check`."""
        return None

    def check(self, info: ClientInfo, payload: Payload) -> None:
        """Every tensor fits its rank and parameter."""
        assert isinstance(payload, LowRank)
        check_updates(payload, self._shapes())

    def step_length(self, payload: Payload, length: float) -> float | None:
        """The update's own size: its factors' norms say nothing about that of their product."""
        assert isinstance(payload, LowRank)
        norm, most = update_norm(payload), self.config.max_update_norm
        if not norm <= most:
            raise Rejected(f"norm {norm:.4g} of the update is above max-update-norm={most:g}")
        return norm / math.sqrt(sum(tensor.size for tensor in self.tensors))

    def step_start(self, info: ClientInfo) -> float:
        """The student's size."""
        return size(self.tensors)

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """The weighted mean of the updates moves the student."""
        updates = self._mean(uploads)
        share = self.params.share(round_, self.config.rounds)
        self.update = compress(
            updates,
            share if self.params.compress_down else None,
        )
        self.updated = round_
        self.tensors = apply(self.update, self.tensors)
        return {} if share is None else {"energy": share}

    def _mean(self, uploads: Sequence[Upload]) -> list[Array]:
        """The updates' mean, float32, or what the run's rule takes of their coordinates."""
        payloads = [u.payload for u in uploads if isinstance(u.payload, LowRank)]
        if self.rule.kind != "mean":
            single = [[a.astype(np.float32) for a in dense(p, self._shapes())] for p in payloads]
            return [self.rule.middle_of(list(column)) for column in zip(*single, strict=True)]
        total = [np.zeros(shape, dtype=np.float64) for shape in self._shapes()]
        for upload, payload in zip(uploads, payloads, strict=True):
            for mean, update in zip(total, dense(payload, self._shapes()), strict=True):
                np.add(mean, upload.weight * update, out=mean)
        return [mean.astype(np.float32) for mean in total]

    def arrays(self) -> dict[str, Array]:
        """The student's parameters by name; with ``compress-down`` the last update as well."""
        if not self.params.compress_down:
            return super().arrays()
        update = {f"update/{i:05d}": tensor for i, tensor in enumerate(self.update.tensors)}
        numbers = {"updated": np.array([self.updated]), "update-ranks": self.update.ranks}
        return super().arrays() | update | numbers

    @property
    def growing(self) -> Collection[str]:
        """There are no ranks before the first update."""
        return ("update-ranks",)

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """With ``compress-down`` the last update's factors have the shapes that its ranks say."""
        if not self.params.compress_down:
            return super().check_arrays(arrays)
        factors, others = _parted(arrays)
        super().check_arrays(others)
        update = LowRank(others["update-ranks"], factors)
        if update.ranks.size or factors:
            check_updates(update, self._shapes())

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`."""
        student = dict(arrays)
        if self.params.compress_down:
            factors, student = _parted(arrays)
            self.update = LowRank(student.pop("update-ranks"), factors)
            self.updated = int(student.pop("updated")[0])
        super().load(student)

    def _is_current(self, info: ClientInfo) -> bool:
        """Whether the last update, sent compressed, is all that a client lacks."""
        held = self.roster.generations[info.client]
        return self.params.compress_down and held == self.updated > 0

    def _shapes(self) -> list[tuple[int, ...]]:
        return [tensor.shape for tensor in self.tensors]


def _parted(arrays: Mapping[str, Array]) -> tuple[tuple[Array, ...], dict[str, Array]]:
    """The factors of an update in their order, and everything else."""
    others = dict(arrays)
    names = sorted(name for name in arrays if name.startswith("update/"))
    return tuple(others.pop(name) for name in names), others


def check_updates(payload: LowRank, shapes: Sequence[Shape]) -> None:
    """Reject what ``compress`` would not have sent for these shapes."""
    try:
        expected = blanks(payload.ranks, shapes)
    except ValueError as error:
        raise Rejected(str(error)) from error
    check_shapes(payload.tensors, expected)
