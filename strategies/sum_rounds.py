"""Rounds in which the server learns a sum: two messages, of which the second takes the masks off.

Where a method sums rows of classes, ownership alone is summed before, in the same two steps. A
round whose sum cannot be had is skipped, named, and changes nothing; the next attempt at a sum has
a higher number, also after a crash.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from fedhet.errors import HookError
from fedhet.files import client_order
from fedhet.protocol.checks import Rejected, check_epsilon, check_metrics, check_origin
from fedhet.protocol.delivery import exchange
from fedhet.protocol.handshake import Handshake
from fedhet.protocol.messages import (
    OWNERS,
    QUERY_BYTES,
    TRAIN,
    Reply,
    message_bytes,
    read_reply,
    to_record,
)
from fedhet.protocol.payload import Payload
from fedhet.records.append_only import Counter
from fedhet.records.checkpoint import Checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import UNSUMMED
from fedhet.strategies.base import MethodStrategy
from fedhet.strategies.introductions import PATIENCE, Introductions
from fedhet.strategies.rounds import Rounds
from fedhet.strategies.sum_attempt import Attempt, terms_of
from fedhet.sums.collector import NoSumError
from fedhet.sums.contribution import Vector, about_few, enough, too_few
from fedhet.sums.ledger import SumLedger
from fedhet.sums.messages import SUM
from fedhet.sums.metrics import SPENT, SumMetrics

log = logging.getLogger("fedhet")

SHORT = 0.25  # of a round's time that each of the small exchanges may take


class SumRounds(Rounds):
    """The rounds of a run with ``secure-sum``; see :class:`Rounds`."""

    train_share = 0.75
    ledger_type = SumLedger
    ledger: SumLedger

    def __init__(
        self,
        strategy: MethodStrategy[Any],
        handshake: Handshake,
        folder: RunFolder,
        kept: Checkpoint | None = None,
    ) -> None:
        super().__init__(strategy, handshake, folder, kept)
        config = self.config
        self.metrics = SumMetrics(config.sum_range, strategy.metric_ranges)
        self.introductions = Introductions(handshake, self.ledger.fail)
        self.counts_owners = config.sum_owners > 1 and strategy.sums_classes(
            config, strategy.params
        )
        self.told: list[int] | None = None  # classes whose rows may be summed
        self._counted: list[str] | None = None  # of whom: a resumed run counts again
        self.few = 0 if kept is None else kept.meta.get("few", 0)  # classes whose rows may not
        self._numbers = Counter(folder.attempts)
        self._attempt: Attempt | None = None

    # --- the first message -------------------------------------------------------------------

    def train_messages(self, round_: int) -> list[Message]:
        """One message to each member of the round's cohort: the same payload, the cohort."""
        self._attempt, self._requests = None, []
        members = self._sampled(round_)
        if self.config.secure_sum == "masked":
            members = self.introductions.of(members, self._short)
        if self.counts_owners:
            try:
                members = self._count_owners(round_, members)
            except NoSumError as error:
                self.ledger.skip(f"owners cannot be counted: {error}")
                return []
            self.ledger.round.numbers[UNSUMMED] = float(self.few)
        length = self.strategy.vector_length() + len(self.metrics) * self.config.sum_metrics
        self._attempt = attempt = self._new(round_, members, length)
        if len(members) < attempt.collector.least:
            return []
        payload, cohort = self._download(members, round_), attempt.record()
        arrays = to_record(payload.flat)
        for client in members:
            message = self._request(TRAIN, client, round_, arrays)
            message.content[SUM] = cohort
            self.ledger.round.downlink.add(payload, message_bytes(message))
            self._requests.append((client, message))
        return [message for _, message in self._requests]

    def _new(self, round_: int, members: list[str], length: int) -> Attempt:
        number = self._numbers.next()
        return Attempt(self.handshake, self.config, number, round_, members, length, told=self.told)

    def _download(self, members: list[str], round_: int) -> Payload:
        """What goes to everybody."""
        infos = [self.roster.infos[client] for client in members]
        if len({self.strategy.audience(info) for info in infos}) > 1:
            raise HookError(
                f"{type(self.strategy).__name__}: with secure-sum `download` must be the same for "
                "everybody: let `audience` say so"
            )
        return self.strategy.download(infos[0], round_)

    @property
    def _short(self) -> float:
        return min(PATIENCE, SHORT * self.config.round_timeout)

    def _limit(self, client: str) -> int:
        """See :class:`Rounds`."""
        return self._attempt.limit if self._attempt is not None else QUERY_BYTES

    # --- which classes have owners enough ----------------------------------------------------

    def _count_owners(self, round_: int, members: list[str]) -> list[str]:
        """Find out whose rows may be summed, unless the members are those of the last count.

        Returns who is in the count and still online; NoSumError if there is none.
        """
        # A count holds for exactly those who were in it: where the other owners of a class have
        # gone, also while they were being counted, the sum would be a lone owner's row.
        while members != self._counted:
            members = self._online(self._count(round_, members))
        return members

    def _count(self, round_: int, members: list[str]) -> list[str]:
        """Count the owners among ``members``; returns who is in the count."""
        self.told, self._counted = None, None
        attempt = self._new(round_, members, len(self.roster.classes))
        if len(members) >= attempt.collector.least:
            self._ask_owners(attempt)
        total = attempt.total(self.deadline)
        self._book_unmasking(attempt)
        self._set_told(total)
        self._counted = sorted(attempt.collector.survivors, key=client_order)
        return self._counted

    def _set_told(self, owners: Vector) -> None:
        """Which classes have owners (C,) enough, and a line if others have some."""
        least, before = self.config.sum_owners, self.few
        self.told, self.few = sorted(enough(owners, least)), too_few(owners, least)
        owned = int((np.rint(owners) > 0).sum())
        if self.few != before and (line := about_few(self.few, owned, least)):
            log.warning("round %d: %s", self.ledger.round.number, line)

    def _ask_owners(self, attempt: Attempt) -> None:
        cohort, traffic = attempt.record(), self.ledger.round
        messages = {c: self._request(OWNERS, c, attempt.round) for c in attempt.members}
        for message in messages.values():
            message.content[SUM] = cohort
            traffic.downlink.message_bytes += message_bytes(message)
        whose = {id(message): client for client, message in messages.items()}
        for sent, message in exchange(self.handshake.grid, messages.values(), self._short):
            reply = read_reply(message, attempt.limit)
            traffic.uplink.message_bytes += reply.message_bytes
            try:
                attempt.take(whose[id(sent)], reply)
            except Rejected as reason:
                self.ledger.fail(whose[id(sent)], f"owners: {reason}")

    def _book_unmasking(self, attempt: Attempt) -> None:
        self.ledger.round.downlink.message_bytes += attempt.bytes_down
        self.ledger.round.uplink.message_bytes += attempt.bytes_up

    # --- the replies -------------------------------------------------------------------------

    def take_training(self, round_: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add up the replies, have the masks taken off, combine; None if there is no sum."""
        attempt, taken = self._attempt, {}
        if attempt is None:
            return None
        for client, reply in self._named(replies):
            try:
                taken[client] = reply, self._take(attempt, client, reply)
            except Rejected as reason:
                self.ledger.refuse(client, str(reason), reply.arrays, reply.message_bytes)
            else:
                self.ledger.spend(client, reply.metrics)
        try:
            total = attempt.total(self.deadline)
        except NoSumError as error:
            self.ledger.skip(f"there is no sum: {error}")
            return None
        finally:
            self._attempt = None
            self._book_unmasking(attempt)
        return self._combine(attempt, total, taken)

    def _take(self, attempt: Attempt, client: str, reply: Reply) -> Payload:
        """Add one upload; Rejected with the reason if it is not as agreed."""
        check_origin(self.roster.infos[client], reply, attempt.round)
        if not re.fullmatch(r"[0-9a-f]{64}", reply.state):
            raise Rejected("reply without a digest of the client's state")
        if self.config.sum_metrics and reply.metrics.keys() - {SPENT}:
            raise Rejected("tells metrics, which are summed in this run (sum-metrics)")
        check_metrics(reply, self.strategy.metric_ranges)
        check_epsilon(reply, self.config)
        return attempt.take(client, reply)

    def _combine(
        self, attempt: Attempt, total: Vector, taken: Mapping[str, tuple[Reply, Payload]]
    ) -> MetricRecord:
        """Set the global arrays, book the sum, and let its clients go on from this round."""
        survivors, length = attempt.collector.survivors, self.strategy.vector_length()
        numbers = dict(self.strategy.combine(total[:length], attempt.round))
        means = {}
        if self.config.sum_metrics:
            least = terms_of(self.config).least
            means = self.metrics.means(total[length:], len(survivors), least)
        self.ledger.add_total(total, means)
        for client in sorted(survivors, key=client_order):
            reply, payload = taken[client]
            self.roster.accept(client, attempt.round, reply.state)
            self.ledger.accept(client, payload, reply.metrics, reply.message_bytes)
            if "test_accuracy" in reply.metrics:
                self.ledger.score(client, reply.metrics)
        self.ledger.round.numbers |= numbers
        return MetricRecord(dict(numbers))

    # --- evaluation, checkpoint --------------------------------------------------------------

    def evaluate_messages(self, round_: int) -> list[Message]:
        """None where metrics are summed: an accuracy of one client alone is not told."""
        return [] if self.config.sum_metrics else super().evaluate_messages(round_)

    def own_marks(self) -> dict[str, Any]:
        """See :class:`Rounds`: what the user has been told of."""
        return {"few": self.few} if self.counts_owners else {}
