"""Payloads: round trip, copies, floats and bytes."""

import numpy as np
import pytest

from fedhet.protocol.payload import ClassVectors, Empty, HeaderRows, ModelArrays

PAYLOADS = [
    Empty(),
    HeaderRows(np.array([1, 4]), np.ones((2, 5), np.float32), np.zeros(2, np.float32)),
    HeaderRows(np.zeros(0, np.int64), np.zeros((0, 5), np.float32), np.zeros(0, np.float32)),
    ModelArrays((np.ones((2, 3), np.float32), np.array(2.5, np.float32))),
    ModelArrays(()),
    ClassVectors(np.array([0]), np.array([7]), np.ones((1, 4), np.float32)),
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda p: type(p).__name__)
def test_round_trip(payload):
    arrays = payload.to_ndarrays()
    again = type(payload).from_ndarrays(arrays).to_ndarrays()
    assert len(arrays) == len(again)
    for a, b in zip(arrays, again, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all()


def test_arrays_are_copies_and_integers_are_bytes_but_not_floats():
    weight = np.ones((2, 5), np.float32)
    rows = HeaderRows(np.array([0, 1]), weight, np.zeros(2, np.float32))
    sent = rows.to_ndarrays()
    weight[:] = 9
    assert (sent[1] == 1).all()
    assert (rows.floats, rows.bytes) == (2 * 5 + 2, 2 * 8 + 12 * 4)
    assert Empty().floats == Empty().bytes == 0


@pytest.mark.parametrize(("kind", "count"), [(Empty, 1), (HeaderRows, 2), (HeaderRows, 4)])
def test_a_wrong_number_of_arrays_is_refused(kind, count):
    with pytest.raises(ValueError, match="arrays"):
        kind.from_ndarrays([np.zeros(1)] * count)
