"""The integer split of a client's images into train, validation and test, class by class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedhet.data.image_source import Indices
from fedhet.errors import UserError
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
    """(m, 3) train, val, test images for ``counts`` (m,) images of one class on one client.

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
