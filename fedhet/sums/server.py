"""How the server learns a sum: two messages a round, of which the second takes the masks off.

Uploads are added up as they come; what is held of one client goes with the attempt. Where a method
sums rows of classes, ownership alone is summed before, in the same two steps. A round whose sum
cannot be had is skipped, named, and changes nothing; the next attempt has a higher number, also
after a crash.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedhet.config.schema import BESIDE, RunConfig
from fedhet.errors import HookError
from fedhet.files import client_order
from fedhet.protocol.checks import Rejected, check_epsilon, check_metrics, check_origin
from fedhet.protocol.delivery import exchange
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.messages import (
    CONFUSION,
    INTRODUCE,
    OWNERS,
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
from fedhet.records.checkpoint import Checkpoint, Counter
from fedhet.records.ledger import Ledger
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import UNSUMMED
from fedhet.strategies.base import MethodStrategy
from fedhet.strategies.final import EVERYBODY, Matrix
from fedhet.strategies.rounds import Rounds
from fedhet.sums.contribution import (
    SPENT,
    Summed,
    SumMetrics,
    Vector,
    about_few,
    enough,
    matrix_of,
    too_few,
)
from fedhet.sums.masks import (
    BOX_BYTES,
    SECRET_BYTES,
    SHARE_BYTES,
    Bytes,
    RangeError,
    Words,
    check_total,
    fraction_bits,
    from_words,
    lagrange_weights,
    recombine,
    stream,
)
from fedhet.sums.member import Terms
from fedhet.sums.messages import (
    SUM,
    Cohort,
    Survivors,
    cohort_record,
    introduction_record,
    opened_of,
    survivors_record,
    upload_of,
)

# --- one attempt, without messages ------------------------------------------------------------


class NoSumError(Exception):
    """The attempt gave no sum; one line that says why and, where it is known, through whom."""


class Collector:
    """One attempt of a cohort at a sum of ``length`` words."""

    def __init__(self, cohort: Sequence[str], length: int, terms: Terms) -> None:
        self.cohort = sorted(cohort)
        self.length = length
        self.needed = terms.needed(len(self.cohort))
        self.least = terms.survivors(len(self.cohort))
        self.survivors: list[str] = []
        self._total = np.zeros(length, np.uint32)
        self._boxes: dict[str, Bytes] = {}
        self._shares: dict[str, dict[int, bytes]] = {}  # by owner, then position of the holder
        self._seeds: dict[str, Bytes] = {}
        self._closed: dict[str, set[str]] = {}  # whose boxes did not open, for whom

    def take(self, client: str, words: Words, boxes: Bytes) -> None:
        """Add one upload; ValueError if it is not of the agreed shapes, or of no member."""
        if client not in self.cohort or client in self._boxes:
            raise ValueError(f"'{client}' is no member, or has uploaded")
        if words.dtype != np.uint32 or words.shape != (self.length,):
            raise ValueError(f"{words.dtype} words of shape {words.shape}, not ({self.length},)")
        if boxes.dtype != np.uint8 or boxes.shape != (len(self.cohort), BOX_BYTES):
            raise ValueError(f"boxes of shape {boxes.shape}, not {(len(self.cohort), BOX_BYTES)}")
        self._total += words
        self._boxes[client] = boxes

    def close(self) -> list[str]:
        """End the uploads: V, those who are summed, in order; NoSumError if they are too few."""
        self.survivors = [client for client in self.cohort if client in self._boxes]
        if len(self.survivors) < self.least:
            raise NoSumError(
                f"{len(self.survivors)} of {len(self.cohort)} uploads came, {self.least} are needed"
            )
        self._shares = {client: {} for client in self.survivors}
        return self.survivors

    @property
    def gone(self) -> list[str]:
        """D: members whose upload never came."""
        return [client for client in self.cohort if client not in self._boxes]

    def boxes_for(self, client: str) -> Bytes:
        """What the survivors, in order, sealed for one of them: (|V|, 82) uint8."""
        place = self.cohort.index(client)
        return np.stack([self._boxes[owner][place] for owner in self.survivors])

    def answer(self, client: str, shares: Bytes, seeds: Bytes, closed: Sequence[str]) -> None:
        """Take one survivor's answer; ValueError if it is not of the agreed shapes."""
        count, gone = len(self.survivors), len(self.gone)
        if client not in self.survivors or client in self._seeds:
            raise ValueError(f"'{client}' is no survivor, or has answered")
        if shares.dtype != np.uint8 or shares.shape != (count, SHARE_BYTES):
            raise ValueError(f"shares of shape {shares.shape}, not {(count, SHARE_BYTES)}")
        if seeds.dtype != np.uint8 or seeds.shape != (gone, SECRET_BYTES):
            raise ValueError(f"seeds of shape {seeds.shape}, not {(gone, SECRET_BYTES)}")
        if not set(closed) <= set(self.survivors):
            raise ValueError("boxes of clients that are no survivors")
        self._seeds[client] = seeds
        self._closed[client] = set(closed)
        place = self.cohort.index(client)
        for owner, share in zip(self.survivors, shares, strict=True):
            if owner not in self._closed[client]:
                self._shares[owner][place] = share.tobytes()

    def missing(self) -> list[str]:
        """Survivors without whose answer there is no sum; empty: :meth:`total` can be had."""
        silent = [client for client in self.survivors if client not in self._seeds]
        short = any(len(found) < self.needed for found in self._shares.values())
        return silent if self.gone or short else []

    def total(self) -> Words:
        """The sum (L,) of the survivors' words, modulo 2^32.

        Raises NoSumError if somebody whose answer is needed kept silent, or a self mask cannot be
        put together.
        """
        silent = self.missing()
        if silent:
            raise NoSumError(f"no answer of {', '.join(silent)}")
        found = self._total.copy()
        known: dict[tuple[int, ...], Mapping[int, int]] = {}
        for owner, shares in self._shares.items():
            found -= stream(self._self_seed(owner, shares, known), self.length)
        for client, seeds in self._seeds.items():
            for other, seed in zip(self.gone, seeds, strict=True):
                pair = stream(seed.tobytes(), self.length)
                found = found - pair if other > client else found + pair
        return found

    def _self_seed(
        self,
        owner: str,
        shares: Mapping[int, bytes],
        known: dict[tuple[int, ...], Mapping[int, int]],
    ) -> bytes:
        if len(shares) < self.needed:
            held = sum(owner in closed for closed in self._closed.values())
            raise NoSumError(f"the boxes of '{owner}' did not open for {held} members")
        chosen = tuple(sorted(shares)[: self.needed])
        if chosen not in known:
            points = lagrange_weights([place + 1 for place in chosen])
            known[chosen] = dict(zip(chosen, points, strict=True))
        try:
            return recombine({place: shares[place] for place in chosen}, known[chosen])
        except ValueError as error:
            raise NoSumError(f"the self mask of '{owner}' cannot be put together") from error


class PlainCollector(Collector):
    """The same rules for words without masks: nobody's help is needed."""

    def missing(self) -> list[str]:
        """See :class:`Collector`."""
        return []

    def total(self) -> Words:
        """See :class:`Collector`."""
        return self._total.copy()


# --- what is recorded -------------------------------------------------------------------------


CLIENTS = "_clients"  # a mean of that ending is a count
EVALUATED = f"evaluated{CLIENTS}"


class SumLedger(Ledger):
    """As :class:`Ledger`; where metrics are summed, means alone, over the last round's clients.

    The hash chain covers the total and who is in it, instead of single uploads.
    """

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster)
        self.means: dict[str, float] = {}

    def accept(
        self, client: str, payload: Payload, metrics: Mapping[str, float], message_bytes: int
    ) -> None:
        """Book somebody who is in the sum; what it sent is not in the chain."""
        super().accept(client, payload, metrics, message_bytes)
        self.chain.add("upload", client, metrics)

    def add_total(self, total: Array, means: Mapping[str, Summed]) -> None:
        """Book the sum itself, and the means that were found in it."""
        self.chain.add("sum", "", {}, (total,))
        for name, found in means.items():
            if name in BESIDE:
                self.means |= {name: found.mean, f"{name}{CLIENTS}": float(found.clients)}
            elif "accuracy" in name:
                self.means[name] = found.mean
            elif name == "train_loss":
                self.round.losses = [found.mean]
            else:
                self.round.numbers[name] = found.mean
        if "test_accuracy" in means:
            self.means[EVALUATED] = float(means["test_accuracy"].clients)

    def record(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """As :meth:`Ledger.record`; deviations and percentiles are nobody's to know."""
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
        """What a checkpoint keeps."""
        return super().dump() | {"means": self.means}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Inverse of :meth:`dump`."""
        super().load(kept)
        self.means = dict(kept.get("means", {}))


# --- introductions ----------------------------------------------------------------------------


PATIENCE = 60.0  # seconds that a round waits for somebody to take in the others' keys


class Introductions:
    """The introductions of one run; after a crash of the server they are made again."""

    def __init__(self, handshake: Handshake, fail: Callable[[str, str], None]) -> None:
        """``fail`` is told who is left out of the round, and why."""
        self.handshake, self.fail = handshake, fail
        self.told: dict[str, set[str]] = {}
        self.strange: dict[str, set[str]] = {}

    def of(self, members: list[str], patience: float = PATIENCE) -> list[str]:
        """Those of ``members`` that know and accept each other, once everybody is introduced."""
        failed = self._introduce(patience)
        for client, reason in failed.items():
            if client in members:
                self.fail(client, f"not introduced: {reason}")
        return self._agreeing([c for c in members if c not in failed and c in self.told])

    def _introduce(self, patience: float) -> dict[str, str]:
        """Tell everybody who is online whom they do not know yet; reasons by client that failed."""
        roster = self.handshake.roster
        due = {c: set(roster.keys) - self.told.get(c, set()) for c in roster.nodes}
        messages = {c: self._message(c, new) for c, new in sorted(due.items()) if new}
        whose = {id(message): client for client, message in messages.items()}
        failed = {}
        for sent, message in exchange(self.handshake.grid, messages.values(), patience):
            client, reply = whose[id(sent)], read_reply(message)
            strangers = reply.info.get("strangers")
            if reply.error or not isinstance(strangers, list | tuple):
                failed[client] = reply.error or "its answer makes no sense"
                continue
            self.told.setdefault(client, set()).update(due[client])
            self.strange.setdefault(client, set()).update(map(str, strangers))
        return failed

    def _message(self, client: str, new: set[str]) -> Message:
        shake = self.handshake
        what = Instruction(shake.experiment, state_dir=shake.state_dir)
        message = request(INTRODUCE, shake.roster.nodes[client], what, PATIENCE)
        keys = shake.roster.keys
        message.content[SUM] = introduction_record({name: keys[name] for name in new})
        return message

    def _agreeing(self, members: list[str]) -> list[str]:
        """Without those whom most do not accept, and then without those who do not accept all."""
        refusals = {m: sum(m in self.strange.get(o, ()) for o in members) for m in members}
        trusted = [m for m in members if 2 * refusals[m] < len(members)]
        found = []
        for client in members:
            own = self.strange.get(client, set()) & set(trusted)
            if client not in trusted:
                many = f"{refusals[client]} of {len(members)}"
                self.fail(client, f"{many} do not accept its key for the sums")
            elif own:
                names = ", ".join(sorted(own))
                self.fail(client, f"it does not accept the keys of {names} for the sums")
            else:
                found.append(client)
        return found


# --- one attempt, with messages ---------------------------------------------------------------


log = logging.getLogger("fedhet")

AGAIN = 5.0  # seconds after which a survivor that failed to answer is asked again, on a network
TRIES = 2  # in a simulation, where nobody comes back


def terms_of(config: RunConfig) -> Terms:
    """What the run asks of every sum."""
    return Terms(config.sum_min, config.sum_threshold)


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
class SumAttempt:
    """SumAttempt ``number`` of ``members`` in ``round``, at ``length`` words.

    ``told`` are the classes whose rows may be in them; None where nobody has counted.
    """

    handshake: Handshake
    config: RunConfig
    number: int
    round: int
    members: list[str]
    length: int
    told: list[int] | None = None
    refused: dict[str, str] = field(default_factory=dict)  # who will not help to unmask, and why
    bytes_down: int = 0  # of messages that unmask
    bytes_up: int = 0

    def __post_init__(self) -> None:
        kind = Collector if self.masked else PlainCollector
        self.collector = kind(self.members, self.length, terms_of(self.config))
        self.size = self.config.cohort(len(self.handshake.roster.ids))

    @property
    def masked(self) -> bool:
        """Whether there are masks to be taken off."""
        return self.config.secure_sum == "masked"

    @property
    def limit(self) -> int:
        """Bytes above which an upload is refused unread."""
        return 4 * self.length + BOX_BYTES * len(self.members) + QUERY_BYTES

    def record(self) -> ConfigRecord:
        """What each member is told of it."""
        told = None if self.told is None else tuple(self.told)
        return cohort_record(Cohort(tuple(sorted(self.members)), self.number, self.size, told))

    def take(self, client: str, reply: Reply) -> Payload:
        """Add one upload; Rejected with the reason if it is not as agreed. Returns its traffic."""
        check_origin(self.handshake.roster.infos[client], reply, self.round)
        arrays = list(reply.arrays)
        if not self.masked:
            arrays.append(np.zeros((len(self.members), BOX_BYTES), np.uint8))
        try:
            words, boxes = upload_of(arrays)
            self.collector.take(client, words, boxes)
        except ValueError as error:
            raise Rejected(str(error)) from error
        return Words(words, boxes if self.masked else boxes[:0])

    def total(self, deadline: float) -> Vector:
        """The sum (L,) float64; NoSumError with the reason if it cannot be had until then."""
        survivors = self.collector.close()
        if len(survivors) < self.config.min_replies:
            raise NoSumError(f"{len(survivors)} of min-replies={self.config.min_replies} came")
        self._unmask(deadline)
        try:
            words = self.collector.total()
            largest = self.config.sum_range
            total = from_words(words, fraction_bits(self.size, largest))
            check_total(total, len(survivors), largest)
        except (NoSumError, RangeError) as error:
            why = "; ".join(f"client {c}: {reason}" for c, reason in self.refused.items())
            raise NoSumError(f"{error}{f' ({why})' if why else ''}") from error
        return total

    def _unmask(self, deadline: float) -> None:
        """Ask survivors until there is enough for the sum, or the time is up."""
        simulated, tries = is_simulated(self.handshake.grid), 0
        while (left := deadline - time.monotonic()) > 0:
            silent = [c for c in self.collector.missing() if c not in self.refused]
            if not silent or (simulated and tries == TRIES):
                break
            if tries and not simulated:
                time.sleep(min(AGAIN, left))
                self.handshake.query(patience=0.0)
            tries += 1
            self._ask([c for c in silent if c in self.handshake.roster.nodes], left)

    def _ask(self, clients: list[str], left: float) -> None:
        """One message to each of these survivors; ends once there is enough."""
        messages = {client: self._message(client, left) for client in clients}
        whose = {id(message): client for client, message in messages.items()}
        self.bytes_down += sum(map(message_bytes, messages.values()))
        limit = QUERY_BYTES + (SHARE_BYTES + SECRET_BYTES) * len(self.members)
        for sent, message in exchange(self.handshake.grid, messages.values(), left):
            client, reply = whose[id(sent)], read_reply(message, limit)
            self.bytes_up += reply.message_bytes
            if message.has_error():
                log.info("client %s does not answer: %s", client, reply.error)
                continue
            try:
                check_origin(self.handshake.roster.infos[client], reply, self.round)
                survivors, gone = len(self.collector.survivors), len(self.collector.gone)
                opened = opened_of(reply, survivors, gone)
                self.collector.answer(client, opened.shares, opened.seeds, opened.closed)
            except (Rejected, ValueError) as error:
                self.refused[client] = str(error)
            if not self.collector.missing():
                break

    def _message(self, client: str, left: float) -> Message:
        shake, survivors = self.handshake, tuple(self.collector.survivors)
        what = Instruction(shake.experiment, self.round, state_dir=shake.state_dir)
        message = request(UNMASK, shake.roster.nodes[client], what, left)
        boxes = self.collector.boxes_for(client)
        message.content[SUM] = survivors_record(Survivors(survivors, self.number, boxes))
        return message


# --- rounds -----------------------------------------------------------------------------------


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
        self._attempt: SumAttempt | None = None

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

    def _new(self, round_: int, members: list[str], length: int) -> SumAttempt:
        number = self._numbers.next()
        return SumAttempt(
            self.handshake, self.config, number, round_, members, length, told=self.told
        )

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
            self._ask_alone(OWNERS, attempt, self._short)
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
        line = about_few(self.few, owned, least) if self.counts_owners else ""
        if self.few != before and line:
            log.warning("round %d: %s", self.ledger.round.number, line)

    def confusions(self, grid: Grid) -> dict[str, Matrix]:
        """See :class:`Rounds`: the sum of all clients' alone, of classes with owners enough."""
        classes, round_ = len(self.roster.classes), self.finished
        try:
            members = self._online(list(self.roster.ids))
            if self.config.secure_sum == "masked":
                members = self.introductions.of(members, self._short)
            if self.config.sum_owners > 1:
                members = self._count_owners(round_, members)
            attempt = self._new(round_, members, classes**2)
            if len(members) >= attempt.collector.least:
                self._ask_alone(CONFUSION, attempt, self.config.round_timeout)
            total = attempt.total(self.deadline)
        except NoSumError as error:
            log.warning("confusion.csv is empty, there is no sum: %s", error)
            return {}
        return {EVERYBODY: matrix_of(total, classes, self.config.sum_range)}

    def _ask_alone(self, kind: str, attempt: SumAttempt, timeout: float) -> None:
        """Ask the members of an attempt for a vector that is summed by itself."""
        cohort, traffic = attempt.record(), self.ledger.round
        messages = {c: self._request(kind, c, attempt.round) for c in attempt.members}
        for message in messages.values():
            message.content[SUM] = cohort
            traffic.downlink.message_bytes += message_bytes(message)
        whose = {id(message): client for client, message in messages.items()}
        for sent, message in exchange(self.handshake.grid, messages.values(), timeout):
            reply = read_reply(message, attempt.limit)
            traffic.uplink.message_bytes += reply.message_bytes
            try:
                attempt.take(whose[id(sent)], reply)
            except Rejected as reason:
                self.ledger.fail(whose[id(sent)], f"{kind}: {reason}")

    def _book_unmasking(self, attempt: SumAttempt) -> None:
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

    def _take(self, attempt: SumAttempt, client: str, reply: Reply) -> Payload:
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
        self, attempt: SumAttempt, total: Vector, taken: Mapping[str, tuple[Reply, Payload]]
    ) -> MetricRecord:
        """Set the global arrays, book the sum, and let its clients go on from this round."""
        survivors, length = attempt.collector.survivors, self.strategy.vector_length()
        numbers = dict(self.strategy.combine(total[:length], attempt.round))
        means = {}
        if self.config.sum_metrics:
            least = terms_of(self.config).least
            means = self.metrics.means(total[length:], len(survivors), least)
        self.ledger.add_total(total[: length + self.metrics.chained], means)
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
