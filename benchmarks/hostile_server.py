"""What a lying server could send: a corpus of instructions, records and payloads, by name.

Every one of them is to be refused. ``payloads`` makes those that damage a method's own arrays.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedhet.config.registry import METHODS
from fedhet.protocol.messages import PACKED, to_record

Arrays = list[np.ndarray]


def npy(header: Any, rest: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """Bytes in NumPy's format with any header."""
    text = repr(header).encode() if isinstance(header, dict) else header.encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + rest


def header(descr: str, *shape: int) -> dict[str, Any]:
    """The header of an array."""
    return {"descr": descr, "fortran_order": False, "shape": shape}


INSTRUCTIONS: dict[str, dict[str, Any]] = {  # what is changed of an honest one; None: left out
    "generation -1": {"generation": -1},
    "generation 0 in round 3": {"generation": 0, "state": ""},
    "generation 0 with a digest": {"generation": 0},
    "generation of the round itself": {"generation": 3},
    "generation 2^62": {"generation": 2**62},
    "generation -2^63": {"generation": -(2**63)},
    "generation as text": {"generation": "2"},
    "generation as a float": {"generation": 2.0},
    "generation true": {"generation": True},
    "a generation that never was": {"round": 3, "generation": 1, "state": "0" * 64},
    "round 0": {"round": 0},
    "round -1": {"round": -1},
    "round from the past": {"round": 1},
    "round beyond the run's": {"round": 4},
    "round 2^62": {"round": 2**62},
    "round as text": {"round": "3"},
    "round as a float": {"round": 3.0},
    "round NaN": {"round": float("nan")},
    "rounds": {"round": [3, 3]},
    "no digest": {"state": ""},
    "another digest": {"state": "0" * 64},
    "a digest that is none": {"state": "x" * 64},
    "a digest as bytes": {"state": b"0" * 64},
    "evaluate as a number": {"evaluate": 1},
    "evaluate as text": {"evaluate": "false"},
    "classes as text": {"classes": "0123"},
    "no classes": {"classes": []},
    "classes twice": {"classes": ["0", "1", "2", "2"]},
    "classes as numbers": {"classes": [0, 1, 2, 3]},
    "classes as bytes": {"classes": [b"0", b"1"]},
    "fewer classes": {"classes": ["0"]},
    "unprintable classes": {"classes": ["0", "1", "2", "\x1b[31m"]},
    "an endless class": {"classes": ["0", "1", "2", "3" * 300]},
    "an empty class": {"classes": ["0", "1", "2", ""]},
    "100,000 classes": {"classes": [str(i) for i in range(100_000)]},
    "experiment ..": {"experiment": ".."},
    "experiment that leads out": {"experiment": "../../x"},
    "absolute experiment": {"experiment": "/tmp/x"},
    "empty experiment": {"experiment": ""},
    "experiment of another run": {"experiment": "somebody-else"},
    "experiment as bytes": {"experiment": b"x"},
    "a path as a number": {"state-dir": 7},
    "a text of 10 MB": {"state-dir": "x" * (10 << 20)},
    "one more key": {"novelty": 1},
    "no round": {"round": None},
    "no generation": {"generation": None},
    "no classes at all": {"classes": None},
    "no experiment": {"experiment": None},
    "no nonce": {"nonce": None},
}


def instruction_with(config: dict[str, Any], changes: dict[str, Any]) -> ConfigRecord:
    """An honest instruction with some changes."""
    return ConfigRecord({k: v for k, v in (config | changes).items() if v is not None})


def _packed(data: bytes) -> ArrayRecord:
    return ArrayRecord({PACKED: Array(np.frombuffer(data, np.uint8))})


def _raw(data: bytes) -> ArrayRecord:
    return ArrayRecord({PACKED: Array("uint8", (1,), "numpy.ndarray", data)})


BYTES: dict[str, Callable[[], ArrayRecord]] = {  # in the place of the arrays
    "a zip": lambda: _packed(b"PK\x03\x04" + b"\0" * 100),
    "no array": lambda: _packed(b"\x93NUMPY"),
    "a pickle": lambda: _packed(npy(header("|O", 1), b"cos\n")),
    "text": lambda: _packed(npy(header("<U4", 1), b"\0" * 16)),
    "a date": lambda: _packed(npy(header("<M8[s]", 1), b"\0" * 8)),
    "complex numbers": lambda: _packed(npy(header("<c8", 1), b"\0" * 8)),
    "big-endian": lambda: _packed(npy(header(">f4", 1), b"\0" * 4)),
    "long doubles": lambda: _packed(npy(header("<f16", 1), b"\0" * 16)),
    "claims 2 GB": lambda: _packed(npy(header("<f4", 500_000_000))),
    "claims 4 EB": lambda: _packed(npy(header("<f4", 10**18))),
    "claims 0 x 10^18": lambda: _packed(npy(header("<f4", 0, 10**18))),
    "a negative shape": lambda: _packed(npy(header("<f4", -1))),
    "a nested header": lambda: _packed(npy("(" * 4000)),
    "a header that is code": lambda: _packed(npy("__import__('os').getpid()")),
    "format 2.0": lambda: _packed(npy(header("<f4", 1), b"\0" * 4, b"\x02\x00")),
    "20,000 arrays": lambda: _packed(npy(header("<f4", 0)) * 20_000),
    "outer pickle": lambda: _raw(npy(header("|O", 1), b"cos\n")),
    "outer zip": lambda: _raw(b"PK\x03\x04" + b"\0" * 100),
    "outer claims 2 GB": lambda: _raw(npy(header("|u1", 2 << 30))),
    "outer floats": lambda: _raw(npy(header("<f4", 1), b"\0" * 4)),
    "outer and more": lambda: _raw(npy(header("|u1", 0), b"\0")),
    "another name": lambda: ArrayRecord({"00000": Array(np.zeros(1, np.uint8))}),
    "two names": lambda: ArrayRecord(
        {PACKED: Array(np.zeros(0, np.uint8)), "more": Array(np.zeros(0, np.uint8))}
    ),
}

RECORDS: dict[str, Callable[[RecordDict], RecordDict]] = {  # whole messages
    "nothing": lambda content: RecordDict(),
    "no instruction": lambda content: RecordDict({"arrays": content["arrays"]}),
    "an empty instruction": lambda content: RecordDict({"config": ConfigRecord()}),
    "numbers for an instruction": lambda content: RecordDict(
        {"config": MetricRecord({"round": 3})}
    ),
    "arrays for an instruction": lambda content: RecordDict({"config": content["arrays"]}),
    "an instruction for arrays": lambda content: RecordDict(
        {"config": content["config"], "arrays": content["config"]}
    ),
    "one more record": lambda content: RecordDict({**content, "more": MetricRecord({"x": 1})}),
    "arrays under another name": lambda content: RecordDict(
        {"config": content["config"], "payload": content["arrays"]}
    ),
}


def payloads(method: str, arrays: Arrays) -> Iterator[tuple[str, Arrays]]:
    """Changes of a method's own arrays, each with what it is."""
    zero = np.zeros(3, np.float32)
    yield "one more array", [*arrays, zero]
    yield "one more of the same", [*arrays, arrays[-1] if arrays else zero]
    if not arrays:
        return
    yield "no arrays", []
    yield "one array less", arrays[:-1]
    yield "one array alone", arrays[:1] if len(arrays) > 1 else [zero]
    yield "all twice", [*arrays, *arrays]
    if [a.shape for a in arrays] != [a.shape for a in arrays[::-1]]:
        yield "the other way round", arrays[::-1]
    for i in sorted({0, 1, len(arrays) // 2, len(arrays) - 1} & set(range(len(arrays)))):
        array = arrays[i]
        for name, changed in {**_forms(array), **_values(array)}.items():
            yield f"array {i}: {name}", [*arrays[:i], changed, *arrays[i + 1 :]]
    if method in OWN:
        yield from OWN[method](arrays).items()


def _forms(array: Any) -> dict[str, Any]:
    whole = array.dtype.kind in "iu"
    changed = {
        "int64 for float32 or back": array.astype(np.float32 if whole else np.int64),
        "float64": array.astype(np.float64),
        "float16": array.astype(np.float16),
        "uint8": array.astype(np.uint8),
        "bool": array.astype(bool),
        "one more axis": array[None],
        "no axis": np.zeros((), array.dtype),
        "one row more": np.concatenate([array, array[:1]]),
        "a matrix of nothing": np.zeros((*array.shape, 0), array.dtype),
    }
    if array.size > 1:
        changed["one row less"] = array[:-1]
        changed["thousands of rows"] = np.zeros((5_000, *array.shape[1:2]), array.dtype)
    if array.ndim > 1:
        changed |= {"flat": array.ravel(), "turned": np.ascontiguousarray(array.T)}
        if array.shape == array.T.shape:
            del changed["turned"]
    return changed


def _values(array: Any) -> dict[str, Any]:
    if not array.size:
        return {}

    def first(value: float) -> Any:
        new = array.copy()
        new.reshape(-1)[0] = value
        return new

    if array.dtype.kind == "i":
        return {"-3": first(-3), "its largest": first(np.iinfo(array.dtype).max)}
    values = {"NaN": np.nan, "infinity": np.inf, "-infinity": -np.inf, "1e38": 1e38}
    return {f"one {k}": first(v) for k, v in values.items()} | {
        "all 1e38": np.full_like(array, 1e38), "all NaN": np.full_like(array, np.nan),
    }  # fmt: skip


def _ids(arrays: Arrays) -> dict[str, Arrays]:
    """Ids of rows, in a payload of rows."""
    ids, *rest = arrays
    return {
        "a class twice": [ids * 0 + ids[0], *rest],
        "classes the other way round": [ids[::-1].copy(), *rest],
        "classes beyond the last": [ids + 99, *rest],
        "classes moved by one": [ids + 1, *rest],
        "rows of no class": [ids[:0], *rest],
    }


def _counts(arrays: Arrays) -> dict[str, Arrays]:
    ids, counts, vectors = arrays
    return _ids(arrays) | {"no images": [ids, counts * 0, vectors]}


OWN: dict[str, Callable[[Arrays], dict[str, Arrays]]] = {
    "fedssa": _ids,
    "fedproto": _counts,
    "fedtgp": _counts,
    "fd": lambda a: _counts(a)
    | {"no probability": [*a[:2], a[2] - 2], "above 1": [*a[:2], a[2] + 2]},
    "fedgen": lambda a: {
        "no images at all": [a[0] * 0, *a[1:]],
        "more images than there are": [a[0] * 0 + 2**60, *a[1:]],
        "variances below 0": [*a[:8], -1 - a[8], *a[9:]],
    },
    "fedkd": lambda a: {
        "an update for a student": [a[0] * 0 - 1, *a[1:]],
        "ranks of nothing": [a[0] * 0, *a[1:]],
        "ranks 1": [a[0] * 0 + 1, *a[1:]],
        "a rank less": [a[0][:-1], *a[1:]],
    },
}  # fmt: skip
assert set(OWN) <= set(METHODS)


def as_record(arrays: Arrays) -> ArrayRecord:
    """Arrays of any dtype as they cross the wire."""
    return to_record(arrays)
