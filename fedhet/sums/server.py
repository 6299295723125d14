"""How a run with ``secure-sum`` checks its rounds: uploads are added up, and masks taken off.

A small sum may come before a round's: how many own each class, where a method sums rows of
classes. A round whose sum cannot be had is skipped, named, and changes nothing; the next attempt
has a higher number, also after a crash. What is held of one client goes with the attempt.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fedhet.config.schema import BESIDE_ACCURACY, METRICS
from fedhet.errors import Rejected
from fedhet.files import client_order
from fedhet.protocol import messages
from fedhet.protocol.checks import Checked, Valid, check_origin, check_shapes, check_trained
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.handshake import Handshake, Roster
from fedhet.protocol.mail import exchange
from fedhet.protocol.messages import QUERY_BYTES, Reply
from fedhet.protocol.payload import Array, ModelArrays, Payload, blank
from fedhet.records.ledger import Ledger, next_attempt
from fedhet.records.summary import EVERYBODY, UNSUMMED
from fedhet.sums import masks
from fedhet.sums.contribution import BITS, SPENT, Ranges, SumMetrics, Vector, too_few
from fedhet.sums.masks import Cohort, Introduction, Opened, SumKey, SumTerms, Survivors, Words

log = logging.getLogger("fedhet")
AGAIN = 5.0  # seconds after which a survivor that failed to answer is asked again, on a network
PATIENCE = 60.0  # seconds that a round waits for a client to take in the others' keys


class Attempt:
    """One attempt at a sum of ``length`` words: what has come of it."""

    def __init__(self, about: Cohort, length: int, terms: SumTerms, round_: int) -> None:
        self.about, self.length, self.terms, self.round = about, length, terms, round_
        self.cohort, count = sorted(about.members), len(about.members)
        self.needed, self.min_survivors = terms.needed(count), terms.survivors(count)
        self.limit = 4 * length + masks.BOX_BYTES * count + QUERY_BYTES  # bytes of an upload
        self.survivors: list[str] = []
        self.gone: list[str] = []  # D: members whose upload never came
        self.signatures: dict[str, bytes] = {}  # of the list of survivors
        self.refused: dict[str, str] = {}  # who does not help to unmask, and why
        self._total = np.zeros(length, np.uint32)
        self._uploaded: dict[str, Array] = {}  # the boxes of each
        self._opened: dict[str, Opened] = {}  # the answer of each

    def take(self, client: str, arrays: Sequence[Array]) -> Payload:
        """Add one upload, words and boxes; return its traffic. Rejected if it is not as agreed."""
        if client not in self.cohort or client in self._uploaded:
            raise Rejected(f"'{client}' is not a member, or has already uploaded")
        boxes = blank((len(self.cohort), masks.BOX_BYTES), np.uint8)
        check_shapes(arrays, [blank((self.length,), np.uint32), boxes])
        self._total += arrays[0]
        self._uploaded[client] = arrays[1]
        # Words count as the floats that they stand for.
        return ModelArrays((arrays[0].view(np.float32), arrays[1]))

    def close(self) -> list[str]:
        """End the uploads; return V, those who are summed, or raise Rejected if they are few."""
        self.survivors = sorted(self._uploaded)
        self.gone = [client for client in self.cohort if client not in self._uploaded]
        if len(self.survivors) < self.min_survivors:
            came = f"{len(self.survivors)} of {len(self.cohort)} uploads came"
            raise Rejected(f"{came}, {self.min_survivors} are needed")
        return self.survivors

    def boxes_for(self, client: str) -> masks.Bytes:
        """Return what the survivors, in order, sealed for one of them: (|V|, 82) uint8."""
        place = self.cohort.index(client)
        return np.stack([self._uploaded[owner][place] for owner in self.survivors])

    def answer(self, client: str, opened: Opened) -> None:
        """Take one survivor's answer; raise Rejected if it is not of the agreed sizes."""
        if client not in self.survivors or client in self._opened:
            raise Rejected(f"'{client}' is not a survivor, or has already answered")
        count, gone = len(self.survivors), len(self.gone)
        sizes = count * masks.SHARE_BYTES, gone * masks.SECRET_BYTES
        if (len(opened.shares), len(opened.seeds)) != sizes:
            raise Rejected(f"expected {count} shares and {gone} seeds")
        if not set(opened.closed) <= set(self.survivors):
            raise Rejected("boxes of clients that are not survivors")
        self._opened[client] = opened

    def missing(self, kind: str = messages.UNMASK) -> list[str]:
        """Return survivors without whose answer to a ``kind`` there is no sum; none: go on."""
        if kind == messages.AGREE:
            enough = len(self.signatures) >= self.needed
            return [c for c in self.survivors if not enough and c not in self.signatures]
        closed = Counter(owner for opened in self._opened.values() for owner in opened.closed)
        short = len(self._opened) - max(closed.values(), default=0) < self.needed
        return [c for c in self.survivors if (self.gone or short) and c not in self._opened]

    def total(self) -> Words:
        """Return the sum (L,) of the survivors' words, modulo 2^32.

        Raises Rejected if somebody whose answer is needed kept silent, or a self mask cannot be
        put together.
        """
        if silent := self.missing():
            raise Rejected(f"no answer from {', '.join(silent)}")
        total, size = self._total.copy(), masks.SHARE_BYTES
        for row, owner in enumerate(self.survivors):
            held = {
                self.cohort.index(client) + 1: opened.shares[row * size :][:size]
                for client, opened in self._opened.items()
                if owner not in opened.closed
            }
            if len(held) < self.needed:
                count = len(self._opened) - len(held)
                raise Rejected(f"the boxes of '{owner}' did not open for {count} members")
            try:
                seed = masks.recombine(dict(sorted(held.items())[: self.needed]))
            except ValueError as error:
                raise Rejected(f"the self mask of '{owner}' cannot be reconstructed") from error
            total -= masks.stream(seed, self.length)
        size = masks.SECRET_BYTES
        for client, opened in self._opened.items():
            for place, other in enumerate(self.gone):
                mask = masks.stream(opened.seeds[place * size :][:size], self.length)
                total = total - mask if other > client else total + mask
        return total


# --- the rounds of a run ---------------------------------------------------------------------


class SumLedger(Ledger):
    """A ledger of means over a round's clients; its chain covers the total and who is in it."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(roster)
        self.entries: dict[str, float] = {}  # of the next lines

    def accept(self, client: str, round_: int, payload: Payload, reply: Reply) -> None:
        """Book somebody who is in the sum; what it sent is not in the chain."""
        super().accept(client, round_, payload, reply)
        self.chain.add("upload", client, reply.metrics)

    def add_total(self, total: Array, means: Mapping[str, tuple[float, int]]) -> None:
        """Book the sum itself, and the means that were found in it."""
        self.chain.add("sum", "", {}, (total,))
        for name, (mean, clients) in means.items():
            if "accuracy" in name or name in BESIDE_ACCURACY:
                self.entries[f"{name}_mean"] = mean
            elif name == "train_loss":
                self.round.losses = [mean]
            else:
                self.round.numbers[name] = mean
            if name in BESIDE_ACCURACY:
                self.entries[f"{name}_clients"] = clients
            if name.removeprefix("test_") in METRICS:  # all that a sum is over have just trained
                about = f"participants_{name}"
                self.round.numbers |= {f"{about}_mean": mean, f"{about}_clients": clients}
        if "test_accuracy" in means:
            self.entries["evaluated_clients"] = means["test_accuracy"][1]

    def record(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Return the round's record, without deviations and percentiles."""
        record = super().record(arrays) | self.entries
        if self.entries:
            record["train_flops"] = None  # not told: see fedhet.sums.contribution
        return record

    def dump(self) -> dict[str, Any]:
        """As the base class, with the means."""
        return super().dump() | {"entries": self.entries}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Inverse of :meth:`dump`."""
        super().load(kept)
        self.entries = dict(kept.get("entries", {}))


class _Method(Protocol):
    short_classes: int | None

    def combine(self, total: Vector, round_: int) -> Mapping[str, float]: ...


class SumAggregator:
    """Checks and books the rounds of a run with ``secure-sum``, whose server sees sums alone.

    The loop over rounds uses it as it does :class:`fedhet.strategies.base.PlainAggregator`. A
    method's sums are ``length`` floats of each client, rows of classes if ``by_class``, and metrics
    within ``ranges``. The file ``attempts`` counts attempts.
    """

    train_share = 0.75  # of a round's time that waiting for training may take

    def __init__(
        self, handshake: Handshake, ledger: SumLedger, length: int, ranges: Ranges, *,
        by_class: bool, attempts: Path,
    ) -> None:  # fmt: skip
        self.handshake, self.ledger, self.config = handshake, ledger, (config := handshake.config)
        self.length, self.ranges, self.attempts = length, ranges, attempts
        self.roster = handshake.roster
        self.evaluates = not config.sum_metrics  # an accuracy of one client alone is not told
        self.metrics = SumMetrics(config.sum_range, ranges)
        self._told: dict[str, SumKey] = {}  # everybody's keys, as clients were told them
        self.strange: dict[str, set[str]] = {}  # whose of them a client that was told refuses
        self._short = min(PATIENCE, 0.25 * config.round_timeout)  # seconds of a small exchange
        self.counts_owners = config.sum_owners > 1 and by_class
        self.shared: tuple[int, ...] | None = None  # classes whose rows may be summed
        self._counted: list[str] | None = None  # of whom: a resumed run counts again
        self.few = 0  # classes whose rows may not
        self._attempt: Attempt | None = None
        self.about: Cohort | None = None  # what a train message says of the sum

    def limit(self, expected: Payload | None) -> int:
        """Return the bytes above which a reply is refused unread."""
        return self._attempt.limit if self._attempt is not None else QUERY_BYTES

    def members(self, round_: int, clients: list[str], deadline: float) -> list[str]:
        """Return who is asked to train: the cohort of the round's attempt, or nobody."""
        self._attempt = None
        clients = self._introduced(clients)
        try:
            if self.counts_owners:
                clients = self._count_owners(round_, clients, deadline)
                self.ledger.round.numbers[UNSUMMED] = float(self.few)
        except Rejected as error:
            self.ledger.skip(f"owners cannot be counted: {error}")
            return []
        length = self.length + len(self.metrics) * self.config.sum_metrics
        self._attempt = self._new(round_, clients, length)
        self.about = self._attempt.about
        return clients if len(clients) >= self._attempt.min_survivors else []

    def _new(self, round_: int, members: list[str], length: int) -> Attempt:
        config, keys = self.config, self.roster.keys
        size = max(config.cohort(len(self.roster.ids)), len(members))
        about = Cohort(tuple(sorted(members)), next_attempt(self.attempts), size, self.shared)
        agreed = all(c in keys and keys[c].certificate for c in members)
        terms = SumTerms(config.sum_min, config.sum_threshold, agreed=agreed)
        return Attempt(about, length, terms, round_)

    def _introduced(self, members: list[str]) -> list[str]:
        """Tell everybody online all keys, anew where one is; return who accepts each other."""
        shake, roster, requests = self.handshake, self.roster, {}
        if self._told != roster.keys:
            self._told, self.strange = dict(roster.keys), {}
        parts = [part for _, key in sorted(self._told.items()) for part in astuple(key)]
        about, what = Introduction(tuple(sorted(self._told)), tuple(parts)), shake.instruction()
        for client in sorted(roster.nodes.keys() - self.strange.keys()):
            to = messages.INTRODUCE, roster.nodes[client], what, PATIENCE
            requests[client] = messages.request(*to, about=about)
        for client, reply in exchange(shake.grid, requests, self._short):
            strangers = reply.info.get("strangers")
            if not reply.error and isinstance(strangers, list | tuple):
                self.strange[client] = set(map(str, strangers))
            elif client in members:
                why = reply.error or "its answer is invalid"
                self.ledger.fail(client, f"not introduced: {why}")
        members = [c for c in members if c in self.strange]
        # Those whom most do not accept are left out, and then those who do not accept all.
        refusals = Counter(name for other in members for name in self.strange[other])
        trusted, agreeing = {m for m in members if 2 * refusals[m] < len(members)}, []
        for client in members:
            names = ", ".join(sorted(self.strange[client] & trusted))
            many = f"{refusals[client]} of {len(members)} do not accept its key"
            refused = many if client not in trusted else f"it does not accept the keys of {names}"
            if client in trusted and not names:
                agreeing.append(client)
            else:
                self.ledger.fail(client, f"{refused} for the sums")
        return agreeing

    def _count_owners(self, round_: int, members: list[str], deadline: float) -> list[str]:
        """Count the owners of each class, unless ``members`` are counted; return who is online."""
        # A count holds for exactly those who were in it: where the other owners of a class have
        # gone, also while they were being counted, the sum would be a lone owner's row.
        while members != self._counted:
            self.shared, self._counted = None, None
            attempt = self._new(round_, members, len(self.roster.classes))
            owners = np.rint(self._ask(attempt, messages.OWNERS, self._short, deadline))
            enough, before = self.config.sum_owners, self.few
            self.shared = tuple(np.flatnonzero(owners >= enough).tolist())
            self.few = too_few(owners, enough)
            if self.few not in {0, before} and self.counts_owners:
                owned = int((owners > 0).sum())
                about = f"{self.few} of {owned} classes have fewer than sum-owners={enough} owners"
                alone = ": each client trains alone" * (self.few == owned)
                log.warning("round %d: %s and stay apart%s", round_, about, alone)
            self._counted = sorted(attempt.survivors, key=client_order)
            members = self.ledger.online(self._counted)
        return members

    def confusions(self, round_: int, deadline: float) -> dict[str, NDArray[np.int64]]:
        """Return the sum of all clients' confusion matrices, of classes with owners enough."""
        classes, timeout = len(self.roster.classes), self.config.round_timeout
        try:
            members = self._introduced(self.ledger.online(self.roster.ids))
            if self.config.sum_owners > 1:
                members = self._count_owners(round_, members, deadline)
            attempt = self._new(round_, members, classes**2)
            total = self._ask(attempt, messages.CONFUSION, timeout, deadline)
        except Rejected as error:
            log.warning("confusion.csv is empty, the sum failed: %s", error)
            return {}
        cells = np.rint(total / (self.config.sum_range / 2**BITS)).astype(np.int64)
        return {EVERYBODY: cells.reshape(classes, classes)}

    def _ask(self, attempt: Attempt, kind: str, timeout: float, deadline: float) -> Vector:
        """Send a message of a kind to the members of an attempt; return the sum of their words."""
        members = attempt.cohort if len(attempt.cohort) >= attempt.min_survivors else []
        about, message = attempt.about, self.handshake.message
        requests = {c: message(kind, c, attempt.round, about=about) for c in members}
        for client, reply in self._exchange(requests, timeout, attempt.limit):
            try:
                check_origin(self.roster.infos[client], reply, attempt.round)
                attempt.take(client, reply.arrays)
            except Rejected as reason:
                self.ledger.fail(client, f"{kind.rpartition('.')[2]}: {reason}")
        return self._sum(attempt, deadline)

    def _exchange(
        self, requests: Mapping[str, Message], timeout: float, limit: int,
        enough: Callable[[str, Reply], bool] = lambda *_: False,
    ) -> list[tuple[str, Reply]]:  # fmt: skip
        """Exchange messages as :func:`exchange` does, which count as traffic of this round."""
        counts, grid = self.ledger.round.counts, self.handshake.grid
        counts["downlink_message_bytes"] += sum(map(messages.message_bytes, requests.values()))
        replies = exchange(grid, requests, timeout, lambda _: limit, enough)
        counts["uplink_message_bytes"] += sum(reply.message_bytes for _, reply in replies)
        return replies

    def _sum(self, attempt: Attempt, deadline: float) -> Vector:
        """Have the masks taken off; raise Rejected if the sum (L,) cannot be had until then."""
        count, config = len(attempt.close()), self.config
        if count < config.min_replies:
            raise Rejected(f"{count} of min-replies={config.min_replies} uploads came")
        try:
            # Where a member is gone and keys have proofs, the survivors first sign who is left.
            if attempt.gone and attempt.terms.agreed:
                self._unmask(attempt, messages.AGREE, deadline)
                if attempt.missing(messages.AGREE):
                    signed = f"{len(attempt.signatures)} of {attempt.needed} survivors signed"
                    raise Rejected(f"{signed} the list of survivors")
            self._unmask(attempt, messages.UNMASK, deadline)
            words, largest = attempt.total(), config.sum_range
            total = masks.from_words(words, masks.fraction_bits(attempt.about.size, largest))
            if (np.abs(total) > count * largest).any():  # masks of other payloads, or a false seed
                raise Rejected(f"the sum has entries beyond {count} x sum-range={largest:g}")
        except Rejected as error:
            why = "; ".join(f"client {c}: {reason}" for c, reason in attempt.refused.items())
            raise Rejected(f"{error} ({why})" if why else str(error)) from error
        return total

    def _unmask(self, attempt: Attempt, kind: str, deadline: float) -> None:
        """Ask those that are missing, again and again on a network, until nobody is."""
        shake, signed, asked = self.handshake, attempt.signatures, False
        limit = QUERY_BYTES + (masks.SHARE_BYTES + masks.SECRET_BYTES) * len(attempt.cohort)
        about = Survivors(tuple(attempt.survivors), attempt.about.attempt)

        def take(client: str, reply: Reply) -> bool:
            if reply.says("undelivered"):
                log.info("client %s does not answer: %s", client, reply.error)
                return False
            try:
                check_origin(self.roster.infos[client], reply, attempt.round)
                if kind == messages.UNMASK:
                    attempt.answer(client, messages.from_wire(Opened, reply.info))
                else:
                    signature = reply.info.get("signature")
                    if not isinstance(signature, bytes) or not 0 < len(signature) <= masks.LONGEST:
                        raise Rejected("reply without a signature")
                    attempt.signatures[client] = signature
            except ValueError as error:
                attempt.refused[client] = str(error)
            return not attempt.missing(kind)

        while (left := deadline - time.monotonic()) > 0:
            silent = [c for c in attempt.missing(kind) if c not in attempt.refused]
            if not silent or (asked and is_simulated(shake.grid)):  # where nobody comes back
                break
            if asked:
                time.sleep(min(AGAIN, left))
                shake.query(patience=0.0)
            asked, requests, nodes = True, {}, self.roster.nodes
            by_place = tuple(signed.get(c, b"") for c in attempt.survivors if signed)
            for client in (client for client in silent if client in nodes):
                if kind == messages.UNMASK:
                    boxes = attempt.boxes_for(client).tobytes()
                    about = replace(about, boxes=boxes, signatures=by_place)
                what = shake.instruction(round=attempt.round)
                requests[client] = messages.request(kind, nodes[client], what, left, about=about)
            self._exchange(requests, left, limit, take)

    def check(
        self, round_: int, replies: Sequence[tuple[str, Reply]], method: object, deadline: float
    ) -> Checked | None:
        """Add up the replies and have the masks taken off; None if there is no sum."""
        attempt, taken = self._attempt, {}
        if attempt is None:
            return None
        for client, reply in replies:
            info = self.roster.infos[client]
            try:
                check_trained(info, reply, round_, self.config, self.ranges)
                if self.config.sum_metrics and reply.metrics.keys() - {SPENT}:
                    raise Rejected("reply with single metrics, which this run sums (sum-metrics)")
                taken[client] = Valid(info, attempt.take(client, reply.arrays), reply)
            except Rejected as reason:
                self.ledger.reject(client, str(reason), reply)
            else:
                self.ledger.spend(client, reply.metrics)
        try:
            total = self._sum(attempt, deadline)
        except Rejected as error:
            self.ledger.skip(f"the sum failed: {error}")
            return None
        finally:
            self._attempt = None
        length, means = self.length, {}
        if self.config.sum_metrics:
            few, count = attempt.terms.min_members, len(attempt.survivors)
            means = self.metrics.means(total[length:], count, few)
        accepted = [taken[client] for client in sorted(attempt.survivors, key=client_order)]
        self.ledger.add_total(total[: length + self.metrics.chained], means)
        return Checked(round_, accepted, total[:length])

    def combine(self, checked: Checked, method: _Method) -> Mapping[str, float]:
        """Combine the sum; book who is in it: those clients continue from this round.

        Return the round's numbers.
        """
        assert checked.total is not None
        numbers = dict(method.combine(checked.total, checked.round))
        if method.short_classes is not None:
            numbers["short_classes"] = float(method.short_classes)
        for one in checked.accepted:
            self.ledger.accept(one.info.client, checked.round, one.payload, one.reply)
        return numbers
