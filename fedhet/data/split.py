"""The splits of one client: train, validation and test, by class, by whole groups, or by time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhet.data.inputs import RECORDING, Content, Indices
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
        which = _split_groups(rng, labels, data.groups[indices], split)
        if data.group_by == RECORDING:
            _split_few(which, labels, data.groups[indices], split)
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
    """Return the part (n,) of every row; of each class about the share of its groups.

    A class with two groups has one in train and one in test, as two rows have.
    """
    codes, counts = group_counts(labels, groups)
    of_class = (counts > 0).sum(axis=0)
    mean = counts.sum(axis=0) / np.maximum(1, of_class)
    needs = split_counts(of_class, split).T * mean
    return deal(rng, counts, needs)[codes]


def group_counts(labels: Indices, groups: npt.NDArray[Any]) -> tuple[Indices, Indices]:
    """Return the place (n,) of every row's group, and int64 (G, C): its rows of each class."""
    _, codes = np.unique(groups, return_inverse=True)
    present, columns = np.unique(labels, return_inverse=True)
    counts = np.zeros((codes.max(initial=-1) + 1, len(present)), dtype=np.int64)
    np.add.at(counts, (codes, columns), 1)
    return codes, counts


def deal(rng: np.random.Generator, counts: Indices, needs: npt.NDArray[np.float64]) -> Indices:
    """Return who gets each group, in an order by chance: whoever lacks most of its rows.

    ``counts`` (G, C) are the groups' rows of each class; ``needs`` (P, C) how many each is to have,
    who gets none of a class that it needs none of, as far as that goes.
    """
    # Iterative stratification (Sechidis et al. 2011), of groups.
    left = needs - counts.sum() * (needs <= 0)
    chosen = np.zeros(len(counts), dtype=np.int64)
    for group in rng.permutation(len(counts)):
        chosen[group] = np.argmax(left @ counts[group])
        left[chosen[group]] -= counts[group]
    return chosen


def _split_few(
    which: Indices, labels: Indices, groups: npt.NDArray[Any], split: Sequence[int]
) -> None:
    """Cut the windows of a class by time where it has fewer recordings than there are parts.

    Its last windows are test then: whole recordings would leave it without.
    """
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(np.unique(groups[rows])) < np.count_nonzero(split):
            which[rows] = _in_turn(labels[rows], split)


def _split_by_time(
    times: npt.NDArray[np.float64], groups: npt.NDArray[Any], split: Sequence[int]
) -> Indices:
    """Return the part (n,) of every row: the latest are test. A group is as late as its last row.

    Rows of one time stay together; test and val have as many times as come nearest to their share.
    """
    _, codes = np.unique(groups, return_inverse=True)
    last = np.full(codes.max(initial=-1) + 1, -np.inf)
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
