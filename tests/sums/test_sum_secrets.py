"""What the server ever holds of one client, searched for what it must not know; and liars.

Everything that a client sends, all files of the run folder but the states, the log, and every array
and text that can be reached from the strategy are looked through.
"""

import gc
import json
import logging
import re
import stat
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from helpers.patched import without_masks
from hostile.lies import says, sends

from fedhet.protocol.flower import posted
from fedhet.protocol.messages import TRAIN, UNMASK, arrays_of
from fedhet.strategies.base import MethodStrategy
from fedhet.sums.client import SumProtection
from fedhet.sums.masks import from_words
from fedhet.testing import simulate, small

CLIENTS, SOME = 4, 40  # bytes of a vector that are no accident where they are found


def config(tmp_path, **changes):
    values = {"clients": CLIENTS, "sum_owners": 2, "secure_sum": "masked", "sum_min": 2}
    return small(tmp_path, **(values | {"image_size": 16} | changes))


def kind(message: Message) -> str:
    return message.metadata.message_type


class Secrets:
    """What clients masked: words by client, and their own numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: list[np.ndarray] = []
        self.numbers: list[dict[str, float]] = []
        original, put = SumProtection.trained, SumProtection._put

        def trained(part: SumProtection, numbers: dict, digest: str) -> Any:
            self.numbers.append(dict(numbers))
            return original(part, numbers, digest)

        def keep(part: SumProtection, vector: np.ndarray, *more: Any) -> None:
            put(part, vector, *more)
            self.words.append(part._steps[-1].astype(np.uint32))

        monkeypatch.setattr(SumProtection, "trained", trained)
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


def joined(reply: Message) -> bytes:
    return b"".join(array.tobytes() for array in arrays_of(reply))


@pytest.mark.parametrize("method", ["fedssa", pytest.param("lg_fedavg", marks=pytest.mark.matrix)])
def test_nothing_of_one_client_is_with_the_server(tmp_path, monkeypatch, caplog, method) -> None:
    caplog.set_level(logging.DEBUG)
    secrets, held, infos, texts, keys = Secrets(monkeypatch), [], [], [], set()

    def listen(node: int, message: Message, reply: Message) -> Message:
        held.append(joined(reply))
        infos.append(dict(reply.content["info"].items()))
        held.append(repr(infos[-1]).encode() + repr(reply.content.metric_records).encode())
        held.extend(value for value in infos[-1].values() if isinstance(value, bytes))
        for path in tmp_path.glob("runs/*/state/*/*/sum-*.json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            if path.name == "sum-key.json":
                keys.add(json.loads(path.read_text())["private"])
        return reply

    book = MethodStrategy._book

    def look(self: MethodStrategy[Any], *given: Any) -> Any:
        found = book(self, *given)
        for one in reachable(self):
            if isinstance(one, str):
                texts.append(one)
            elif isinstance(one, bytes) or (isinstance(one, np.ndarray) and one.dtype != object):
                held.append(bytes(one))
        return found

    monkeypatch.setattr(MethodStrategy, "_book", look)
    run = config(tmp_path, method=method, max_images=100, keep_state=False)
    folder, _ = simulate(run, tamper=listen)
    files = [p for p in folder.path.rglob("*") if p.is_file() and "state" not in p.parts]
    held += [path.read_bytes() for path in files]
    texts += [path.read_text(errors="replace") for path in files] + [caplog.text]

    assert len(secrets.words) > 2 * CLIENTS and len(files) > 5
    everything, said, pieces = b"\0".join(held), "\n".join(texts), list(secrets.pieces())
    assert len(pieces) > 20 and not any(piece in everything for piece in pieces)
    assert len(keys) == CLIENTS and not list(folder.path.glob("state/**/sum-*"))
    for key in keys:
        assert key.encode() not in everything and bytes.fromhex(key) not in everything
    own = {f"{n[key]!r}" for n in secrets.numbers for key in ("train_loss", "train_flops")}
    own |= {f"{n['test_accuracy']!r}" for n in secrets.numbers} - {"0.0", "100.0", "50.0"}
    assert not any(number in said for number in own), own
    told = {key for info in infos for key in info}
    assert told == {"client", "clients", "classes", "model", "device", "inputs", "sum-key",
                    "strangers", "round", "digest", "shares", "seeds", "closed"}  # fmt: skip
    every = [f"class-{k}" for k in range(4)]
    assert all(list(info["classes"]) == every for info in infos if "classes" in info)


def test_the_search_finds_what_is_there(tmp_path, monkeypatch) -> None:
    """Without masks the same pieces are in what the clients send."""
    secrets, held = Secrets(monkeypatch), []

    def listen(node: int, message: Message, reply: Message) -> Message:
        held.append(joined(reply))
        return reply

    with without_masks():
        simulate(config(tmp_path, rounds=1), tamper=listen)
    everything, pieces = b"\0".join(held), list(secrets.pieces())
    assert sum(piece in everything for piece in pieces) > len(pieces) / 4


def shares(content, message) -> None:
    says(shares=bytes(len(content["info"]["shares"])))(content, message)


# Lies of client 1, how many count then, and who is blamed for what.
LIES = {
    "few words": (TRAIN, sends(lambda a, _: [a[0][:-1], a[1]]), 3, "1",
                  r"array 0 is uint32\[\d+\], expected uint32"),
    "few boxes": (TRAIN, sends(lambda a, _: [a[0], a[1][:2]]), 3, "1",
                  r"array 1 is uint8\[2, 82\], expected uint8\[4"),
    "metrics that are summed": (
        TRAIN, lambda content, _: content.update(metrics=MetricRecord({"test_accuracy": 99.0})),
        3, "1", "reply with single metrics"),
    "other words": (
        TRAIN, sends(lambda a, _: [a[0] + np.uint32(1 << 31), a[1]]), 0, "the round",
        "the sum failed: the sum has entries beyond 4 x sum-range=64"),
    "empty boxes": (TRAIN, sends(lambda a, _: [a[0], a[1] * 0]), 0, "the round",
                    "the sum failed: the boxes of '1' did not open for 4 members"),
    "empty shares": (UNMASK, shares, 0, "the round",
                     "the sum failed: the self mask of '.' cannot be"),
}  # fmt: skip


def test_a_lie_is_named_and_spoils_one_round_at_most(tmp_path) -> None:
    lies = list(LIES.values())

    def tamper(node: int, message: Message, reply: Message) -> Message:
        round_ = message.content["config"]["round"]
        if node == 1 and round_ <= len(lies) and kind(message) == lies[round_ - 1][0]:
            lies[round_ - 1][1](reply.content, message)
            return Message(reply.content, reply_to=message)
        return reply

    values = {"method": "lg_fedavg", "max_images": 100, "dataset": "synthetic:80x4"}
    values |= {"rounds": 1 + len(lies), "max_skipped_rounds": 9}
    folder, _ = simulate(config(tmp_path, **values), tamper=tamper)
    *told, last = folder.read_rounds()
    assert last["replied"] == 4 and not last["failures"]
    before = told[0]
    for name, line, (_, _, replied, who, reason) in zip(LIES, told, lies, strict=True):
        said = {failure["client"]: failure["reason"] for failure in line["failures"]}
        assert line["replied"] == replied and re.match(reason, said[who]), (name, line)
        if not replied:
            assert line["test_accuracy_mean"] == before["test_accuracy_mean"]
        before = line


def test_a_server_that_asks_one_client_for_its_accuracy_is_refused(tmp_path) -> None:
    said, grids = [], []

    def ask_more(node: int, message: Message, reply: Message) -> Message:
        if kind(message) == TRAIN and message.content["config"]["round"] == 2:
            content = RecordDict({"config": message.content["config"]})
            ask = Message(content, message.metadata.dst_node_id, "evaluate")
            posted(ask)
            said.append(grids[0].answer(ask).content["info"]["error"])
        return reply

    values = {"method": "lg_fedavg", "max_images": 100}
    simulate(config(tmp_path, **values), tamper=ask_more, before=grids.append)
    assert said == ["Refused: with sum-metrics a single accuracy is not sent"] * 4
