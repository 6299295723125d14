"""What the server ever holds of one client, searched for what it must not know; and liars.

Everything that a client sends, all files of the run folder but the states, the log, and every array
and text that can be reached from the strategy are looked through.
"""

import gc
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedhet.protocol.flower import posted
from fedhet.protocol.messages import OWNERS, TRAIN, UNMASK, Reply, answer, arrays_of, from_wire
from fedhet.strategies.base import MethodStrategy
from fedhet.sums.client import SumProtection
from fedhet.sums.masks import from_words
from fedhet.sums.messages import Opened
from fedhet.testing import simulate, small

CLIENTS, SOME = 4, 40  # bytes of a vector that are no accident where they are found


def config(tmp_path, **changes):
    values = {"clients": CLIENTS, "sum_owners": 2, "secure_sum": "masked", "sum_min": 2}
    values |= {"image_size": 16}
    return small(tmp_path, **(values | changes))


def kind(message: Message) -> str:
    return message.metadata.message_type


class Secrets:
    """What clients masked: words by client, and their own numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: list[np.ndarray] = []
        self.numbers: list[dict[str, float]] = []
        original, put = SumProtection.train, SumProtection._put

        def train(part: SumProtection, *given: Any) -> Any:
            found = original(part, *given)
            self.numbers.append(found[1])
            return found

        def keep(part: SumProtection, vector: np.ndarray, *more: Any) -> None:
            put(part, vector, *more)
            self.words.append(part._steps[-1].astype(np.uint32))

        monkeypatch.setattr(SumProtection, "train", train)
        monkeypatch.setattr(SumProtection, "_put", keep)

    def pieces(self) -> Iterator[bytes]:
        """Pieces of every vector that are not mostly zeros, as words and as floats."""
        for words in self.words:
            floats = from_words(words, 0)
            for dtype in (words, floats, floats.astype(np.float32)):
                for start in range(0, max(1, dtype.size - 10), 97):
                    piece = dtype[start : start + SOME // dtype.itemsize]
                    if np.count_nonzero(piece) > 0.9 * piece.size and piece.nbytes >= SOME:
                        yield piece.tobytes()


def reachable(root: object) -> Iterator[object]:
    """Objects that can be reached from ``root``, modules and classes left out."""
    ahead, seen = [root], set()
    while ahead:
        one = ahead.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ == "module":
            continue
        seen.add(id(one))
        yield one
        if not isinstance(one, str | bytes | int | float | np.ndarray):
            ahead += [o for o in gc.get_referents(one) if type(o).__name__ != "function"]


@pytest.mark.parametrize("method", ["fedssa", pytest.param("lg_fedavg", marks=pytest.mark.matrix)])
def test_nothing_of_one_client_is_with_the_server(tmp_path, monkeypatch, caplog, method) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = Secrets(monkeypatch)
    held: list[bytes] = []
    infos: list[dict] = []
    texts: list[str] = []

    def listen(node: int, message: Message, reply: Message) -> Message:
        held.append(b"".join(array.tobytes() for array in arrays_of(reply)))
        infos.append(dict(reply.content["info"].items()))
        held.append(repr(infos[-1]).encode() + repr(reply.content.metric_records).encode())
        return reply

    close = MethodStrategy._close

    def look(self: MethodStrategy[Any], *given: Any) -> Any:
        found = close(self, *given)
        for one in reachable(self):
            if isinstance(one, np.ndarray) and one.dtype != object:
                held.append(one.tobytes())
            elif isinstance(one, bytes):
                held.append(one)
            elif isinstance(one, str):
                texts.append(one)
        return found

    monkeypatch.setattr(MethodStrategy, "_close", look)
    run = config(tmp_path, method=method, max_images=100, name="run")
    folder, _ = simulate(run, tamper=listen)
    files = [p for p in folder.path.rglob("*") if p.is_file() and "state" not in p.parts]
    held += [path.read_bytes() for path in files]
    texts += [path.read_text(errors="replace") for path in files] + [caplog.text]

    assert len(secrets.words) > 2 * CLIENTS and len(files) > 5
    everything, said = b"\0".join(held), "\n".join(texts)
    pieces = list(secrets.pieces())
    assert len(pieces) > 20
    assert not any(piece in everything for piece in pieces)
    own = {f"{n[key]!r}" for n in secrets.numbers for key in ("train_loss", "train_flops")}
    own |= {f"{n['test_accuracy']!r}" for n in secrets.numbers} - {"0.0", "100.0", "50.0"}
    assert not any(number in said for number in own), own
    told = {key for info in infos for key in info}
    assert told == {"client", "clients", "classes", "model", "device", "inputs", "sum-key",
                    "strangers", "round", "digest", "shares", "seeds", "closed"}  # fmt: skip
    assert {tuple(i["classes"]) for i in infos if "classes" in i} == {
        tuple(f"class-{k}" for k in range(4))
    }


def test_the_search_finds_what_is_there(tmp_path, monkeypatch) -> None:
    """Without masks the same pieces are in what the clients send."""
    secrets, held = Secrets(monkeypatch), []

    def listen(node: int, message: Message, reply: Message) -> Message:
        held.append(b"".join(array.tobytes() for array in arrays_of(reply)))
        return reply

    simulate(config(tmp_path, secure_sum="unmasked", rounds=1), tamper=listen)
    everything = b"\0".join(held)
    pieces = list(secrets.pieces())
    assert sum(piece in everything for piece in pieces) > len(pieces) / 4


# --- clients that lie ------------------------------------------------------------------------


def changed(message: Message, reply: Message, arrays: list[np.ndarray] | None = None, **info):
    """A client's reply with other arrays or texts."""
    said = dict(reply.content["info"].items()) | info
    return answer(message, Reply(said, {}, arrays_of(reply) if arrays is None else arrays))


def reasons(line: dict) -> dict[str, str]:
    return {f["client"]: f["reason"] for f in line["failures"]}


def arrays(change):
    """A lie about the arrays of an upload."""
    return TRAIN, lambda message, reply: changed(message, reply, change(*arrays_of(reply)))


def metrics(message: Message, reply: Message) -> Message:
    info = dict(reply.content["info"].items())
    return answer(message, Reply(info, {"test_accuracy": 99.0}, arrays_of(reply)))


def shares(message: Message, reply: Message) -> Message:
    found = from_wire(Opened, reply.content["info"])
    return changed(message, reply, [], shares=bytes(len(found.shares)))


# Lies of client 1, how many count then, and who is blamed for what.
LIES = {
    "few words": (
        *arrays(lambda w, b: [w[:-1], b]), 3, "1", r"array 0 is uint32\[\d+\], expected uint32"
    ),
    "floats": (
        *arrays(lambda w, b: [w.astype(np.float32), b]), 3, "1", r"array 0 is float32\[\d+\], "
    ),
    "few boxes": (
        *arrays(lambda w, b: [w, b[:2]]), 3, "1", r"array 1 is uint8\[2, 82\], expected uint8\[4"
    ),
    "no boxes": (*arrays(lambda w, b: [w]), 3, "1", "1 arrays, expected 2"),
    "nothing": (*arrays(lambda w, b: []), 3, "1", "0 arrays, expected 2"),
    "metrics that are summed": (TRAIN, metrics, 3, "1", "reply with single metrics"),
    "other words": (
        *arrays(lambda w, b: [w + np.uint32(1 << 31), b]), 0, "the round",
        "the sum failed: the sum has entries beyond 4 x sum-range=64",
    ),
    "empty boxes": (
        *arrays(lambda w, b: [w, np.zeros_like(b)]), 0, "the round",
        "the sum failed: the boxes of '1' did not open for 4 members",
    ),
    "empty shares": (
        UNMASK, shares, 0, "the round", "the sum failed: the self mask of '.' cannot be"
    ),
}  # fmt: skip


def test_a_lie_is_named_and_spoils_one_round_at_most(tmp_path) -> None:
    """Client 1 tells one lie a round, the first in round 2."""
    lies = list(LIES.values())

    def tamper(node: int, message: Message, reply: Message) -> Message:
        round_ = message.content["config"]["round"]
        if node != 1 or not 2 <= round_ < 2 + len(lies) or kind(message) != lies[round_ - 2][0]:
            return reply
        return lies[round_ - 2][1](message, reply)

    values = {"method": "lg_fedavg", "max_images": 100, "dataset": "synthetic:80x4"}
    values |= {"rounds": 2 + len(lies), "max_skipped_rounds": 9}
    folder, _ = simulate(config(tmp_path, **values), tamper=tamper)
    first, *told, last = folder.read_rounds()
    assert first["replied"] == last["replied"] == 4 and not last["failures"]
    before = first
    for name, line, (_, _, replied, who, reason) in zip(LIES, told, lies, strict=True):
        assert line["replied"] == replied and re.match(reason, reasons(line)[who]), (name, line)
        if not replied:
            assert line["test_accuracy_mean"] == before["test_accuracy_mean"]
        before = line


def test_owners_that_cannot_be_counted_skip_the_round(tmp_path) -> None:
    def tamper(node: int, message: Message, reply: Message) -> Message:
        if kind(message) == OWNERS and message.content["config"]["round"] == 1 and node < 2:
            return answer(message, Reply({"error": "away"}))
        return reply

    folder, _ = simulate(config(tmp_path), tamper=tamper)
    first, second = folder.read_rounds()
    assert reasons(first)["the round"] == (
        "owners cannot be counted: 2 of 4 uploads came, 3 are needed"
    )
    assert second["replied"] == 4 and json.dumps(second["failures"]) == "[]"


def test_a_server_that_asks_one_client_for_its_accuracy_is_refused(tmp_path) -> None:
    said = []

    def lying(grid) -> None:
        original = grid.answer

        def ask_more(message: Message) -> Message:
            if kind(message) == TRAIN and message.content["config"]["round"] == 2:
                config = message.content["config"]
                ask = Message(RecordDict({"config": config}), message.metadata.dst_node_id,
                              "evaluate")  # fmt: skip
                posted(ask)
                said.append(original(ask).content["info"]["error"])
            return original(message)

        grid.answer = ask_more

    simulate(config(tmp_path, method="lg_fedavg", max_images=100), before=lying)
    assert said == ["Refused: with sum-metrics a single accuracy is not sent"] * 4
