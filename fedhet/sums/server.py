"""How the server learns a sum: two messages a round, of which the second takes the masks off.

Uploads are added up as they come; what is held of one client goes with the attempt. Two small sums
may come before: the unit of weights, once in a run, and how many own each class, where a method
sums rows of classes. A round whose sum cannot be had is skipped, named, and changes nothing; the
next attempt has a higher number, also after a crash.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedhet.config.schema import BESIDE, RunConfig
from fedhet.errors import Rejected
from fedhet.files import client_order
from fedhet.protocol.checks import check_epsilon, check_metrics, check_origin
from fedhet.protocol.delivery import exchange
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.messages import (
    AGREE,
    CONFUSION,
    INTRODUCE,
    OWNERS,
    QUERY_BYTES,
    UNIT,
    UNMASK,
    Instruction,
    Reply,
    message_bytes,
    read_reply,
    request,
)
from fedhet.protocol.payload import Array, Payload
from fedhet.records.checkpoint import Counter
from fedhet.records.ledger import Ledger
from fedhet.records.summary import EVERYBODY, UNSUMMED
from fedhet.sums.contribution import (
    POWERS,
    SPENT,
    Own,
    Summed,
    SumMetrics,
    Vector,
    about_few,
    default_unit,
    enough,
    matrix_of,
    too_few,
)
from fedhet.sums.masks import (
    BOX_BYTES,
    LONGEST,
    SECRET_BYTES,
    SHARE_BYTES,
    Bytes,
    Terms,
    Words,
    check_total,
    fraction_bits,
    from_words,
    lagrange_weights,
    recombine,
    stream,
)
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

log = logging.getLogger("fedhet")

AGAIN = 5.0  # seconds after which a survivor that failed to answer is asked again, on a network
TRIES = 2  # in a simulation, where nobody comes back
PATIENCE = 60.0  # seconds that a round waits for a client to take in the others' keys
SHORT = 0.25  # of a round's time that each of the small exchanges may take
MOST_ASKED = 256  # members of the sum that finds the unit; in larger runs the first round's


# --- one attempt, without messages ------------------------------------------------------------


class Collector:
    """One attempt of a cohort at a sum of ``length`` words."""

    def __init__(self, cohort: Sequence[str], length: int, terms: Terms) -> None:
        self.cohort = sorted(cohort)
        self.length = length
        self.terms = terms
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
        """End the uploads: V, those who are summed, in order; Rejected if they are too few."""
        self.survivors = [client for client in self.cohort if client in self._boxes]
        if len(self.survivors) < self.least:
            raise Rejected(
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

        Raises Rejected if somebody whose answer is needed kept silent, or a self mask cannot be
        put together.
        """
        silent = self.missing()
        if silent:
            raise Rejected(f"no answer of {', '.join(silent)}")
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
            raise Rejected(f"the boxes of '{owner}' did not open for {held} members")
        chosen = tuple(sorted(shares)[: self.needed])
        if chosen not in known:
            points = lagrange_weights([place + 1 for place in chosen])
            known[chosen] = dict(zip(chosen, points, strict=True))
        try:
            return recombine({place: shares[place] for place in chosen}, known[chosen])
        except ValueError as error:
            raise Rejected(f"the self mask of '{owner}' cannot be put together") from error


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


# --- one attempt, with messages --------------------------------------------------------------


@dataclass(frozen=True)
class SumUpload(Payload):
    """What goes up: words (L,) uint32, which count as the floats that they stand for."""

    words: Array
    boxes: Array

    @property
    def floats(self) -> int:
        """One for each word."""
        return self.words.size


@dataclass
class SumAttempt:
    """Attempt ``cohort.attempt`` at a sum of ``length`` words, in a round."""

    handshake: Handshake
    config: RunConfig
    round: int
    cohort: Cohort
    length: int
    refused: dict[str, str] = field(default_factory=dict)  # who does not help to unmask, and why
    bytes_down: int = 0  # of messages that unmask
    bytes_up: int = 0

    def __post_init__(self) -> None:
        self.members = list(self.cohort.members)
        keys = self.handshake.roster.keys
        self.agrees = self.masked and all(
            client in keys and keys[client].proof is not None for client in self.members
        )
        terms = Terms(self.config.sum_min, self.config.sum_threshold, agreed=self.agrees)
        kind = Collector if self.masked else PlainCollector
        self.collector = kind(self.members, self.length, terms)

    @property
    def masked(self) -> bool:
        """Whether there are masks to be taken off."""
        return self.config.secure_sum == "masked"

    @property
    def limit(self) -> int:
        """Bytes above which an upload is refused unread."""
        return 4 * self.length + BOX_BYTES * len(self.members) + QUERY_BYTES

    def take(self, client: str, reply: Reply) -> Payload:
        """Add one upload and return its traffic; raise Rejected if it is not as agreed."""
        check_origin(self.handshake.roster.infos[client], reply, self.round)
        arrays = list(reply.arrays)
        if not self.masked:
            arrays.append(np.zeros((len(self.members), BOX_BYTES), np.uint8))
        try:
            words, boxes = upload_of(arrays)
            self.collector.take(client, words, boxes)
        except ValueError as error:
            raise Rejected(str(error)) from error
        return SumUpload(words, boxes if self.masked else boxes[:0])

    def words(self, deadline: float) -> Words:
        """Return the sum (L,) modulo 2^32; raise Rejected if it cannot be had until then."""
        survivors = self.collector.close()
        if len(survivors) < self.config.min_replies:
            raise Rejected(f"{len(survivors)} of min-replies={self.config.min_replies} came")
        try:
            self._unmask(deadline)
            return self.collector.total()
        except Rejected as error:
            raise Rejected(f"{error}{self._why()}") from error

    def total(self, deadline: float) -> Vector:
        """Return the sum (L,) float64; raise Rejected as :meth:`words`, or if masks are left."""
        words, largest = self.words(deadline), self.config.sum_range
        total = from_words(words, fraction_bits(self.cohort.size, largest))
        try:
            check_total(total, len(self.collector.survivors), largest)
        except Rejected as error:
            raise Rejected(f"{error}{self._why()}") from error
        return total

    def _why(self) -> str:
        why = "; ".join(f"client {c}: {reason}" for c, reason in self.refused.items())
        return f" ({why})" if why else ""

    def _unmask(self, deadline: float) -> None:
        """Ask survivors until there is enough for the sum, or the time is up.

        Where a member is gone and keys have proofs, the survivors first sign who is left.
        """
        signatures: dict[str, bytes] = {}
        if self.collector.gone and self.agrees:
            needed, alive = self.collector.needed, self.collector.survivors

            def unsigned() -> list[str]:
                missing = [client for client in alive if client not in signatures]
                return missing if len(signatures) < needed else []

            def signed(client: str, reply: Reply) -> None:
                signature = reply.info.get("signature")
                if not isinstance(signature, bytes) or not 0 < len(signature) <= LONGEST:
                    raise ValueError("no signature came")
                signatures[client] = signature

            self._until(unsigned, AGREE, signed, deadline, {})
            if unsigned():
                raise Rejected(f"{len(signatures)} of {needed} survivors signed who is left")

        def opened(client: str, reply: Reply) -> None:
            alive, gone = len(self.collector.survivors), len(self.collector.gone)
            found = opened_of(reply, alive, gone)
            self.collector.answer(client, found.shares, found.seeds, found.closed)

        self._until(self.collector.missing, UNMASK, opened, deadline, signatures)

    def _until(
        self,
        missing: Callable[[], list[str]],
        kind: str,
        take: Callable[[str, Reply], None],
        deadline: float,
        signatures: Mapping[str, bytes],
    ) -> None:
        """Send messages of a kind to those that are missing, until nobody is or the time is up."""
        simulated, tries = is_simulated(self.handshake.grid), 0
        while (left := deadline - time.monotonic()) > 0:
            silent = [client for client in missing() if client not in self.refused]
            if not silent or (simulated and tries == TRIES):
                break
            if tries and not simulated:
                time.sleep(min(AGAIN, left))
                self.handshake.query(patience=0.0)
            tries += 1
            nodes = self.handshake.roster.nodes
            messages = {
                client: self._message(kind, client, left, signatures)
                for client in silent
                if client in nodes
            }
            self._exchange(messages, missing, take, left)

    def _exchange(
        self,
        messages: Mapping[str, Message],
        missing: Callable[[], list[str]],
        take: Callable[[str, Reply], None],
        left: float,
    ) -> None:
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
                take(client, reply)
            except (Rejected, ValueError) as error:
                self.refused[client] = str(error)
            if not missing():
                break

    def _message(
        self, kind: str, client: str, left: float, signatures: Mapping[str, bytes]
    ) -> Message:
        shake, alive = self.handshake, tuple(self.collector.survivors)
        what = Instruction(shake.experiment, self.round, state_dir=shake.state_dir)
        message = request(kind, shake.roster.nodes[client], what, left)
        boxes = self.collector.boxes_for(client) if kind == UNMASK else None
        about = Survivors(alive, self.cohort.attempt, boxes, signatures)
        message.content[SUM] = survivors_record(about)
        return message


# --- rounds ----------------------------------------------------------------------------------


class SummedRounds:
    """The rounds of a run with ``secure-sum``: how their replies become a sum.

    ``strategy`` is a :class:`fedhet.strategies.base.MethodStrategy`, of a floor above.
    """

    train_share = 0.75

    def __init__(self, strategy: Any, marks: Mapping[str, Any]) -> None:
        """Take up what :meth:`marks` gave, out of a checkpoint's ``marks``."""
        self.strategy = strategy
        self.config: RunConfig = strategy.config
        self.roster: Roster = strategy.roster
        self.ledger: SumLedger = strategy.ledger
        self.handshake: Handshake = strategy.handshake
        config = self.config
        self.evaluates = not config.sum_metrics  # an accuracy of one client alone is not told
        self.records: dict[str, ConfigRecord] = {}
        self.metrics = SumMetrics(config.sum_range, strategy.metric_ranges)
        self.introductions = Introductions(self.handshake, self.ledger.fail)
        self.counts_owners = config.sum_owners > 1 and strategy.sums_classes(config, config.params)
        self.unit = int(marks.get("unit", 0)) or default_unit(
            config, weighs_images=strategy.weighs_images(config, config.params)
        )
        self.told: tuple[int, ...] | None = None  # classes whose rows may be summed
        self._counted: list[str] | None = None  # of whom: a resumed run counts again
        self.few = int(marks.get("few", 0))  # classes whose rows may not
        self._numbers = Counter(strategy.folder.attempts)
        self._attempt: SumAttempt | None = None
        self._length = 0  # of the method's part of the vector

    def marks(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the unit, and what the user has been told of."""
        return {"unit": self.unit} | ({"few": self.few} if self.counts_owners else {})

    def seconds(self, client: str) -> float:
        """Return how long a client trains: unknown, since nobody tells it."""
        del client
        return 0.0

    def limit(self, client: str) -> int:
        """Return the bytes above which a reply is refused unread."""
        del client
        return self._attempt.limit if self._attempt is not None else QUERY_BYTES

    # --- the first message -------------------------------------------------------------------

    def members(self, round_: int, clients: list[str]) -> list[str]:
        """Return who is asked to train: the cohort of the round's attempt, or nobody."""
        self._attempt, self.records = None, {}
        if self.config.secure_sum == "masked":
            clients = self.introductions.of(clients, self._short)
        try:
            what = "the unit of weights cannot be found"
            if not self.unit:
                self._find_unit(round_, clients)
                clients = self.strategy.online(clients)
            what = "owners cannot be counted"
            if self.counts_owners:
                clients = self._count_owners(round_, clients)
                self.ledger.round.numbers[UNSUMMED] = float(self.few)
        except Rejected as error:
            self.ledger.skip(f"{what}: {error}")
            return []
        self.strategy.unit = self.unit
        self._length = self._length or len(self._blank())
        length = self._length + len(self.metrics) * self.config.sum_metrics
        self._attempt = attempt = self._new(round_, clients, length)
        if len(clients) < attempt.collector.least:
            return []
        self.records = {SUM: cohort_record(attempt.cohort)}
        return clients

    def _blank(self) -> Vector:
        """Return the contribution of some client of all classes: its length is everybody's."""
        every = tuple(range(len(self.roster.classes)))
        images = (1,) * len(every)
        info = replace(next(iter(self.roster.infos.values())), seen=every, images=images)
        own = Own(self.config, len(every), every, images, unit=max(1, self.unit))
        return np.asarray(self.strategy.contribution(self.strategy.expect(info), own).flat)

    def _new(self, round_: int, members: list[str], length: int, size: int = 0) -> SumAttempt:
        size = size or self.config.cohort(len(self.roster.ids))
        cohort = Cohort(
            tuple(sorted(members)), self._numbers.next(), size, self.told, max(1, self.unit)
        )
        return SumAttempt(self.handshake, self.config, round_, cohort, length)

    @property
    def _short(self) -> float:
        return min(PATIENCE, SHORT * self.config.round_timeout)

    # --- small sums before it ----------------------------------------------------------------

    def _find_unit(self, round_: int, clients: list[str]) -> None:
        """Set the unit of weights: the smallest power of two that no client's images exceed.

        A client adds a random word for each power that it exceeds, and zero for the others: a sum
        that is zero tells that nobody exceeds it, and any other tells nothing more.
        """
        everybody = sorted(self.roster.nodes)
        if self.config.secure_sum == "masked" and len(everybody) <= MOST_ASKED:
            everybody = self.introductions.of(everybody, self._short)
        if len(everybody) > MOST_ASKED or len(everybody) < len(clients):
            everybody = clients
        attempt = self._new(round_, everybody, POWERS, len(everybody))
        words = self._ask(attempt, UNIT, attempt.words, self._short)
        if not (words == 0).any():
            raise Rejected("the sum has no power of two that nobody exceeds")
        self.unit = 1 << int(np.argmax(words == 0))
        log.info("unit of weights: %d images, found in a sum", self.unit)

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
        self.told, self._counted = None, None
        attempt = self._new(round_, members, len(self.roster.classes))
        owners, least = (
            self._ask(attempt, OWNERS, attempt.total, self._short),
            self.config.sum_owners,
        )
        self.told, before = tuple(sorted(enough(owners, least))), self.few
        self.few = too_few(owners, least)
        line = about_few(owners, least) if self.counts_owners else ""
        if self.few != before and line:
            log.warning("round %d: %s", round_, line)
        self._counted = sorted(attempt.collector.survivors, key=client_order)
        return self._counted

    def confusions(self, grid: Grid) -> dict[str, NDArray[np.int64]]:
        """Return the sum of all clients' confusion matrices, of classes with owners enough."""
        del grid
        classes, round_ = len(self.roster.classes), self.strategy.finished
        try:
            members = self.strategy.online(list(self.roster.ids))
            if self.config.secure_sum == "masked":
                members = self.introductions.of(members, self._short)
            if self.config.sum_owners > 1:
                members = self._count_owners(round_, members)
            attempt = self._new(round_, members, classes**2)
            total = self._ask(attempt, CONFUSION, attempt.total, self.config.round_timeout)
        except Rejected as error:
            log.warning("confusion.csv is empty, there is no sum: %s", error)
            return {}
        return {EVERYBODY: matrix_of(total, classes, self.config.sum_range)}

    def _ask(
        self, attempt: SumAttempt, kind: str, learn: Callable[[float], Any], timeout: float
    ) -> Any:
        """Send a message of a kind to the members of an attempt; return what ``learn`` makes."""
        traffic, cohort = self.ledger.round, cohort_record(attempt.cohort)
        members = attempt.members if len(attempt.members) >= attempt.collector.least else []
        messages = {c: self.strategy.message(kind, c, attempt.round) for c in members}
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
                what = kind.rpartition(".")[2]
                self.ledger.fail(whose[id(sent)], f"{what}: {reason}")
        try:
            return learn(self.strategy.deadline)
        finally:
            self._count_bytes(attempt)

    def _count_bytes(self, attempt: SumAttempt) -> None:
        self.ledger.round.downlink.message_bytes += attempt.bytes_down
        self.ledger.round.uplink.message_bytes += attempt.bytes_up

    # --- the replies -------------------------------------------------------------------------

    def take(self, round_: int, replies: Sequence[tuple[str, Reply]]) -> Mapping[str, float] | None:
        """Add up the replies, have the masks taken off, combine; None if there is no sum."""
        attempt, taken = self._attempt, {}
        if attempt is None:
            return None
        for client, reply in replies:
            try:
                taken[client] = reply, self._checked(attempt, client, reply)
            except Rejected as reason:
                self.ledger.refuse(client, str(reason), reply.arrays, reply.message_bytes)
            else:
                self.ledger.spend(client, reply.metrics)
        try:
            total = attempt.total(self.strategy.deadline)
        except Rejected as error:
            self.ledger.skip(f"there is no sum: {error}")
            return None
        finally:
            self._attempt = None
            self._count_bytes(attempt)
        numbers = dict(self.strategy.combine(total[: self._length], round_))
        survivors, means = attempt.collector.survivors, {}
        if self.config.sum_metrics:
            least = attempt.collector.terms.least
            means = self.metrics.means(total[self._length :], len(survivors), least)
        self.ledger.add_total(total[: self._length + self.metrics.chained], means)
        for client in sorted(survivors, key=client_order):
            reply, payload = taken[client]
            self.roster.accept(client, round_, reply.state)
            self.ledger.accept(client, payload, reply.metrics, reply.message_bytes)
            if "test_accuracy" in reply.metrics:
                self.ledger.score(client, reply.metrics)
        return numbers

    def _checked(self, attempt: SumAttempt, client: str, reply: Reply) -> Payload:
        """Add one upload; raise Rejected with the reason if it is not as agreed."""
        check_origin(self.roster.infos[client], reply, attempt.round)
        if not re.fullmatch(r"[0-9a-f]{64}", reply.state):
            raise Rejected("reply without a digest of the client's state")
        if self.config.sum_metrics and reply.metrics.keys() - {SPENT}:
            raise Rejected("tells metrics, which are summed in this run (sum-metrics)")
        check_metrics(reply, self.strategy.metric_ranges)
        check_epsilon(reply, self.config)
        return attempt.take(client, reply)
