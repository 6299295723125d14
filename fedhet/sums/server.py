"""How a run with ``secure-sum`` checks its rounds: replies become a sum.

A small sum may come before a round's: how many own each class, where a method sums rows of
classes. A round whose sum cannot be had is skipped, named, and changes nothing; the next attempt
has a higher number, also after a crash.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import BESIDE_ACCURACY, METRICS, RunConfig
from fedhet.errors import Rejected
from fedhet.files import client_order
from fedhet.protocol.checks import Checked, Valid, check_trained
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.mail import exchange
from fedhet.protocol.messages import CONFUSION, OWNERS, QUERY_BYTES, Reply, message_bytes
from fedhet.protocol.payload import Array, Payload
from fedhet.records.ledger import Ledger, next_attempt
from fedhet.records.summary import EVERYBODY, UNSUMMED
from fedhet.sums.attempt import PATIENCE, Attempt, Introductions
from fedhet.sums.contribution import (
    SPENT,
    Summed,
    SumMetrics,
    Vector,
    about_few,
    matrix_of,
    too_few,
)
from fedhet.sums.messages import Cohort

log = logging.getLogger("fedhet")

SHORT = 0.25  # of a round's time that each of the small exchanges may take


CLIENTS = "_clients"  # a mean of that ending is a count
EVALUATED = f"evaluated{CLIENTS}"


class SumLedger(Ledger):
    """As :class:`Ledger`; where metrics are summed, means alone, over the last round's clients.

    The hash chain covers the total and who is in it, instead of single uploads.
    """

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster)
        self.means: dict[str, float] = {}

    def accept(self, client: str, round_: int, payload: Payload, reply: Reply) -> None:
        """Book somebody who is in the sum; what it sent is not in the chain."""
        super().accept(client, round_, payload, reply)
        self.chain.add("upload", client, reply.metrics)

    def add_total(self, total: Array, means: Mapping[str, Summed]) -> None:
        """Book the sum itself, and the means that were found in it."""
        self.chain.add("sum", "", {}, (total,))
        for name, found in means.items():
            if name in BESIDE_ACCURACY:
                self.means |= {name: found.mean, f"{name}{CLIENTS}": float(found.clients)}
            elif "accuracy" in name:
                self.means[name] = found.mean
            elif name == "train_loss":
                self.round.losses = [found.mean]
            else:
                self.round.numbers[name] = found.mean
            if name.removeprefix("test_") in METRICS:  # all that a sum is over have just trained
                self.round.numbers |= {
                    f"participants_{name}_mean": found.mean,
                    f"participants_{name}{CLIENTS}": float(found.clients),
                }
        if "test_accuracy" in means:
            self.means[EVALUATED] = float(means["test_accuracy"].clients)

    def record(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Return the round's record, without deviations and percentiles."""
        record = super().record(arrays)
        for name, mean in self.means.items():
            if name.endswith(CLIENTS):
                record[name] = int(mean)
            else:
                record[f"{name}_mean"] = mean
        if self.means:
            record["train_flops"] = None  # not told: see fedhet.sums.contribution
        return record

    def dump(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return super().dump() | {"means": self.means}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Take up what :meth:`dump` gave."""
        super().load(kept)
        self.means = dict(kept.get("means", {}))


@dataclass(frozen=True)
class SumPlan:
    """What a method's sums are: ``length`` floats of each client, ``ranges`` of its own metrics.

    ``by_class``: they are rows of classes. ``attempts`` is the file that counts attempts.
    """

    length: int
    ranges: Mapping[str, tuple[float, float]]
    by_class: bool
    attempts: Path


@dataclass(frozen=True)
class CheckedSum(Checked):
    """With what the hash chain covers of the total, and the means that were found in it."""

    chained: Vector = field(default_factory=lambda: np.zeros(0))
    means: Mapping[str, Summed] = field(default_factory=dict)


class SumAggregator:
    """Checks and books the rounds of a run with ``secure-sum``, whose server sees sums alone.

    The loop over rounds uses it as it does :class:`fedhet.strategies.aggregator.PlainAggregator`.
    """

    train_share = 0.75  # of a round's time that waiting for training may take

    def __init__(
        self,
        config: RunConfig,
        ledger: SumLedger,
        handshake: Handshake,
        plan: SumPlan,
        marks: Mapping[str, Any],
    ) -> None:
        """Load :meth:`marks` from a checkpoint's ``marks``."""
        self.config, self.ledger, self.handshake, self.plan = config, ledger, handshake, plan
        self.roster = handshake.roster
        self.about: Cohort | None = None  # what a train message says of the sum
        self.evaluates = not config.sum_metrics  # an accuracy of one client alone is not told
        self.metrics = SumMetrics(config.sum_range, plan.ranges)
        self.introductions = Introductions(handshake, ledger.fail)
        self.counts_owners = config.sum_owners > 1 and plan.by_class
        self.shared: tuple[int, ...] | None = None  # classes whose rows may be summed
        self._counted: list[str] | None = None  # of whom: a resumed run counts again
        self.few = int(marks.get("few", 0))  # classes whose rows may not
        self._attempt: Attempt | None = None

    def marks(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: what the user has been told of."""
        return {"few": self.few} if self.counts_owners else {}

    def seconds(self, client: str) -> float:
        """Return 0: how long a client trains is not told."""
        del client
        return 0.0

    def limit(self, expected: Payload | None) -> int:
        """Return the bytes above which a reply is refused unread."""
        del expected
        return self._attempt.limit if self._attempt is not None else QUERY_BYTES

    # --- the first message -------------------------------------------------------------------

    def members(self, round_: int, clients: list[str], deadline: float) -> list[str]:
        """Return who is asked to train: the cohort of the round's attempt, or nobody."""
        self._attempt, self.about = None, None
        clients = self._introduced(clients)
        try:
            if self.counts_owners:
                clients = self._count_owners(round_, clients, deadline)
                self.ledger.round.numbers[UNSUMMED] = float(self.few)
        except Rejected as error:
            self.ledger.skip(f"owners cannot be counted: {error}")
            return []
        length = self.plan.length + len(self.metrics) * self.config.sum_metrics
        self._attempt = attempt = self._new(round_, clients, length)
        if len(clients) < attempt.collector.min_survivors:
            return []
        self.about = attempt.cohort
        return clients

    def _new(self, round_: int, members: list[str], length: int) -> Attempt:
        size = max(self.config.cohort(len(self.roster.ids)), len(members))
        number = next_attempt(self.plan.attempts)
        cohort = Cohort(tuple(sorted(members)), number, size, self.shared)
        return Attempt(self.handshake, self.ledger, self.config, round_, cohort, length)

    def _introduced(self, clients: list[str]) -> list[str]:
        """Return those of ``clients`` that know each other's keys."""
        return self.introductions.of(clients, self._short)

    @property
    def _short(self) -> float:
        return min(PATIENCE, SHORT * self.config.round_timeout)

    # --- a small sum before it ---------------------------------------------------------------

    def _count_owners(self, round_: int, members: list[str], deadline: float) -> list[str]:
        """Count owners, unless ``members`` are those of the last count; return who is online.

        A count holds for exactly those who were in it: where the other owners of a class have
        gone, also while they were being counted, the sum would be a lone owner's row.
        """
        while members != self._counted:
            members = self.ledger.online(self._count(round_, members, deadline))
        return members

    def _count(self, round_: int, members: list[str], deadline: float) -> list[str]:
        """Count the owners of each class among ``members``; return who is in the count."""
        self.shared, self._counted = None, None
        attempt = self._new(round_, members, len(self.roster.classes))
        min_owners = self.config.sum_owners
        owners = np.rint(self._ask(attempt, OWNERS, self._short, deadline))
        self.shared, before = tuple(np.flatnonzero(owners >= min_owners).tolist()), self.few
        self.few = too_few(owners, min_owners)
        if self.few != before and self.few and self.counts_owners:
            log.warning("round %d: %s", round_, about_few(owners, min_owners))
        self._counted = sorted(attempt.collector.survivors, key=client_order)
        return self._counted

    def confusions(self, round_: int, deadline: float) -> dict[str, NDArray[np.int64]]:
        """Return the sum of all clients' confusion matrices, of classes with owners enough."""
        classes, timeout = len(self.roster.classes), self.config.round_timeout
        try:
            members = self._introduced(self.ledger.online(self.roster.ids))
            if self.config.sum_owners > 1:
                members = self._count_owners(round_, members, deadline)
            attempt = self._new(round_, members, classes**2)
            total = self._ask(attempt, CONFUSION, timeout, deadline)
        except Rejected as error:
            log.warning("confusion.csv is empty, the sum failed: %s", error)
            return {}
        return {EVERYBODY: matrix_of(total, classes, self.config.sum_range)}

    def _ask(self, attempt: Attempt, kind: str, timeout: float, deadline: float) -> Vector:
        """Send a message of a kind to the members of an attempt; return the sum of their words."""
        counts = self.ledger.round.counts
        members = attempt.members if len(attempt.members) >= attempt.collector.min_survivors else []
        about, message = attempt.cohort, self.handshake.message
        messages = {c: message(kind, c, attempt.round, about=about) for c in members}
        counts["downlink_message_bytes"] += sum(map(message_bytes, messages.values()))
        grid = self.handshake.grid
        for client, reply in exchange(grid, messages, timeout, lambda _: attempt.limit):
            counts["uplink_message_bytes"] += reply.message_bytes
            try:
                attempt.take(client, reply)
            except Rejected as reason:
                self.ledger.fail(client, f"{kind.rpartition('.')[2]}: {reason}")
        return attempt.total(deadline)

    # --- the replies -------------------------------------------------------------------------

    def check(
        self, round_: int, replies: Sequence[tuple[str, Reply]], method: object, deadline: float
    ) -> CheckedSum | None:
        """Add up the replies and have the masks taken off; None if there is no sum."""
        del method
        attempt, taken = self._attempt, {}
        if attempt is None:
            return None
        for client, reply in replies:
            try:
                taken[client] = self._valid(attempt, client, reply)
            except Rejected as reason:
                self.ledger.reject(client, str(reason), reply)
            else:
                self.ledger.spend(client, reply.metrics)
        try:
            total = attempt.total(deadline)
        except Rejected as error:
            self.ledger.skip(f"the sum failed: {error}")
            return None
        finally:
            self._attempt = None
        length, survivors, means = self.plan.length, attempt.collector.survivors, {}
        if self.config.sum_metrics:
            few = attempt.collector.terms.min_members
            means = self.metrics.means(total[length:], len(survivors), few)
        accepted = [taken[client] for client in sorted(survivors, key=client_order)]
        chained = total[: length + self.metrics.chained]
        return CheckedSum(round_, accepted, total[:length], chained, means)

    def _valid(self, attempt: Attempt, client: str, reply: Reply) -> Valid:
        """Add one upload; raise Rejected with the reason if it is not as agreed."""
        info = self.roster.infos[client]
        check_trained(info, reply, attempt.round, self.config, self.plan.ranges)
        if self.config.sum_metrics and reply.metrics.keys() - {SPENT}:
            raise Rejected("reply with single metrics, which this run sums (sum-metrics)")
        return Valid(info, attempt.take(client, reply), reply)

    def uploads(self, checked: Checked) -> list[Any]:
        """Return nothing: no single upload is seen."""
        del checked
        return []

    def book(self, checked: Checked) -> None:
        """Record the sum and who is in it; those clients continue from this round."""
        assert isinstance(checked, CheckedSum)
        self.ledger.add_total(checked.chained, checked.means)
        for one in checked.accepted:
            self.ledger.accept(one.info.client, checked.round, one.payload, one.reply)
