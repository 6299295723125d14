"""A lying server: its message is refused with a word, and nothing that the client keeps changes."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from helpers.products import product, short
from hostile.deployed import Deployed
from hostile.test_replies import packed, record, with_header

from fedhet.errors import Code

LOST = [  # the state that is meant is not there
    {"round": 3, "generation": 1, "digest": "0" * 64}, {"digest": "0" * 64},
    {"experiment": "somebody-else"},
]  # fmt: skip
INSTRUCTIONS = [
    *({"generation": g} for g in (-1, 0, 3, 2**62, -(2**63), "2", 2.0, True, None)),
    *({"round": r} for r in (0, -1, 1, 4, 2**62, "3", 3.0, float("nan"), [3, 3], None)),
    *({"digest": s} for s in ("", "x" * 64, b"0" * 64)),
    *({"evaluate": e} for e in (1, "false")),
    *({"classes": c} for c in (
        "0123", [], ["0", "1", "2", "2"], [0, 1, 2, 3], [b"0", b"1"], ["0"], None,
        ["0", "1", "2", "\x1b[31m"], ["0", "1", "2", "3" * 300], ["0", "1", "2", ""],
        [str(i) for i in range(100_000)],
    )),
    *({"experiment": e} for e in ("..", "../../x", "/tmp/x", "", b"x", None)),
    {"generation": 0, "digest": ""}, {"state-dir": 7}, {"state-dir": "x" * (10 << 20)},
    {"novelty": 1}, {"nonce": None},
]  # fmt: skip
BYTES = [  # in the place of the arrays
    b"PK\x03\x04" + b"\0" * 100, b"", b"\0" * 8, b"cos\n" * 9, packed("O", 1, data=b"cos\n"),
    packed("C64", 1, data=b"\0" * 8), packed("BF16", 1, data=b"\0" * 2), packed("F32", 10**18),
    packed("F32", 0, 10**18), packed("F32", -1, data=b"\0" * 4), packed("F32", *[0] * 100),
    packed("F32", 1, data=b"\0" * 8), packed("F32", 0) + b"\0", with_header(b"{" * 4000),
    with_header(b" " * (2 << 20)), (1 << 62).to_bytes(8, "little"),
]  # fmt: skip
RECORDS = [
    lambda content: {},
    lambda content: {"arrays": content["arrays"]},
    lambda content: {"config": ConfigRecord()},
    lambda content: {"config": MetricRecord({"round": 3})},
    lambda content: {"config": content["arrays"]},
    lambda content: {**content, "arrays": content["config"]},
    lambda content: {**content, "more": MetricRecord({"x": 1})},
    lambda content: {"config": content["config"], "payload": content["arrays"]},
    lambda content: {**content, "arrays": ArrayRecord({"00000": Array(np.zeros(1, np.uint8))})},
]


def test_a_message_of_another_form_is_refused(tmp_path, capfd):
    """No method looks at the form of a message; one stands for all."""
    client = Deployed(tmp_path, "fedssa")
    capfd.readouterr()
    words = [client.refusal(client.instruction(**change)) for change in INSTRUCTIONS]
    for make in RECORDS:
        words.append(client.refusal(RecordDict(make(client.content()))))
    for data in BYTES:
        content = client.content()
        content["arrays"] = record(data)
        words.append(client.refusal(content))
    lost = [client.refusal(client.instruction(**change)) for change in LOST]
    said = capfd.readouterr().err
    assert not {Code.UNEXPECTED.value, Code.STATE_LOST.value} & set(words)
    assert set(lost) == {Code.STATE_LOST.value}
    assert "Traceback" not in said and said.count("fedhet: failed (no. ") == len(words) + len(lost)
    client.check_honest_round()


def payloads(method, arrays):
    """Yield changes of a method's own arrays, each with a name."""
    zero = np.zeros(3, np.float32)
    yield "one more array", [*arrays, zero]
    if not arrays:
        return
    yield "no arrays", []
    yield "one array less", arrays[:-1]
    yield "all twice", [*arrays, *arrays]
    if [a.shape for a in arrays] != [a.shape for a in arrays[::-1]]:
        yield "the other way round", arrays[::-1]
    for i in sorted({0, len(arrays) // 2, len(arrays) - 1}):
        for name, changed in {**forms(arrays[i]), **values(arrays[i])}.items():
            yield f"array {i}: {name}", [*arrays[:i], changed, *arrays[i + 1 :]]
    yield from OWN.get(method, lambda a: {})(arrays).items()


def forms(array):
    whole = array.dtype.kind in "iu"
    changed = {
        "another kind": array.astype(np.float32 if whole else np.int64),
        **{name: array.astype(name) for name in ("float64", "float16", "uint8", "bool")},
        "one more axis": array[None],
        "no axis": np.zeros((), array.dtype),
        "one row more": np.concatenate([array, array[:1]]),
        "a matrix of nothing": np.zeros((*array.shape, 0), array.dtype),
    }
    if array.size > 1:
        changed |= {"one row less": array[:-1], "long": np.zeros((5_000, *array.shape[1:2]), "f4")}
    return changed | ({"flat": array.ravel()} if array.ndim > 1 else {})


def values(array):
    def first(value):
        new = array.copy()
        new.reshape(-1)[0] = value
        return new

    if not array.size:
        return {}
    if array.dtype.kind == "i":
        return {"-3": first(-3), "its largest": first(np.iinfo(array.dtype).max)}
    odd = {str(v): first(v) for v in (np.nan, np.inf, -np.inf, 1e38)}
    return odd | {"all 1e38": np.full_like(array, 1e38)}


def ids(arrays):
    own, *rest = arrays
    changed = {"twice": own * 0 + own[0], "turned": own[::-1].copy(), "beyond": own + 99,
               "moved": own + 1, "none": own[:0]}  # fmt: skip
    return {f"classes {name}": [new, *rest] for name, new in changed.items()}


def counted(arrays):
    return ids(arrays) | {"no images": [arrays[0], arrays[1] * 0, *arrays[2:]]}


OWN = {
    "fedssa": ids,
    "fedproto": counted,
    "fedtgp": counted,
    "fedorgp": counted,
    "fd": lambda a: counted(a) | {"not probabilities": [*a[:2], a[2] - 2], "2": [*a[:2], a[2] + 2]},
    "fedgen": lambda a: {
        "no images at all": [a[0] * 0, *a[1:]],
        "more images than there are": [a[0] * 0 + 2**60, *a[1:]],
        "variances below 0": [*a[:-1], -1 - a[-1]],
    },
    "fedkd": lambda a: {
        "an update for a student": [a[0] * 0 - 1, *a[1:]],
        "ranks 0": [a[0] * 0, *a[1:]],
        "ranks 1": [a[0] * 0 + 1, *a[1:]],
        "a rank less": [a[0][:-1], *a[1:]],
    },
}  # fmt: skip


# By default those with checks of their own, and one that is sent a module.
METHODS = product("fedssa", "fedproto", "fedkd", "fedgh")


@pytest.mark.parametrize("method", METHODS)
def test_arrays_that_are_not_the_methods_are_refused(tmp_path, capfd, method):
    client = Deployed(tmp_path, method, **short(method))
    words = {
        name: client.refusal(client.content(arrays=arrays), name=name)
        for name, arrays in payloads(method, client.arrays)
    }
    assert "Traceback" not in capfd.readouterr().err
    assert not {Code.UNEXPECTED.value, Code.STATE_LOST.value} & set(words.values()), words
    client.check_honest_round()
