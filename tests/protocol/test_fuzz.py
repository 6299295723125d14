"""Damaged and arbitrary replies and handshakes: no effect, a name, and no exception.

A short part runs always; the long one, 10,000 replies and 2,000 handshakes, is marked slow:

    pytest -m slow tests/protocol/test_fuzz.py -s
"""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmarks.hostile_nodes import (
    Bench,
    Counts,
    fuzz_handshakes,
    fuzz_replies,
    honest_answers,
    judge_handshake,
)
from benchmarks.mutate import NUMBERS, TEXTS
from fedhet.config.registry import METHODS
from fedhet.protocol.messages import arrays_of, to_record

LONG = 10_000 // len(METHODS) + 1
SHORT = LONG // 10 + 1
EXAMPLES = {"short": 6, "long": 60}  # of hypothesis, for a method

INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 200)
FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [float(n) for n in NUMBERS]
)
WORDS = st.text(max_size=80) | st.sampled_from(TEXTS)
ANYTHING = st.one_of(
    INTEGERS, FLOATS, WORDS, st.booleans(), st.binary(max_size=40),
    st.lists(INTEGERS, max_size=5), st.lists(FLOATS, max_size=5), st.lists(WORDS, max_size=5),
)  # fmt: skip
DTYPES = st.sampled_from(["f4", "f4", "f8", "f2", "i8", "i1", "u8", "?"])


def holds(counts: Counts) -> None:
    assert not counts.broken
    assert counts.refused == counts.named == counts.without_effect


@pytest.mark.parametrize("method", METHODS)
def test_damaged_replies(tmp_path, method):
    counts = fuzz_replies(tmp_path, method, SHORT)
    holds(counts)
    assert counts.refused > counts.taken


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_many_damaged_replies(tmp_path, method):
    counts = fuzz_replies(tmp_path, method, LONG)
    print(f"\n{method}: {counts}")
    holds(counts)


def changed_info(honest: ConfigRecord):
    """Some of the texts are something else, or new."""
    keys = st.sampled_from([*honest, "error", "state-lost"]) | WORDS
    return st.dictionaries(keys, ANYTHING, max_size=4).map(
        lambda new: ConfigRecord(dict(honest.items()) | new)
    )


def changed_metrics(honest: MetricRecord):
    """Some of the numbers are something else, or new."""
    keys = st.sampled_from([*honest, "sha256", "status", "round", "sampled"]) | WORDS
    numbers = INTEGERS | FLOATS | st.lists(FLOATS, max_size=3)
    return st.dictionaries(keys, numbers, max_size=4).map(
        lambda new: MetricRecord(dict(honest.items()) | new)
    )


@st.composite
def changed_arrays(draw, honest):
    """Some of the arrays are arbitrary, of arbitrary values, longer or shorter, or gone."""
    new = []
    for array in honest:
        kind = draw(st.integers(0, 6))
        if kind == 0:
            new.append(draw(hnp.arrays(draw(DTYPES), hnp.array_shapes(min_dims=0, max_side=4))))
        elif kind == 1:
            with np.errstate(all="ignore"):
                new.append(np.full(array.shape, draw(FLOATS)).astype(array.dtype))
        elif kind == 2:
            with np.errstate(all="ignore"):
                new.append((array * draw(FLOATS)).astype(array.dtype))
        elif kind > 3 or draw(st.booleans()):
            new.append(array)
    return to_record([*new, *([new[0]] if new and draw(st.integers(0, 9)) == 0 else [])])


@st.composite
def changed_content(draw, honest: RecordDict):
    """An honest reply with one record, or more, that is not."""
    content = RecordDict(dict(honest.items()))
    which = draw(st.sets(st.sampled_from(["info", "metrics", "arrays"]), min_size=1))
    if "info" in which and "info" in content:
        content["info"] = draw(changed_info(content["info"]))
    if "metrics" in which and "metrics" in content:
        content["metrics"] = draw(changed_metrics(content["metrics"]))
    if "arrays" in which and "arrays" in content:
        content["arrays"] = draw(changed_arrays(arrays_of(Message(honest, 1, "train"))))
    return content


def arbitrary_replies(tmp_path, method: str, examples: int) -> Counts:
    """One reply of three is arbitrary."""
    bench, counts = Bench(tmp_path, method), Counts()

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(at=st.integers(0, 2), data=st.data())
    def try_one(at, data):
        content = data.draw(changed_content(bench.replies[at].content))
        replies = list(bench.replies)
        replies[at] = Message(content, reply_to=bench.messages[at])
        bench.judge(replies, [at], counts)
        holds(counts)

    try_one()
    return counts


@pytest.mark.parametrize("method", METHODS)
def test_arbitrary_replies(tmp_path, method):
    assert arbitrary_replies(tmp_path, method, EXAMPLES["short"]).tried >= EXAMPLES["short"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_many_arbitrary_replies(tmp_path, method):
    print(f"\n{method}: {arbitrary_replies(tmp_path, method, EXAMPLES['long'])}")


def test_damaged_handshakes(tmp_path):
    holds(fuzz_handshakes(tmp_path, 200))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_damaged_handshakes(tmp_path):
    counts = fuzz_handshakes(tmp_path, 2000)
    print(f"\n{counts}")
    holds(counts)


def arbitrary_handshakes(tmp_path, examples: int) -> Counts:
    """One node of three says anything."""
    honest, counts = honest_answers(tmp_path), Counts()

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(node=st.sampled_from(sorted(honest)), data=st.data())
    def try_one(node, data):
        content = RecordDict(dict(honest[node].items()))
        content["info"] = data.draw(changed_info(content["info"]))
        judge_handshake(honest | {node: content}, [node], counts)
        holds(counts)

    try_one()
    return counts


def test_arbitrary_handshakes(tmp_path):
    assert arbitrary_handshakes(tmp_path, 50).tried >= 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_arbitrary_handshakes(tmp_path):
    print(f"\n{arbitrary_handshakes(tmp_path, 500)}")
