"""The integer split: a table worked out by hand, and what must hold for every input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhet.data.partition import split_client, split_counts

BY_HAND = [
    # split, images of one class, (train, val, test)
    ((8, 1, 1), 1, (1, 0, 0)),
    ((8, 1, 1), 2, (1, 0, 1)),
    ((8, 1, 1), 3, (1, 1, 1)),
    ((8, 1, 1), 9, (7, 1, 1)),
    ((8, 1, 1), 11, (9, 1, 1)),  # 8.8 / 1.1 / 1.1
    ((8, 1, 1), 14, (11, 1, 2)),  # 11.2 / 1.4 / 1.4: the tie goes to test
    ((8, 1, 1), 19, (15, 2, 2)),  # 15.2 / 1.9 / 1.9
    ((8, 0, 2), 2, (1, 0, 1)),
    ((8, 0, 2), 7, (6, 0, 1)),  # 5.6 / 1.4
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
        assert train + val + test == n
        assert min(train, val, test) >= 0
        assert train >= min(n, 1)
        assert (test >= 1) == (n >= 2 and split[2] > 0)
        assert (val >= 1) == (split[1] > 0 and n >= (3 if split[2] else 2))
        # Off by less than one from rounding, and by up to two given to parts that got none.
        for part, weight in zip((train, val, test), split, strict=True):
            assert abs(part - n * weight / sum(split)) < 3


def test_one_client_does_not_depend_on_another():
    labels = np.repeat(np.arange(3), 40)
    mine = np.arange(0, 120, 2)
    alone = split_client(mine, labels[mine], (8, 1, 1), 7, "a")
    again = split_client(mine, labels[mine], (8, 1, 1), 7, "a")
    other = split_client(mine, labels[mine], (8, 1, 1), 7, "b")
    assert np.array_equal(alone.test, again.test)
    assert not np.array_equal(alone.test, other.test)
    assert sorted([*alone.train, *alone.val, *alone.test]) == mine.tolist()
    for part in (alone.train, alone.val, alone.test):
        assert part.dtype == np.int64 and np.all(np.diff(part) > 0)


def test_images_are_drawn_at_random_within_a_class():
    labels = np.zeros(1000, dtype=np.int64)
    test = split_client(np.arange(len(labels)), labels, (8, 1, 1), 0, "x").test
    assert len(test) == 100
    assert test.min() < 100 and test.max() > 900
