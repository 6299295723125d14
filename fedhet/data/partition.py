"""Partitions: which client holds which examples, and which of them it trains on.

The examples of a data set are pooled, handed to clients (drawn, by a file, or by the sites that the
data itself names) and split per client and class.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhet.data.inputs import Indices
from fedhet.data.labels import listed
from fedhet.errors import UserError, nearest
from fedhet.files import client_order, is_id
from fedhet.rng import generator


@dataclass(frozen=True)
class ClientSplit:
    """One client's images: int64 indices into the data set, each array ascending."""

    train: Indices
    val: Indices
    test: Indices


def check_split(split: Sequence[int]) -> None:
    """Refuse a ratio that no client could be trained with.

    Raises:
        UserError: not three integers >= 0, or no train part.

    """
    if len(split) != 3 or min(split) < 0 or split[0] < 1:
        raise UserError(
            f"split {':'.join(map(str, split))} is not allowed "
            "(train:val:test, integers >= 0, train >= 1)"
        )


def split_counts(counts: npt.ArrayLike, split: Sequence[int]) -> Indices:
    """Return train, val, test images (m, 3) for ``counts`` (m,) of one class on one client.

    Rule: shares by the largest-remainder method (ties: train, then test, then val). Then every
    part with a share in ``split`` that got nothing takes one image from the largest part, in
    the order train, test, val as far as the images go. For 8:1:1: 1 -> 1/0/0, 2 -> 1/0/1,
    3 -> 1/1/1, 10 -> 8/1/1, 15 -> 12/1/2.
    """
    weights = np.array([split[0], split[2], split[1]], dtype=np.int64)
    images = np.asarray(counts, dtype=np.int64)
    exact = images[:, None] * weights
    parts: Indices = exact // weights.sum()
    left = images - parts.sum(axis=1)
    by_remainder = np.argsort(-(exact % weights.sum()), axis=1, kind="stable")
    place = np.argsort(by_remainder, axis=1)
    parts += place < left[:, None]
    for needed, part in enumerate(np.flatnonzero(weights), start=1):
        rows = np.flatnonzero((parts[:, part] == 0) & (images >= needed))
        # Of equally large parts the last, which matters least, gives.
        giver = 2 - np.argmax(parts[rows][:, ::-1], axis=1)
        parts[rows, giver] -= 1
        parts[rows, part] += 1
    return np.take(parts, [0, 2, 1], axis=1)


def split_client(
    indices: Indices, labels: Indices, split: Sequence[int], seed: int, client: str
) -> ClientSplit:
    """Split ``indices`` (n,), ascending, whose labels are ``labels`` (n,).

    Which image goes where depends on (seed, client) and on the client's own images only.
    """
    order = generator(seed, "split", client).permutation(len(indices))
    order = order[np.argsort(labels[order], kind="stable")]
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    parts = split_counts(counts, split)
    rank = np.arange(len(order)) - np.repeat(first, counts)
    bounds = np.repeat(np.cumsum(parts, axis=1), counts, axis=0)
    which = (rank[:, None] >= bounds).sum(axis=1)
    train, val, test = (np.sort(indices[order[which == part]]) for part in range(3))
    return ClientSplit(train, val, test)


def split_folder(labels: Indices, split: Sequence[int], seed: int, client: str) -> ClientSplit:
    """Split all images of a private folder, ``labels`` (n,) int64, by the same rule.

    Raises:
        UserError: a ratio that is not allowed.

    """
    check_split(split)
    return split_client(np.arange(len(labels), dtype=np.int64), labels, split, seed, client)


# --- partition=file ----------------------------------------------------------------

HEADER = ["path", "client", "split"]
SPLITS = ("train", "val", "test")


def read_partition_file(
    file: str, paths: Sequence[str], clients: int
) -> tuple[tuple[str, ...], tuple[ClientSplit, ...]]:
    """Return client ids and splits; ``paths`` are the data set's, ``clients`` 0 or the number.

    Ids that are all numbers are sorted as numbers, others as text. Raise UserError with the file,
    the line and the value.
    """
    if not file:
        raise UserError("partition-file is empty: partition file needs a CSV path,client,split")
    index_of = {path: index for index, path in enumerate(paths)}
    held: dict[str, dict[str, list[int]]] = {}
    seen_in: dict[str, int] = {}
    for line, (path, client, split) in _file_rows(file):
        what = ""
        if path not in index_of:
            like = next(iter(index_of), "")
            what = f"path {path!r} is not an image of the data set (its paths look like {like!r})"
        elif seen_in.setdefault(path, line) != line:
            what = f"path {path!r} is already in line {seen_in[path]}"
        elif not is_id(client):
            what = f"client {client!r} is not allowed (1 to 64 of A-Z a-z 0-9 . _ -)"
        if what:
            raise UserError(f"partition-file {file} line {line}: {what}")
        held.setdefault(client, {name: [] for name in SPLITS})[split].append(index_of[path])
    numbers = all(client.isdigit() for client in held)
    ids = sorted(held, key=lambda client: (int(client) if numbers else 0, client))
    if not ids:
        raise UserError(f"partition-file {file}: the file has no line")
    if clients not in (0, len(ids)):
        raise UserError(
            f"clients {clients} is not allowed: partition-file {file} has {len(ids)} (0 takes all)"
        )
    for client in ids:
        if not held[client]["train"]:
            raise UserError(f"partition-file {file}: client {client!r} has no train image")
    return tuple(ids), tuple(
        ClientSplit(*(np.array(sorted(held[c][name]), dtype=np.int64) for name in SPLITS))
        for c in ids
    )


def count_clients(file: str) -> int:
    """Return how many clients a partition file names; raise UserError if it is none."""
    return len({client for _, (_, client, _) in _file_rows(file)})


def _file_rows(file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of every row after the header; empty lines are skipped."""
    try:
        with Path(file).expanduser().open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            header, what = next(reader, []), ""
            if header != HEADER:
                what = f"header {','.join(header)!r} must be {','.join(HEADER)!r}"
            while not what and (row := next(reader, None)) is not None:
                if row and len(row) != len(HEADER):
                    what = f"{len(row)} fields in {','.join(row)!r}, expected 3"
                elif row and row[2] not in SPLITS:
                    what = f"split {row[2]!r} is not one of {', '.join(SPLITS)}"
                elif row:
                    yield reader.line_num, row
            if what:
                raise UserError(f"partition-file {file} line {max(1, reader.line_num)}: {what}")
    except OSError as error:
        raise UserError(f"partition-file {file}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"partition-file {file}: not a CSV text file ({error})") from error


# --- who gets which example ----------------------------------------------------------------

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
    """Give every client ``per_client`` classes (Shamsian et al. 2021, pFedHN, corrected).

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
    """Cut every class by q ~ Dir(alpha 1_N); redraw until every client has 10 images.

    With ``balanced`` (the NIID-Bench lineage, not the same law) a client
    that already holds n/N images gets none of the next classes.

    Raises:
        UserError: too few images, or no draw of 1,000 gives every client 10.

    """
    draw = _draw_balanced if balanced else _draw_plain
    advice = "fewer clients" if balanced else "fewer clients or partition dirichlet-balanced"
    counts = _enough_each(
        pool, clients, alpha, advice, lambda: draw(rng, pool.sizes, clients, alpha)
    )
    return pool.hand_out(rng, [np.arange(clients)] * len(pool.sizes), list(counts))


def quantity(rng: np.random.Generator, pool: Pool, clients: int, alpha: float) -> Indices:
    """Draw sizes by q ~ Dir(alpha 1_N) until every client has 10 examples; classes by chance.

    The quantity skew of NIID-Bench (Li et al. 2022, arXiv 2102.02079).

    Raises:
        UserError: too few examples, or no draw of 1,000 gives every client 10.

    """
    total = int(pool.sizes.sum())
    counts = _enough_each(
        pool, clients, alpha, "fewer clients", lambda: _draw_plain(rng, total, clients, alpha)
    )
    return _by_chance(rng, counts)


def iid(rng: np.random.Generator, pool: Pool, clients: int) -> Indices:
    """Give everybody the same number within one, by chance.

    Raises:
        UserError: fewer than 10 examples each.

    """
    total = int(pool.sizes.sum())
    counts = np.full(clients, total // clients, dtype=np.int64)
    counts[: total % clients] += 1
    if counts.min() < MIN_CLIENT_IMAGES:
        raise UserError(
            f"clients {clients}: {total} examples cannot give every client {MIN_CLIENT_IMAGES}; "
            "use fewer clients"
        )
    return _by_chance(rng, counts)


def _enough_each(
    pool: Pool, clients: int, alpha: float, advice: str, draw: Callable[[], Indices | None]
) -> Indices:
    """Return the first draw (..., N) that gives every client 10; raise UserError after 1,000."""
    total = int(pool.sizes.sum())
    reason = f"{total} examples cannot give every client {MIN_CLIENT_IMAGES}"
    if total >= clients * MIN_CLIENT_IMAGES:
        for _ in range(MAX_TRIES):
            counts = draw()
            if counts is not None:
                held = counts.reshape(-1, clients).sum(axis=0)
                if held.min() >= MIN_CLIENT_IMAGES:
                    return counts
        reason = f"no draw of {MAX_TRIES} gives every client {MIN_CLIENT_IMAGES} examples"
    raise UserError(
        f"alpha {alpha:g} with clients {clients}: {reason}; use a larger alpha, {advice}"
    )


def _by_chance(rng: np.random.Generator, counts: Indices) -> Indices:
    """Return the client of every example, by chance; ``counts`` (N,) are the clients'."""
    owner = np.empty(counts.sum(), dtype=np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(counts)), counts)
    return owner


def _cuts(shares: npt.NDArray[np.float64], size: int | Indices) -> Indices:
    """Turn shares (..., N) into counts (..., N) by rounding down their cumulative sums."""
    size = np.asarray(size)[..., None]
    upper = np.floor(np.cumsum(shares, axis=-1) * size).astype(np.int64)
    upper = np.minimum(upper, size)
    upper[..., -1:] = size
    return np.diff(upper, axis=-1, prepend=0)


def _draw_plain(
    rng: np.random.Generator, sizes: int | Indices, clients: int, alpha: float
) -> Indices | None:
    """Draw counts (C, N), or (N,) of one size; ``None`` if alpha is too small for floats."""
    shares = rng.dirichlet(np.full(clients, alpha), size=np.shape(sizes) or None)
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


# --- partitions ----------------------------------------------------------------

KINDS = (
    "classes-per-client", "dirichlet", "dirichlet-balanced", "iid", "quantity", "natural", "file",
)  # fmt: skip
_OWN = ("natural", "file")  # who names the clients
PREFIX = "flwr:"  # and the class of a partitioner of flwr-datasets, with its keywords
_NAMED = 5
CODED = 8  # classes up to which it is said that sites may code them in other ways


@dataclass(frozen=True)
class Partition:
    """Client k has the id ``ids[k]`` and the images ``clients[k]``; ``warnings`` are for the user.

    A drawn partition numbers its clients "0", "1", ...; a file brings its own ids.
    """

    clients: tuple[ClientSplit, ...]
    ids: tuple[str, ...]
    warnings: tuple[str, ...]

    def seen(self, k: int, labels: Indices) -> Indices:
        """Return the classes in client k's train split, int64, ascending; ``labels`` (n,)."""
        return np.unique(labels[self.clients[k].train]).astype(np.int64)

    def counts(self, labels: Indices, num_classes: int) -> Indices:
        """Return int64 (N, C): images of each class on each client, all splits together."""
        rows = [
            np.bincount(labels[np.concatenate([c.train, c.val, c.test])], minlength=num_classes)
            for c in self.clients
        ]
        return np.array(rows, dtype=np.int64).reshape(len(rows), num_classes)


@dataclass(frozen=True)
class PartitionSpec:
    """What to make.

    ``kind``: one of ``KINDS`` or ``flwr:CLASS ...``. ``clients`` N >= 1, for natural clients, a
    file and partitioners that say it themselves also 0 (as many as there are).
    ``classes_per_client`` c in 1..C. ``alpha`` > 0 is the concentration of the Dirichlet draws.
    ``split`` is train:val:test, integers.
    """

    kind: str
    clients: int
    classes_per_client: int = 2
    alpha: float = 0.3
    legacy_pfedhn: bool = False
    split: tuple[int, int, int] = (8, 1, 1)
    file: str = ""
    seed: int = 0
    noun: str = "images"  # what examples are called in messages

    @property
    def singular(self) -> str:
        """Return what one of them is called."""
        return self.noun.removesuffix("s")


@dataclass(frozen=True)
class Owners:
    """Whose every example is, as the data says: ``owner`` (n,) into ``names``; or nothing."""

    owner: npt.NDArray[np.int32]
    names: tuple[str, ...]


def make_partition(
    dataset_labels: Indices,
    num_classes: int,
    spec: PartitionSpec,
    paths: Sequence[str] = (),
    classes: Sequence[str] = (),
    sites: Owners | None = None,
) -> Partition:
    """Partition the examples with labels ``dataset_labels`` (n,) int64 in 0..C-1.

    ``paths`` are the data set's and used by a file only (default: the index as text);
    ``classes`` are the names for messages (default: the label as text); ``sites`` are the clients
    of partition natural. Equal arguments give equal partitions.

    Raises:
        UserError: a setting that is out of range or infeasible, or an error in the file.

    """
    names = tuple(classes) or tuple(str(label) for label in range(num_classes))
    _check(spec, num_classes)
    lines: list[str] = []
    if spec.kind == "file":
        known = paths or [str(index) for index in range(len(dataset_labels))]
        ids, clients = read_partition_file(spec.file, known, spec.clients)
    elif spec.kind == "natural":
        ids, clients, lines = _natural(dataset_labels, spec, sites)
    else:
        if spec.kind.startswith(PREFIX):
            from fedhet.data.hub import flower_owner  # an extra, and pandas

            owner, count = flower_owner(dataset_labels, spec, sites)
        else:
            owner, count = _allocate(Pool.of(dataset_labels, names), spec), spec.clients
        ids = tuple(str(k) for k in range(count))
        clients = tuple(
            split_client(mine, dataset_labels[mine], spec.split, spec.seed, client)
            for client, mine in zip(ids, _held(owner, count), strict=True)
        )
    lines += _about_classes(dataset_labels, spec, names, sites)
    lines += _warnings(Partition(clients, ids, ()), dataset_labels, spec, names)
    return Partition(clients, ids, tuple(lines))


def _held(owner: npt.NDArray[Any], count: int) -> list[Indices]:
    """Return the examples of each client, ascending; ``owner`` (n,) is -1 for nobody's."""
    order = np.argsort(owner, kind="stable").astype(np.int64)
    ends = np.searchsorted(owner[order], np.arange(count + 1))
    return [order[ends[k] : ends[k + 1]] for k in range(count)]


def _natural(
    labels: Indices, spec: PartitionSpec, sites: Owners | None
) -> tuple[tuple[str, ...], tuple[ClientSplit, ...], list[str]]:
    """Return clients as the data names them, without those that cannot be trained and tested."""
    if sites is None or not sites.names:
        raise UserError(
            "partition natural needs the client of each example: name its column with `site`, or "
            "return `clients` in a fedhet.Data"
        )
    found: dict[str, ClientSplit] = {}
    small: list[str] = []
    held = _held(sites.owner, len(sites.names))
    for name, mine in sorted(
        zip(sites.names, held, strict=True), key=lambda one: client_order(one[0])
    ):
        split = split_client(mine, labels[mine], spec.split, spec.seed, name)
        if len(split.train) and len(split.test):
            found[name] = split
        else:
            small.append(f"{name} ({len(mine)})")
    if not found:
        raise UserError(f"partition natural: no client has enough {spec.noun} to train and to test")
    if spec.clients not in (0, len(found)):
        raise UserError(
            f"clients {spec.clients} is not allowed: the data names {len(found)} clients that can "
            "be trained and tested (0 takes all)"
        )
    left = f"{len(small)} clients are left out, with too few {spec.noun} to train and to test: "
    return tuple(found), tuple(found.values()), [left + listed(small, _NAMED)] if small else []


def says_clients(kind: str) -> bool:
    """Return whether the partitioner itself says how many clients there are."""
    if not kind.startswith(PREFIX):
        return False
    from fedhet.data.hub import flower_says_clients  # pandas: a second

    return flower_says_clients(kind)


def refuse_one_class(labels: Indices, names: Sequence[str], noun: str) -> None:
    """Raise UserError where all examples are of one class: nothing can be learned from them."""
    there = np.unique(labels)
    if len(there) == 1:
        raise UserError(
            f"all {len(labels):,} {noun} have the same class, '{names[there[0]]}': check target, "
            "whether the file is complete, and the level of the folder"
        )


def _about_classes(
    labels: Indices, spec: PartitionSpec, names: Sequence[str], sites: Owners | None
) -> list[str]:
    """Return lines about classes that may be one, or are too small."""
    lines: list[str] = []
    counts = np.bincount(labels, minlength=len(names))
    lower: dict[str, list[str]] = {}
    for name in names:
        lower.setdefault(" ".join(name.lower().split()), []).append(name)
    for same in lower.values():
        if len(same) > 1:
            lines.append(
                f"classes {', '.join(map(repr, same))} differ only in case or spaces: "
                f"labels={{{same[0]}: [{', '.join(same)}], ...}} joins them"
            )
    alone = [name for name, count in zip(names, counts, strict=True) if count == 1]
    if alone:
        lines.append(
            f"{len(alone)} classes have one {spec.singular}, which cannot be trained on and "
            f"tested: {listed(alone, _NAMED)}; labels can put classes together"
        )
    return lines + _coded_by_site(labels, names, sites)


def _coded_by_site(labels: Indices, names: Sequence[str], sites: Owners | None) -> list[str]:
    """Return a line where sites have other classes than others, so that the coding may differ."""
    if sites is None or len(sites.names) < 2 or len(names) > CODED or len(names) < 3:
        return []
    held: dict[frozenset[str], list[str]] = {}
    for code, site in enumerate(sites.names):
        own = frozenset(names[k] for k in np.unique(labels[sites.owner == code]))
        held.setdefault(own, []).append(site)
    apart = [(a, b) for a in held for b in held if len(a) > 1 and len(b) > 1 and a - b and b - a]
    if not apart:
        return []
    a, b = apart[0]
    return [
        f"sites do not have the same classes ({listed(held[a], _NAMED)}: {', '.join(sorted(a))}; "
        f"{listed(held[b], _NAMED)}: {', '.join(sorted(b))}): if these mean the same, join them "
        "with labels={NAME: [VALUE, VALUE], ...}"
    ]


def _check(spec: PartitionSpec, num_classes: int) -> None:
    flowers = spec.kind.startswith(PREFIX)
    if spec.kind not in KINDS and not flowers:
        hint = nearest(spec.kind, KINDS)
        raise UserError(f"partition {spec.kind!r} is unknown{hint}; allowed: {', '.join(KINDS)}")
    check_split(spec.split)
    if spec.kind in _OWN or flowers:
        return
    if spec.clients < 1:
        raise UserError(f"clients {spec.clients} is not allowed with partition {spec.kind} (>= 1)")
    if spec.kind == "classes-per-client" and not 1 <= spec.classes_per_client <= num_classes:
        raise UserError(
            f"classes-per-client {spec.classes_per_client} is not allowed: "
            f"the data set has {num_classes} classes (1..{num_classes})"
        )
    if spec.kind.startswith(("dirichlet", "quantity")) and not 0 < spec.alpha < np.inf:
        raise UserError(f"alpha {spec.alpha:g} is not allowed (a finite number > 0)")


def _allocate(pool: Pool, spec: PartitionSpec) -> Indices:
    rng = generator(spec.seed, "partition")
    if spec.kind == "classes-per-client":
        allocate = legacy_pfedhn if spec.legacy_pfedhn else classes_per_client
        return allocate(rng, pool, spec.clients, spec.classes_per_client)
    if spec.kind == "iid":
        return iid(rng, pool, spec.clients)
    if spec.kind == "quantity":
        return quantity(rng, pool, spec.clients, spec.alpha)
    balanced = spec.kind == "dirichlet-balanced"
    return dirichlet(rng, pool, spec.clients, spec.alpha, balanced=balanced)


def _warnings(
    partition: Partition, labels: Indices, spec: PartitionSpec, names: Sequence[str]
) -> tuple[str, ...]:
    """Return lines about classes and clients that will not do what the user may expect."""
    lines = []
    held = partition.counts(labels, len(names))
    exists = np.bincount(labels, minlength=len(names)) > 0
    owners = (held > 0).sum(axis=0)
    unowned = [name for name, gone in zip(names, (owners == 0) & exists, strict=True) if gone]
    if unowned:
        lines.append(
            f"{len(unowned)} classes have no owner and are dropped: {listed(unowned, _NAMED)}"
        )
    single = [name for name, alone in zip(names, owners == 1, strict=True) if alone]
    if single and len(partition.ids) > 1:
        lines.append(
            f"{len(single)} classes occur at only one client, so nothing is averaged "
            f"for them: {listed(single, _NAMED)}"
        )
    unused = len(labels) - int(held.sum())
    if unused and not unowned:
        lines.append(f"{unused} of {len(labels)} {spec.noun} belong to no client")
    fewer = int(((held > 0).sum(axis=1) < spec.classes_per_client).sum())
    if spec.kind == "classes-per-client" and fewer:
        lines.append(f"{fewer} clients drew a class twice and have fewer than classes-per-client")
    untested = [i for i, c in zip(partition.ids, partition.clients, strict=True) if not len(c.test)]
    if untested:
        lines.append(
            f"{len(untested)} clients have no test {spec.singular}: {listed(untested, _NAMED)}"
        )
    return tuple(lines)
