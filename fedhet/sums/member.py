"""The rules of one client: what it masks, and what it hands over so that a sum can be unmasked.

A client believes nobody: every refusal stands here, each with a word of :class:`Refusal`. What must
outlive a message is a :class:`Commitment`; its owner keeps it before anything leaves.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from fedhet.sums.fixed_point import Words
from fedhet.sums.masks import TAG_BYTES, Attempt, Secrets, cohort_digest, stream
from fedhet.sums.shares import SHARE_BYTES, split

Bytes = NDArray[np.uint8]
BOX_BYTES = SHARE_BYTES + TAG_BYTES
SEED_BYTES = 32


class Refusal(StrEnum):
    """Why a client does not take part, or does not answer."""

    SMALL = "cohort-too-small"
    ABSENT = "not-in-cohort"
    STRANGER = "stranger-in-cohort"
    TWICE = "member-named-twice"
    OLD = "attempt-not-new"
    THRESHOLD = "threshold-too-low"
    UNASKED = "unmask-without-upload"
    OTHER = "other-survivors-than-answered"
    FEW = "too-few-survivors"
    LEFT_OUT = "not-a-survivor"
    OUTSIDE = "survivors-not-the-cohort"
    BOXES = "boxes-malformed"


class RefusedError(Exception):
    """A request that a client does not grant; ``word`` says why."""

    def __init__(self, word: Refusal) -> None:
        super().__init__(word.value)
        self.word = word


@dataclass(frozen=True)
class Terms:
    """What a client asks of every sum: the least members, and its threshold (0: a majority)."""

    least: int = 3
    threshold: int = 0

    def needed(self, members: int) -> int:
        """How many members must hand over shares: t of n."""
        return self.threshold or members // 2 + 1

    def survivors(self, members: int) -> int:
        """How few of ``members`` may be summed: m.

        A server can tell every member other survivors, and nobody sees what the others were told.
        To learn the sum of s members alone it needs t - s shares of their self masks from others,
        and the pair seeds of those others, who gave shares instead, from the s themselves: each
        opens n - m of them at most. With m >= n + least - t no s below ``least`` is enough.
        """
        needed = self.needed(members)
        return max(needed, self.least, min(members, members + self.least - needed))

    def fewest(self, members: int) -> int:
        """Of how few members the sum can be had, also by a server that lies to each of them."""
        alive = self.survivors(members)
        return members if alive == members else self.needed(members) + alive - members


@dataclass(frozen=True)
class Commitment:
    """What a client has uploaded last and what it has answered; JSON can say it."""

    round: int
    attempt: int
    digest: str  # hexadecimal, of cohort and payload
    cohort: tuple[str, ...]
    answered: tuple[str, ...] = ()  # the survivors for whom it opened shares
    fewest_alive: int = 0  # survivors that it masked under, m; 0: nobody of the cohort may be gone

    def note(self) -> dict[str, Any]:
        """For its owner to keep."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> "Commitment":
        """Inverse of :meth:`note`."""
        lists = {name: tuple(note[name]) for name in ("cohort", "answered")}
        return cls(**{**note, **lists})


@dataclass
class Member:
    """One client in one run: its key pair, the keys it was introduced to, its last commitment."""

    client: str
    run: str
    private: X25519PrivateKey
    keys: Mapping[str, bytes]  # everybody's, its own among them
    terms: Terms = field(default_factory=Terms)
    kept: Commitment | None = None

    def join(self, round_: int, attempt: int, cohort: Sequence[str]) -> None:
        """Check a cohort before anything is trained; RefusedError with the reason."""
        if len(set(cohort)) != len(cohort):
            raise RefusedError(Refusal.TWICE)
        if self.client not in cohort:
            raise RefusedError(Refusal.ABSENT)
        if any(client not in self.keys for client in cohort):
            raise RefusedError(Refusal.STRANGER)
        if len({self.keys[client] for client in cohort}) != len(cohort):
            raise RefusedError(Refusal.TWICE)
        if len(cohort) < self.terms.least:
            raise RefusedError(Refusal.SMALL)
        needed = self.terms.needed(len(cohort))
        if not len(cohort) // 2 < needed <= len(cohort):
            raise RefusedError(Refusal.THRESHOLD)
        if self.kept is not None and attempt <= self.kept.attempt:
            raise RefusedError(Refusal.OLD)
        del round_  # attempts grow over the whole run, so a round may come again

    def mask(
        self, round_: int, attempt: int, cohort: Sequence[str], payload: bytes, words: Words
    ) -> tuple[Words, Bytes]:
        """What leaves: masked words (L,) uint32, and a box (82 bytes) for each of the cohort (n).

        ``payload`` is the digest of what was sent down. The commitment stands in ``kept`` and is to
        be written down before the result is sent. RefusedError as :meth:`join`.
        """
        self.join(round_, attempt, cohort)
        members = sorted(cohort)
        digest = cohort_digest({client: self.keys[client] for client in members}, payload)
        found = self._secrets(Attempt(self.run, round_, attempt, digest), members)
        own = os.urandom(SEED_BYTES)
        masked = words + stream(own, len(words))
        here = members.index(self.client)
        for place, other in enumerate(members):
            if place != here:
                pair = stream(found.pair_seed(other), len(words))
                masked = masked + pair if place > here else masked - pair
        shares = split(own, len(members), self.terms.needed(len(members)))
        boxes = [found.seal(other, share) for other, share in zip(members, shares, strict=True)]
        alive = self.terms.survivors(len(members))
        self.kept = Commitment(round_, attempt, digest.hex(), tuple(members), fewest_alive=alive)
        return masked, np.frombuffer(b"".join(boxes), np.uint8).reshape(-1, BOX_BYTES)

    def unmask(
        self, round_: int, attempt: int, survivors: Sequence[str], boxes: Bytes
    ) -> tuple[Bytes, Bytes, list[str]]:
        """What makes the sum readable: shares (|V|, 66), pair seeds (|D|, 32), closed boxes.

        ``survivors`` are V in order, ``boxes`` (|V|, 82) what each of them sealed for this client.
        A box that does not open leaves a row of zeros, and its sender's name in the third result.
        The commitment in ``kept`` is to be written down before the answer is sent: a client answers
        for one V only. RefusedError with the reason.
        """
        kept = self.kept
        if kept is None or (kept.round, kept.attempt) != (round_, attempt):
            raise RefusedError(Refusal.UNASKED)
        members, alive = kept.cohort, tuple(sorted(survivors))
        if len(set(alive)) != len(alive):
            raise RefusedError(Refusal.TWICE)
        if not set(alive) <= set(members):
            raise RefusedError(Refusal.OUTSIDE)
        if self.client not in alive:
            raise RefusedError(Refusal.LEFT_OUT)
        # Both: a run may come with other terms between the upload and this, and m fits its own t.
        masked_under = kept.fewest_alive or len(members)
        if len(alive) < max(masked_under, self.terms.survivors(len(members))):
            raise RefusedError(Refusal.FEW)
        if kept.answered not in ((), alive):
            raise RefusedError(Refusal.OTHER)
        if boxes.shape != (len(alive), BOX_BYTES) or boxes.dtype != np.uint8:
            raise RefusedError(Refusal.BOXES)
        attempted = Attempt(self.run, round_, attempt, bytes.fromhex(kept.digest))
        found = self._secrets(attempted, members)
        shares, closed = np.zeros((len(alive), SHARE_BYTES), np.uint8), []
        for row, (other, box) in enumerate(zip(alive, boxes, strict=True)):
            try:
                shares[row] = np.frombuffer(found.open(other, box.tobytes()), np.uint8)
            except (InvalidTag, ValueError):  # damaged, for another attempt, or of another length
                closed.append(other)
        gone = [client for client in members if client not in alive]
        seeds = b"".join(found.pair_seed(client) for client in gone)
        self.kept = replace(kept, answered=alive)
        return shares, np.frombuffer(seeds, np.uint8).reshape(-1, SEED_BYTES), closed

    def _secrets(self, attempt: Attempt, members: Sequence[str]) -> Secrets:
        return Secrets(self.client, self.private, {c: self.keys[c] for c in members}, attempt)
