"""Replies that no honest client sends: refused, named, and without effect on the round."""

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from helpers.products import product, short
from hostile.lies import (
    TINY,
    counts,
    farther,
    floating,
    liars,
    of_norm,
    refused,
    says,
    sends,
    silent,
)

from fedhet.protocol import messages as wire
from fedhet.protocol.messages import PACKED, instruction
from fedhet.testing import cut_and_resume, simulate, small


def packed(dtype, *shape, data=b""):
    """Bytes in safetensors' format that claim an array of any dtype and shape."""
    one = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}
    return with_header(json.dumps({"00000": one}).encode()) + data


def with_header(text):
    return len(text).to_bytes(8, "little") + text


def record(data, key=PACKED):
    return ArrayRecord({key: Array("uint8", (len(data),), "safetensors", data)})


def inner(data, key=PACKED):
    """Bytes where the arrays should be."""
    return lambda content, _: content.update({"arrays": record(data, key)})


def without(name):
    return lambda content, _: content.pop(name)


# FedSSA uploads class ids, weight rows and biases. One client per line.
MALFORMED = {
    "class out of range": sends(lambda a, _: [a[0] + 99, *a[1:]]),
    "duplicated class": sends(lambda a, _: [a[0] * 0 + a[0][0], *a[1:]]),
    "wrong shape": sends(lambda a, _: [a[0], a[1][:, :-1], a[2]]),
    "8 MB": sends(lambda a, _: [a[0], np.zeros((2, 1_000_000), np.float32), a[2]]),
    "no arrays": without("arrays"),
    "no info": without("info"),
    "no metrics": without("metrics"),
    "zero images": counts(num_examples=0.0),
    "half an image": counts(num_examples=36.5),
    "metric not finite": counts(train_loss=float("nan")),
    "a loss of 1e300": counts(train_loss=1e300),
    "accuracy above 100": counts(test_accuracy=100.001),
    "FLOPs whose sum is infinite": counts(train_flops=1.7e308),
    "negative seconds": counts(seconds=-5.0),
    "a number that is not declared": counts(novelty=0.5),
    "a number of the server's": counts(sha256=0.5),
    "a metric's name of two lines": counts(**{"\n": 1.0}),
    "10,000 metrics": counts(**{f"a{i}": 0.0 for i in range(10_000)}),
    "another round": says(round=7),
    "round as text": says(round="1"),
    "another client": says(client="0"),
    "2 MB of text": says(client="1" * (2 << 20)),
    "no digest": says(digest=""),
    "a digest that is none": says(digest="F" * 64),
    "an empty error": says(error=""),
    "an error as long as a book": says(error="x\n\x1b[31m" * 9999),
    "a pickle": inner(b"cos\n" * 9),
    "a zip": inner(b"PK\x03\x04" + b"\0" * 100),
    "objects": inner(packed("O", 1, data=b"cos\n")),
    "claims 4 EB": inner(packed("F32", 10**18)),
    "a nested header": inner(with_header(b"[" * 4000)),
    "more than its header says": inner(packed("F32", 1, data=b"\0" * 4) + b"\0"),
    "another record": inner(packed("F32", 0), "00000"),
}


def test_malformed_replies_are_refused_each_with_a_reason(tmp_path):
    """One client for each, and three honest ones."""
    changes = dict(enumerate(MALFORMED.values(), start=3))
    count = len(changes) + 3
    reasons = refused(tmp_path, changes, clients=count, dataset=f"synthetic:{24 * count}x4")
    named = dict(enumerate(MALFORMED, start=3))
    assert {named.get(int(client)) for client in reasons} == set(MALFORMED)


def floats(value, cast=np.float32):
    return sends(
        lambda a, _: [np.full_like(x, value).astype(cast) if floating(x) else x for x in a]
    )


def in_one_value(arrays, _):
    """Finite numbers of norm 9,999 in one value of the last array."""
    last = max(i for i, a in enumerate(arrays) if floating(a))
    new = [np.zeros_like(a) if floating(a) else a for a in arrays]
    new[last].flat[0] = 9_999.0
    return new


# Of any method that sends arrays: all but Standalone. The last four are well formed; they end fewer
# than half of the valid replies, so the median step stays an honest one.
LIES = {
    "extra array": sends(lambda a, _: [*a, np.zeros(3, np.float32)]),
    "missing array": sends(lambda a, _: a[:-1]),
    "NaN": floats(np.nan),
    "infinity": floats(np.inf),
    "float64": floats(0.0, np.float64),
    "longer rows": sends(lambda a, _: [np.repeat(x, 2, axis=-1) if x.ndim else x for x in a]),
    "largest float32": floats(np.finfo(np.float32).max),
    "norm 9,999": sends(lambda a, _: of_norm(a, 9_999.0)),
    "norm 9,999 in one value": sends(in_one_value),
    "a million times the step": sends(lambda a, sent: farther(a, sent, 1e6)),
}
HONEST = 7
# FedSSA's are above.
SENDING = product("fedproto", "fedkd", without=("standalone",))


@pytest.mark.parametrize("method", SENDING)
def test_no_method_is_moved_by_a_liar(tmp_path, method):
    changes = dict(enumerate(LIES.values(), start=HONEST))
    count = HONEST + len(LIES)
    reasons = refused(
        tmp_path, changes, method=method, clients=count, dataset=f"synthetic:{24 * count}x4",
        classes_per_client=3, **short(method),
    )  # fmt: skip
    named = dict(enumerate(LIES, start=HONEST))
    assert {named.get(int(client), f"honest {client}") for client in reasons} == set(LIES)


def test_a_reply_of_excessive_size_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    decoded, original = [], wire.arrays_of

    def watched(message):
        decoded.append(wire.message_bytes(message))
        return original(message)

    monkeypatch.setattr(wire, "arrays_of", watched)
    long = sends(lambda a, _: [a[0], np.zeros((2, 8_000_000), np.float32), a[2]])
    reasons = refused(tmp_path, {1: long})
    assert "more than the" in reasons["1"] and max(decoded) < 1 << 20


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


def test_a_handshake_that_makes_no_sense_admits_nobody(tmp_path):
    """The run is the one in which they never answer."""
    changes = dict(enumerate((says(**lie) for lie in HANDSHAKES), start=3))
    clients = 3 + len(HANDSHAKES)
    keys = TINY | {"rounds": 1, "clients": clients, "dataset": f"synthetic:{40 * clients}x4"}
    keys |= {"start_timeout": 1.0}
    lied, _ = simulate(small(tmp_path, **keys, name="lied"), tamper=liars(changes, "query"))
    rows = lied.partition.read_text().splitlines()[1:]
    assert {row.split(",")[0] for row in rows} == {"0", "1", "2"}
    out = silent(list(changes), "query")
    without, _ = simulate(small(tmp_path, **keys, name="without"), tamper=out)
    assert lied.read_summary()["run_sha256"] == without.read_summary()["run_sha256"]


LIAR, CLIENTS = 3, 5
FIVE = {
    "clients": CLIENTS, "dataset": "synthetic:160x4", "image_size": 16, "classes_per_client": 3,
    "representation": 64,
}  # fmt: skip


def lines(folder):
    return [(r["round"], r["replied"], r["sha256"]) for r in folder.read_rounds()]


def test_a_resumed_run_leaves_the_same_replies_out(tmp_path):
    """A step of 9 counts, one of 81 does not, whether or not the run was interrupted."""
    values = {"method": "fedproto", "max_update_ratio": 5.0, "rounds": 3, **FIVE}

    def grow(content, message):
        times = 9.0 ** instruction(message).round
        sends(lambda a, sent: farther(a, sent, times))(content, message)

    tamper = liars({LIAR: grow})
    whole, _ = simulate(small(tmp_path, **values, name="whole"), tamper=tamper)
    resumed = cut_and_resume(small(tmp_path, **values), 2, tamper)
    assert lines(resumed) == lines(whole)
    assert resumed.read_summary()["failures"] == whole.read_summary()["failures"]
    assert [r["replied"] for r in whole.read_rounds()] == [CLIENTS, CLIENTS - 1, CLIENTS - 1]
