"""FedKD (Wu et al. 2022, arXiv 2108.13323).

"Communication-efficient federated learning via knowledge distillation".

Private are the mentor w_k, which is the client's own model, and W_h, a linear map d -> d without
bias; shared is a student theta (CNN-5; in a homogeneous run the clients' CNN). Per batch,
with n = CE_t + CE_s, the client minimises at once

    L_t = CE_t + KL(p_s || p_t) / n + L_h,    L_s = CE_s + KL(p_t || p_s) / n + L_h,
    L_h = MSE(H_t, W_h H_s) / n               (``FedKDClient.loss``)

n, at least 0.001, and the target side of each KL are constants. A KL is the sum over classes, and
an MSE the mean over d, of an example, both averaged over the batch: the paper's equations. L_h is
one term of two losses: its gradients at w_k, theta and W_h are each added once. Inference is by the
mentor.

Up: the student's update (after minus received), every matrix truncated to the smallest rank r that
holds the share E(t) = T_start + (T_end - T_start) t / T of its energy (t counts from 0; see
the functions below): U (m, r), S (r,), V (r, n) float32, or dense where that is no more;
at most 670,058 floats at C = 10. Ranks travel as integers. The server adds the weighted mean of the
updates to the student. Down: the student, dense. ``compress-down: true`` sends the mean update
instead, decomposed with the same E, which the server applies in its truncated form too; a client
that was not in the round of that update, and so holds another student, is sent the dense one. It
needs every client in every round.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedhet.config.schema import Params, RunConfig
from fedhet.errors import Rejected, RunFailed, UserError
from fedhet.lazy import torch
from fedhet.protocol.checks import check_shapes
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Array, LowRank, ModelArrays, Payload, blank
from fedhet.rng import one_thread
from fedhet.strategies.averaging import AveragingStrategy, pieces_of
from fedhet.strategies.base import Reference, Upload
from fedhet.strategies.rules import ROBUST

# --- truncated singular value decompositions --------------------------------------------------

ZERO, DENSE, WHOLE = 0, -1, -2
Shape = tuple[int, ...]


def smallest_rank(singular: Array, share: float) -> int:
    """Return how many singular values, largest first, hold this share of the energy, in (0, 1].

    0 only if all are zero; never more than there are.
    """
    if singular[0] == 0:
        return 0
    kept = np.cumsum(np.square(singular / singular[0], dtype=np.float64))  # squares may underflow
    return min(int(np.searchsorted(kept, share * kept[-1])) + 1, len(singular))


def whole(tensors: Sequence[Array]) -> LowRank:
    """Return the parameters themselves."""
    return LowRank(np.full(len(tensors), WHOLE, dtype=np.int64), tuple(tensors))


def compress(updates: Sequence[Array], share: float | None) -> LowRank:
    """Pack updates, keeping this share of every matrix's energy; None: send them whole.

    Raises RunFailed if one is not finite or cannot be decomposed.
    """
    ranks, tensors = [], []
    for update in updates:
        if not np.isfinite(update).all():
            raise RunFailed("the update is not finite: use a smaller lr, or grad-clip")
        rank, parts = DENSE, [update]
        if share is not None and update.ndim > 1:
            matrix = torch.from_numpy(update.reshape(len(update), -1).astype(np.float64))
            try:
                with one_thread():
                    u, s, v = (t.numpy() for t in torch.linalg.svd(matrix, full_matrices=False))
            except RuntimeError as error:  # torch.linalg.LinAlgError
                text = f"the decomposition of an update of shape {list(update.shape)} does not"
                raise RunFailed(f"{text} converge: use compress=off") from error
            fewest = smallest_rank(s, share)
            if fewest * (sum(matrix.shape) + 1) < update.size:
                rank, parts = fewest, [u[:, :fewest], s[:fewest], v[:fewest]] * (fewest > 0)
        ranks.append(rank)
        tensors += [part.astype(np.float32) for part in parts]
    return LowRank(np.array(ranks, dtype=np.int64), tuple(tensors))


def dense(payload: LowRank, shapes: Sequence[Shape]) -> list[Array]:
    """Return the updates as float64 arrays of these shapes."""
    updates, tensors = [], (tensor.astype(np.float64) for tensor in payload.tensors)
    for rank, shape in zip(payload.ranks.tolist(), shapes, strict=True):
        if rank > 0:
            u, s, v = (torch.from_numpy(next(tensors)) for _ in "usv")
            with one_thread():
                updates.append(((u * s) @ v).numpy().reshape(shape))
        else:
            updates.append(np.zeros(shape) if rank == ZERO else next(tensors))
    return updates


def apply(payload: LowRank, before: Sequence[Array]) -> tuple[Array, ...]:
    """Return the parameters after an update of ``before``, or those that came whole, float32."""
    if (payload.ranks == WHOLE).any():
        return payload.tensors
    updates = dense(payload, [old.shape for old in before])
    return tuple((old + new).astype(np.float32) for old, new in zip(before, updates, strict=True))


def update_norm(payload: LowRank, shapes: Sequence[Shape]) -> float:
    """Return the L2 norm of an update, which its factors' norms do not give."""
    return math.sqrt(sum(float(np.square(one).sum()) for one in dense(payload, shapes)))


def blanks(ranks: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Return blank tensors of an update with these ranks, as :func:`compress` makes them.

    Raises Rejected for ranks that it would not give to parameters of these shapes.
    """
    if ranks.shape != (len(shapes),) or ranks.dtype != np.int64:
        raise Rejected(f"ranks are {ranks.dtype}{list(ranks.shape)}, expected int64[{len(shapes)}]")
    expected: list[Shape] = []
    for i, (rank, shape) in enumerate(zip(ranks.tolist(), shapes, strict=True)):
        m, n = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, 1)
        if rank == DENSE:
            expected.append(shape)
        elif len(shape) > 1 and 0 <= rank * (m + n + 1) < m * n:
            expected += [(m, rank), (rank,), (rank, n)] * (rank > 0)
        else:
            raise Rejected(f"rank {rank} is not allowed for parameter {i} of shape {list(shape)}")
    return [blank(shape) for shape in expected]


# --- the method -------------------------------------------------------------------------------


class FedKDParams(Params):
    """Hyper-parameters of FedKD."""

    compress: Literal["svd", "off"] = Field("svd", description="how updates go up: svd, or dense")
    compress_down: bool = False
    """also send updates down as svd; needs fraction=1 and compress=svd"""
    t_start: float = Field(0.95, gt=0, le=1)
    """T_start, energy kept in round 1, in (0, 1]; paper: 0.95"""
    t_end: float = Field(0.98, gt=0, le=1)
    """T_end, energy kept in the end, in [T_start, 1]; paper: 0.98"""

    def share(self, round_: int, rounds: int) -> float | None:
        """Return E(t) of message round t + 1; None if updates are not compressed."""
        if self.compress == "off":
            return None
        return self.t_start + (self.t_end - self.t_start) * (round_ - 1) / rounds


class FedKDStrategy(AveragingStrategy[FedKDParams]):
    """Adds the mean of compressed updates to the student."""

    not_summed = "factors do not add up to the sum of updates; use method=fml"
    upload_type = LowRank
    growing = ("update-ranks", "update")  # both are empty before the first update
    aggregations = ROBUST
    shares_small_model = True
    plans_rounds = True  # the energy grows from t-start to t-end over all rounds

    @classmethod
    def check_config(cls, config: RunConfig, params: FedKDParams) -> None:
        """Check that energies grow, and that a compressed downlink has C = 100 %."""
        if params.t_end < params.t_start:
            least = f"at least t-start={params.t_start:g}"
            raise UserError(f"t-end: {params.t_end:g} is not allowed: {least}")
        if params.compress_down and (params.compress == "off" or config.fraction < 1):
            keys = f"compress={params.compress} fraction={config.fraction:g}"
            why = "it needs svd and 1, since a client that skips a round has an older student"
            raise UserError(f"compress-down: true is not allowed with {keys}: {why}")

    def initialise(self) -> None:
        """Draw the student; there is no update yet."""
        super().initialise()
        self.shapes = [tensor.shape for tensor in self.tensors]
        self.update = LowRank(np.zeros(0, dtype=np.int64), ())
        self.updated = 0  # the round of that update: who took part in it holds the student before
        self.sends_all = not self.params.compress_down

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the student, or the last update for a client that holds the student before it."""
        current = self.roster.generations[info.client] == self.updated > 0
        return self.update if self.params.compress_down and current else whole(self.tensors)

    def reference(self, info: ClientInfo) -> Reference:
        """Return the student; an update's shapes follow from its ranks: see :meth:`check`."""
        return Reference(ModelArrays(self.tensors), step=self._length)

    def check(self, info: ClientInfo, payload: LowRank) -> None:
        """Check that every tensor fits its rank and parameter."""
        check_shapes(payload.tensors, blanks(payload.ranks, self.shapes))

    def _length(self, payload: Any) -> float:
        norm, most = update_norm(payload, self.shapes), self.config.max_update_norm
        if not norm <= most:
            raise Rejected(f"norm {norm:.4g} of the update is above max-update-norm={most:g}")
        return norm / math.sqrt(sum(tensor.size for tensor in self.tensors))

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Move the student by the weighted mean of the updates."""
        share = self.params.share(round_, self.config.rounds)
        down = share if self.params.compress_down else None
        self.update, self.updated = compress(self._mean(uploads), down), round_
        self.tensors = apply(self.update, self.tensors)
        return {} if share is None else {"energy": share}

    def _mean(self, uploads: Sequence[Upload]) -> Sequence[Array]:
        if self.rule.name != "mean":
            dense_ones = (dense(upload.payload, self.shapes) for upload in uploads)
            each = ([update.astype(np.float32) for update in one] for one in dense_ones)
            columns = zip(*each, strict=True)
            return [self.rule.middle(column).astype(np.float32) for column in columns]
        totals = [np.zeros(shape) for shape in self.shapes]
        for upload in uploads:
            for total, update in zip(totals, dense(upload.payload, self.shapes), strict=True):
                np.add(total, upload.weight * update, out=total)
        return [total.astype(np.float32) for total in totals]

    def arrays(self) -> dict[str, Array]:
        """Return the student's parameters; with ``compress-down`` the last update as well."""
        if not self.params.compress_down:
            return super().arrays()
        factors = [np.zeros(0, np.float32), *(one.ravel() for one in self.update.tensors)]
        update = {"updated": np.array([self.updated]), "update-ranks": self.update.ranks}
        return super().arrays() | update | {"update": np.concatenate(factors)}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`arrays`; raise ValueError for factors of other ranks."""
        super().load(arrays)
        if self.params.compress_down:
            ranks = arrays["update-ranks"]
            like = blanks(ranks, self.shapes) if ranks.size else []
            self.update = LowRank(ranks, pieces_of(arrays["update"], like))
            self.updated = int(arrays["updated"][0])
