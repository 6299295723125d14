"""Replies that no honest client sends: refused, named, and without effect on the round."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord

from fedhet.protocol.messages import PACKED, arrays_of, to_record
from fedhet.testing import simulate, small


def hostile(change):
    """Tamper with client 1's train replies."""

    def tamper(node, message, reply):
        if node == 1 and message.metadata.message_type == "train":
            content = reply.content
            change(content)
            return Message(content, reply_to=message)
        return reply

    return tamper


def set_metric(name, value):
    def change(content):
        content["metrics"] = MetricRecord(dict(content["metrics"].items()) | {name: value})

    return change


def scale_metric(name, factor):
    def change(content):
        set_metric(name, content["metrics"][name] * factor)(content)

    return change


def set_arrays(edit):
    def change(content):
        content["arrays"] = to_record(edit(arrays_of(Message(content, 1, "train"))))

    return change


def poke(value):
    def edit(arrays):
        arrays[1][0, 0] = value
        return arrays

    return edit


def npy(header, rest=b""):
    """Bytes in NumPy's format 1.0 with any header."""
    text = repr(header).encode() if isinstance(header, dict) else header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rest


def set_data(data):
    """Put these bytes where an array should be."""

    def change(content):
        content["arrays"][PACKED] = Array(np.frombuffer(data, np.uint8))

    return change


def set_record(key, data):
    """Put these bytes where the packed arrays should be."""

    def change(content):
        content["arrays"] = ArrayRecord({key: Array("uint8", (1,), "numpy.ndarray", data)})

    return change


HOSTILE = {
    "NaN": set_arrays(poke(np.nan)),
    "infinity": set_arrays(poke(np.inf)),
    "norm": set_arrays(poke(1e30)),
    "extra array": set_arrays(lambda a: [*a, a[0]]),
    "missing array": set_arrays(lambda a: a[:-1]),
    "no arrays": lambda content: content.pop("arrays"),
    "wrong shape": set_arrays(lambda a: [a[0], a[1][:, :-1], a[2]]),
    "float64": set_arrays(lambda a: [a[0], a[1].astype(np.float64), a[2]]),
    "class out of range": set_arrays(lambda a: [a[0] + 99, a[1], a[2]]),
    "negative class": set_arrays(lambda a: [a[0] - 99, a[1], a[2]]),
    "duplicated class": set_arrays(lambda a: [a[0] * 0 + a[0][0], a[1], a[2]]),
    "zero images": set_metric("num-examples", 0.0),
    "minus one image": set_metric("num-examples", -1.0),
    "1e18 images": set_metric("num-examples", 1e18),
    "metric not finite": set_metric("train_loss", float("nan")),
    "accuracy above 100": set_metric("test_accuracy", 1e6),
    "accuracy below 0": set_metric("val_accuracy", -1.0),
    "FLOPs whose sum is infinite": set_metric("train_flops", 1.7e308),
    "negative FLOPs": set_metric("train_flops", -1e30),
    "ten thousand times its FLOPs": scale_metric("train_flops", 10_000),
    "a loss of 1e300": set_metric("train_loss", 1e300),
    "a loss of -1e300": set_metric("train_loss", -1e300),
    "negative seconds": set_metric("seconds", -5.0),
    "any other number": set_metric("novelty", 1e300),
    "another round": lambda content: content["info"].update({"round": 7}),
    "another client": lambda content: content["info"].update({"client": "0"}),
    "no info": lambda content: content.pop("info"),
    "no metrics": lambda content: content.pop("metrics"),
    "big": set_arrays(lambda a: [a[0], np.zeros((2, 2_000_000), np.float32), a[2]]),
    "64 MB": set_arrays(lambda a: [a[0], np.zeros((2, 8_000_000), np.float32), a[2]]),
    "64 MB of text": lambda content: content["info"].update({"client": "1" * (64 << 20)}),
    "pickled": set_data(npy({"descr": "|O", "fortran_order": False, "shape": (1,)}, b"cos\n")),
    "packed pickle": set_record(
        PACKED, npy({"descr": "|O", "fortran_order": False, "shape": (1,)}, b"cos\n")
    ),
    "packed zip": set_record(PACKED, b"PK\x03\x04" + b"\0" * 100),
    "packed claims 4 EB": set_record(
        PACKED, npy({"descr": "|u1", "fortran_order": False, "shape": (10**18,)})
    ),
    "packed floats": set_record(
        PACKED, npy({"descr": "<f4", "fortran_order": False, "shape": (1,)}, b"\0" * 4)
    ),
    "packed and more": set_record(
        PACKED, npy({"descr": "|u1", "fortran_order": False, "shape": (0,)}, b"\0")
    ),
    "another record": set_record(
        "00000", npy({"descr": "|u1", "fortran_order": False, "shape": (0,)})
    ),
    "a zip": set_data(b"PK\x03\x04" + b"\0" * 100),
    "no array": set_data(b"\x93NUMPY"),
    "claims 4 EB": set_data(npy({"descr": "<f4", "fortran_order": False, "shape": (10**18,)})),
    "nested header": set_data(npy("(" * 4000)),
    "an error as long as a book": lambda c: c["info"].update({"error": "x\n\x1b[31m" * 9999}),
    "10,000 metrics": lambda c: c["metrics"].update({f"a{i}": 0.0 for i in range(10_000)}),
    "odd metric name": set_metric("\n", 1.0),
    "list metric": set_metric("train_loss", [1.0, 2.0]),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_reply_changes_nothing_and_is_named(tmp_path, attack):
    without, _ = simulate(
        small(tmp_path, rounds=1),
        tamper=lambda node, message, reply: (
            Message(Error(code=1, reason="gone"), reply_to=message)
            if node == 1 and message.metadata.message_type == "train"
            else reply
        ),
    )
    attacked, _ = simulate(small(tmp_path, rounds=1), tamper=hostile(HOSTILE[attack]))
    failures = attacked.read_summary()["failures"]
    assert [f["client"] for f in failures] == ["1"] and failures[0]["reason"]
    assert len(failures[0]["reason"]) <= 500 and failures[0]["reason"].isprintable()
    assert attacked.read_summary()["run_sha256"] == without.read_summary()["run_sha256"]
    assert attacked.read_summary()["status"] == "completed"


def test_a_reply_of_excessive_size_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    from fedhet.protocol import messages as wire

    decoded = []

    def watched(message, original=wire.arrays_of):
        decoded.append(wire.message_bytes(message))
        return original(message)

    monkeypatch.setattr(wire, "arrays_of", watched)
    attacked, _ = simulate(
        small(tmp_path, rounds=1, min_replies=1, max_skipped_rounds=3),
        tamper=hostile(HOSTILE["64 MB"]),
    )
    (failure,) = [f for f in attacked.read_summary()["failures"] if f["client"] == "1"]
    assert "more than the" in failure["reason"] and "640" in failure["reason"]
    assert max(decoded) < 1 << 20
