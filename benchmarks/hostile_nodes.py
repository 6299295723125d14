"""Damaged replies and handshakes of nodes, for every method: what came of them.

Honest messages of a small federation are damaged (:mod:`benchmarks.mutate`) and given to the server
again and again, from the same start. A refused one must be named, and leave every bit of the round
as it is when that client is silent; an accepted one must be within its bounds.

    python -m benchmarks.hostile_nodes [--replies 10000] [--handshakes 2000]
"""

import argparse
import json
import logging
import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Error, Message, RecordDict

from benchmarks.common import emit
from benchmarks.mutate import mutate
from fedhet.config.load import envelope
from fedhet.config.registry import METHODS
from fedhet.errors import RunFailedError
from fedhet.files import is_id
from fedhet.protocol.checks import FLOAT32
from fedhet.protocol.flower import posted
from fedhet.protocol.handshake import Handshake, Roster, Terms
from fedhet.records.run_folder import RunFolder
from fedhet.strategies.rounds import Rounds
from fedhet.testing import LocalGrid, small

CLIENTS = 3
SEED = 7
# What the server trains in a round costs much and says nothing about its checks.
CHEAP = {"fedtgp": {"server_epochs": 2}, "fedgen": {"server_epochs": 2}}
TERMS = Terms(max_images=1000, max_classes=50)


@dataclass
class Counts:
    """What came of damaged messages; ``broken`` says what should never be: nothing stands there."""

    tried: int = 0
    taken: int = 0  # damaged, and valid all the same
    refused: int = 0
    named: int = 0
    without_effect: int = 0
    broken: list[str] = field(default_factory=list)


class Bench:
    """One round of a method: honest replies of three clients, to be damaged again and again."""

    def __init__(self, folder: Path, method: str) -> None:
        keys = CHEAP.get(method, {})
        config = small(folder, method=method, image_size=16, dataset="synthetic:120x4", **keys)
        self.grid = LocalGrid(envelope(config, {}), CLIENTS)
        self.roster = Roster()
        Handshake(self.grid, "x", self.roster).query()
        self.roster.fix_classes(())
        self.strategy = METHODS[method].strategy(config, self.roster)
        handshake = Handshake(self.grid, "x", self.roster)
        self.rounds = Rounds(self.strategy, handshake, RunFolder.create(config, "fuzz"))
        self.strategy.rounds = self.rounds
        self.rounds.ledger.begin(1)
        self.messages = self.rounds.train_messages(1)
        self.replies = list(self.grid.pull_messages(self.grid.push_messages(self.messages)))
        self.before = {name: array.copy() for name, array in self.strategy.arrays().items()}

    def round(self, replies: Sequence[Message]) -> dict[str, Any]:
        """Aggregate these replies from the same start; the round's line."""
        self.strategy.load({name: array.copy() for name, array in self.before.items()})
        ledger = self.rounds.ledger
        ledger.begin(1)
        ledger.scores.clear()
        ledger.chain.digest = ""
        self.rounds.acceptance.steps.load({})
        self.roster.lost.clear()
        self.roster.generations.update(dict.fromkeys(self.roster.ids, 0))
        pairs = zip(self.messages, replies, strict=True)
        self.rounds.take_training(1, self.rounds._collect(pairs))
        return ledger.record(self.strategy.arrays())

    def judge(self, replies: Sequence[Message], damaged: Sequence[int], counts: Counts) -> None:
        """A round of these replies, of which some were damaged, with what came of it."""
        record = self.round(replies)
        out = {int(failure["client"]) for failure in record["failures"]}
        named = {int(f["client"]) for f in record["failures"] if f["reason"].isprintable()}
        counts.broken += self.problems(record)
        silent = [
            Message(Error(code=1, reason="silent"), reply_to=message) if k in out else reply
            for k, (message, reply) in enumerate(zip(self.messages, replies, strict=True))
        ]
        same = self.round(silent)["sha256"] == record["sha256"] if out else True
        counts.tried += len(damaged)
        counts.taken += len(set(damaged) - out)
        counts.refused += len(set(damaged) & out)
        counts.named += len(set(damaged) & named)
        counts.without_effect += same * len(set(damaged) & out)
        # With most replies of a round damaged, what is usual may be theirs.
        if out - set(damaged) and 2 * len(damaged) < CLIENTS:
            counts.broken.append(f"{out - set(damaged)} honest ones refused: {record['failures']}")

    def problems(self, record: dict[str, Any]) -> list[str]:
        """Whatever was accepted is in its bounds; the line says so in numbers that are finite."""
        wrong = []
        if record["replied"] + record["failed"] != CLIENTS:
            wrong.append(f"{record['replied']} replied, {record['failed']} failed")
        for failure in record["failures"]:
            reason = failure["reason"]
            if failure["client"] not in {"0", "1", "2"} or not 0 < len(reason) <= 500:
                wrong.append(f"failure {failure}")
        limit = self.strategy.config.max_update_norm
        for name, array in self.strategy.arrays().items():
            if array.dtype.kind == "f":
                norm = float(np.linalg.norm(array.astype(np.float64)))
                start = float(np.linalg.norm(self.before.get(name, np.zeros(1))))
                if not norm <= (limit + start) * math.sqrt(CLIENTS):
                    wrong.append(f"{name} has norm {norm}")
        for key, value in record.items():
            odd = isinstance(value, float) and not math.isfinite(value)
            if odd and key != "train_loss" and "accuracy" not in key:
                wrong.append(f"{key} is {value}")
        told: list[Any] = [reply.content["metrics"]["train_flops"] for reply in self.replies]
        if not 0 <= record["train_flops"] <= 30 * sum(told):
            wrong.append(f"{record['train_flops']} FLOPs")
        loss = record["train_loss"]
        if not math.isnan(loss) and abs(loss) > FLOAT32:
            wrong.append(f"loss {loss}")
        scores = self.rounds.ledger.scores.values()
        if not all(0 <= value <= 100 for score in scores for value in score.accuracies.values()):
            wrong.append(f"accuracies {scores}")
        return wrong


def fuzz_replies(folder: Path, method: str, count: int) -> Counts:
    """Damage one, two or all three replies of a round, until so many are damaged."""
    bench, random, counts = Bench(folder, method), np.random.default_rng(SEED), Counts()
    bench.judge(bench.replies, [], counts)
    while counts.tried < count:
        replies, damaged = list(bench.replies), []
        for k, (message, reply) in enumerate(zip(bench.messages, bench.replies, strict=True)):
            if random.random() < 0.7:
                replies[k] = Message(mutate(random, reply.content), reply_to=message)
                damaged.append(k)
        bench.judge(replies, damaged, counts)
    return counts


class Canned:
    """A grid whose nodes answer with what they are given."""

    pull_interval = 0.0

    def __init__(self, infos: dict[int, RecordDict]) -> None:
        self.infos = infos
        self.asked: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        """All of them."""
        return list(self.infos)

    def push_messages(self, messages: Sequence[Message]) -> list[str]:
        """Take requests."""
        for message in messages:
            self.asked[posted(message, f"m{message.metadata.dst_node_id}")] = message
        return list(self.asked)

    def pull_messages(self, identities: Sequence[str]) -> list[Message]:
        """The answers."""
        found = [self.asked.pop(i) for i in list(identities) if i in self.asked]
        return [Message(self.infos[m.metadata.dst_node_id], reply_to=m) for m in found]


def honest_answers(folder: Path) -> dict[int, RecordDict]:
    """What three nodes say of themselves in a handshake."""
    found: dict[int, RecordDict] = {}

    def keep(node: int, message: Message, reply: Message) -> Message:
        found[100 + node] = reply.content
        return reply

    grid = LocalGrid(envelope(small(folder), {}), CLIENTS, keep)
    Handshake(grid, "x", Roster()).query()
    return found


def judge_handshake(answers: dict[int, RecordDict], lies: Sequence[int], counts: Counts) -> None:
    """A handshake with these answers, of which some are lies, with what came of it."""
    roster = Roster()
    Handshake(Canned(answers), "x", roster, TERMS).query()  # type: ignore[arg-type]
    taken = set(roster.nodes.values())
    counts.tried += len(lies)
    counts.taken += len(taken & set(lies))
    refused = set(roster.refused) & set(lies)
    counts.refused += len(refused)
    named = {who for who, reason in roster.refusals() if reason.isprintable()}
    counts.named += sum(f"node {node}" in named for node in refused)
    if len(roster.nodes) + len(roster.refused) != len(answers):
        counts.broken.append(f"nodes {roster.nodes}, refused {roster.refused}")
    if not roster.infos.keys() == roster.nodes.keys() == roster.generations.keys():
        counts.broken.append("a client without a node, or the other way round")
    quiet = Roster()
    others = {node: content for node, content in answers.items() if node not in refused}
    Handshake(Canned(others), "x", quiet, TERMS).query()  # type: ignore[arg-type]
    counts.without_effect += (quiet.dump() == roster.dump()) * len(refused)
    try:
        roster.fix_classes((), TERMS.max_classes)
    except RunFailedError:
        if roster.infos:
            counts.broken.append("no client is left, and some are")
    counts.broken += roster_problems(roster)


def fuzz_handshakes(folder: Path, count: int) -> Counts:
    """Handshakes of three nodes of which some lie, until so many have lied."""
    honest, random, counts = honest_answers(folder), np.random.default_rng(SEED), Counts()
    while counts.tried < count:
        lies = [node for node in honest if random.random() < 0.7]
        answers = {n: mutate(random, c) if n in lies else c for n, c in honest.items()}
        judge_handshake(answers, lies, counts)
    return counts


def roster_problems(roster: Roster) -> list[str]:
    """Whoever was let in is within the bounds, by the numbers and not by the code that checks."""
    wrong = []
    json.dumps(roster.dump())
    if len(roster.classes) > TERMS.max_classes or len(set(roster.classes)) < len(roster.classes):
        wrong.append(f"classes {roster.classes}")
    for name, info in roster.infos.items():
        fits = (
            name == info.client and is_id(name)
            and 1 <= sum(info.images) == info.train_images <= TERMS.max_images
            and min(info.images) >= 1
            and len(set(info.seen)) == len(info.seen) == len(info.images) >= 1
            and set(info.seen_names) <= set(info.classes) & set(roster.classes)
            and all(len(one) <= 255 and one.isprintable() for one in info.classes)
            and re.fullmatch(r"[A-Za-z0-9_.:/-]{1,200}", info.model) and len(info.device) <= 21
        )  # fmt: skip
        if not fits:
            wrong.append(f"client {info}")
    if any(len(row) != len(roster.classes) for _, row in roster.counts()):
        wrong.append("a row of partition.csv is too long or too short")
    return wrong


def show(what: str, counts: Counts, **more: object) -> None:
    """A line; what is broken is told three times at most."""
    emit("hostile", direction="up", what=what, **more,
         **asdict(counts) | {"broken": len(counts.broken), "first": counts.broken[:3]})  # fmt: skip


def report(replies: int, handshakes: int) -> bool:
    """Try so many of both, print a line for each method; whether all was as it should be."""
    logging.getLogger("fedhet").setLevel(logging.ERROR)
    good = True
    for method in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            counts = fuzz_replies(Path(folder), method, -(-replies // len(METHODS)))
        good &= not counts.broken and counts.refused == counts.named == counts.without_effect
        show("replies", counts, method=method)
    with tempfile.TemporaryDirectory() as folder:
        counts = fuzz_handshakes(Path(folder), handshakes)
    show("handshakes", counts)
    return good and not counts.broken and counts.refused == counts.named == counts.without_effect


def main() -> None:
    """Try and print; exit code 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replies", type=int, default=10_000)
    parser.add_argument("--handshakes", type=int, default=2_000)
    chosen = parser.parse_args()
    raise SystemExit(0 if report(chosen.replies, chosen.handshakes) else 1)


if __name__ == "__main__":
    main()
