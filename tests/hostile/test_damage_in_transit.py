"""Arbitrary damage to replies and handshakes: refused and named, or valid and in its bounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from helpers.products import PRODUCT, short
from hostile.lies import TINY, liars, refused, silent

from fedhet.protocol.messages import PACKED, arrays_of, to_record
from fedhet.testing import simulate, small

NUMBERS = [
    0, 1, -1, 7, 101, 10**6, 2**53, 2**62, 2**63 - 1, -(2**63), 0.5, 100.0001, 1e-320, 1e30, -1e30,
    1e300, 1.7e308, float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
TEXTS = ["", "..", "0", "1", "00", "cnn-1", "os:system", "a/b", "x" * 300, "\x1b[31m", "9" * 400]
DTYPES = ["float16", "float64", "int64", "int8", "uint64", "bool", "complex64", ">f4", "int32"]


def anything(rng) -> Any:
    """Return something that a ConfigRecord can hold."""
    makers: list[Callable[[], Any]] = [
        lambda: rng.choice(np.array(NUMBERS, object)), lambda: str(rng.choice(TEXTS)),
        lambda: bool(rng.integers(2)), lambda: rng.bytes(9),
        lambda: [str(t) for t in rng.choice(TEXTS, 3)], lambda: [1, -1] * 1000,
    ]  # fmt: skip
    return makers[rng.integers(len(makers))]()


def damaged_array(rng, array) -> list[Any]:
    """Return what stands in the place of an array: another, two, or none."""
    kind = rng.integers(6)
    with np.errstate(all="ignore"):
        if kind == 0 and array.size:
            array = array.copy()
            array.reshape(-1)[rng.integers(array.size)] = float(rng.choice(NUMBERS[:9]))
        elif kind == 1:
            array = (array * rng.choice([-1.0, 2.0, 1e30])).astype(array.dtype)
        elif kind == 2:
            array = array.astype(rng.choice(DTYPES))
        elif kind == 3:
            array = [array.ravel(), array[None], array[:-1] if array.ndim else array][
                rng.integers(3)
            ]
        else:
            return [[], [array, array]][kind - 4]
    return [np.ascontiguousarray(array)]


def damage(rng):
    """Return one to three changes of a reply, drawn by ``rng``."""

    def change(content, _):
        for name in rng.choice(list(content), size=rng.integers(1, 4)):
            record = content.get(str(name))
            if record is None or rng.random() < 0.05:
                content.pop(str(name), None)
            elif isinstance(record, ArrayRecord):
                if rng.random() < 0.3:  # bytes, mostly of the headers
                    data = bytearray(record[PACKED].data)
                    data[rng.integers(min(len(data), 300))] = rng.integers(256)
                    content["arrays"] = ArrayRecord({PACKED: Array("uint8", (1,), "", bytes(data))})
                    break
                arrays = arrays_of(Message(content, 1, "train")) or [np.zeros(3, np.float32)]
                at = rng.integers(len(arrays))
                arrays[at : at + 1] = damaged_array(rng, arrays[at])
                content["arrays"] = to_record(arrays)
            else:
                content[str(name)] = _changed(rng, record)

    return change


def _changed(rng, record):
    key = str(rng.choice([*record, "error", "novelty"]))
    new = dict(record.items())
    if rng.random() < 0.2:
        new.pop(key, None)
    elif isinstance(record, MetricRecord):
        new[key] = float(rng.choice(NUMBERS)) if rng.random() < 0.9 else [1.0]
    else:
        new[key] = anything(rng)
    return type(record)(new)


@pytest.mark.parametrize("method", [m for m in PRODUCT if m != "standalone"])
def test_damaged_replies_have_no_effect(tmp_path, method):
    """Of 24 clients a third sends something else; no honest one is refused for it."""
    changes = {k: damage(np.random.default_rng(k)) for k in range(8)}
    reasons = refused(
        tmp_path, changes, method=method, clients=24, dataset="synthetic:960x4", **short(method)
    )
    assert {int(client) for client in reasons} <= set(changes) and len(reasons) > 3


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1, 21))
@pytest.mark.parametrize("method", ["fedssa", "fedmrl", "fedproto", "fedkd"])
def test_many_damaged_replies(tmp_path, method, seed):
    changes = {k: damage(np.random.default_rng([seed, k])) for k in range(20)}
    keys = {"clients": 60, "dataset": "synthetic:2400x4", **short(method)}
    reasons = refused(tmp_path, changes, method=method, **keys)
    assert {int(client) for client in reasons} <= set(changes)


# --- handshakes ---------------------------------------------------------------------------------

HANDSHAKES = [
    {"client": ".."}, {"client": "x" * 65}, {"client": 1}, {"client": "1"}, {"classes": []},
    {"classes": ["a", "a"]}, {"classes": ["\x1b[31m"]}, {"classes": [str(i) for i in range(1001)]},
    {"seen": ["nobody's"]}, {"images": [0, 0]}, {"images": [2**62, 1]}, {"images": [1.5, 2.5]},
    {"train-images": 0}, {"train-images": 10**9}, {"train-images": True}, {"model": "os system"},
    {"model": "x" * 201}, {"device": "cuda:99999"}, {"device": ""}, {"clients": -1},
    {"clients": 2**62}, {"clients": "abc"}, {"error": ""}, {"seen": [], "images": []},
    {"train-images": 17}, {"images": [2**62, 2**62]}, {"seen": ["0"] * 2000},
    {"classes": [], "seen": [], "images": []},
]  # fmt: skip


def declares(lie):
    def change(content, _):
        content["info"] = ConfigRecord(dict(content["info"].items()) | lie)

    return change


def admitted(tmp_path, changes, clients):
    """Run a federation with these lies in the handshake; return its record and its twin's.

    In the twin those that were not admitted never answer.
    """
    keys = TINY | {"rounds": 1, "clients": clients, "dataset": f"synthetic:{40 * clients}x4"}
    keys |= {"start_timeout": 1.0}
    lied, _ = simulate(small(tmp_path, **keys, name="lied"), tamper=liars(changes, "query"))
    rows = lied.partition.read_text().splitlines()[1:]
    taken = {int(row.split(",")[0]) for row in rows}
    out = sorted(set(range(clients)) - taken)
    without, _ = simulate(small(tmp_path, **keys, name="without"), tamper=silent(out, "query"))
    hashes = [folder.read_summary()["run_sha256"] for folder in (lied, without)]
    assert hashes[0] == hashes[1]
    return taken


def test_a_handshake_that_makes_no_sense_admits_nobody(tmp_path):
    changes = dict(enumerate(map(declares, HANDSHAKES), start=3))
    assert admitted(tmp_path, changes, 3 + len(HANDSHAKES)) == {0, 1, 2}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.matrix) for s in range(1, 40))]
)
def test_damaged_handshakes_have_no_effect(tmp_path, seed):
    rng = np.random.default_rng(seed)

    def change(content, _):
        content["info"] = _changed(rng, content["info"])

    taken = admitted(tmp_path, dict.fromkeys(range(3, 23), change), 23)
    assert {0, 1, 2} <= taken
