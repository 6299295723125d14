"""Seeded damage to honest messages, as a hostile node could do it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedhet.protocol.messages import PACKED, arrays_of

Random = np.random.Generator

NUMBERS = [
    0, 1, -1, 2, 7, 100, 101, 10**6, 10**9, 2**53, 2**62, 2**63 - 1, -(2**63), 0.5, 100.0001,
    1e-320, 1e9, 1e30, -1e30, 1e300, 1.7e308, float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
TEXTS = [
    "", ".", "..", "0", "1", "2", "00", "cnn-5", "cnn-1", "os:system", "a/b", "x" * 300, "\n",
    "\x1b[31m", "9" * 400, "nan", "digits", "0" * 65, "é", "\U0001f600",
]  # fmt: skip
DTYPES = ["float16", "float64", "int64", "int8", "uint64", "bool", "complex64", ">f4", "int32"]


def pick(random: Random, among: Any) -> Any:
    """One of them."""
    return among[int(random.integers(len(among)))]


def value(random: Random) -> Any:
    """Anything that a ConfigRecord can hold."""
    kind = int(random.integers(6))
    if kind == 0:
        return pick(random, NUMBERS)
    if kind == 1:
        return pick(random, TEXTS)
    if kind == 2:
        return bool(random.integers(2))
    if kind == 3:
        return random.bytes(int(random.integers(20)))
    count = int(random.integers(4)) if random.random() < 0.9 else 2000
    if kind == 4:
        return [str(pick(random, TEXTS)) for _ in range(count)]
    whole = bool(random.integers(2))
    numbers = [pick(random, NUMBERS) for _ in range(count)]
    return [n if whole else float(n) for n in numbers if not whole or isinstance(n, int)]


def changed(random: Random, old: Any) -> Any:
    """The value with a change of its own kind."""
    if isinstance(old, list) and old:
        new, at = list(old), int(random.integers(len(old)))
        what = int(random.integers(5))
        if what == 0:
            new = new * 2
        elif what == 1:
            new[at] = new[at] + new[at]
        elif what == 2:
            del new[at]
        elif what == 3:
            new = [new[at]] * int(random.integers(1, 3000))
        else:
            new[at] = type(new[at])(pick(random, TEXTS if isinstance(new[at], str) else [0, -1, 3]))
        return new
    if isinstance(old, int):
        return old + int(pick(random, [-1, 1, 1000, -1000, 2**40]))
    if isinstance(old, str):
        return pick(random, [old + "x", old[:-1], old * 2, old.upper(), " " + old])
    return value(random)


def mutate_info(random: Random, info: dict[str, Any]) -> ConfigRecord:
    """One to three changes of the texts."""
    new = dict(info)
    for _ in range(int(random.integers(1, 4))):
        key = str(pick(random, [*info, "error", "novelty"]))
        kind = random.random()
        if kind < 0.15:
            new.pop(key, None)
        elif kind < 0.55:
            new[key] = changed(random, new.get(key))
        else:
            new[key] = value(random)
    return ConfigRecord(new)


def mutate_metrics(random: Random, metrics: dict[str, Any]) -> MetricRecord:
    """One to three changes of the numbers."""
    new = dict(metrics)
    for _ in range(int(random.integers(1, 4))):
        key = str(pick(random, [*metrics, "x_accuracy", "novelty", "a" * 90, "\n", "val_accuracy"]))
        kind = random.random()
        if kind < 0.2:
            new.pop(key, None)
        elif kind < 0.3:
            new[key] = [1.0, 2.0]
        elif kind < 0.5 and isinstance(new.get(key), float):
            new[key] = new[key] * float(pick(random, [-1.0, 0.0, 2.0, 1e3, 1e9, 1e200]))
        else:
            new[key] = pick(random, NUMBERS)
    return MetricRecord(new)


def mutate_arrays(random: Random, content: RecordDict) -> ArrayRecord:
    """One to three changes: values, types, shapes, numbers of arrays, bytes of one or of all."""
    try:
        items = [Array(array) for array in arrays_of(Message(content, 1, "train"))]
    except Exception:  # damaged already, and numpy's reader fails in many ways
        items = []
    for _ in range(int(random.integers(1, 4))):
        if not items:
            items.append(Array(np.zeros(3, dtype=np.float32)))
        at = int(random.integers(len(items)))
        items[at : at + 1] = pick(random, CHANGES)(random, items[at])
        if random.random() < 0.05:
            items.reverse()
    packed = Array(np.frombuffer(b"".join(item.data for item in items), dtype=np.uint8))
    kind = random.random()
    if kind < 0.1:
        (packed,) = _bytes(random, packed)
    elif kind < 0.15:
        return ArrayRecord({f"{i:05d}": item for i, item in enumerate(items)})
    return ArrayRecord({PACKED: packed})


def _decoded(item: Array) -> np.ndarray:
    """The array; some zeros if its bytes are damaged already."""
    try:
        return item.numpy()
    except Exception:  # numpy's reader fails in many ways
        return np.zeros((2, 3), dtype=np.float32)


def _values(random: Random, item: Array) -> list[Array]:
    array = _decoded(item).copy()
    if array.size:
        where = tuple(int(random.integers(n)) for n in array.shape)
        with np.errstate(all="ignore"):
            array[where] = np.float64(pick(random, NUMBERS)).astype(array.dtype)
    return [Array(array)]


def _scaled(random: Random, item: Array) -> list[Array]:
    array = _decoded(item)
    with np.errstate(all="ignore"):
        return [Array((array * pick(random, [-1.0, 2.0, 100.0, 1e30])).astype(array.dtype))]


def _typed(random: Random, item: Array) -> list[Array]:
    with np.errstate(all="ignore"):
        return [Array(_decoded(item).astype(pick(random, DTYPES)))]


def _shaped(random: Random, item: Array) -> list[Array]:
    array = _decoded(item)
    return [Array(np.asarray(pick(random, [array.ravel(), array[None], array[:-1], array[..., :0]])
                             if array.ndim else array[None], order="C"))]  # fmt: skip


def _bytes(random: Random, item: Array) -> list[Array]:
    data = bytearray(item.data)
    for _ in range(int(random.integers(1, 4))):
        data[int(random.integers(min(len(data), 200)))] = int(random.integers(256))
    if random.random() < 0.3:
        data = data[: int(random.integers(len(data)))]
    return [Array(item.dtype, item.shape, item.stype, bytes(data))]


CHANGES: list[Callable[[Random, Array], list[Array]]] = [
    _values, _values, _scaled, _typed, _shaped, _bytes,
    lambda random, item: [],
    lambda random, item: [item, item],
]  # fmt: skip


def mutate(random: Random, content: RecordDict) -> RecordDict:
    """A damaged copy of a reply's content; it may, by chance, still be a valid one."""
    new = RecordDict(dict(content.items()))
    for _ in range(int(random.integers(1, 3))):
        name = str(pick(random, list(content)))
        record = new.get(name)
        if random.random() < 0.05:
            new.pop(name, None)
        elif isinstance(record, ConfigRecord):
            new[name] = mutate_info(random, dict(record.items()))
        elif isinstance(record, MetricRecord):
            new[name] = mutate_metrics(random, dict(record.items()))
        elif isinstance(record, ArrayRecord):
            new[name] = mutate_arrays(random, new)
    return new
