"""How a run with ``secure-sum`` aggregates its rounds: replies become a sum, and the sum a model.

Two small sums may come before a round's: the unit of weights, once in a run, and how many own each
class, where a method sums rows of classes. A round whose sum cannot be had is skipped, named, and
changes nothing; the next attempt has a higher number, also after a crash.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet.config.schema import BESIDE_ACCURACY, METRICS, RunConfig
from fedhet.errors import Rejected
from fedhet.files import client_order
from fedhet.protocol.checks import check_trained
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.mail import replies
from fedhet.protocol.messages import CONFUSION, OWNERS, QUERY_BYTES, UNIT, Reply
from fedhet.protocol.payload import Array, Payload
from fedhet.protocol.wire import message_bytes
from fedhet.records.ledger import Ledger, next_attempt
from fedhet.records.summary import EVERYBODY, UNSUMMED
from fedhet.sums.attempt import PATIENCE, Attempt, Introductions
from fedhet.sums.contribution import (
    POWERS,
    SPENT,
    Own,
    Summed,
    SumMetrics,
    Vector,
    about_few,
    default_unit,
    matrix_of,
    too_few,
)
from fedhet.sums.messages import Cohort

log = logging.getLogger("fedhet")

SHORT = 0.25  # of a round's time that each of the small exchanges may take
MOST_ASKED = 256  # members of the sum that finds the unit; in larger runs the first round's


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


class SumAggregator:
    """Aggregates the rounds of a run with ``secure-sum``, whose server sees sums alone.

    The loop over rounds uses it as it does :class:`fedhet.strategies.aggregator.PlainAggregator`.
    """

    ledger_type = SumLedger
    train_share = 0.75  # of a round's time that waiting for training may take

    def __init__(self, strategy: Any, marks: Mapping[str, Any]) -> None:
        """Load :meth:`marks` from a checkpoint's ``marks``; ``strategy`` is a MethodStrategy."""
        self.strategy, self.roster = strategy, strategy.roster
        self.ledger: SumLedger = strategy.ledger
        self.handshake: Handshake = strategy.handshake
        self.config: RunConfig = strategy.config
        config = self.config
        self.about: Cohort | None = None  # what a train message says of the sum
        self.evaluates = not config.sum_metrics  # an accuracy of one client alone is not told
        self.metrics = SumMetrics(config.sum_range, strategy.metric_ranges)
        self.introductions = Introductions(self.handshake, self.ledger.fail)
        self.counts_owners = config.sum_owners > 1 and strategy.sends_class_rows(
            config, config.params
        )
        self.unit = int(marks.get("unit", 0)) or default_unit(
            config, weighs_images=strategy.weighs_images(config, config.params)
        )
        self.shared: tuple[int, ...] | None = None  # classes whose rows may be summed
        self._counted: list[str] | None = None  # of whom: a resumed run counts again
        self.few = int(marks.get("few", 0))  # classes whose rows may not
        self._attempts = strategy.folder.attempts
        self._attempt: Attempt | None = None
        self._length = 0  # of the method's part of the vector

    def marks(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the unit, and what the user has been told of."""
        return {"unit": self.unit} | ({"few": self.few} if self.counts_owners else {})

    def seconds(self, client: str) -> float:
        """Return 0: how long a client trains is not told."""
        del client
        return 0.0

    def limit(self, client: str) -> int:
        """Return the bytes above which a reply is refused unread."""
        del client
        return self._attempt.limit if self._attempt is not None else QUERY_BYTES

    # --- the first message -------------------------------------------------------------------

    def members(self, round_: int, clients: list[str]) -> list[str]:
        """Return who is asked to train: the cohort of the round's attempt, or nobody."""
        self._attempt, self.about = None, None
        clients = self._introduced(clients)
        try:
            what = "the unit of weights cannot be found"
            if not self.unit:
                clients = self.strategy.online(self._find_unit(round_, clients))
            what = "owners cannot be counted"
            if self.counts_owners:
                clients = self._count_owners(round_, clients)
                self.ledger.round.numbers[UNSUMMED] = float(self.few)
        except Rejected as error:
            self.ledger.skip(f"{what}: {error}")
            return []
        self.strategy.images_per_weight = self.unit
        self._length = self._length or len(self._blank())
        length = self._length + len(self.metrics) * self.config.sum_metrics
        self._attempt = attempt = self._new(round_, clients, length)
        if len(clients) < attempt.collector.min_survivors:
            return []
        self.about = attempt.cohort
        return clients

    def _blank(self) -> Vector:
        """Return the contribution of some client of all classes: its length is everybody's."""
        every = tuple(range(len(self.roster.classes)))
        images = (1,) * len(every)
        info = replace(next(iter(self.roster.infos.values())), seen=every, images=images)
        own = Own(self.config, len(every), every, images, unit=max(1, self.unit))
        return np.asarray(self.strategy.contribution(self.strategy.expect(info), own).flat)

    def _new(self, round_: int, members: list[str], length: int) -> Attempt:
        size = max(self.config.cohort(len(self.roster.ids)), len(members))
        number = next_attempt(self._attempts)
        about = (tuple(sorted(members)), number, size, self.shared, max(1, self.unit))
        cohort = Cohort(*about)
        return Attempt(self.handshake, self.ledger, self.config, round_, cohort, length)

    def _introduced(self, clients: list[str]) -> list[str]:
        """Return those of ``clients`` that know each other's keys; all, where nothing is masked."""
        if self.config.secure_sum != "masked":
            return clients
        return self.introductions.of(clients, self._short)

    @property
    def _short(self) -> float:
        return min(PATIENCE, SHORT * self.config.round_timeout)

    # --- small sums before it ----------------------------------------------------------------

    def _find_unit(self, round_: int, clients: list[str]) -> list[str]:
        """Set the unit of weights: the smallest power of two that no client's images exceed.

        If one client sends nonsense it is left out: return the others of ``clients``. It is found
        by sums without half of those that it may be. A sum that it is in tells nothing. Raises
        Rejected if there is no unit without it either.
        """
        everybody = sorted(self.roster.nodes)
        if len(everybody) <= MOST_ASKED:
            everybody = self._introduced(everybody)
        if len(everybody) > MOST_ASKED or len(everybody) < len(clients):
            everybody = clients
        suspects, self.unit = everybody, self._unit_of(round_, everybody)
        if self.unit:
            return clients
        while len(suspects) > 1:
            out = suspects[: len(suspects) // 2]
            found = self._unit_of(round_, [c for c in everybody if c not in out])
            suspects = out if found else suspects[len(out) :]
        self.unit = self._unit_of(round_, [c for c in everybody if c not in suspects])
        if not self.unit:
            raise Rejected("no unit of weights was found: every power of two is exceeded")
        self.ledger.fail(suspects[0], "with its reply the unit of weights cannot be found")
        return [client for client in clients if client not in suspects]

    def _unit_of(self, round_: int, members: list[str]) -> int:
        """Return the smallest power of two that no images of ``members`` exceed; 0: there is none.

        A client adds a random word for each power that it exceeds, and zero for the others: a sum
        that is zero tells that nobody exceeds it, and any other tells nothing more.
        """
        attempt = self._new(round_, members, POWERS)
        fits = self._ask(attempt, UNIT, attempt.words, self._short) == 0
        if not fits.any():
            return 0
        unit = 1 << int(np.argmax(fits))
        log.info("unit of weights: %d images, found in a sum of %d clients", unit, len(members))
        return unit

    def _count_owners(self, round_: int, members: list[str]) -> list[str]:
        """Count owners, unless ``members`` are those of the last count; return who is online.

        A count holds for exactly those who were in it: where the other owners of a class have
        gone, also while they were being counted, the sum would be a lone owner's row.
        """
        while members != self._counted:
            members = self.strategy.online(self._count(round_, members))
        return members

    def _count(self, round_: int, members: list[str]) -> list[str]:
        """Count the owners of each class among ``members``; return who is in the count."""
        self.shared, self._counted = None, None
        attempt = self._new(round_, members, len(self.roster.classes))
        min_owners = self.config.sum_owners
        owners = np.rint(self._ask(attempt, OWNERS, attempt.total, self._short))
        self.shared, before = tuple(np.flatnonzero(owners >= min_owners).tolist()), self.few
        self.few = too_few(owners, min_owners)
        if self.few != before and self.few and self.counts_owners:
            log.warning("round %d: %s", round_, about_few(owners, min_owners))
        self._counted = sorted(attempt.collector.survivors, key=client_order)
        return self._counted

    def confusions(self) -> dict[str, NDArray[np.int64]]:
        """Return the sum of all clients' confusion matrices, of classes with owners enough."""
        classes, round_ = len(self.roster.classes), self.strategy.finished
        try:
            members = self.strategy.online(list(self.roster.ids))
            members = self._introduced(members)
            if self.config.sum_owners > 1:
                members = self._count_owners(round_, members)
            attempt = self._new(round_, members, classes**2)
            total = self._ask(attempt, CONFUSION, attempt.total, self.config.round_timeout)
        except Rejected as error:
            log.warning("confusion.csv is empty, the sum failed: %s", error)
            return {}
        return {EVERYBODY: matrix_of(total, classes, self.config.sum_range)}

    def _ask(
        self, attempt: Attempt, kind: str, learn: Callable[[float], Any], timeout: float
    ) -> Any:
        """Send a message of a kind to the members of an attempt; return what ``learn`` makes."""
        counts = self.ledger.round.counts
        members = attempt.members if len(attempt.members) >= attempt.collector.min_survivors else []
        about, round_ = attempt.cohort, attempt.round
        messages = {c: self.strategy.message(kind, c, round_, about=about) for c in members}
        counts["downlink_message_bytes"] += sum(map(message_bytes, messages.values()))
        for client, reply in replies(self.handshake.grid, messages, timeout, attempt.limit):
            counts["uplink_message_bytes"] += reply.message_bytes
            try:
                attempt.take(client, reply)
            except Rejected as reason:
                self.ledger.fail(client, f"{kind.rpartition('.')[2]}: {reason}")
        return learn(self.strategy.deadline)

    # --- the replies -------------------------------------------------------------------------

    def combine_replies(
        self, round_: int, replies: Sequence[tuple[str, Reply]]
    ) -> Mapping[str, float] | None:
        """Add up the replies, have the masks taken off, combine; None if there is no sum."""
        attempt, taken = self._attempt, {}
        if attempt is None:
            return None
        for client, reply in replies:
            try:
                taken[client] = reply, self._checked(attempt, client, reply)
            except Rejected as reason:
                self.ledger.reject(client, str(reason), reply)
            else:
                self.ledger.spend(client, reply.metrics)
        try:
            total = attempt.total(self.strategy.deadline)
        except Rejected as error:
            self.ledger.skip(f"the sum failed: {error}")
            return None
        finally:
            self._attempt = None
        numbers = dict(self.strategy.combine(total[: self._length], round_))
        if self.strategy.short_classes is not None:
            numbers["short_classes"] = float(self.strategy.short_classes)
        survivors, means = attempt.collector.survivors, {}
        if self.config.sum_metrics:
            few = attempt.collector.terms.min_members
            means = self.metrics.means(total[self._length :], len(survivors), few)
        self.ledger.add_total(total[: self._length + self.metrics.chained], means)
        for client in sorted(survivors, key=client_order):
            reply, payload = taken[client]
            self.ledger.accept(client, round_, payload, reply)
        return numbers

    def _checked(self, attempt: Attempt, client: str, reply: Reply) -> Payload:
        """Add one upload; raise Rejected with the reason if it is not as agreed."""
        ranges = self.strategy.metric_ranges
        check_trained(self.roster.infos[client], reply, attempt.round, self.config, ranges)
        if self.config.sum_metrics and reply.metrics.keys() - {SPENT}:
            raise Rejected("reply with single metrics, which this run sums (sum-metrics)")
        return attempt.take(client, reply)
