"""HetLoRA and its kin: LoRA adapters of unequal ranks over one pretrained network.

The clients have the same network W, frozen, and adapters of a rank of their own on the same layers
(``models='hf:FOLDER lora=4,hf:FOLDER lora=16'``): y = W x + B_k A_k x, A_k (r_k, n), B_k (m, r_k).
Only adapters are sent; projection and header stay private. The mean map of a layer is
M = sum_k w_k B_k A_k with w_k = n_k / n. A mean of the factors is another map: it lacks
sum_k w_k (B_k - mean B)(A_k - mean A), a covariance, whose share ||M - mean(B) mean(A)|| / ||M|| is
recorded in each round as ``lost_by_averaging``. By ``aggregate``:

- ``svd`` (FlexLoRA, arXiv 2402.11505): the best factors of M of each client's rank, sqrt(S) on both
  sides, by QR of the stacked factors and an SVD of their core in float64; M is never formed.
  ``lost_by_ranks`` is the mean share sum_{i > r_k} s_i^2 / sum s_i^2 that ranks cut off.
- ``pad`` (HetLoRA, arXiv 2401.06432): factors padded with zeros, averaged; client k gets its first
  r_k rows and columns. Here with weights n_k, and without its penalty that shrinks ranks.
- ``share-a`` (FedSA-LoRA, arXiv 2410.01463): A alone is sent, each row averaged over its owners.

Up: r_k (m + n) floats a layer, ``share-a`` r_k n, and a digest of 16 numbers; down as much, nothing
in round 1. All start from one A by the run's seed, nested by rows, and B = 0. These formulas were
written from memory of the papers, not read; what is here is tested for consistency.

A client whose network or adapted layers differ from the most clients' of its first round is left
out of every mean.
"""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fedhet.config.schema import Params
from fedhet.errors import Rejected, UserError
from fedhet.protocol.handshake import ClientInfo
from fedhet.protocol.payload import Adapters, Array, Payload, blank
from fedhet.strategies.averaging import pieces_of
from fedhet.strategies.base import MethodStrategy, Reference, Upload

log = logging.getLogger("fedhet")
DIGITS = 16  # of a digest, each 0 to 15
Factors = tuple[Array, Array]  # B (m, r) and A (r, n) of a layer


class HetLoRAParams(Params):
    """Hyper-parameters of HetLoRA and its kin."""

    aggregate: Literal["svd", "pad", "share-a"] = "svd"
    """the mean map's best factors, means of padded factors, or A alone"""


def rank_of(info: ClientInfo) -> int:
    """Return the rank of a client's adapters, which its model's name tells; 0: it has none."""
    match = re.search(r"/lora-(\d{1,4})$", info.model)
    return int(match[1]) if match else 0


def decompose(stack: Sequence[Factors], weights: Sequence[float]) -> tuple[Array, Array, Array]:
    """Return U (m, R), S (R,) and V (n, R) of sum_k w_k B_k A_k, float64.

    Of each left vector the largest entry is positive, so that the bytes are the same everywhere.
    """
    left = np.concatenate([w * b for w, (b, _) in zip(weights, stack, strict=True)], axis=1)
    right = np.concatenate([a for _, a in stack], axis=0).T
    (q1, r1), (q2, r2) = np.linalg.qr(left.astype(np.float64)), np.linalg.qr(right.astype(float))
    u, s, vt = np.linalg.svd(r1 @ r2.T, full_matrices=False)
    u, v = q1 @ u, q2 @ vt.T
    signs = np.sign(u[np.abs(u).argmax(axis=0), np.arange(len(s))])
    signs[signs == 0] = 1
    return u * signs, s, v * signs


def padded_means(
    stack: Sequence[Factors], weights: Sequence[float], rank: int
) -> tuple[Array, Array, Array]:
    """Return the means of B and of A, padded with zeros to ``rank``, and A's over owners of a row.

    B is (m, rank), both A (rank, n), float64.
    """
    b, a, behind = np.zeros(()), np.zeros(()), np.zeros(rank)
    for weight, (own_b, own_a) in zip(weights, stack, strict=True):
        more = 0, rank - len(own_a)
        b = b + weight * np.pad(own_b.astype(float), ((0, 0), more))
        a = a + weight * np.pad(own_a.astype(float), (more, (0, 0)))
        behind[: len(own_a)] += weight
    return b, a, a / np.maximum(behind, np.finfo(float).tiny)[:, None]


class HetLoRAStrategy(MethodStrategy[HetLoRAParams]):
    """Averages the maps, or the factors, of adapters of unequal ranks."""

    upload_type = Adapters
    growing = ("shapes", "factors")  # both are empty before the first round
    not_summed = "its clients' adapters differ in shape; use method=lg_fedavg"
    weighs_late = True
    state = ("digest", "shapes", "factors")

    def initialise(self) -> None:
        """Start without factors; raise UserError for a client without adapters."""
        self.digest: Array = np.zeros(DIGITS, dtype=np.int64)
        self.shapes: Array = np.zeros((0, 3), dtype=np.int64)  # m, n and rank of each layer
        self.factors: Array = np.zeros(0, dtype=np.float32)  # B and A, one after the other
        self.alone = self.params.aggregate == "share-a"  # A is sent without B
        for client, info in self.roster.infos.items():
            if not rank_of(info):
                text = f"models: client {client} has '{info.model}' without adapters"
                raise UserError(f"{text}: method=hetlora needs lora=RANK, as in hf:FOLDER lora=8")
        self.most = max(map(rank_of, self.roster.infos.values()), default=0)

    @property
    def layers(self) -> list[Factors]:
        """B and A of each layer; none before the first round."""
        like = [blank(shape) for m, n, r in self.shapes.tolist() for shape in ((m, r), (r, n))]
        factors = iter(pieces_of(self.factors, like))
        return list(zip(factors, factors, strict=True))

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Check also that the shapes account for all factors."""
        super().check_arrays(arrays)
        try:
            _ = self.layers
        except ValueError as error:
            raise Rejected(f"the factors do not fit their shapes: {error}") from error

    def download(self, info: ClientInfo, round_: int) -> Payload:
        """Return the first r_k columns of B and rows of A of each layer."""
        rank = rank_of(info)
        pairs = [(a[:rank].copy(), b[:, :rank].copy()) for b, a in self.layers]
        sent = (one for pair in pairs for one in (pair[:1] if self.alone else pair))
        return Adapters(self.digest, tuple(sent))

    def reference(self, info: ClientInfo) -> Reference:
        """Return what the client was sent; nothing before any factors are known."""
        return Reference(self.download(info, 0)) if self.layers else Reference(None, bounded=False)

    def check(self, info: ClientInfo, payload: Adapters) -> None:
        """Check the digest, and that factors fit each other and the client's rank."""
        rank, each = rank_of(info), 1 if self.alone else 2
        tensors = payload.tensors
        whole = payload.digest.shape == (DIGITS,) and payload.digest.dtype == np.int64
        if not whole or not tensors or len(tensors) % each:
            raise Rejected("its adapters are not complete")
        if len(self.shapes) and not np.array_equal(payload.digest, self.digest):
            raise Rejected("its network or its adapted layers are other than the other clients'")
        for place, tensor in enumerate(tensors):
            if tensor.ndim != 2 or tensor.shape[place % each] != rank:  # noqa: PLR2004
                raise Rejected(f"an adapter is {tensor.shape}, and its rank is {rank}")

    def aggregate(self, uploads: Sequence[Upload], round_: int) -> Mapping[str, float]:
        """Combine the adapters layer by layer."""
        if not len(self.shapes):
            digests = Counter(upload.payload.digest.tobytes() for upload in uploads)
            self.digest = np.frombuffer(digests.most_common(1)[0][0], dtype=np.int64)
        kept = list[Upload]()
        for upload in uploads:
            if np.array_equal(upload.payload.digest, self.digest):
                kept.append(upload)
            else:
                log.warning("client %s: its network differs: not averaged", upload.info.client)
        total = sum(upload.weight for upload in kept)
        weights = [upload.weight / total for upload in kept]
        stacks, each = [upload.payload.tensors for upload in kept], 1 if self.alone else 2
        layers, squares = list[Factors](), np.zeros(3)
        for place in range(0, len(stacks[0]), each):
            # Of A alone there is no B, (0, r).
            pairs = [(np.zeros((0, len(t[place]))) if self.alone else t[place + 1], t[place])
                     for t in stacks]  # fmt: skip
            (b, a), lengths = self._layer(pairs, weights)
            layers.append((b.astype(np.float32), a.astype(np.float32)))
            squares += lengths
        shapes = [(len(b), a.shape[1], len(a)) for b, a in layers]
        self.shapes = np.array(shapes, dtype=np.int64)
        self.factors = np.concatenate([one.ravel() for pair in layers for one in pair])
        lost, cut, whole = squares
        numbers = {"left_out_networks": float(len(uploads) - len(kept))}
        if whole > 0:
            numbers["lost_by_averaging"] = float(np.sqrt(lost / whole))
            if self.params.aggregate == "svd":
                numbers["lost_by_ranks"] = float(cut / whole)
        return numbers

    def _layer(self, stack: Sequence[Factors], weights: Sequence[float]) -> tuple[Factors, Array]:
        """Return B (m, R), A (R, n) of a layer, and squares of what means and ranks lose, of M."""
        mean_b, mean_a, rows = padded_means(stack, weights, self.most)
        if self.alone:
            return (np.zeros((0, self.most)), rows), np.zeros(3)
        u, s, v = decompose(stack, weights)
        difference = decompose([*stack, (mean_b, mean_a)], [*weights, -1.0])[1]
        tails = [float((s[b.shape[1] :] ** 2).sum()) for b, _ in stack]
        numbers = np.array([(difference**2).sum(), np.mean(tails), float((s**2).sum())])
        if self.params.aggregate == "pad":
            return (mean_b, mean_a), numbers
        root = np.sqrt(s[: self.most])
        b, a = np.zeros((len(u), self.most)), rows
        alive = np.flatnonzero(s[: self.most] > 1e-12 * max(s.max(initial=0.0), 1e-30))
        # A direction that nobody has moved keeps its row of A, and zeros in B: it can still learn.
        b[:, alive] = (u[:, : self.most] * root)[:, alive]
        a[alive] = (v[:, : self.most] * root).T[alive]
        return (b, a), numbers
