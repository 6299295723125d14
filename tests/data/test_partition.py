"""Partitions: what must hold for every setting, and the refusals with their reason."""

import numpy as np
import pytest
from helpers.partitions import partition
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhet.data.partition import Partition
from fedhet.errors import UserError

BY_CLASS = "classes-per-client"


def _everything(made: Partition) -> np.ndarray:
    return np.concatenate([np.concatenate([c.train, c.val, c.test]) for c in made.clients])


def _same(a: Partition, b: Partition) -> bool:
    return a.ids == b.ids and all(
        np.array_equal(getattr(x, part), getattr(y, part))
        for x, y in zip(a.clients, b.clients, strict=True)
        for part in ("train", "val", "test")
    )


@st.composite
def _feasible(draw):
    """Labels in random order with at least four images per slot of every class."""
    num_classes = draw(st.integers(2, 12))
    clients = draw(st.integers(1, 100))
    per_client = draw(st.integers(1, num_classes))
    slots = -(-clients * per_client // num_classes)
    sizes = [4 * slots + draw(st.integers(0, 15)) for _ in range(num_classes)]
    labels = np.repeat(np.arange(num_classes), sizes)
    seed = draw(st.integers(0, 2**31 - 1))
    np.random.default_rng(seed).shuffle(labels)
    return labels, num_classes, clients, {"classes_per_client": per_client, "seed": seed}


@settings(deadline=None, max_examples=50)
@given(_feasible())
def test_classes_per_client_properties(case):
    labels, num_classes, clients, keys = case
    made = partition(labels, BY_CLASS, clients, **keys)
    assert made.ids == tuple(str(k) for k in range(clients))
    used = _everything(made)
    assert len(np.unique(used)) == len(used), "an image has two places"
    counts = made.counts(labels, num_classes)
    owners = (counts > 0).sum(axis=0)
    # Complete: only classes that nobody owns are left out, and only where that must be.
    assert np.array_equal(np.unique(used), np.flatnonzero(owners[labels] > 0))
    if clients * keys["classes_per_client"] >= num_classes:
        assert owners.min() >= 1
    assert owners.max() - owners.min() <= 1
    for k, client in enumerate(made.clients):
        assert len(made.seen(k, labels)) == keys["classes_per_client"]
        assert np.array_equal(made.seen(k, labels), np.unique(labels[client.test]))
        assert np.array_equal(made.seen(k, labels), np.flatnonzero(counts[k]))
        assert client.train.dtype == np.int64
        assert np.all(np.diff(client.train) > 0)
    assert _same(made, partition(labels, BY_CLASS, clients, **keys))


def test_single_owner_and_dropped_classes_are_named():
    labels = np.arange(300) % 6
    names = ["ant", "bee", "cat", "dog", "elk", "fox"]
    made = partition(labels, BY_CLASS, 2, names=names)
    owned = (made.counts(labels, 6) > 0).any(axis=0)
    assert owned.sum() == 4
    dropped, single = made.warnings
    gone = [name for name, has in zip(names, owned, strict=True) if not has]
    assert dropped == f"2 classes have no owner and are dropped: {gone[0]}, {gone[1]}"
    assert single.startswith("4 classes occur at only one client")


def test_legacy_leaves_a_third_of_the_images_unused():
    """m_s = 10 * 2 // 10 + 1 = 3 slots of which 2 are taken."""
    labels = np.arange(6_000) % 10
    made = partition(labels, BY_CLASS, 10, legacy_pfedhn=True)
    used = _everything(made)
    assert len(np.unique(used)) == len(used)
    assert 0.28 < 1 - len(used) / 6_000 < 0.39
    assert np.all((made.counts(labels, 10) > 0).sum(axis=1) == 2)
    assert any("belong to no client" in line for line in made.warnings)


KINDS = st.sampled_from(["dirichlet", "dirichlet-balanced", "iid", "quantity"])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(2, 8), st.floats(0.3, 50), KINDS, st.integers(0, 999))
def test_partitions_by_chance_properties(clients, num_classes, alpha, kind, seed):
    labels = np.random.default_rng(seed).integers(0, num_classes, 150 * clients)
    keys = {"seed": seed} | ({} if kind == "iid" else {"alpha": alpha})
    try:
        made = partition(labels, kind, clients, **keys)
    except UserError as error:
        assert "no draw of 1000" in str(error)
        return
    assert np.array_equal(np.sort(_everything(made)), np.arange(len(labels)))
    sizes = made.counts(labels, num_classes).sum(axis=1)
    assert sizes.min() >= 10 and (kind != "iid" or np.ptp(sizes) <= 1)
    assert _same(made, partition(labels, kind, clients, **keys))


def test_balanced_gives_a_full_client_no_further_class():
    labels = np.arange(20_000) % 20
    counts = partition(labels, "dirichlet-balanced", 10).counts(labels, 20)
    before = np.cumsum(counts, axis=1) - counts
    full = before >= len(labels) / 10
    assert full.any() and counts[full].sum() == 0
    assert partition(labels, "dirichlet", 10).counts(labels, 20)[full].sum() > 0


def test_alpha_is_the_concentration():
    labels = np.arange(20_000) % 10
    # Var of one share of Dir(alpha 1_N) is (N - 1) / (N^2 (N alpha + 1)); 100 shares estimate it.
    for alpha in (0.3, 1.0, 10.0):
        shares = partition(labels, "dirichlet", 10, alpha=alpha).counts(labels, 10) / 2000
        assert float(shares.var()) == pytest.approx(9 / (100 * (10 * alpha + 1)), rel=0.45)


REFUSED = [
    (BY_CLASS, 5, {"classes_per_client": 11}, "classes-per-client 11 .*1..10"),
    (BY_CLASS, 0, {}, "clients 0 is not allowed"),
    ("dirichlet", 11, {}, "clients 11: 100 examples cannot"),
    ("dirichlet", 10, {"alpha": 0.01}, "no draw of 1000 .*larger alpha, fewer clients"),
    ("dirichlet-balanced", 11, {}, "100 examples cannot give every client 10"),
    ("iid", 11, {}, "clients 11: 100 examples cannot give every client 10"),
]


@pytest.mark.parametrize(("kind", "clients", "keys", "reason"), REFUSED)
def test_refused_with_the_reason_in_one_line(kind, clients, keys, reason):
    with pytest.raises(UserError, match=reason) as caught:
        partition(np.arange(100) % 10, kind, clients, **keys)
    assert "\n" not in str(caught.value)


def test_a_class_with_too_few_images_is_named():
    labels = np.array([0] * 100 + [1] * 3)
    for legacy in (False, True):
        with pytest.raises(UserError, match="class 'rare' has 3 images.* 8 clients"):
            partition(labels, BY_CLASS, 8, legacy_pfedhn=legacy, names=["common", "rare"])
