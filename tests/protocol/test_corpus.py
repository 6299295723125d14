"""What attacks have found, kept: each is tried against every method whose upload it fits.

A new finding becomes a line of ``UPLOADS``, ``TEXTS`` or ``HANDSHAKES``. Replies that are malformed
rather than dishonest (NumPy headers, pickles, sizes) are in ``tests/strategies/test_rounds.py``.
"""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from benchmarks.hostile_nodes import Bench, Counts, honest_answers, judge_handshake
from benchmarks.liar import farther, floating, of_norm
from fedhet.config.registry import METHODS
from fedhet.protocol.messages import arrays_of, to_record


def spread_out(arrays, sent):
    """Finite numbers of norm 9,999, within max-update-norm: ended runs of five methods."""
    return of_norm(arrays, 9_999.0)


def in_one_value(arrays, sent):
    """All of that norm in one value."""
    last = max(i for i, a in enumerate(arrays) if floating(a))
    new = [np.zeros_like(a) if floating(a) else a for a in arrays]
    new[last].flat[0] = 9_999.0
    return new


def in_the_last_array(arrays, sent):
    """A bias of norm 9,999, everything else honest."""
    last = max(i for i, a in enumerate(arrays) if floating(a))
    return [of_norm([a], 9_999.0)[0] if i == last else a for i, a in enumerate(arrays)]


def far_beyond_the_ratio(arrays, sent):
    """The honest step, many thousand times."""
    return farther(arrays, sent, 1e6)


def largest_float32(arrays, sent):
    """Finite, with a square that is not."""
    return [np.full_like(a, np.finfo(np.float32).max) if floating(a) else a for a in arrays]


UPLOADS = [spread_out, in_one_value, in_the_last_array, far_beyond_the_ratio, largest_float32]


def says(**texts):
    """A reply's texts, changed."""

    def change(content):
        content["info"] = ConfigRecord(dict(content["info"].items()) | texts)

    return change


def counts(**numbers):
    """A reply's numbers, changed."""

    def change(content):
        content["metrics"] = MetricRecord(dict(content["metrics"].items()) | numbers)

    return change


TEXTS = [
    says(round=0), says(round=2), says(round=2**62), says(round=-1), says(round="1"),
    says(round=[1]), says(client="2"), says(client="0x"), says(client=["0"]), says(client=b"0"),
    says(state=""), says(state="F" * 64), says(state="0" * 63), says(state=0), says(error=""),
    says(error=[1] * 2000), says(error="\x1b[31m\n"), says(**{"state-lost": True}, error="gone"),
    counts(**{"num-examples": 36.5}), counts(**{"num-examples": 2.0**63}),
    counts(train_loss=float("nan")), counts(test_accuracy=100.001), counts(train_flops=1e24),
]  # fmt: skip


@pytest.fixture(scope="module", params=METHODS)
def bench(request, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp(request.param), request.param)


def refused(bench, content) -> None:
    """Client 0's reply, so changed, is refused and named, and has no effect."""
    found = Counts()
    reply = Message(content, reply_to=bench.messages[0])
    bench.judge([reply, *bench.replies[1:]], [0], found)
    assert not found.broken
    assert (found.refused, found.named, found.without_effect) == (1, 1, 1)


def test_uploads_have_no_effect(bench):
    arrays = arrays_of(Message(bench.replies[0].content, 1, "train"))
    sent = arrays_of(bench.messages[0])
    for lie in UPLOADS if any(floating(a) for a in arrays) else []:
        content = RecordDict(dict(bench.replies[0].content.items()))
        content["arrays"] = to_record(lie(arrays, sent))
        refused(bench, content)


def test_texts_and_numbers_have_no_effect(tmp_path):
    """Of one method: no other looks at them differently."""
    bench = Bench(tmp_path, "fedssa")
    for change in TEXTS:
        content = RecordDict(dict(bench.replies[0].content.items()))
        change(content)
        refused(bench, content)


HANDSHAKES = [
    {"client": ".."}, {"client": "x" * 65}, {"client": 1}, {"client": "1"}, {"classes": []},
    {"classes": ["a", "a"]}, {"classes": ["\x1b[31m"]}, {"classes": [str(i) for i in range(51)]},
    {"seen": ["nobody's"]}, {"images": [0, 0]}, {"images": [2**62, 1]}, {"images": [1.5, 2.5]},
    {"train-images": 0}, {"train-images": 10**9}, {"train-images": True}, {"model": "os system"},
    {"model": "x" * 201}, {"device": "cuda:99999"}, {"device": ""}, {"clients": -1},
    {"clients": 2**62}, {"error": ""},
]  # fmt: skip


@pytest.mark.parametrize("lie", HANDSHAKES, ids=str)
def test_handshakes_have_no_effect(tmp_path, lie):
    honest, found = honest_answers(tmp_path), Counts()
    liar = max(honest)  # asked last: another's name is taken when it answers
    content = RecordDict({"info": ConfigRecord(dict(honest[liar]["info"].items()) | lie)})
    judge_handshake(honest | {liar: content}, [liar], found)
    assert not found.broken
    assert (found.refused, found.named, found.without_effect) == (1, 1, 1)
