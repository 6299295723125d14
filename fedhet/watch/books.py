"""What the lines of a run add up to: rounds as rows, who replied, who failed and why, traffic."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedhet.errors import one_line
from fedhet.files import NOBODY, client_order
from fedhet.records.formats import Evaluation
from fedhet.watch.view import Column, Curve, Line, Table, Value

CLIENTS, FAILURES = 500, 100  # rows of a table: more can nobody look through
COLUMNS = (
    Column("round"), Column("accuracy", "percent"), Column("10th percentile", "percent"),
    Column("validation", "percent"), Column("training loss", "number"), Column("asked"),
    Column("replied"), Column("failed"), Column("sent up", "bytes"), Column("sent down", "bytes"),
    Column("up so far", "bytes"), Column("down so far", "bytes"), Column("seconds", "number"),
)  # fmt: skip
CURVES = (
    Curve("Accuracy", (Line("test", 1), Line("validation", 3), Line("10th percentile", 2))),
    Curve("Training loss", (Line("loss", 4),)),
    Curve("Traffic", (Line("up", 10), Line("down", 11))),
)
_CLIENT = (
    Column("client", "text"), Column("model", "text"), Column("examples"), Column("last round"),
    Column("accuracy", "percent"), Column("validation", "percent"), Column("failures"),
    Column("in the last round", "text"), Column("why", "text"),
)  # fmt: skip


@dataclass
class Books:
    """Everything from the first line on."""

    rows: list[list[Value]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    up: int = 0
    down: int = 0
    failed: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)  # line of rounds.jsonl
    failures: deque[tuple[int, str, str]] = field(default_factory=lambda: deque(maxlen=FAILURES))
    trouble: dict[str, tuple[int, str]] = field(default_factory=dict)  # the last, by client
    times: Counter[str] = field(default_factory=Counter)

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a line of ``rounds.jsonl``."""
        self.last = line
        self.up += line["uplink_bytes"]
        self.down += line["downlink_bytes"]
        self.seconds.append(line["seconds"])
        for one in line["failures"]:
            client, reason = one_line(one["client"], 80), one_line(one["reason"], 300)
            self.failures.append((line["round"], client, reason))
            self.failed += 1
            if client != NOBODY:
                self.trouble[client] = line["round"], reason
                self.times[client] += 1
        self.rows.append(
            [
                line["round"], line["test_accuracy_mean"], line["test_accuracy_p10"],
                line["val_accuracy_mean"], line["train_loss"], line["sampled"], line["replied"],
                len(line["failures"]), line["uplink_bytes"], line["downlink_bytes"], self.up,
                self.down, line["seconds"],
            ]
        )  # fmt: skip

    def clients(self, scores: Mapping[str, Evaluation], examples: Mapping[str, int]) -> Table:
        """Every client that is known of; of too many those with trouble first."""
        lost = {one["client"]: f"lost: {one['reason']}" for one in self.last.get("lost", ())}
        known = {*scores, *examples, *lost, *self.trouble}
        first = sorted(known, key=lambda c: (c not in self.trouble, client_order(c)))[:CLIENTS]
        rows = []
        for client in sorted(first, key=client_order):
            score = scores.get(client)
            at, why = self.trouble.get(client, (0, ""))
            done = score.generation if score else None
            rows.append(
                [
                    client, one_line(score.model, 80) if score else "", examples.get(client), done,
                    score.test_accuracy if score else None, score.val_accuracy if score else None,
                    self.times[client], self._answer(at, done or 0),
                    one_line(lost.get(client, ""), 300) or (f"round {at}: {why}" if at else ""),
                ]
            )  # fmt: skip
        return Table("clients", "Clients", _CLIENT, rows, len(known) - len(rows))

    def _answer(self, failed: int, done: int) -> str:
        """What is known of a client's part in the last round; nothing if it was not evaluated."""
        last = self.last.get("round", 0)
        if failed == last > 0:
            return "failed"
        return "replied" if done == last > 0 else ""

    def failures_table(self) -> Table:
        """Who was left out and why, the newest first."""
        columns = (Column("round"), Column("client", "text"), Column("why", "text"))
        rows = list(reversed(self.failures))
        return Table("failures", "Failures", columns, rows, self.failed - len(rows))
