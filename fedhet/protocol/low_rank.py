"""Updates of a model as truncated singular value decompositions (FedKD's dynamic compression).

A convolution's kernel is taken as the matrix (out, in * k * k). Of a matrix (m, n) = U S V the
smallest rank r is kept whose singular values hold a share E of the energy, sum_{i<=r} s_i^2 >= E
sum s_i^2, and U, S, V are sent as r (m + n + 1) floats; where that is no less than m n, and for
vectors, the update is sent as it is. Only an update of zeros has rank 0.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fedhet.errors import RunFailedError
from fedhet.protocol.payload import Array, LowRank, blank
from fedhet.rng import one_thread

ZERO, DENSE, WHOLE = 0, -1, -2
Shape = tuple[int, ...]


def energy(start: float, end: float, round_: int, rounds: int) -> float:
    """E(t) = T_start + (T_end - T_start) t / T for message round r = t + 1."""
    return start + (end - start) * (round_ - 1) / rounds


def smallest_rank(singular: Array, share: float) -> int:
    """Fewest of the singular values, largest first, that hold this share of the energy, in (0, 1].

    0 only if all are zero; never more than there are.
    """
    if singular[0] == 0:
        return 0
    kept = np.cumsum(np.square(singular / singular[0], dtype=np.float64))  # squares may underflow
    return min(int(np.searchsorted(kept, share * kept[-1])) + 1, len(singular))


def whole(tensors: Sequence[Array]) -> LowRank:
    """The parameters themselves."""
    return LowRank(np.full(len(tensors), WHOLE, dtype=np.int64), tuple(tensors))


def compress(updates: Sequence[Array], share: float | None) -> LowRank:
    """Pack updates, keeping this share of every matrix's energy; None: all of them dense.

    Raises RunFailedError if one is not finite or cannot be decomposed.
    """
    ranks, tensors = [], []
    for update in updates:
        if not np.isfinite(update).all():
            raise RunFailedError(
                "the update is not finite after training: use a smaller lr, or grad-clip"
            )
        rank, parts = (DENSE, [update]) if share is None else _factors(update, share)
        ranks.append(rank)
        tensors += [part.astype(np.float32) for part in parts]
    return LowRank(np.array(ranks, dtype=np.int64), tuple(tensors))


def apply(payload: LowRank, before: Sequence[Array]) -> tuple[Array, ...]:
    """The parameters after an update of ``before``, float32.

    Server and client call this on equal arrays and, on one kind of machine, stay equal to the bit.
    """
    after = []
    for (rank, parts), old in zip(entries(payload), before, strict=True):
        if rank == WHOLE:
            after.append(parts[0])
        else:
            after.append((old + _dense(rank, parts, old.shape)).astype(np.float32))
    return tuple(after)


def blanks(ranks: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Stand-ins for the tensors of an update with these ranks, as :func:`compress` would make them.

    Raises ValueError for ranks that it would not give to parameters of these shapes.
    """
    if ranks.shape != (len(shapes),) or ranks.dtype != np.int64:
        raise ValueError(
            f"ranks are {ranks.dtype}{list(ranks.shape)}, expected int64[{len(shapes)}]"
        )
    expected: list[Shape] = []
    for i, (rank, shape) in enumerate(zip(ranks.tolist(), shapes, strict=True)):
        if not (
            rank == DENSE
            or (len(shape) > 1 and 0 <= rank * floats_per_rank(shape) < math.prod(shape))
        ):
            raise ValueError(f"rank {rank} is not allowed for parameter {i} of shape {list(shape)}")
        m, n = matrix_shape(shape)
        expected += [shape] if rank == DENSE else [(m, rank), (rank,), (rank, n)] * (rank > 0)
    return [blank(shape) for shape in expected]


def update_norm(payload: LowRank) -> float:
    """L2 norm of an update: the factors' own norms say nothing about their product's."""
    return math.sqrt(sum(_square(rank, parts) for rank, parts in entries(payload)))


def _square(rank: int, parts: Sequence[Array]) -> float:
    """Squared norm of one entry: |U S V|^2 = sum((U S)^T (U S) * V V^T), r x r."""
    if rank <= 0:
        return float(sum(np.square(part, dtype=np.float64).sum() for part in parts))
    u, s, v = (part.astype(np.float64) for part in parts)
    scaled = u * s
    return max(float(((scaled.T @ scaled) * (v @ v.T)).sum()), 0.0)


def dense(payload: LowRank, shapes: Sequence[Shape]) -> list[Array]:
    """The updates as float64 arrays of these shapes."""
    return [_dense(*entry, shape) for entry, shape in zip(entries(payload), shapes, strict=True)]


def entries(payload: LowRank) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Rank and tensors of every parameter."""
    used = 0
    for rank in payload.ranks.tolist():
        count = 3 if rank > 0 else int(rank != ZERO)
        yield rank, payload.tensors[used : used + count]
        used += count


def _factors(update: Array, share: float) -> tuple[int, list[Array]]:
    """Rank and tensors of one update."""
    if update.ndim < 2:
        return DENSE, [update]
    matrix = torch.from_numpy(update.reshape(matrix_shape(update.shape)).astype(np.float64))
    try:
        with one_thread():
            u, s, v = (t.numpy() for t in torch.linalg.svd(matrix, full_matrices=False))
    except RuntimeError as error:  # torch.linalg.LinAlgError
        raise RunFailedError(
            f"the singular value decomposition of an update of shape {list(update.shape)} "
            "does not converge: use compress=off"
        ) from error
    rank = smallest_rank(s, share)
    if rank * floats_per_rank(update.shape) >= update.size:
        return DENSE, [update]
    return rank, [u[:, :rank], s[:rank], v[:rank]] if rank else []


def _dense(rank: int, parts: Sequence[Array], shape: Shape) -> Array:
    if rank == ZERO:
        return np.zeros(shape, dtype=np.float64)
    if rank == DENSE:
        return parts[0].astype(np.float64)
    u, s, v = (torch.from_numpy(part.astype(np.float64)) for part in parts)
    with one_thread():
        product: Array = ((u * s) @ v).numpy()
    return product.reshape(shape)


def matrix_shape(shape: Shape) -> tuple[int, int]:
    """(out, in * k * k)."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def floats_per_rank(shape: Shape) -> int:
    """Floats per unit of rank."""
    return sum(matrix_shape(shape)) + 1
