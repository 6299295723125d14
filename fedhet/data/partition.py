"""Partitions: which client holds which examples, and which of them it trains on.

The examples of a data set are pooled, handed to clients (drawn, by a file, or by the sites that the
data itself names) and split per client and class.
"""

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from importlib import import_module
from inspect import signature
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhet.config.schema import RunConfig
from fedhet.data.inputs import RECORDING, Content, Indices, alike, listed, noun
from fedhet.errors import Damaged, UserError, brief, nearest
from fedhet.files import client_order, is_id, parse_yaml
from fedhet.rng import generator


@dataclass(frozen=True)
class ClientSplit:
    """One client's images: int64 indices into the data set, each array ascending."""

    train: Indices
    val: Indices
    test: Indices


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
    indices: Indices, data: Content, split: Sequence[int], seed: int, client: str
) -> ClientSplit:
    """Split a client's examples ``indices`` (n,), ascending.

    Which goes where depends on (seed, client) and on the client's own examples only. Groups stay
    whole; with times the latest go to test, those before them to val; ``tests`` are test.
    """
    rng, labels = generator(seed, "split", client), data.labels[indices]
    if len(data.tests) and (tests := data.tests[indices]).any():
        which = np.full(len(indices), 2)
        which[~tests] = _split_rows(rng, labels[~tests], (*split[:2], 0))
    elif len(data.times):
        groups = data.groups[indices] if data.grouped else np.arange(len(indices))
        which = _split_by_time(data.times[indices], groups, split)
    elif data.grouped:
        groups = data.groups[indices]
        which = _split_groups(rng, labels, groups, split)
        for label in np.unique(labels) if data.group_by == RECORDING else ():
            rows = np.flatnonzero(labels == label)  # of too few recordings: they are cut by time
            if len(np.unique(groups[rows])) < np.count_nonzero(split):
                which[rows] = _in_turn(labels[rows], split)
    else:
        which = _split_rows(rng, labels, split)
    return ClientSplit(*(indices[which == part] for part in range(3)))


def _split_rows(rng: np.random.Generator, labels: Indices, split: Sequence[int]) -> Indices:
    """Return the part (n,) of every row: 0 train, 1 val, 2 test; by class and by chance."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    which = np.empty(len(labels), dtype=np.int64)
    which[order] = _in_turn(labels[order], split)
    return which


def _in_turn(labels: Indices, split: Sequence[int]) -> Indices:
    """Return the part (n,) of every row of sorted labels: the first of a class are train."""
    _, first, counts = np.unique(labels, return_index=True, return_counts=True)
    rank = np.arange(len(labels)) - np.repeat(first, counts)
    bounds = np.repeat(np.cumsum(split_counts(counts, split), axis=1), counts, axis=0)
    which: Indices = (rank[:, None] >= bounds).sum(axis=1)
    return which


def _split_groups(
    rng: np.random.Generator, labels: Indices, groups: npt.NDArray[Any], split: Sequence[int]
) -> Indices:
    """Return the part (n,) of every row; groups of a class are split as rows of one are."""
    codes, counts = _group_counts(labels, groups)
    of_class = (counts > 0).sum(axis=0)
    needs = split_counts(of_class, split).T * counts.sum(axis=0) / np.maximum(1, of_class)
    parts = _deal(rng, counts, needs)
    if split[2] and len(parts) > 1 and 2 not in parts:  # classes that groups share: a small one
        from_train = np.count_nonzero(parts == 0) > 1
        movable = np.flatnonzero(parts == (0 if from_train else 1))
        parts[movable[counts[movable].sum(axis=1).argmin()]] = 2
    return parts[codes]


def _group_counts(labels: Indices, groups: npt.NDArray[Any]) -> tuple[Indices, Indices]:
    """Return the place (n,) of every row's group, and int64 (G, C): its rows of each class."""
    (own, codes), (present, columns) = (np.unique(x, return_inverse=True) for x in (groups, labels))
    counts = np.zeros((len(own), len(present)), dtype=np.int64)
    np.add.at(counts, (codes, columns), 1)
    return codes, counts


def _deal(rng: np.random.Generator, counts: Indices, needs: npt.NDArray[np.float64]) -> Indices:
    """Return who gets each group of ``counts`` (G, C) rows: who lacks most of ``needs`` (P, C)."""
    # Iterative stratification (Sechidis et al. 2011), of groups.
    left = needs - counts.sum() * (needs <= 0)
    chosen = np.zeros(len(counts), dtype=np.int64)
    for group in rng.permutation(len(counts)):
        chosen[group] = np.argmax(left @ counts[group])
        left[chosen[group]] -= counts[group]
    return chosen


def _split_by_time(times: npt.NDArray[Any], groups: Any, split: Sequence[int]) -> Indices:
    """Return the part (n,) of every row: the latest are test, a group by its last row."""
    distinct, codes = np.unique(groups, return_inverse=True)
    last = np.full(len(distinct), -np.inf)
    np.maximum.at(last, codes, times)
    _, place, counts = np.unique(last[codes], return_inverse=True, return_counts=True)
    upto, which = np.concatenate([[0], np.cumsum(counts)]), np.zeros(len(times), dtype=np.int64)
    end = len(counts)
    for part in (2, 1):
        if split[part] and end > 1:  # one time at least is left for training
            want = upto[end] - len(times) * split[part] / sum(split)
            start = 1 + int(np.argmin(np.abs(upto[1:end] - want)))
            which[(place >= start) & (place < end)] = part
            end = start
    return which


HEADER, SPLITS = ["path", "client", "split"], ("train", "val", "test")


def read_partition_file(
    file: str, paths: Sequence[str], clients: int
) -> tuple[tuple[str, ...], tuple[ClientSplit, ...]]:
    """Return client ids and splits; ``paths`` are the data set's, ``clients`` 0 or the number.

    Ids that are all numbers are sorted as numbers, others as text. Raise UserError with the file,
    the line and the value.
    """
    where, index_of = f"partition-file {file}", {path: index for index, path in enumerate(paths)}
    try:
        with Path(file).expanduser().open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            header, *rows = [(reader.line_num, row) for row in reader if row] or [(1, [])]
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{where} is no CSV file: {brief(error)}") from error
    form, width = f"must be {','.join(HEADER)} [,group]", len(header[1])
    if header[1] not in (HEADER, [*HEADER, "group"]) or not rows:
        raise UserError(f"{where}: {','.join(header[1])!r} and {len(rows)} rows, {form}")
    held: dict[tuple[str, str], list[int]] = {}  # of each client and split
    first: dict[str, int] = {}  # line of each path
    places: dict[str, tuple[str, str]] = {}  # of groups
    for line, row in rows:
        path, client, split, *group = row if len(row) == width else [",".join(row), "", "", ""]
        place = (client, split)
        if len(row) != width:
            what = f"{path!r}, {form}"
        elif path not in index_of:
            like = f"its paths look like {next(iter(index_of), '')!r}"
            what = f"path {path!r} is not an image of the data set ({like})"
        elif first.setdefault(path, line) != line:
            what = f"path {path!r} is already in line {first[path]}"
        elif not is_id(client):
            what = f"client {client!r} is not allowed (1 to 64 of A-Z a-z 0-9 . _ -)"
        elif split not in SPLITS:
            what = f"split {split!r} is not one of {', '.join(SPLITS)}"
        elif group and (before := places.setdefault(group[0], place)) != place:
            what = f"group {group[0]!r} has one place: {before[1]} of client {before[0]!r} above"
        else:
            held.setdefault(place, []).append(index_of[path])
            continue
        raise UserError(f"{where} line {line}: {what}")
    known = dict.fromkeys(client for client, _ in held)
    _check_count(clients, len(known), f"{where} has {len(known)}")
    if idle := [client for client in known if (client, "train") not in held]:
        raise UserError(f"{where}: client {idle[0]!r} has no train image")
    ids = sorted(known, key=int if all(map(str.isdigit, known)) else str)
    parts = ((np.array(sorted(held.get((c, s), ())), np.int64) for s in SPLITS) for c in ids)
    return tuple(ids), tuple(ClientSplit(*one) for one in parts)


def _check_count(clients: int, found: int, who: str) -> None:
    if clients not in (0, found):
        raise UserError(f"clients {clients} is not allowed: {who} (0 takes all)")


# --- who gets which example ----------------------------------------------------------------

MIN_CLIENT_IMAGES = 10
MAX_TRIES = 1000


def classes_per_client(rng: np.random.Generator, data: Content, config: RunConfig) -> Indices:
    """Give every client ``classes-per-client`` classes (Shamsian et al. 2021, pFedHN, corrected).

    Clients take, one after the other, c different classes with the most slots left, ties at random,
    so none of the ceil(N c / C) slots of a class is exceeded. Its owners share it by U(0.4, 0.6),
    normalised over the slots taken, rounded down; what is left goes out one image per owner. Raise
    UserError if an owner would get no image of its class.
    """
    sizes, most = _sizes(data), len(data.classes)
    if config.classes_per_client > most:
        raise UserError(f"classes-per-client {config.classes_per_client} is not in 1..{most}")
    taken = np.zeros(most, dtype=np.int64)
    owners: list[list[int]] = [[] for _ in sizes]
    for client in range(config.clients):
        chosen = np.lexsort((rng.random(len(sizes)), taken))[: config.classes_per_client]
        taken[chosen] += 1
        for label in chosen:
            owners[label].append(client)
    counts = []
    for name, size, takers in zip(data.classes, sizes, owners, strict=True):
        shares = rng.uniform(0.4, 0.6, len(takers))
        images = np.floor(size * shares / shares.sum()).astype(np.int64)
        images[: size - images.sum()] += 1
        if len(takers) and images.min() < 1:
            few = f"class {name!r} has {size} images, too few for the {len(takers)} clients of it"
            raise UserError(f"{few}: fewer clients or classes-per-client, or more images")
        counts.append(images)
    return _hand_out(rng, data, owners, counts)


def _sizes(data: Content) -> Indices:
    return np.bincount(data.labels, minlength=len(data.classes)).astype(np.int64)


def _hand_out(
    rng: np.random.Generator, data: Content, owners: Sequence[Any], counts: Sequence[Indices]
) -> Indices:
    """Give ``counts[s][i]`` random examples of class s to ``owners[s][i]``; the rest is -1."""
    owner = np.full(len(data.labels), -1, dtype=np.int64)
    order = np.argsort(data.labels, kind="stable")
    for label, own in enumerate(np.split(order, np.cumsum(_sizes(data))[:-1])):
        shuffled, holders = rng.permutation(own), np.repeat(owners[label], counts[label])
        owner[shuffled[: len(holders)]] = holders
    return owner


def _enough_each(rng: np.random.Generator, config: RunConfig, sizes: Indices) -> Indices:
    """Return the first counts (C, N), or (N,) of one size, that give every client 10."""
    alpha = np.full(config.clients, config.alpha)
    for _ in range(MAX_TRIES):
        shares = rng.dirichlet(alpha, size=sizes.shape or None)
        if np.isfinite(shares).all():  # alpha may be too small for floats
            size = sizes[..., None]
            upper = np.minimum(np.floor(np.cumsum(shares, axis=-1) * size).astype(np.int64), size)
            upper[..., -1:] = size
            counts = np.diff(upper, axis=-1, prepend=0)
            if counts.reshape(-1, config.clients).sum(axis=0).min() >= MIN_CLIENT_IMAGES:
                return counts
    none = f"no draw of {MAX_TRIES} gives every client {MIN_CLIENT_IMAGES} examples"
    raise UserError(f"alpha {config.alpha:g}: {none}; use a larger alpha, or fewer clients")


DEFAULT_CLIENTS = 10  # where nothing says their number
PREFIX = "flwr:"  # and the class of a partitioner of flwr-datasets, with its keywords
_NAMED = 5  # in a line
_GROUPS = 20  # groups in test below which a figure is chance
_TESTED = 5  # test examples of a class from which on a metric of rare classes says something
CODED = 8  # classes up to which it is said that sites may code them in other ways


@dataclass(frozen=True)
class Partition:
    """Client k has the id ``ids[k]`` and the images ``clients[k]``; ``warnings`` are for the user.

    A drawn partition numbers its clients "0", "1", ...; a file brings its own ids.
    """

    clients: tuple[ClientSplit, ...]
    ids: tuple[str, ...]
    warnings: tuple[str, ...]

    def counts(self, labels: Indices, num_classes: int, parts: Sequence[str] = SPLITS) -> Indices:
        """Return int64 (N, C): images of each class on each client, in ``parts`` together."""
        own = (labels[np.concatenate([getattr(c, part) for part in parts])] for c in self.clients)
        return np.stack([np.bincount(one, minlength=num_classes) for one in own]).astype(np.int64)


def make_partition(data: Content, config: RunConfig) -> Partition:
    """Partition the examples as the configuration says; equal arguments give equal partitions.

    ``clients`` may be 0 for natural clients, a file and partitioners that say it themselves. Raise
    UserError for examples of one class, an infeasible setting, or an error in the file.
    """
    check_groups(data, config)
    lines = list(about_classes(data, noun(config.dataset)))
    if config.partition == "file":
        known = data.paths or [str(index) for index in range(len(data.labels))]
        ids, clients = read_partition_file(config.partition_file, known, config.clients)
    elif config.partition == "natural":
        ids, clients, left_out = _natural(data, config)
        lines += left_out
    else:
        owner, count = _owners(data, config)
        if data.grouped:
            owner = _whole_groups(data, owner, count, config.data_seed)
        ids = tuple(map(str, range(count)))
        clients = tuple(_splits(data, config, ids, owner))
    lines += _about_groups(clients, data, config)
    lines += _about_clients(Partition(clients, ids, ()), data, config)
    return Partition(clients, ids, tuple(lines))


def check_groups(data: Content, config: RunConfig) -> None:
    """Raise UserError for keys that this data set cannot follow."""
    group, when = config.group and not data.grouped, config.split_by and not len(data.times)
    if group or when:
        word = f"group: '{','.join(config.group)}'" if group else f"split-by: '{config.split_by}'"
        raise UserError(f"{word} is not allowed: dataset {config.dataset} has no such column")


def _owners(data: Content, config: RunConfig) -> tuple[Indices, int]:
    """Draw the client (n,) of every example, -1 for none, and their number."""
    kind, clients, total = config.partition, config.clients, len(data.labels)
    if kind.startswith(PREFIX):
        return _flower_owner(data, config)
    if clients < 1:
        raise UserError(f"clients 0 is not allowed with partition {kind} (>= 1)")
    rng = generator(config.data_seed, "partition")
    if kind == "classes-per-client":
        return classes_per_client(rng, data, config), clients
    if total < clients * MIN_CLIENT_IMAGES:
        few = f"{total} examples cannot give every client {MIN_CLIENT_IMAGES}; use fewer clients"
        raise UserError(f"clients {clients}: {few}")
    if kind == "dirichlet":  # every class is cut by q ~ Dir(alpha 1_N)
        counts = _enough_each(rng, config, _sizes(data))
        return _hand_out(rng, data, [np.arange(clients)] * len(counts), list(counts)), clients
    sizes = np.bincount(np.arange(total) % clients)
    if kind == "quantity":  # the whole is cut so: NIID-Bench, arXiv 2102.02079
        sizes = _enough_each(rng, config, np.array(total))
    owner = np.empty(total, dtype=np.int64)
    owner[rng.permutation(total)] = np.repeat(np.arange(clients), sizes)
    return owner, clients


def _whole_groups(data: Content, owner: Indices, clients: int, seed: int) -> Indices:
    """Return the client (n,) of every example such that no group is at two; -1 for none."""
    codes, counts = _group_counts(data.labels, data.groups)
    needs = np.zeros((clients + 1, counts.shape[1]))  # the last is nobody
    np.add.at(needs, (owner, np.unique(data.labels, return_inverse=True)[1]), 1)
    first = np.full(len(counts), -2)
    first[codes] = owner
    split = np.zeros(len(counts), dtype=bool)
    split[codes[first[codes] != owner]] = True
    np.subtract.at(needs, first[~split], counts[~split])
    first[split] = _deal(generator(seed, "groups"), counts[split], needs)
    owner = np.where(first == clients, -1, first)[codes]
    if missing := sorted(set(range(clients)) - set(owner.tolist())):
        none = f"client {missing[0]} gets no whole group by {data.group_by} of {len(counts)}"
        raise UserError(f"clients {clients}: {none}: use fewer, or another partition")
    return owner


def _splits(
    data: Content, config: RunConfig, ids: Sequence[str], owner: npt.NDArray[Any]
) -> Iterator[ClientSplit]:
    """Yield the splits of the clients; ``owner`` (n,) is the place of an example's, -1 for none."""
    order = np.argsort(owner, kind="stable").astype(np.int64)
    ends = np.searchsorted(owner[order], np.arange(len(ids) + 1))
    for client, start, end in zip(ids, ends, ends[1:], strict=False):
        yield split_client(order[start:end], data, config.split, config.data_seed, client)


def _natural(
    data: Content, config: RunConfig
) -> tuple[tuple[str, ...], tuple[ClientSplit, ...], list[str]]:
    """Return clients as the data names them, without those that cannot be trained and tested."""
    names, what = data.site_names, noun(config.dataset)
    if not names:
        raise UserError("partition natural needs the clients of examples: `site`, or Data.clients")
    splits = dict(zip(names, _splits(data, config, names, data.sites), strict=True))
    order = sorted(names, key=client_order)
    ids = tuple(n for n in order if len(splits[n].train) and len(splits[n].test))
    if not ids:
        raise UserError(f"partition natural: no client has enough {what} to train and to test")
    _check_count(config.clients, len(ids), f"the data names {len(ids)} clients with enough {what}")
    small = [f"{n} ({sum(map(len, astuple(splits[n])))})" for n in order if n not in ids]
    left = f"{len(small)} clients are left out, with too few {what} to train and to test: "
    return ids, tuple(splits[n] for n in ids), [left + listed(small, _NAMED)] if small else []


# --- what the user should know ----------------------------------------------------------------

_NO_CLASS = re.compile(r"-9+|999+|unknown|missing|unbekannt|inconnue?|desconocid[oa]|keine angabe")


def about_classes(data: Content, what: str) -> Iterator[str]:
    """Yield lines about classes that may be one, or are too small; UserError for one class."""
    sizes, names = _sizes(data), np.array(data.classes)
    if len(data.labels) > 1 == np.count_nonzero(sizes):
        same = f"all {len(data.labels):,} {what} have the same class, '{names[sizes.argmax()]}'"
        check = ": check target, whether the file is complete, and the level of the folder"
        raise UserError("; ".join([same + check, *data.notes[:1]]))
    for one in alike(data.classes):
        joined = f"labels={{{one[0]}: [{', '.join(one)}], ...}} joins them"
        yield f"classes {', '.join(map(repr, one))} differ only in case or spaces: {joined}"
    gaps = [name for name in data.classes if _NO_CLASS.fullmatch(name.lower())]
    if gaps and what != noun("image-folder"):
        yield f"classes {listed(gaps)} may stand for a missing value: gaps={','.join(gaps)}"
    joins = "labels={NAME: [WORD, WORD], ...} joins different words for one class"
    held = {site: {*names[data.labels[data.sites == k]]} for k, site in enumerate(data.site_names)}
    owners = Counter(name for held_names in held.values() for name in held_names)
    several = [site for site, held_names in held.items() if len(held_names) > 1]
    if apart := [one for one in several if max(owners[name] for name in held[one]) == 1]:
        yield f"no class of {listed(apart, _NAMED)} occurs at another site: {joins}"
    coded = all(map(str.isdigit, data.classes)) and 3 <= len(names) <= CODED  # noqa: PLR2004
    for a, b in combinations(several, 2) if coded else ():
        if held[a] - held[b] and held[b] - held[a]:
            both = "; ".join(f"{one} has {', '.join(sorted(held[one]))}" for one in (a, b))
            yield f"sites do not have the same classes ({both}): {joins}"
            break
    if alone := [*names[sizes == 1]]:
        few = f"{len(alone)} classes have one {what.removesuffix('s')}, which cannot be trained on"
        yield f"{few} and tested: {listed(alone, _NAMED)}; labels can join classes"


def _about_groups(splits: Sequence[ClientSplit], data: Content, config: RunConfig) -> Iterator[str]:
    """Yield lines about test examples whose group is in train, too, and windows cut by time."""
    if not len(data.groups):
        return
    what, by, parts = noun(config.dataset), data.group_by, ("train", "test")
    train, tested = (np.concatenate([data.groups[getattr(c, p)] for c in splits]) for p in parts)
    seen, number = int(np.isin(tested, train).sum()), len(np.unique(tested))
    if data.grouped and 0 < number < _GROUPS:
        yield f"the test figures rest on {number} groups by {by}: several seeds say more"
    share = f"have their {by} in train"
    if "{" in by and not data.grouped:
        share = "share their stem with a train image, and may be of one person or scan"
    figure = f"{seen:,} of {len(tested):,} test {what} {share}"
    if not seen:
        return
    if not data.grouped:
        yield f"{figure}: group={shlex.quote(by)} keeps all {what} of one in one split"
    elif by == RECORDING and config.partition != "file":
        yield f"{figure}: some class of theirs has fewer than 3 recordings, and was cut by time"
    elif config.partition == "natural":
        pairs = np.unique(np.stack([data.groups, data.sites]), axis=1)[0]
        several = int((np.unique(pairs, return_counts=True)[1] > 1).sum())
        yield f"{several:,} groups by {by} lie in two sites or more: {figure} of another site"
    elif config.group:
        raise UserError(f"partition-file {config.partition_file}: {figure}, which group forbids")
    else:
        yield f"{figure}, as partition-file says"


def _about_clients(partition: Partition, data: Content, config: RunConfig) -> Iterator[str]:
    """Yield lines about classes and clients that will not do what the user may expect."""
    what, names, ids = noun(config.dataset), np.array(data.classes), np.array(partition.ids)
    held, tested = (partition.counts(data.labels, len(names), p) for p in (SPLITS, ["test"]))
    owners = (held > 0).sum(axis=0)
    unowned = names[(owners == 0) & (_sizes(data) > 0)]
    for which, text in (
        (unowned, "classes have no owner and are dropped"),
        (names[(owners == 1) & (len(ids) > 1)],
         "classes occur at only one client, so methods average nothing by class for them"),
        (ids[(held > 0).sum(axis=1) == 1],
         "clients have one class, so balanced accuracy and AUROC are not defined for them"),
        (ids[tested.sum(axis=1) == 0], f"clients have no test {what.removesuffix('s')}"),
    ):  # fmt: skip
        if len(which):
            yield f"{len(which)} {text}: {listed(which.tolist(), _NAMED)}"
    unused = len(data.labels) - int(held.sum())
    if unused and not len(unowned):
        yield f"{unused} of {len(data.labels)} {what} belong to no client"
    places = np.argwhere((held > 0) & (tested < _TESTED))
    few = [f"client {ids[k]} has {tested[k, label]} of '{names[label]}'" for k, label in places]
    if few and config.metric != "accuracy":
        chance = "such metrics are chance; a larger test set and several seeds say more"
        yield f"few test {what} of a class: {listed(few, _NAMED)}: {chance}"


def _flower_owner(data: Content, config: RunConfig) -> tuple[Indices, int]:
    """Return the client (n,) of every example by ``flwr:CLASS key=value ...``, and their number."""
    kind, owner = config.partition, np.full(len(data.labels), -1, dtype=np.int64)
    try:
        name, *words = shlex.split(kind.removeprefix(PREFIX)) or [""]
        arguments = {key: parse_yaml(text) for key, text in (word.split("=", 1) for word in words)}
        classes: Any = import_module("flwr_datasets.partitioner")
        datasets: Any = import_module("datasets")
    except (ValueError, Damaged, ImportError) as error:
        form, how = f"must be {PREFIX}CLASS key=value ...", "needs pip install 'fedhet[hf]'"
        must = how if isinstance(error, ImportError) else form
        raise UserError(f"partition: '{kind}' {must} ({brief(error)})") from error
    known = [one for one in classes.__all__ if one != "Partitioner" and "Vertical" not in one]
    if name not in known:
        allowed = f"{nearest(name, known)}; allowed: {', '.join(known)}"
        raise UserError(f"partition: flwr-datasets has no '{name}' that deals examples{allowed}")
    takes = signature(getattr(classes, name)).parameters
    ours = {"num_partitions": config.clients or DEFAULT_CLIENTS, "partition_by": "label",
            "seed": config.data_seed}  # fmt: skip
    columns = {"label": data.labels.tolist(), "index": list(range(len(owner)))}
    columns |= {"site": [data.site_names[k] for k in data.sites]} if data.site_names else {}
    try:
        for key, value in arguments.items():
            switch = key in takes and isinstance(takes[key].default, bool)
            if switch and not isinstance(value, bool):
                raise TypeError(f"{key}={value} is not allowed: true or false")
        keywords = {key: value for key, value in ours.items() if key in takes} | arguments
        partitioner = getattr(classes, name)(**keywords)
        datasets.disable_progress_bars()
        partitioner.dataset = datasets.Dataset.from_dict(columns)
        count = int(partitioner.num_partitions)
        held = [np.array(partitioner.load_partition(k)["index"], np.int64) for k in range(count)]
    except Exception as error:  # whatever another's code raises for such values
        what = f"cannot be made: {brief(error)}; it takes {', '.join(takes)}"
        raise UserError(f"partition: '{kind}' {what}") from error
    _check_count(config.clients, count, f"'{kind}' makes {count}")
    sizes = [*map(len, held)]
    owner[np.concatenate(held)] = np.repeat(np.arange(count), sizes)
    if 0 in sizes or sum(sizes) != (owner >= 0).sum():
        what = "leaves some clients without examples, or gives some examples to several"
        raise UserError(f"partition: '{kind}' {what}: use fewer clients")
    return owner, count
