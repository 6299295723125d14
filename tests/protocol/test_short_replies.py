"""What is no array in a reply is short, however large the arrays of its method may be."""

import tracemalloc

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedhet.errors import one_line
from fedhet.protocol.flower import be_one_process, posted
from fedhet.protocol.messages import QUERY_BYTES, read_reply

LARGE = 1 << 30  # what a reply of a large model may have


@pytest.mark.parametrize(
    "record",
    [
        {"info": ConfigRecord({"error": "a " * QUERY_BYTES})},
        {"info": ConfigRecord({}), "metrics": MetricRecord({f"m{i}": 1.0 for i in range(90_000)})},
        {"info": ConfigRecord({}), "more": ConfigRecord({"x": b"x" * (2 * QUERY_BYTES)})},
    ],
)
def test_texts_and_numbers_beyond_a_megabyte_are_refused_before_they_are_looked_at(record):
    be_one_process()
    asked = Message(RecordDict(), 1, "train", ttl=60.0)
    posted(asked)
    reply = read_reply(Message(RecordDict(record), reply_to=asked), LARGE)
    assert "of texts and numbers" in reply.error and reply.message_bytes > QUERY_BYTES


def test_of_a_long_text_no_more_is_taken_apart_than_is_shown():
    text = "a " * 5_000_000
    tracemalloc.start()
    assert len(one_line(text)) == 500
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
