"""Partitions: what must hold for every setting, and the refusals with their reason."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhet.data.partition import Partition, PartitionSpec, make_partition
from fedhet.errors import UserError


def _everything(partition: Partition) -> np.ndarray:
    return np.concatenate([np.concatenate([c.train, c.val, c.test]) for c in partition.clients])


def _same(a: Partition, b: Partition) -> bool:
    return a.ids == b.ids and all(
        np.array_equal(getattr(x, part), getattr(y, part))
        for x, y in zip(a.clients, b.clients, strict=True)
        for part in ("train", "val", "test")
    )


@st.composite
def _feasible(draw):
    """Labels in random order with at least four images per slot of every class."""
    num_classes = draw(st.integers(1, 12))
    clients = draw(st.integers(1, 40))
    per_client = draw(st.integers(1, num_classes))
    slots = -(-clients * per_client // num_classes)
    sizes = [4 * slots + draw(st.integers(0, 15)) for _ in range(num_classes)]
    labels = np.repeat(np.arange(num_classes), sizes)
    seed = draw(st.integers(0, 2**31))
    np.random.default_rng(seed).shuffle(labels)
    spec = PartitionSpec("classes-per-client", clients, classes_per_client=per_client, seed=seed)
    return labels, num_classes, spec


@settings(deadline=None)
@given(_feasible())
def test_classes_per_client_properties(case):
    labels, num_classes, spec = case
    partition = make_partition(labels, num_classes, spec)
    assert partition.ids == tuple(str(k) for k in range(spec.clients))
    used = _everything(partition)
    assert len(np.unique(used)) == len(used), "an image has two places"
    counts = partition.counts(labels, num_classes)
    owners = (counts > 0).sum(axis=0)
    # Complete: only classes that nobody owns are left out, and only where that must be.
    assert np.array_equal(np.unique(used), np.flatnonzero(owners[labels] > 0))
    if spec.clients * spec.classes_per_client >= num_classes:
        assert owners.min() >= 1
    assert owners.max() - owners.min() <= 1
    for k, client in enumerate(partition.clients):
        assert len(partition.seen(k, labels)) == spec.classes_per_client
        assert np.array_equal(partition.seen(k, labels), np.unique(labels[client.test]))
        assert np.array_equal(partition.seen(k, labels), np.flatnonzero(counts[k]))
        assert client.train.dtype == np.int64
        assert np.all(np.diff(client.train) > 0)
    assert _same(partition, make_partition(labels, num_classes, spec))


@pytest.mark.parametrize("per_client", range(1, 11))
def test_hundred_clients_never_reach_a_dead_end(per_client):
    labels = np.arange(20_000) % 10
    spec = PartitionSpec("classes-per-client", 100, classes_per_client=per_client)
    counts = make_partition(labels, 10, spec).counts(labels, 10)
    assert np.all((counts > 0).sum(axis=1) == per_client)
    assert np.all((counts > 0).sum(axis=0) == 10 * per_client)


def test_single_owner_and_dropped_classes_are_named():
    labels = np.arange(300) % 6
    names = ["ant", "bee", "cat", "dog", "elk", "fox"]
    spec = PartitionSpec("classes-per-client", 2, classes_per_client=2)
    partition = make_partition(labels, 6, spec, classes=names)
    owned = (partition.counts(labels, 6) > 0).any(axis=0)
    assert owned.sum() == 4
    dropped, single = partition.warnings
    gone = [name for name, has in zip(names, owned, strict=True) if not has]
    assert dropped == f"2 classes have no owner and are dropped: {gone[0]}, {gone[1]}"
    assert single.startswith("4 classes occur at only one client")


def test_legacy_leaves_a_third_of_the_images_unused():
    """m_s = 10 * 2 // 10 + 1 = 3 slots of which 2 are taken."""
    labels = np.arange(60_000) % 10
    spec = PartitionSpec("classes-per-client", 10, legacy_pfedhn=True)
    partition = make_partition(labels, 10, spec)
    used = _everything(partition)
    assert len(np.unique(used)) == len(used)
    assert 0.28 < 1 - len(used) / 60_000 < 0.39
    counts = partition.counts(labels, 10)
    assert np.all((counts > 0).sum(axis=1) == 2)
    assert any("belong to no client" in line for line in partition.warnings)
    assert _same(partition, make_partition(labels, 10, spec))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 12),
    st.integers(1, 8),
    st.floats(0.3, 50),
    st.sampled_from(["dirichlet", "dirichlet-balanced"]),
    st.integers(0, 999),
)
def test_dirichlet_properties(clients, num_classes, alpha, kind, seed):
    labels = np.random.default_rng(seed).integers(0, num_classes, 150 * clients)
    spec = PartitionSpec(kind, clients, alpha=alpha, seed=seed)
    try:
        partition = make_partition(labels, num_classes, spec)
    except UserError as error:
        assert "no draw of 1000" in str(error)
        return
    assert np.array_equal(np.sort(_everything(partition)), np.arange(len(labels)))
    assert partition.counts(labels, num_classes).sum(axis=1).min() >= 10
    assert _same(partition, make_partition(labels, num_classes, spec))


def test_balanced_gives_a_full_client_no_further_class():
    labels = np.arange(20_000) % 20
    spec = PartitionSpec("dirichlet-balanced", 10, alpha=0.3)
    counts = make_partition(labels, 20, spec).counts(labels, 20)
    before = np.cumsum(counts, axis=1) - counts
    full = before >= len(labels) / 10
    assert full.any() and counts[full].sum() == 0
    plain = make_partition(labels, 20, PartitionSpec("dirichlet", 10, alpha=0.3))
    assert plain.counts(labels, 20)[full].sum() > 0


def test_alpha_is_the_concentration():
    labels = np.arange(20_000) % 10

    def spread(alpha: float) -> float:
        spec = PartitionSpec("dirichlet", 10, alpha=alpha)
        shares = make_partition(labels, 10, spec).counts(labels, 10) / 2000
        return float(shares.var())

    # Var of one share of Dir(alpha 1_N) is (N - 1) / (N^2 (N alpha + 1)); 100 shares estimate it.
    for alpha in (0.3, 1.0, 10.0):
        assert spread(alpha) == pytest.approx(9 / (100 * (10 * alpha + 1)), rel=0.45)


REFUSED = [
    (
        PartitionSpec("classes-per-client", 5, classes_per_client=11),
        "classes-per-client 11 .*1..10",
    ),
    (PartitionSpec("classes-per-client", 5, classes_per_client=0), "classes-per-client 0 "),
    (PartitionSpec("classes-per-client", 0), "clients 0 is not allowed"),
    (PartitionSpec("dirichlet", 5, alpha=0.0), "alpha 0 is not allowed"),
    (PartitionSpec("dirichlet", 5, alpha=float("nan")), "alpha nan is not allowed"),
    (PartitionSpec("dirichlet", 11), "alpha 0.3 with clients 11: 100 examples cannot"),
    (PartitionSpec("dirichlet", 10, alpha=0.01), "no draw of 1000 .*larger alpha, fewer clients"),
    (PartitionSpec("dirichlet-balanced", 11), "100 examples cannot give every client 10"),
    (PartitionSpec("dirichlett", 5), "unknown .did you mean .dirichlet."),
    (PartitionSpec("classes-per-client", 5, split=(0, 1, 1)), "split 0:1:1 is not allowed"),
    (PartitionSpec("file", 0), "partition-file is empty"),
]


@pytest.mark.parametrize(("spec", "reason"), REFUSED)
def test_refused_with_the_reason_in_one_line(spec, reason):
    with pytest.raises(UserError, match=reason) as caught:
        make_partition(np.arange(100) % 10, 10, spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_class_with_too_few_images_is_named(legacy):
    labels = np.array([0] * 100 + [1] * 3)
    spec = PartitionSpec("classes-per-client", 8, legacy_pfedhn=legacy)
    with pytest.raises(UserError, match="class 'rare' has 3 images.* 8 clients"):
        make_partition(labels, 2, spec, classes=["common", "rare"])
