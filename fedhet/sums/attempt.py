"""One attempt at a sum at the server: uploads are added up, then survivors take the masks off.

:class:`Collector` holds what came of one attempt and knows no message; :class:`Attempt` asks the
clients. What is held of one client goes with the attempt. :class:`Introductions` tells clients each
other's keys before.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from flwr.app import Message

from fedhet.config.schema import RunConfig
from fedhet.errors import Rejected
from fedhet.protocol.checks import check_origin, check_shapes
from fedhet.protocol.flower import is_simulated
from fedhet.protocol.handshake import Handshake
from fedhet.protocol.mail import exchange
from fedhet.protocol.messages import (
    AGREE,
    INTRODUCE,
    QUERY_BYTES,
    UNMASK,
    Reply,
    from_wire,
    message_bytes,
    request,
)
from fedhet.protocol.payload import Array, Payload, blank
from fedhet.records.ledger import Ledger
from fedhet.sums.contribution import Vector
from fedhet.sums.masks import (
    BOX_BYTES,
    LONGEST,
    SECRET_BYTES,
    SHARE_BYTES,
    Bytes,
    SumKey,
    SumTerms,
    Words,
    fraction_bits,
    from_words,
    lagrange_weights,
    recombine,
    stream,
)
from fedhet.sums.messages import Cohort, Introduction, Opened, Survivors

log = logging.getLogger("fedhet")

AGAIN = 5.0  # seconds after which a survivor that failed to answer is asked again, on a network
TRIES = 2  # in a simulation, where nobody comes back
PATIENCE = 60.0  # seconds that a round waits for a client to take in the others' keys


class Collector:
    """What came of one attempt of a cohort at a sum of ``length`` words."""

    def __init__(self, cohort: Sequence[str], length: int, terms: SumTerms) -> None:
        self.cohort = sorted(cohort)
        self.length = length
        self.terms = terms
        self.needed = terms.needed(len(self.cohort))
        self.min_survivors = terms.survivors(len(self.cohort))
        self.survivors: list[str] = []
        self._total = np.zeros(length, np.uint32)
        self._uploaded: dict[str, Array] = {}  # the boxes of each
        self._shares: dict[str, dict[int, bytes]] = {}  # by owner, then position of the holder
        self._seeds: dict[str, Bytes] = {}
        self._closed: dict[str, tuple[str, ...]] = {}  # whose boxes did not open, for whom

    def take(self, client: str, arrays: Sequence[Array]) -> None:
        """Add one upload: words and boxes; raise Rejected if it is not as agreed."""
        if client not in self.cohort or client in self._uploaded:
            raise Rejected(f"'{client}' is not a member, or has already uploaded")
        boxes = blank((len(self.cohort), BOX_BYTES), np.uint8)
        check_shapes(arrays, [blank((self.length,), np.uint32), boxes])
        self._total += arrays[0]
        self._uploaded[client] = arrays[1]

    def close(self) -> list[str]:
        """End the uploads; return V, those who are summed, or raise Rejected if they are few."""
        self.survivors = [client for client in self.cohort if client in self._uploaded]
        if len(self.survivors) < self.min_survivors:
            came = f"{len(self.survivors)} of {len(self.cohort)} uploads came"
            raise Rejected(f"{came}, {self.min_survivors} are needed")
        self._shares = {client: {} for client in self.survivors}
        return self.survivors

    @property
    def gone(self) -> list[str]:
        """D: members whose upload never came."""
        return [client for client in self.cohort if client not in self._uploaded]

    def boxes_for(self, client: str) -> Bytes:
        """Return what the survivors, in order, sealed for one of them: (|V|, 82) uint8."""
        place = self.cohort.index(client)
        return np.stack([self._uploaded[owner][place] for owner in self.survivors])

    def answer(self, client: str, opened: Opened) -> None:
        """Take one survivor's answer; raise Rejected if it is not of the agreed sizes."""
        count, gone = len(self.survivors), len(self.gone)
        if client not in self.survivors or client in self._seeds:
            raise Rejected(f"'{client}' is not a survivor, or has already answered")
        if len(opened.shares) != count * SHARE_BYTES or len(opened.seeds) != gone * SECRET_BYTES:
            raise Rejected(f"expected {count} shares and {gone} seeds")
        if not set(opened.closed) <= set(self.survivors):
            raise Rejected("boxes of clients that are not survivors")
        self._seeds[client] = np.frombuffer(opened.seeds, np.uint8).reshape(gone, SECRET_BYTES)
        self._closed[client] = opened.closed
        place = self.cohort.index(client)
        for row, owner in enumerate(self.survivors):
            if owner not in opened.closed:
                share = opened.shares[row * SHARE_BYTES : (row + 1) * SHARE_BYTES]
                self._shares[owner][place] = share

    def missing(self) -> list[str]:
        """Return survivors without whose answer there is no sum; none: it can be had."""
        silent = [client for client in self.survivors if client not in self._seeds]
        short = any(len(found) < self.needed for found in self._shares.values())
        return silent if self.gone or short else []

    def total(self) -> Words:
        """Return the sum (L,) of the survivors' words, modulo 2^32.

        Raises Rejected if somebody whose answer is needed kept silent, or a self mask cannot be
        put together.
        """
        silent = self.missing()
        if silent:
            raise Rejected(f"no answer from {', '.join(silent)}")
        found = self._total.copy()
        weights: dict[tuple[int, ...], list[int]] = {}
        for owner, shares in self._shares.items():
            found -= stream(self._self_seed(owner, shares, weights), self.length)
        for client, seeds in self._seeds.items():
            for other, seed in zip(self.gone, seeds, strict=True):
                pair = stream(seed.tobytes(), self.length)
                found = found - pair if other > client else found + pair
        return found

    def _self_seed(
        self, owner: str, shares: Mapping[int, bytes], weights: dict[tuple[int, ...], list[int]]
    ) -> bytes:
        if len(shares) < self.needed:
            held = sum(owner in closed for closed in self._closed.values())
            raise Rejected(f"the boxes of '{owner}' did not open for {held} members")
        chosen = tuple(sorted(shares)[: self.needed])
        if chosen not in weights:
            weights[chosen] = lagrange_weights([place + 1 for place in chosen])
        try:
            return recombine([shares[place] for place in chosen], weights[chosen])
        except ValueError as error:
            raise Rejected(f"the self mask of '{owner}' cannot be reconstructed") from error


# --- with messages ----------------------------------------------------------------------------


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
class Attempt:
    """Attempt ``cohort.attempt`` at a sum of ``length`` words, in a round.

    Messages that unmask count in ``ledger``.
    """

    handshake: Handshake
    ledger: Ledger
    config: RunConfig
    round: int
    cohort: Cohort
    length: int
    _refused: dict[str, str] = field(default_factory=dict)  # who does not help to unmask, and why
    _signatures: dict[str, bytes] = field(default_factory=dict)  # of who is left

    def __post_init__(self) -> None:
        self.members = list(self.cohort.members)
        keys = self.handshake.roster.keys
        self.agrees = all(c in keys and keys[c].certificate for c in self.members)
        terms = SumTerms(self.config.sum_min, self.config.sum_threshold, agreed=self.agrees)
        self.collector = Collector(self.members, self.length, terms)

    @property
    def limit(self) -> int:
        """Bytes above which an upload is refused unread."""
        return 4 * self.length + BOX_BYTES * len(self.members) + QUERY_BYTES

    def take(self, client: str, reply: Reply) -> Payload:
        """Add one upload and return its traffic; raise Rejected if it is not as agreed."""
        check_origin(self.handshake.roster.infos[client], reply, self.round)
        self.collector.take(client, reply.arrays)
        return SumUpload(*reply.arrays)

    def total(self, deadline: float) -> Vector:
        """Return the sum (L,) float64; raise Rejected if it cannot be had until then."""
        survivors, config = self.collector.close(), self.config
        if len(survivors) < config.min_replies:
            came = f"{len(survivors)} of min-replies={config.min_replies} uploads came"
            raise Rejected(came)
        try:
            # Where a member is gone and keys have proofs, the survivors first sign who is left.
            for kind in (AGREE, UNMASK) if self.collector.gone and self.agrees else (UNMASK,):
                self._ask(kind, deadline)
                if kind == AGREE and self._missing(AGREE):
                    signed, needed = len(self._signatures), self.collector.needed
                    raise Rejected(f"{signed} of {needed} survivors signed the list of survivors")
            words, largest = self.collector.total(), config.sum_range
            total = from_words(words, fraction_bits(self.cohort.size, largest))
            count = len(survivors)
            if (np.abs(total) > count * largest).any():  # masks of other payloads, or a false seed
                raise Rejected(f"the sum has entries beyond {count} x sum-range={largest:g}")
        except Rejected as error:
            why = "; ".join(f"client {c}: {reason}" for c, reason in self._refused.items())
            raise Rejected(f"{error} ({why})" if why else str(error)) from error
        return total

    def _missing(self, kind: str) -> list[str]:
        """Return the survivors whose answer is still needed."""
        if kind == UNMASK:
            return self.collector.missing()
        if len(self._signatures) >= self.collector.needed:
            return []
        return [c for c in self.collector.survivors if c not in self._signatures]

    def _take(self, kind: str, client: str, reply: Reply) -> bool:
        """Take an answer, and note one that is refused; return whether there are enough."""
        self.ledger.round.counts["uplink_message_bytes"] += reply.message_bytes
        if reply.says("undelivered"):
            log.info("client %s does not answer: %s", client, reply.error)
            return False
        try:
            check_origin(self.handshake.roster.infos[client], reply, self.round)
            if kind == UNMASK:
                self.collector.answer(client, from_wire(Opened, reply.info))
            else:
                signature = reply.info.get("signature")
                if not isinstance(signature, bytes) or not 0 < len(signature) <= LONGEST:
                    raise Rejected("reply without a signature")
                self._signatures[client] = signature
        except ValueError as error:
            self._refused[client] = str(error)
        return not self._missing(kind)

    def _ask(self, kind: str, deadline: float) -> None:
        """Send messages of a kind to those that are missing, until nobody is or the time is up."""
        grid, nodes = self.handshake.grid, self.handshake.roster.nodes
        simulated, tries = is_simulated(grid), 0
        limit = QUERY_BYTES + (SHARE_BYTES + SECRET_BYTES) * len(self.members)
        while (left := deadline - time.monotonic()) > 0:
            silent = [client for client in self._missing(kind) if client not in self._refused]
            if not silent or (simulated and tries == TRIES):
                break
            if tries and not simulated:
                time.sleep(min(AGAIN, left))
                self.handshake.query(patience=0.0)
            tries += 1
            messages = {c: self._message(kind, c, left) for c in silent if c in nodes}
            sent = sum(map(message_bytes, messages.values()))
            self.ledger.round.counts["downlink_message_bytes"] += sent
            exchange(grid, messages, left, lambda _: limit, partial(self._take, kind))

    def _message(self, kind: str, client: str, left: float) -> Message:
        shake, alive = self.handshake, tuple(self.collector.survivors)
        about = Survivors(alive, self.cohort.attempt)
        if kind == UNMASK:
            boxes = self.collector.boxes_for(client).tobytes()
            signed = tuple(self._signatures.get(c, b"") for c in alive) if self._signatures else ()
            about = Survivors(alive, self.cohort.attempt, boxes, signed)
        what = shake.instruction(round=self.round)
        return request(kind, shake.roster.nodes[client], what, left, about=about)


# --- introductions ----------------------------------------------------------------------------


class Introductions:
    """The introductions of one run; after a crash of the server they are made again."""

    def __init__(self, handshake: Handshake, fail: Callable[[str, str], None]) -> None:
        """``fail`` is told who is left out of the round, and why.

        A key is introduced again once its proof is another one, by a renewed certificate.
        """
        self.handshake, self.fail = handshake, fail
        self.introduced: dict[str, set[tuple[str, SumKey]]] = {}
        self.strange: dict[str, set[str]] = {}

    def of(self, members: list[str], patience: float) -> list[str]:
        """Return those of ``members`` that know and accept each other, after an introduction."""
        failed = self._introduce(patience)
        for client, reason in failed.items():
            if client in members:
                self.fail(client, f"not introduced: {reason}")
        return self._agreeing([c for c in members if c not in failed and c in self.introduced])

    def _introduce(self, patience: float) -> dict[str, str]:
        """Tell everybody online whom they do not know yet; return reasons of those that failed."""
        shake, roster, failed = self.handshake, self.handshake.roster, {}
        every = set(roster.keys.items())
        due = {c: every - self.introduced.get(c, set()) for c in sorted(roster.nodes)}
        messages = {}
        for client in (c for c, new in due.items() if new):
            about = Introduction.of(dict(sorted(due[client], key=lambda pair: pair[0])))
            node, what = roster.nodes[client], shake.instruction()
            messages[client] = request(INTRODUCE, node, what, PATIENCE, about=about)
        for client, reply in exchange(shake.grid, messages, patience):
            strangers = reply.info.get("strangers")
            if reply.error or not isinstance(strangers, list | tuple):
                failed[client] = reply.error or "its answer is invalid"
                continue
            self.introduced.setdefault(client, set()).update(due[client])
            known = self.strange.setdefault(client, set())
            known.difference_update(name for name, _ in due[client])
            known.update(map(str, strangers))
        return failed

    def _agreeing(self, members: list[str]) -> list[str]:
        """Leave out those whom most do not accept, and then those who do not accept all."""
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
