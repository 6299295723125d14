"""Rounds in which the server learns a sum: two messages, of which the second takes the masks off.

What a client sends is added to the round's total when it comes, and gone with the round. A round
whose sum cannot be had is skipped, named, and changes nothing; the next one has a higher attempt.
"""

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from fedhet.errors import HookError
from fedhet.ids import client_order
from fedhet.protocol.checks import Rejected, check_epsilon, check_metrics, check_origin
from fedhet.protocol.delivery import exchange
from fedhet.protocol.handshake import Handshake
from fedhet.protocol.messages import (
    INTRODUCE,
    QUERY_BYTES,
    TRAIN,
    UNMASK,
    Instruction,
    Reply,
    message_bytes,
    read_reply,
    request,
    to_record,
)
from fedhet.protocol.payload import Array, Payload
from fedhet.protocol.sum_metrics import Summed, SumMetrics
from fedhet.protocol.sums import (
    SUM,
    Cohort,
    Survivors,
    cohort_record,
    introduction_record,
    opened_of,
    survivors_record,
    upload_of,
)
from fedhet.records.append_only import Counter
from fedhet.records.checkpoint import Checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.records.sum_ledger import SumLedger
from fedhet.secure_sum.collector import Collector, NoSumError, PlainCollector
from fedhet.secure_sum.member import BOX_BYTES, Terms
from fedhet.secure_sum.shares import SHARE_BYTES
from fedhet.secure_sum.words import RangeError, check_total, fraction_bits, from_words
from fedhet.strategies.base import MethodStrategy
from fedhet.strategies.rounds import Rounds

log = logging.getLogger("fedhet")

INTRODUCTION = 60.0  # seconds that a round waits for somebody to take in the others' keys
AGAIN = 5.0  # seconds after which a survivor that failed to answer is asked again, on a network
TRIES = 2  # in a simulation, where nobody comes back


@dataclass(frozen=True)
class Words(Payload):
    """What goes up: words (L,) uint32, which count as the floats that they stand for."""

    words: Array
    boxes: Array

    @property
    def floats(self) -> int:
        """One for each word."""
        return self.words.size


@dataclass
class Attempt:
    """One attempt at a round's sum."""

    number: int
    round: int
    collector: Collector
    size: int  # of a whole round's cohort


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
        self.masked = config.secure_sum == "masked"
        self.terms = Terms(config.sum_min, config.sum_threshold)
        self.metrics = SumMetrics(
            config.sum_range, strategy.metric_ranges if config.sum_metrics else {}
        )
        self.introductions = Introductions(self)
        self._numbers = Counter(folder.attempts)
        self._attempt: Attempt | None = None

    # --- the first message -------------------------------------------------------------------

    def train_messages(self, round_: int) -> list[Message]:
        """One message to each member of the round's cohort: the same payload, the cohort."""
        self._attempt, self._requests = None, []
        members = self._sampled(round_)
        if self.masked:
            members = self.introductions.of(members)
        attempt = Attempt(
            self._numbers.next(), round_, self._collector(members),
            self.config.cohort(len(self.roster.ids)),
        )  # fmt: skip
        self._attempt = attempt
        if len(members) < attempt.collector.least:
            return []
        infos = [self.roster.infos[client] for client in members]
        if len({self.strategy.audience(info) for info in infos}) > 1:
            raise HookError(
                f"{type(self.strategy).__name__}: with secure-sum `download` must be the same for "
                "everybody: let `audience` say so"
            )
        payload = self.strategy.download(infos[0], round_)
        arrays = to_record(payload.flat)
        cohort = cohort_record(Cohort(tuple(sorted(members)), attempt.number, attempt.size))
        for client in members:
            message = self._request(TRAIN, client, round_, arrays)
            message.content[SUM] = cohort
            self.ledger.round.downlink.add(payload, message_bytes(message))
            self._requests.append((client, message))
        return [message for _, message in self._requests]

    def _collector(self, members: list[str]) -> Collector:
        kind = Collector if self.masked else PlainCollector
        length = self.strategy.vector_length()
        return kind(members, length + len(self.metrics) * self.config.sum_metrics, self.terms)

    def _limit(self, client: str) -> int:
        """See :class:`Rounds`: words, and a box for each of the cohort."""
        assert self._attempt is not None
        collector = self._attempt.collector
        return 4 * collector.length + BOX_BYTES * len(collector.cohort) + QUERY_BYTES

    # --- its replies, and the second message -------------------------------------------------

    def take_training(self, round_: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add up the replies, have the masks taken off, combine; None if there is no sum."""
        attempt = self._attempt
        assert attempt is not None
        taken: dict[str, tuple[Reply, Payload]] = {}
        for client, reply in self._named(replies):
            try:
                taken[client] = reply, self._take(attempt, client, reply)
            except Rejected as reason:
                self.ledger.refuse(client, str(reason), reply.arrays, reply.message_bytes)
            else:
                self.ledger.spend(client, reply.metrics)
        try:
            total = self._total(attempt)
        except (NoSumError, RangeError) as error:
            self.ledger.skip(f"there is no sum: {error}")
            return None
        finally:
            self._attempt = None
        return self._combine(attempt, total, taken)

    def _take(self, attempt: Attempt, client: str, reply: Reply) -> Payload:
        """Add one upload; Rejected with the reason if it is not as agreed. Returns its traffic."""
        check_origin(self.roster.infos[client], reply, attempt.round)
        if not re.fullmatch(r"[0-9a-f]{64}", reply.state):
            raise Rejected("reply without a digest of the client's state")
        if self.config.sum_metrics and set(reply.metrics) - {"epsilon_spent"}:
            raise Rejected("tells metrics, which are summed in this run (sum-metrics)")
        check_metrics(reply, self.strategy.metric_ranges)
        check_epsilon(reply, self.config)
        collector, arrays = attempt.collector, list(reply.arrays)
        if not self.masked:
            arrays.append(np.zeros((len(collector.cohort), BOX_BYTES), np.uint8))
        try:
            words, boxes = upload_of(arrays)
            collector.take(client, words, boxes)
        except ValueError as error:
            raise Rejected(str(error)) from error
        return Words(words, boxes if self.masked else boxes[:0])

    def _total(self, attempt: Attempt) -> Array:
        """The sum (L,) float64; NoSumError or RangeError if it cannot be had."""
        collector = attempt.collector
        survivors = collector.close()
        if len(survivors) < self.config.min_replies:
            raise NoSumError(f"{len(survivors)} of min-replies={self.config.min_replies} came")
        refused = self._unmask(attempt)
        try:
            words = collector.total()
        except NoSumError as error:
            why = "; ".join(f"client {client}: {reason}" for client, reason in refused.items())
            raise NoSumError(f"{error}{f' ({why})' if why else ''}") from error
        largest = self.config.sum_range
        total = from_words(words, fraction_bits(attempt.size, largest))
        check_total(total, len(survivors), largest)
        return total

    def _combine(
        self, attempt: Attempt, total: Array, taken: Mapping[str, tuple[Reply, Payload]]
    ) -> MetricRecord:
        """Set the global arrays, book the sum, and let its clients go on from this round."""
        survivors = attempt.collector.survivors
        length = self.strategy.vector_length()
        numbers = dict(self.strategy.combine(total[:length], attempt.round))
        means = {}
        if self.config.sum_metrics:
            means = self.metrics.means(total[length:], len(survivors), self.terms.least)
            self.ledger.round.flops = self._flops(survivors, means, attempt.round)
        self.ledger.add_total(total, means)
        for client in sorted(survivors, key=client_order):
            reply, payload = taken[client]
            self.roster.accept(client, attempt.round, reply.state)
            self.ledger.accept(client, payload, reply.metrics, reply.message_bytes)
            if "test_accuracy" in reply.metrics:
                self.ledger.score(client, reply.metrics)
        self.ledger.round.numbers |= numbers
        return MetricRecord(dict(numbers))

    def _flops(self, clients: list[str], means: Mapping[str, Summed], round_: int) -> float:
        """What the round cost by the server's own count, everybody with the mean of images."""
        infos = [self.roster.infos[client] for client in clients]
        images = means["train_images"].mean
        return self.acceptance.work.estimate(
            infos, images, lambda: self.strategy.download(infos[0], round_), round_
        )

    def _unmask(self, attempt: Attempt) -> dict[str, str]:
        """Ask survivors until there is enough for the sum, or the round's time is up.

        Returns who will not answer, with the reason.
        """
        refused: dict[str, str] = {}
        tries = 0
        while (left := self.deadline - time.monotonic()) > 0:
            silent = [c for c in attempt.collector.missing() if c not in refused]
            asked = [client for client in silent if client in self.roster.nodes]
            if not silent or (self.simulated and tries == TRIES):
                break
            if tries and not self.simulated:
                time.sleep(min(AGAIN, left))
                self.handshake.query(patience=0.0)
            tries += 1
            refused |= self._ask(attempt, asked, left)
        return refused

    def _ask(self, attempt: Attempt, clients: list[str], left: float) -> dict[str, str]:
        """One unmask message to each; returns those that refuse. Ends once there is enough."""
        collector, refused = attempt.collector, {}
        messages = {client: self._unmask_message(attempt, client, left) for client in clients}
        whose = {id(message): client for client, message in messages.items()}
        limit = QUERY_BYTES + SHARE_BYTES * len(collector.cohort)
        for sent, message in exchange(self.handshake.grid, messages.values(), left):
            client, reply = whose[id(sent)], read_reply(message, limit)
            if message.has_error():
                log.info("client %s does not answer: %s", client, reply.error)
                continue
            try:
                check_origin(self.roster.infos[client], reply, attempt.round)
                opened = opened_of(reply, len(collector.survivors), len(collector.gone))
                collector.answer(client, opened.shares, opened.seeds, opened.closed)
            except (Rejected, ValueError) as error:
                refused[client] = str(error)
            if not collector.missing():
                break
        return refused

    def _unmask_message(self, attempt: Attempt, client: str, left: float) -> Message:
        collector = attempt.collector
        what = Instruction(self.folder.experiment, attempt.round, state_dir=self.state_dir)
        message = request(UNMASK, self.roster.nodes[client], what, left)
        survivors = tuple(collector.survivors)
        boxes = collector.boxes_for(client)
        message.content[SUM] = survivors_record(Survivors(survivors, attempt.number, boxes))
        return message

    # --- evaluation --------------------------------------------------------------------------

    def evaluate_messages(self, round_: int) -> list[Message]:
        """None where metrics are summed: an accuracy of one client alone is not told."""
        return [] if self.config.sum_metrics else super().evaluate_messages(round_)


class Introductions:
    """Who was told whose key, and who accepts whom."""

    def __init__(self, rounds: SumRounds) -> None:
        self.rounds = rounds
        self.told: dict[str, set[str]] = {}
        self.strange: dict[str, set[str]] = {}

    def of(self, members: list[str]) -> list[str]:
        """Those of ``members`` that know and accept each other, once everybody is introduced."""
        ledger = self.rounds.ledger
        failed = self._introduce()
        for client, reason in failed.items():
            if client in members:
                ledger.fail(client, f"not introduced: {reason}")
        return list(self._agreeing([c for c in members if c not in failed and c in self.told]))

    def _introduce(self) -> dict[str, str]:
        """Tell everybody who is online whom they do not know yet; reasons by client that failed."""
        rounds, roster = self.rounds, self.rounds.roster
        due = {c: set(roster.keys) - self.told.get(c, set()) for c in roster.nodes}
        messages = {c: self._message(c, new) for c, new in sorted(due.items()) if new}
        whose = {id(message): client for client, message in messages.items()}
        failed = {}
        wait = min(INTRODUCTION, rounds.config.round_timeout / 4)
        for sent, message in exchange(rounds.handshake.grid, messages.values(), wait):
            client, reply = whose[id(sent)], read_reply(message)
            strangers = reply.info.get("strangers")
            if reply.error or not isinstance(strangers, list | tuple):
                failed[client] = reply.error or "its answer makes no sense"
                continue
            self.told.setdefault(client, set()).update(due[client])
            self.strange.setdefault(client, set()).update(map(str, strangers))
        return failed

    def _message(self, client: str, new: set[str]) -> Message:
        rounds = self.rounds
        what = Instruction(rounds.folder.experiment, state_dir=rounds.state_dir)
        message = request(INTRODUCE, rounds.roster.nodes[client], what, INTRODUCTION)
        keys = rounds.roster.keys
        message.content[SUM] = introduction_record({name: keys[name] for name in new})
        return message

    def _agreeing(self, members: list[str]) -> Iterator[str]:
        """Without those whom most do not accept, and then without those who do not accept all."""
        refusals = {m: sum(m in self.strange.get(o, ()) for o in members) for m in members}
        trusted = [m for m in members if 2 * refusals[m] < len(members)]
        for client in members:
            own = self.strange.get(client, set()) & set(trusted)
            if client not in trusted:
                reason = f"{refusals[client]} of {len(members)} do not accept its key"
            elif own:
                reason = f"it does not accept the key of {', '.join(sorted(own))}"
            else:
                yield client
                continue
            self.rounds.ledger.fail(client, reason)
