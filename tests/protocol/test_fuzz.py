"""Thousands of damaged replies and handshakes: nothing outside its bounds, and no exception.

A short part runs always; the long one, 10,000 replies and 2,000 handshakes, is marked slow:

    pytest -m slow tests/protocol/test_fuzz.py -s
"""

import json
import math
import re

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from helpers.mutate import mutate

from fedhet.config import envelope
from fedhet.errors import RunFailedError
from fedhet.flop_count import counter
from fedhet.ids import is_id
from fedhet.protocol.checks import FLOAT32
from fedhet.protocol.flop_claims import Work
from fedhet.protocol.flower import posted
from fedhet.protocol.handshake import Handshake
from fedhet.protocol.identity import Terms
from fedhet.protocol.roster import Roster
from fedhet.records.run_folder import RunFolder
from fedhet.registry import METHODS
from fedhet.strategies.rounds import Rounds
from fedhet.testing import LocalGrid, small

SHORT, LONG = 25, 10_000 // len(METHODS) + 1


class Bench:
    """One round of a method: honest replies of three clients, to be damaged again and again."""

    def __init__(self, tmp_path, method: str) -> None:
        config = small(tmp_path, method=method, image_size=16, dataset="synthetic:120x4")
        self.grid = LocalGrid(envelope(config, {}), 3)
        self.roster = Roster()
        Handshake(self.grid, "x", self.roster).query()
        self.roster.fix_classes(())
        folder = RunFolder.create(config, "fuzz")
        self.strategy = METHODS[method].strategy(config, self.roster)
        handshake = Handshake(self.grid, "x", self.roster)
        self.rounds = self.strategy.rounds = Rounds(self.strategy, handshake, folder)
        self.rounds.acceptance.work = Work(counter(config, self.roster.classes))
        self.rounds.ledger.begin(1)
        self.messages = self.rounds.train_messages(1)
        self.replies = list(self.grid.pull_messages(self.grid.push_messages(self.messages)))
        self.before = {name: array.copy() for name, array in self.strategy.arrays().items()}

    def round(self, damaged: list[Message]) -> dict:
        """Aggregate these replies from the same start; the round's line."""
        self.strategy.load({name: array.copy() for name, array in self.before.items()})
        self.rounds.ledger.begin(1)
        self.rounds.ledger.scores.clear()
        self.roster.generations.update(dict.fromkeys(self.roster.ids, 0))
        pairs = zip(self.messages, damaged, strict=True)
        self.rounds.take_training(1, self.rounds._collect(pairs))
        return self.rounds.ledger.record(self.strategy.arrays())

    def check(self, record: dict) -> None:
        """Whatever was accepted is in its bounds."""
        assert record["replied"] + record["failed"] == 3
        for failure in record["failures"]:
            assert failure["client"] in {"0", "1", "2"}
            assert 0 < len(failure["reason"]) <= 500 and failure["reason"].isprintable()
        limit = self.strategy.config.max_update_norm
        for name, array in self.strategy.arrays().items():
            before = self.before.get(name)
            if array.dtype.kind == "f":
                norm = float(np.linalg.norm(array.astype(np.float64)))
                start = 0.0 if before is None else float(np.linalg.norm(before))
                assert norm <= (limit + start) * math.sqrt(3), name
        for key, value in record.items():
            if isinstance(value, float) and key not in {"train_loss"} and "accuracy" not in key:
                assert math.isfinite(value), key
        honest = sum(r.content["metrics"]["train_flops"] for r in self.replies)
        assert 0 <= record["train_flops"] <= 30 * honest
        loss = record["train_loss"]
        assert math.isnan(loss) or abs(loss) <= FLOAT32
        for score in self.rounds.ledger.scores.values():
            assert all(0 <= value <= 100 for value in score.accuracies.values())


def fuzz_replies(tmp_path, method: str, count: int) -> tuple[int, int]:
    """Damage one, two or all three replies; how many were damaged, and how many accepted."""
    bench, random = Bench(tmp_path, method), np.random.default_rng(7)
    assert bench.round(bench.replies)["replied"] == 3
    damaged = accepted = 0
    while damaged < count:
        replies = []
        for message, reply in zip(bench.messages, bench.replies, strict=True):
            if random.random() < 0.7:
                content = mutate(random, reply.content)
                replies.append(Message(content, reply_to=message))
                damaged += 1
            else:
                replies.append(Message(reply.content, reply_to=message))
        record = bench.round(replies)
        bench.check(record)
        accepted += record["replied"]
    return damaged, accepted


@pytest.mark.parametrize("method", METHODS)
def test_damaged_replies(tmp_path, method):
    damaged, accepted = fuzz_replies(tmp_path, method, SHORT)
    assert accepted < damaged  # honest ones between them included


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_many_damaged_replies(tmp_path, method):
    damaged, accepted = fuzz_replies(tmp_path, method, LONG)
    print(f"\n{method}: {damaged} damaged replies, {accepted} accepted of those and honest ones")


class Canned:
    """A grid whose nodes answer with what they are given."""

    pull_interval = 0.0

    def __init__(self, infos: dict[int, RecordDict]) -> None:
        self.infos = infos
        self.asked: dict[str, Message] = {}

    def get_node_ids(self):
        return list(self.infos)

    def push_messages(self, messages):
        for message in messages:
            identity = f"m{message.metadata.dst_node_id}"
            self.asked[posted(message, identity)] = message
        return list(self.asked)

    def pull_messages(self, identities):
        found = [self.asked.pop(i) for i in list(identities) if i in self.asked]
        return [Message(self.infos[m.metadata.dst_node_id], reply_to=m) for m in found]


def fuzz_handshakes(tmp_path, count: int) -> int:
    """Handshakes of three nodes of which some lie; how many damaged answers were let in."""
    grid, random = LocalGrid(envelope(small(tmp_path), {}), 3), np.random.default_rng(7)
    Handshake(grid, "x", Roster()).query()
    honest: dict[int, RecordDict] = {}

    def keep(node, message, reply):
        honest[100 + node] = reply.content
        return reply

    grid.tamper = keep
    Handshake(grid, "x", Roster()).query()
    damaged = admitted = 0
    while damaged < count:
        lies = {n for n in honest if random.random() < 0.7}
        damaged += len(lies)
        answers = {n: mutate(random, c) if n in lies else c for n, c in honest.items()}
        roster = Roster()
        handshake = Handshake(Canned(answers), "x", roster, Terms(1000, 50))  # type: ignore[arg-type]
        handshake.query()
        admitted += sum(node in lies for node in roster.nodes.values())
        assert len(roster.nodes) + len(roster.refused) == 3
        assert roster.infos.keys() == roster.nodes.keys() == roster.generations.keys()
        try:
            roster.fix_classes((), 50)
        except RunFailedError:
            assert not roster.infos
        check_roster(roster)
        assert len(roster.refusals()) == len(roster.refused)
    return admitted


def check_roster(roster: Roster) -> None:
    """Whoever was let in is within the bounds, by the numbers and not by the code that checks."""
    json.dumps(roster.dump())
    assert len(roster.classes) <= 50 and len(set(roster.classes)) == len(roster.classes)
    for name, info in roster.infos.items():
        assert name == info.client and is_id(name)
        assert 1 <= sum(info.images) == info.train_images <= 1000 and min(info.images) >= 1
        assert len(set(info.seen)) == len(info.seen) == len(info.images) >= 1
        assert set(info.seen_names) <= set(info.classes) and set(info.seen_names) <= set(
            roster.classes
        )
        assert all(len(one) <= 255 and one.isprintable() for one in info.classes)
        assert re.fullmatch(r"[A-Za-z0-9_.:/-]{1,200}", info.model) and len(info.device) <= 21
    for _, row in roster.counts():
        assert len(row) == len(roster.classes)


def test_damaged_handshakes(tmp_path):
    fuzz_handshakes(tmp_path, 200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_damaged_handshakes(tmp_path):
    print(f"\n{fuzz_handshakes(tmp_path, 2000)} of 2,000 damaged answers were valid all the same")
