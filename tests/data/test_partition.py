"""Partitions: what must hold for every setting, refusals with their reason, files, the split."""

import numpy as np
import pytest
from helpers.partitions import partition
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhet.data.inputs import Content, Inputs
from fedhet.data.partition import Partition, split_client, split_counts
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
        seen = np.unique(labels[client.train])
        assert len(seen) == keys["classes_per_client"]
        assert np.array_equal(seen, np.unique(labels[client.test]))
        assert np.array_equal(seen, np.flatnonzero(counts[k]))
        assert client.train.dtype == np.int64
        assert np.all(np.diff(client.train) > 0)
    assert _same(made, partition(labels, BY_CLASS, clients, **keys))


def test_classes_that_nobody_or_one_client_has_or_one_example_are_named():
    single = partition(np.arange(41) // 20, "iid", 2).warnings[0]
    assert single.startswith("1 classes have one image, which cannot be trained on and tested: 2")
    labels = np.arange(300) % 6
    made = partition(labels, BY_CLASS, 2, names="abcdef")
    unowned = np.flatnonzero(~(made.counts(labels, 6) > 0).any(axis=0))
    dropped, alone = made.warnings
    assert dropped.endswith("dropped: " + ", ".join("abcdef"[k] for k in unowned))
    assert len(unowned) == 2 and alone.startswith("4 classes occur at only one client")


KINDS = st.sampled_from(["dirichlet", "iid", "quantity"])


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


def test_alpha_is_the_concentration():
    labels = np.arange(20_000) % 10
    # Var of one share of Dir(alpha 1_N) is (N - 1) / (N^2 (N alpha + 1)); 100 shares estimate it.
    for alpha in (0.3, 1.0, 10.0):
        shares = partition(labels, "dirichlet", 10, alpha=alpha).counts(labels, 10) / 2000
        assert float(shares.var()) == pytest.approx(9 / (100 * (10 * alpha + 1)), rel=0.45)


REFUSED = [
    (BY_CLASS, 5, {"classes_per_client": 11}, "classes-per-client 11 .*1..10"),
    (BY_CLASS, 0, {}, "clients 0 is not allowed"),
    ("iid", 11, {}, "clients 11: 100 examples cannot give every client 10"),
    ("dirichlet", 10, {"alpha": 0.01}, "no draw of 1000 .*larger alpha, or fewer clients"),
    (BY_CLASS, 50, {"classes_per_client": 10}, "class '0' has 10 images.* 50 clients"),
]


@pytest.mark.parametrize(("kind", "clients", "keys", "reason"), REFUSED)
def test_refused_with_the_reason_in_one_line(kind, clients, keys, reason):
    with pytest.raises(UserError, match=reason) as caught:
        partition(np.arange(100) % 10, kind, clients, **keys)
    assert "\n" not in str(caught.value)


PATHS = ["cat/1.png", "cat/2.png", "cat/3.png", "dog/1.png", "dog/2.png"]
LABELS = np.array([0, 0, 0, 1, 1])
GOOD = "path,client,split\n"


def _make(tmp_path, text, clients=0, paths=PATHS):
    file = tmp_path / "clients.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return partition(
        LABELS, "file", clients, split=(8, 0, 2), partition_file=str(file), paths=paths
    )


def test_clients_and_splits_are_those_of_the_file(tmp_path):
    text = GOOD + "dog/2.png,b,train\ncat/3.png,a,test\ncat/1.png,a,train\ndog/1.png,b,val\n"
    made = _make(tmp_path, text)
    assert made.ids == ("a", "b")
    a, b = made.clients
    assert (a.train.tolist(), a.val.tolist(), a.test.tolist()) == ([0], [], [2])
    assert (b.train.tolist(), b.val.tolist(), b.test.tolist()) == ([4], [3], [])
    assert made.counts(LABELS, 2).tolist() == [[2, 0], [0, 2]]
    assert any(line.startswith("1 of 5 images") for line in made.warnings)
    assert any("no test image: b" in line for line in made.warnings)


def test_numbers_sort_as_numbers_and_other_ids_as_text(tmp_path):
    rows = [f"{path},{{}},train\n" for path in PATHS[:3]]
    numbers = _make(tmp_path, GOOD + "".join(rows).format("10", "9", "1"))
    assert numbers.ids == ("1", "9", "10")
    assert [c.train.tolist() for c in numbers.clients] == [[2], [1], [0]]
    texts = _make(tmp_path, GOOD + "".join(rows).format("10", "9", "x"))
    assert texts.ids == ("10", "9", "x")


def test_spreadsheets_and_index_paths(tmp_path):
    text = b'\xef\xbb\xbfpath,client,split\r\n4,x,train\r\n\r\n"0",x,test\r\n'
    made = _make(tmp_path, text, clients=1, paths=())
    assert made.clients[0].train.tolist() == [4]
    assert made.clients[0].test.tolist() == [0]


BAD = [
    (GOOD + "cat/1.png,a,train\ncat/9.png,a,train\n", "line 3: path 'cat/9.png' is not an image"),
    (GOOD + "cat/1.png,a,train\ncat/1.png,b,test\n", "line 3: path 'cat/1.png' .* line 2"),
    (GOOD + "cat/1.png,a,training\n", "line 2: split 'training' is not one of train, val, test"),
    (GOOD + "cat/1.png,../a,train\n", "line 2: client '../a' is not allowed"),
    (GOOD + 'cat/1.png,"a\n",train\n', "client .* is not allowed"),
    (GOOD + "cat/1.png,a,train\ncat/2.png,b,test\n", "client 'b' has no train image"),
    ("file,client,split\ncat/1.png,a,train\n", "'file,client,split' and 1 rows, must be path"),
    (GOOD, "0 rows"),
    ("path,client,split,group\ncat/1.png,a,train,x\ncat/2.png,a,test,x\n",
     "line 3: group .x. has one place: train of client .a. above"),
    (b"\xff\xfe\x00path", "is no CSV file"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_errors_name_file_line_and_value(tmp_path, text, reason):
    with pytest.raises(UserError, match=reason) as caught:
        _make(tmp_path, text)
    assert str(caught.value).startswith(f"partition-file {tmp_path}/clients.csv")
    assert "\n" not in str(caught.value)


def test_no_file_and_another_number_of_clients_are_refused(tmp_path):
    for file, reason in ((tmp_path / "none.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UserError, match=reason):
            partition(LABELS, "file", partition_file=str(file), paths=PATHS)
    with pytest.raises(UserError, match="clients 3 is not allowed: .* has 2"):
        _make(tmp_path, GOOD + "cat/1.png,a,train\ncat/2.png,b,train\n", clients=3)


BY_HAND = [
    # split, images of one class, (train, val, test)
    ((8, 1, 1), 2, (1, 0, 1)),
    ((8, 1, 1), 11, (9, 1, 1)),  # 8.8 / 1.1 / 1.1
    ((8, 1, 1), 14, (11, 1, 2)),  # 11.2 / 1.4 / 1.4: the tie goes to test
    ((8, 1, 1), 19, (15, 2, 2)),  # 15.2 / 1.9 / 1.9
    ((8, 0, 2), 8, (6, 0, 2)),  # 6.4 / 1.6
    ((1, 1, 0), 3, (2, 1, 0)),
    ((1, 8, 1), 2, (1, 0, 1)),  # val has the share, train and test the priority
]


@pytest.mark.parametrize(("split", "images", "expected"), BY_HAND)
def test_counts_by_hand(split, images, expected):
    assert tuple(split_counts([images], split)[0]) == expected


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5000), max_size=30),
    st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20)),
)
def test_counts_add_up_stay_near_the_ratio_and_put_train_first(images, split):
    counts = split_counts(images, split)
    assert counts.shape == (len(images), 3)
    for n, (train, val, test) in zip(images, counts.tolist(), strict=True):
        assert train + val + test == n and min(val, test) >= 0 and train >= min(n, 1)
        assert (test >= 1) == (n >= 2 and split[2] > 0)
        assert (val >= 1) == (split[1] > 0 and n >= (3 if split[2] else 2))
        # Off by less than one from rounding, and by up to two given to parts that got none.
        for part, weight in zip((train, val, test), split, strict=True):
            assert abs(part - n * weight / sum(split)) < 3


def test_one_client_does_not_depend_on_another():
    data = Content(Inputs.image(32), np.repeat(np.arange(3), 40), ("a", "b", "c"))
    mine = np.arange(0, 120, 2)
    alone, again, other = (split_client(mine, data, (8, 1, 1), 7, one).test for one in "aab")
    assert np.array_equal(alone, again) and not np.array_equal(alone, other)


def test_clients_of_one_class_are_named():
    sites = np.repeat([0, 1, 2], 20).astype(np.int32)
    labels = np.where(sites == 1, np.arange(60) % 2, sites // 2)
    made = partition(labels, "natural", sites=sites, site_names=("a", "b", "c"))
    (line,) = [one for one in made.warnings if "one class" in one]
    assert line.startswith("2 clients have one class") and line.endswith("for them: a, c")
