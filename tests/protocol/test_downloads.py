"""A lying server: what it sends is refused with a word, and nothing of the client's changes.

A short part of the search for more runs always; ten times that is marked slow:

    pytest -m slow tests/protocol/test_downloads.py -s
"""

import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from benchmarks.deployed import Deployed
from benchmarks.hostile_server import BYTES, INSTRUCTIONS, RECORDS, instruction_with, payloads
from fedhet.config.registry import METHODS
from fedhet.protocol.messages import PACKED
from fedhet.protocol.reasons import Word
from fedhet.site.modules import not_finite
from fedhet.site.state import FileStore

LOST = {"a generation that never was", "another digest", "experiment of another run"}


@pytest.mark.parametrize("method", METHODS)
def test_the_corpus_is_refused_and_leaves_no_trace(tmp_path, capfd, method):
    client = Deployed(tmp_path, method)
    capfd.readouterr()
    words: dict[str, str] = {}
    for name, changes in INSTRUCTIONS.items():
        content = client.content(config=instruction_with(client.config, changes))
        words[name] = client.refusal(content, name=name)
    for name, change in RECORDS.items():
        if method != "standalone" or name != "an instruction for arrays":
            words[name] = client.refusal(change(client.content()), name=name)
    for name, make in BYTES.items():
        content = client.content()
        content["arrays"] = make()
        words[name] = client.refusal(content, name=name)
    for name, arrays in payloads(method, client.arrays):
        words[name] = client.refusal(client.content(arrays=arrays), name=name)
    said = capfd.readouterr().err
    unexpected = [name for name, word in words.items() if word == Word.UNEXPECTED]
    assert "Traceback" not in said and not unexpected, unexpected
    assert said.count("fedhet: failed (no. ") == len(words)
    assert len(words) >= 40
    assert {name for name, word in words.items() if word == Word.STATE_LOST} == LOST
    client.check_honest_round()


SHORT, LONG = 12, 120  # examples for each method, and with -m slow
KEYS = [
    "experiment",
    "round",
    "generation",
    "state",
    "evaluate",
    "state-dir",
    "classes",
    "nonce",
    "x",
]
NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 5), st.floats())
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["", "..", "0" * 64, "../x", "/tmp"]))
VALUES = st.one_of(
    NUMBERS, TEXTS, st.booleans(), st.binary(max_size=70), st.lists(TEXTS, max_size=5),
    st.lists(st.integers(-9, 9), max_size=5), st.lists(st.floats(), max_size=5),
)  # fmt: skip
BYTE = st.integers(0, 255)
DTYPES = st.one_of(
    npst.floating_dtypes(endianness="?"), npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(), npst.boolean_dtypes(), npst.complex_number_dtypes(),
)  # fmt: skip
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))


@st.composite
def contents(draw, client: Deployed) -> RecordDict:
    """An honest message with anything in the place of some of its parts."""
    config, arrays = dict(client.config), list(client.arrays)
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=2)):
        config[key] = draw(st.one_of(st.none(), VALUES))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(arrays)))
        arrays[at : at + draw(st.integers(0, 1))] = draw(st.lists(ARRAYS, max_size=2))
    content = client.content(instruction_with(config, {}), arrays)
    if draw(st.integers(0, 3)) == 0:
        content["arrays"] = ArrayRecord(
            {draw(st.sampled_from([PACKED, "x"])): Array("uint8", (1,), "", draw(st.binary()))}
        )
    if draw(st.integers(0, 3)) == 0 and set(content["arrays"]) == {PACKED}:
        data = bytearray(content["arrays"][PACKED].data)  # a few of its first bytes: the headers
        places = st.integers(0, min(400, max(0, len(data) - 1)))
        for place, value in draw(st.dictionaries(places, BYTE, max_size=4)).items():
            data[place : place + 1] = bytes([value])
        content["arrays"] = ArrayRecord({PACKED: Array("uint8", (1,), "", bytes(data))})
    if draw(st.integers(0, 9)) == 0:
        content[draw(st.sampled_from(["config", "arrays", "x"]))] = MetricRecord(
            {"x": draw(NUMBERS)}
        )
    return content


def send_anything(tmp_path, capfd, method: str, count: int) -> tuple[int, int]:
    """How many of so many messages were refused, and how many were honest enough to be taken."""
    client, found = Deployed(tmp_path, method), {"refused": 0, "taken": 0}
    capfd.readouterr()

    @settings(
        max_examples=count, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(content=contents(client), kind=st.sampled_from(["train", "train", "evaluate", "query"]))
    def each(content: RecordDict, kind: str) -> None:
        stamps = client.stamps()
        reply = client.ask(content, kind)  # nothing escapes
        info = dict(reply.content.config_records["info"].items())
        if "error" in info:
            assert client.stamps() == stamps and set(reply.content) == {"info"}
            assert set(info) == {"error", "log", "state-lost"}
            assert Word(str(info["error"])) != Word.UNEXPECTED
            found["refused"] += 1
            return
        found["taken"] += 1
        if kind == "train":
            generations = FileStore(next(client.folder.glob("*/0")), sync=False)
            state = generations.load(3, str(info["state"]))
            assert not not_finite(state)
            client.reset()
        else:
            assert client.stamps() == stamps

    each()
    assert "Traceback" not in capfd.readouterr().err
    client.check_honest_round()
    return found["refused"], found["taken"]


@pytest.mark.parametrize("method", METHODS)
def test_no_record_escapes_or_changes_a_state(tmp_path, capfd, method):
    refused, _ = send_anything(tmp_path, capfd, method, SHORT)
    assert refused >= SHORT // 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_no_record_of_many_escapes_or_changes_a_state(tmp_path, capfd, method):
    refused, taken = send_anything(tmp_path, capfd, method, LONG)
    print(f"\n{method}: {refused} messages refused, {taken} honest enough to be taken")
