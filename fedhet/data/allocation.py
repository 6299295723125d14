"""Who gets which example: the class partition of pFedHN, Dirichlet's, by chance, by size.

Each function returns ``owner`` (n,) int64, the client of every image or -1 for an unused one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedhet.data.image_source import Indices
from fedhet.errors import UserError

MIN_CLIENT_IMAGES = 10
MAX_TRIES = 1000
_LOW, _HIGH = 0.4, 0.6


@dataclass(frozen=True)
class Pool:
    """The images to hand out: ``order`` (n,) sorts them by class, ``sizes`` (C,) per class."""

    order: Indices
    sizes: Indices
    names: Sequence[str]

    @staticmethod
    def of(labels: Indices, names: Sequence[str]) -> "Pool":
        """Group ``labels`` (n,) by class."""
        sizes = np.bincount(labels, minlength=len(names)).astype(np.int64)
        return Pool(np.argsort(labels, kind="stable"), sizes, names)

    def hand_out(
        self, rng: np.random.Generator, clients: Sequence[Indices], counts: Sequence[Indices]
    ) -> Indices:
        """Give ``counts[s][i]`` random images of class s to ``clients[s][i]``; the rest is -1."""
        owner = np.full(len(self.order), -1, dtype=np.int64)
        ends = np.cumsum(self.sizes)
        for label, end in enumerate(ends):
            shuffled = rng.permutation(self.order[end - self.sizes[label] : end])
            holders = np.repeat(clients[label], counts[label])
            owner[shuffled[: len(holders)]] = holders
        return owner


def classes_per_client(
    rng: np.random.Generator, pool: Pool, clients: int, per_client: int
) -> Indices:
    """Every client gets exactly ``per_client`` classes (Shamsian et al. 2021, pFedHN, corrected).

    Clients take, one after the other, c different classes with the
    most slots left, ties at random. Taken slots then never differ by more than one between
    classes, so none of the ceil(N c / C) slots of a class is exceeded, there is no dead end, and
    it is enough to count what was taken. The owners of a class share it by U(0.4, 0.6),
    normalised over the slots taken, rounded down; what is left goes out one image per owner.

    Raises:
        UserError: an owner would get no image of its class.

    """
    num_classes = len(pool.sizes)
    taken = np.zeros(num_classes, dtype=np.int64)
    owners: list[list[int]] = [[] for _ in range(num_classes)]
    for client in range(clients):
        chosen = np.lexsort((rng.random(num_classes), taken))[:per_client]
        taken[chosen] += 1
        for label in chosen:
            owners[label].append(client)
    counts = []
    for label, takers in enumerate(owners):
        shares = rng.uniform(_LOW, _HIGH, len(takers))
        images = np.floor(pool.sizes[label] * shares / shares.sum()).astype(np.int64)
        if len(takers):
            images[: pool.sizes[label] - images.sum()] += 1
        counts.append(images)
    return _hand_out_slots(rng, pool, owners, counts)


def legacy_pfedhn(rng: np.random.Generator, pool: Pool, clients: int, per_client: int) -> Indices:
    """Partition as pFedHN's published code does, for comparison only.

    N c // C + 1 slots per class, of which some stay free together with
    their images; a client may draw one class twice; a client takes its shares from the end.

    Raises:
        UserError: an owner would get no image of its class.

    """
    num_classes = len(pool.sizes)
    number = clients * per_client // num_classes + 1
    shares = rng.uniform(_LOW, _HIGH, (num_classes, number))
    shares /= shares.sum(axis=1, keepdims=True)
    slots = np.full(num_classes, number, dtype=np.int64)
    owners: list[list[int]] = [[] for _ in range(num_classes)]
    for client in range(clients):
        for _ in range(per_client):
            label = rng.choice(np.flatnonzero(slots == slots.max()))
            slots[label] -= 1
            owners[label].append(client)
    counts = [
        np.floor(pool.sizes[label] * shares[label, ::-1][: len(takers)]).astype(np.int64)
        for label, takers in enumerate(owners)
    ]
    return _hand_out_slots(rng, pool, owners, counts)


def _hand_out_slots(
    rng: np.random.Generator, pool: Pool, owners: list[list[int]], counts: list[Indices]
) -> Indices:
    for label, images in enumerate(counts):
        if len(images) and images.min() < 1:
            raise UserError(
                f"class {pool.names[label]!r} has {pool.sizes[label]} images, too few for the "
                f"{len(images)} clients that share it: fewer clients or classes-per-client, "
                "or more images"
            )
    return pool.hand_out(rng, [np.array(o, dtype=np.int64) for o in owners], counts)


def dirichlet(
    rng: np.random.Generator, pool: Pool, clients: int, alpha: float, *, balanced: bool
) -> Indices:
    """Every class is cut by q ~ Dir(alpha 1_N); redrawn until every client has 10 images.

    With ``balanced`` (the NIID-Bench lineage, not the same law) a client
    that already holds n/N images gets none of the next classes.

    Raises:
        UserError: too few images, or no draw of 1,000 gives every client 10.

    """
    draw = _draw_balanced if balanced else _draw_plain
    if pool.sizes.sum() >= clients * MIN_CLIENT_IMAGES:
        for _ in range(MAX_TRIES):
            counts = draw(rng, pool.sizes, clients, alpha)
            if counts is not None and counts.sum(axis=0).min() >= MIN_CLIENT_IMAGES:
                everyone = np.arange(clients)
                return pool.hand_out(rng, [everyone] * len(pool.sizes), list(counts))
        reason = f"no draw of {MAX_TRIES} gives every client {MIN_CLIENT_IMAGES} images"
    else:
        reason = f"{pool.sizes.sum()} images cannot give every client {MIN_CLIENT_IMAGES}"
    advice = "fewer clients" if balanced else "fewer clients or partition dirichlet-balanced"
    raise UserError(
        f"alpha {alpha:g} with clients {clients}: {reason}; take a larger alpha, {advice}"
    )


def iid(rng: np.random.Generator, pool: Pool, clients: int) -> Indices:
    """Everybody gets the same number within one, by chance.

    Raises:
        UserError: fewer than 10 examples each.

    """
    _enough(pool, clients)
    return _by_size(rng, pool, np.full(clients, 1 / clients))


def quantity(rng: np.random.Generator, pool: Pool, clients: int, alpha: float) -> Indices:
    """Sizes by q ~ Dir(alpha 1_N), classes by chance; redrawn until every client has 10 examples.

    The quantity skew of NIID-Bench (Li et al. 2022, arXiv 2102.02079).

    Raises:
        UserError: too few examples, or no draw of 1,000 gives every client 10.

    """
    _enough(pool, clients)
    total = int(pool.sizes.sum())
    for _ in range(MAX_TRIES):
        shares = rng.dirichlet(np.full(clients, alpha))
        if np.isfinite(shares).all() and _cuts(shares, total).min() >= MIN_CLIENT_IMAGES:
            return _by_size(rng, pool, shares)
    raise UserError(
        f"alpha {alpha:g} with clients {clients}: no draw of {MAX_TRIES} gives every client "
        f"{MIN_CLIENT_IMAGES} examples; take a larger alpha or fewer clients"
    )


def _enough(pool: Pool, clients: int) -> None:
    total = int(pool.sizes.sum())
    if total < clients * MIN_CLIENT_IMAGES:
        raise UserError(
            f"clients {clients}: {total} examples cannot give every client {MIN_CLIENT_IMAGES}; "
            "take fewer clients"
        )


def _by_size(rng: np.random.Generator, pool: Pool, shares: npt.NDArray[np.float64]) -> Indices:
    total = int(pool.sizes.sum())
    counts = _cuts(shares, total)
    if np.ptp(shares) == 0:
        counts = np.full(len(shares), total // len(shares), dtype=np.int64)
        counts[: total % len(shares)] += 1
    owner = np.empty(total, dtype=np.int64)
    owner[rng.permutation(total)] = np.repeat(np.arange(len(shares)), counts)
    return owner


def _cuts(shares: npt.NDArray[np.float64], size: int | Indices) -> Indices:
    """Turn shares (..., N) into counts (..., N) by rounding down their cumulative sums."""
    size = np.asarray(size)[..., None]
    upper = np.floor(np.cumsum(shares, axis=-1) * size).astype(np.int64)
    upper = np.minimum(upper, size)
    upper[..., -1:] = size
    return np.diff(upper, axis=-1, prepend=0)


def _draw_plain(
    rng: np.random.Generator, sizes: Indices, clients: int, alpha: float
) -> Indices | None:
    """Draw counts (C, N); ``None`` if alpha is too small for floating point."""
    shares = rng.dirichlet(np.full(clients, alpha), size=len(sizes))
    return _cuts(shares, sizes) if np.isfinite(shares).all() else None


def _draw_balanced(
    rng: np.random.Generator, sizes: Indices, clients: int, alpha: float
) -> Indices | None:
    """Draw counts (C, N); ``None`` where all shares fell to clients that are full."""
    shares = rng.dirichlet(np.full(clients, alpha), size=len(sizes))
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    for label, size in enumerate(sizes):
        open_shares = np.where(held * clients < sizes.sum(), shares[label], 0)
        total = open_shares.sum()
        if not total > 0 or not np.isfinite(total):
            return None
        counts[label] = _cuts(open_shares / total, int(size))
        held += counts[label]
    return counts
