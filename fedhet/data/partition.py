"""Partitions: which client holds which examples, and which of them it trains on.

The examples of a data set are pooled, handed to clients (``allocation``, a file, or the sites that
the data itself names) and split per client and class (``split``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedhet.data.allocation import (
    Pool,
    classes_per_client,
    dirichlet,
    iid,
    legacy_pfedhn,
    quantity,
)
from fedhet.data.flower_partition import PREFIX, flower_owner
from fedhet.data.image_source import Indices
from fedhet.data.partition_file import read_partition_file
from fedhet.data.split import ClientSplit, check_split, split_client, split_folder
from fedhet.errors import UserError, nearest
from fedhet.files import client_order
from fedhet.rng import generator

__all__ = ["ClientSplit", "Partition", "PartitionSpec", "make_partition", "split_folder"]

KINDS = (
    "classes-per-client", "dirichlet", "dirichlet-balanced", "iid", "quantity", "natural", "file",
)  # fmt: skip
_OWN = ("natural", "file")  # who names the clients
_NAMED = 5


@dataclass(frozen=True)
class Partition:
    """Client k has the id ``ids[k]`` and the images ``clients[k]``; ``warnings`` are for the user.

    A drawn partition numbers its clients "0", "1", ...; a file brings its own ids.
    """

    clients: tuple[ClientSplit, ...]
    ids: tuple[str, ...]
    warnings: tuple[str, ...]

    def seen(self, k: int, labels: Indices) -> Indices:
        """Classes in the train split of client k, int64, ascending; ``labels`` (n,)."""
        return np.unique(labels[self.clients[k].train]).astype(np.int64)

    def counts(self, labels: Indices, num_classes: int) -> Indices:
        """(N, C) int64: images of each class on each client, train, val and test together."""
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
        """One of them."""
        return self.noun.removesuffix("s")


@dataclass(frozen=True)
class Sites:
    """Whose every example is, as the data says: ``owner`` (n,) into ``names``; or nothing."""

    owner: npt.NDArray[np.int32]
    names: tuple[str, ...]


def make_partition(
    dataset_labels: Indices,
    num_classes: int,
    spec: PartitionSpec,
    paths: Sequence[str] = (),
    classes: Sequence[str] = (),
    sites: Sites | None = None,
) -> Partition:
    """Partition the examples with labels ``dataset_labels`` (n,) int64 in 0..C-1.

    ``paths`` are the data set's and used by a file only (default: the index as text);
    ``classes`` are the names for messages (default: the label as text); ``sites`` are the clients
    of partition natural. Equal arguments give
    equal partitions.

    Raises:
        UserError: a setting that is out of range or infeasible, or an error in the file.

    """
    names = tuple(classes) or tuple(str(label) for label in range(num_classes))
    _check(spec, num_classes)
    if spec.kind == "file":
        known = paths or [str(index) for index in range(len(dataset_labels))]
        ids, clients = read_partition_file(spec.file, known, spec.clients)
    elif spec.kind == "natural":
        return _natural(dataset_labels, spec, sites, names)
    else:
        if spec.kind.startswith(PREFIX):
            owner, count = _by_flower(dataset_labels, spec, sites)
        else:
            owner, count = _allocate(Pool.of(dataset_labels, names), spec), spec.clients
        ids = tuple(str(k) for k in range(count))
        order = np.argsort(owner, kind="stable").astype(np.int64)
        ends = np.searchsorted(owner[order], np.arange(count + 1))
        held = [order[ends[k] : ends[k + 1]] for k in range(count)]
        clients = tuple(
            split_client(mine, dataset_labels[mine], spec.split, spec.seed, client)
            for client, mine in zip(ids, held, strict=True)
        )
    partition = Partition(clients, ids, ())
    return Partition(clients, ids, _warnings(partition, dataset_labels, spec, names))


def _by_flower(labels: Indices, spec: PartitionSpec, sites: Sites | None) -> tuple[Indices, int]:
    """As flwr-datasets deals them; UserError where somebody would have nothing to train on."""
    named = np.array(sites.names)[sites.owner] if sites is not None and sites.names else None
    owner, count = flower_owner(spec.kind, labels, named, clients=spec.clients, seed=spec.seed)
    sizes = np.bincount(owner[owner >= 0], minlength=count)
    if sizes.min(initial=1) < 1:
        raise UserError(
            f"partition: '{spec.kind}' gives client {int(sizes.argmin())} no {spec.singular}; take "
            "fewer clients"
        )
    return owner, count


def _natural(
    labels: Indices, spec: PartitionSpec, sites: Sites | None, names: Sequence[str]
) -> Partition:
    """Clients as the data names them; who has too little to train and to test is left out."""
    if sites is None or not sites.names:
        raise UserError(
            "partition natural needs data that says whose its examples are: `site` names the "
            "columns of a file, `clients` does in a fedhet.Data"
        )
    ids, clients, small = [], [], []
    order = np.argsort(sites.owner, kind="stable").astype(np.int64)
    ends = np.searchsorted(sites.owner[order], np.arange(len(sites.names) + 1))
    for site in sorted(range(len(sites.names)), key=lambda k: client_order(sites.names[k])):
        name, mine = sites.names[site], order[ends[site] : ends[site + 1]]
        split = split_client(mine, labels[mine], spec.split, spec.seed, name)
        if len(split.train) and len(split.test):
            ids.append(name)
            clients.append(split)
        else:
            small.append(f"{name} ({len(mine)})")
    if not ids:
        raise UserError(f"partition natural: no client has enough {spec.noun} to train and to test")
    if spec.clients not in (0, len(ids)):
        raise UserError(
            f"clients {spec.clients} is not allowed: the data names {len(ids)} clients that can be "
            "trained and tested (or say 0)"
        )
    partition = Partition(tuple(clients), tuple(ids), ())
    warnings = _warnings(partition, labels, spec, names)
    if small:
        left = f"{len(small)} clients are left out, with too few {spec.noun} to train and to test: "
        warnings = (left + _listed(small), *warnings)
    return Partition(partition.clients, partition.ids, warnings)


def _check(spec: PartitionSpec, num_classes: int) -> None:
    flowers = spec.kind.startswith(PREFIX)
    if spec.kind not in KINDS and not flowers:
        hint = nearest(spec.kind, KINDS)
        raise UserError(f"partition {spec.kind!r} is unknown{hint} (allowed: {', '.join(KINDS)})")
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
    """Lines about classes and clients that will not do what the user may expect."""
    lines = []
    held = partition.counts(labels, len(names))
    exists = np.bincount(labels, minlength=len(names)) > 0
    owners = (held > 0).sum(axis=0)
    unowned = [name for name, gone in zip(names, (owners == 0) & exists, strict=True) if gone]
    if unowned:
        lines.append(f"{len(unowned)} classes have no owner and are dropped: {_listed(unowned)}")
    single = [name for name, alone in zip(names, owners == 1, strict=True) if alone]
    if single and len(partition.ids) > 1:
        lines.append(
            f"{len(single)} classes have a single owner, so what the server averages for them is "
            f"that client's own: {_listed(single)}"
        )
    unused = len(labels) - int(held.sum())
    if unused and not unowned:
        lines.append(f"{unused} of {len(labels)} {spec.noun} belong to no client")
    fewer = int(((held > 0).sum(axis=1) < spec.classes_per_client).sum())
    if spec.kind == "classes-per-client" and fewer:
        lines.append(f"{fewer} clients drew a class twice and hold fewer than classes-per-client")
    untested = [i for i, c in zip(partition.ids, partition.clients, strict=True) if not len(c.test)]
    if untested:
        lines.append(f"{len(untested)} clients have no test {spec.singular}: {_listed(untested)}")
    return tuple(lines)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
