"""One client's side of the masked sum: its rules, and the notes that it keeps.

A client believes nobody: every refusal stands in :class:`Member`. What must outlive a message is a
:class:`Commitment`. :class:`SumNotes` keeps it beside the private states, where no generation takes
it back: ``sum-key`` is the key pair of this run with its proof, ``sum-keys`` whom the client was
introduced to, ``sum-last`` its last commitment. ``sum-reply`` repeats a lost reply: masks never
meet two vectors, so that a message that comes again gets the same bytes or none. Notes are changed
under a lock and written before anything leaves.
"""

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedhet.config.schema import RunConfig
from fedhet.errors import Refused, UserError
from fedhet.protocol.messages import Reply
from fedhet.protocol.reasons import Word, refusal
from fedhet.site.limits import Limits
from fedhet.site.state import SUM_KEY, FileStore
from fedhet.sums.masks import (
    BOX_BYTES,
    SECRET_BYTES,
    SHARE_BYTES,
    AttemptId,
    Bytes,
    Proof,
    Secrets,
    Terms,
    Words,
    certified_key,
    check_proof,
    cohort_digest,
    encode,
    prove,
    public_bytes,
    split,
    stream,
)
from fedhet.sums.messages import Cohort, Opened, SumKey, Survivors


@dataclass(frozen=True)
class Commitment:
    """What a client has uploaded last and what it has answered; JSON can say it."""

    round: int
    attempt: int
    digest: str  # hexadecimal, of cohort and payload
    cohort: tuple[str, ...]
    answered: tuple[str, ...] = ()  # the survivors for whom it opened shares
    signed: tuple[str, ...] = ()  # the survivors that it signed
    fewest_alive: int = 0  # survivors that it masked under, m; 0: nobody of the cohort may be gone

    def note(self) -> dict[str, Any]:
        """For its owner to keep."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> "Commitment":
        """Inverse of :meth:`note`."""
        lists = {name: tuple(note.get(name, ())) for name in ("cohort", "answered", "signed")}
        return cls(**{**note, **lists})


@dataclass
class Member:
    """One client in one run: its key pair, the keys it was introduced to, its last commitment.

    ``certified`` are the keys that sign for members, where certificates vouch for them.
    """

    client: str
    run: str
    private: X25519PrivateKey
    keys: Mapping[str, bytes]  # everybody's, its own among them
    terms: Terms = field(default_factory=Terms)
    kept: Commitment | None = None
    certified: Mapping[str, EllipticCurvePublicKey] = field(default_factory=dict)

    def terms_for(self, cohort: Sequence[str]) -> Terms:
        """Return the terms of a cohort, whose members agree if all of their keys are certified."""
        return replace(self.terms, agreed=all(client in self.certified for client in cohort))

    def join(self, round_: int, attempt: int, cohort: Sequence[str]) -> None:
        """Check a cohort before anything is trained; Refused with the reason."""
        if len(set(cohort)) != len(cohort):
            raise refusal(Word.TWICE)
        if self.client not in cohort:
            raise refusal(Word.ABSENT)
        if any(client not in self.keys for client in cohort):
            raise refusal(Word.STRANGER)
        if len({self.keys[client] for client in cohort}) != len(cohort):
            raise refusal(Word.TWICE)
        if len(cohort) < self.terms.least:
            raise refusal(Word.SMALL)
        needed = self.terms.needed(len(cohort))
        if not len(cohort) // 2 < needed <= len(cohort):
            raise refusal(Word.THRESHOLD)
        if self.kept is not None and attempt <= self.kept.attempt:
            raise refusal(Word.OLD)
        del round_  # attempts grow over the whole run, so a round may come again

    def mask(
        self, round_: int, attempt: int, cohort: Sequence[str], payload: bytes, words: Words
    ) -> tuple[Words, Bytes]:
        """What leaves: masked words (L,) uint32, and a box (82 bytes) for each of the cohort (n).

        ``payload`` is the digest of what was sent down. The commitment stands in ``kept`` and is to
        be written down before the result is sent. Refused as :meth:`join`.
        """
        self.join(round_, attempt, cohort)
        members = sorted(cohort)
        digest = cohort_digest({client: self.keys[client] for client in members}, payload)
        found = self._secrets(AttemptId(self.run, round_, attempt, digest), members)
        own = os.urandom(SECRET_BYTES)
        masked = words + stream(own, len(words))
        here = members.index(self.client)
        for place, other in enumerate(members):
            if place != here:
                pair = stream(found.pair_seed(other), len(words))
                masked = masked + pair if place > here else masked - pair
        shares = split(own, len(members), self.terms.needed(len(members)))
        boxes = [found.seal(other, share) for other, share in zip(members, shares, strict=True)]
        alive = self.terms_for(members).survivors(len(members))
        self.kept = Commitment(round_, attempt, digest.hex(), tuple(members), fewest_alive=alive)
        return masked, np.frombuffer(b"".join(boxes), np.uint8).reshape(-1, BOX_BYTES)

    def unmask(
        self,
        round_: int,
        attempt: int,
        survivors: Sequence[str],
        boxes: Bytes,
        signatures: Mapping[str, bytes] = MappingProxyType({}),
    ) -> tuple[Bytes, Bytes, list[str]]:
        """What makes the sum readable: shares (|V|, 66), pair seeds (|D|, 32), closed boxes.

        ``survivors`` are V in order, ``boxes`` (|V|, 82) what each of them sealed for this client.
        A box that does not open leaves a row of zeros, and its sender's name in the third result.
        The commitment in ``kept`` is to be written down before the answer is sent: a client answers
        for one V only. Refused with the reason.
        """
        kept, alive = self._may_speak(round_, attempt, survivors)
        members = kept.cohort
        gone = [client for client in members if client not in alive]
        if kept.answered not in ((), alive) or kept.signed not in ((), alive):
            raise refusal(Word.OTHER)
        if gone and self.terms_for(members).agreed:
            self._check_agreed(kept, alive, signatures)
        if boxes.shape != (len(alive), BOX_BYTES) or boxes.dtype != np.uint8:
            raise refusal(Word.BOXES)
        attempted = AttemptId(self.run, round_, attempt, bytes.fromhex(kept.digest))
        found = self._secrets(attempted, members)
        shares, closed = np.zeros((len(alive), SHARE_BYTES), np.uint8), []
        for row, (other, box) in enumerate(zip(alive, boxes, strict=True)):
            try:
                shares[row] = np.frombuffer(found.open(other, box.tobytes()), np.uint8)
            except (InvalidTag, ValueError):  # damaged, for another attempt, or of another length
                closed.append(other)
        seeds = b"".join(found.pair_seed(client) for client in gone)
        self.kept = replace(kept, answered=alive)
        return shares, np.frombuffer(seeds, np.uint8).reshape(-1, SECRET_BYTES), closed

    def sign(
        self, round_: int, attempt: int, survivors: Sequence[str], key: EllipticCurvePrivateKey
    ) -> bytes:
        """Return this client's signature of V, the survivors that it was told.

        The commitment in ``kept`` is to be written down before the signature is sent: a client
        signs one V only, and opens no share for another. Raises Refused.
        """
        kept, alive = self._may_speak(round_, attempt, survivors)
        if kept.answered not in ((), alive) or kept.signed not in ((), alive):
            raise refusal(Word.OTHER)
        self.kept = replace(kept, signed=alive)
        return key.sign(self._list(kept, alive), ECDSA(SHA384()))

    def _may_speak(
        self, round_: int, attempt: int, survivors: Sequence[str]
    ) -> tuple[Commitment, tuple[str, ...]]:
        """Return the commitment and V in order, if this client may answer for V at all."""
        kept, alive = self.kept, tuple(sorted(survivors))
        if kept is None or (kept.round, kept.attempt) != (round_, attempt):
            raise refusal(Word.UNASKED)
        if len(set(alive)) != len(alive):
            raise refusal(Word.TWICE)
        if not set(alive) <= set(kept.cohort):
            raise refusal(Word.OUTSIDE)
        if self.client not in alive:
            raise refusal(Word.LEFT_OUT)
        # Both: a run may come with other terms between the upload and this, and m fits its own t.
        masked_under, count = kept.fewest_alive or len(kept.cohort), len(kept.cohort)
        if len(alive) < max(masked_under, self.terms_for(kept.cohort).survivors(count)):
            raise refusal(Word.FEW)
        return kept, alive

    def _check_agreed(
        self, kept: Commitment, alive: tuple[str, ...], signatures: Mapping[str, bytes]
    ) -> None:
        """Raise Refused unless this client signed V, and enough others signed the same."""
        if not kept.signed:
            raise refusal(Word.UNSIGNED)
        text, valid = self._list(kept, alive), 0
        for client in alive:
            try:
                self.certified[client].verify(signatures.get(client, b""), text, ECDSA(SHA384()))
            except (InvalidSignature, ValueError):
                continue
            valid += 1
        if valid < self.terms.needed(len(kept.cohort)):
            raise refusal(Word.UNSIGNED)

    def _list(self, kept: Commitment, alive: Sequence[str]) -> bytes:
        """Return what is signed: V, in this round and attempt of this cohort's run."""
        survivors = hashlib.sha256(encode(alive)).digest()
        digest = bytes.fromhex(kept.digest)
        return encode([ALIVE, self.run, kept.round, kept.attempt, digest, survivors])

    def _secrets(self, attempt: AttemptId, members: Sequence[str]) -> Secrets:
        return Secrets(self.client, self.private, {c: self.keys[c] for c in members}, attempt)


# --- notes ------------------------------------------------------------------------------------


ALIVE = "alive"  # purpose of a signature of survivors
KEY, KEYS, LAST, REPLY = SUM_KEY, "sum-keys", "sum-last", "sum-reply"
CERTIFICATES = "sum-certificates"


@dataclass(frozen=True)
class Credentials:
    """A node's own key with its certificate, and the CA's: what proofs are made of and held to."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate
    ca: x509.Certificate

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "Credentials | None":
        """Those that a node's configuration names (key, certificate, ca); None: it names none.

        Raises UserError for files that are none of these.
        """
        if not node.get("certificate"):
            return None
        try:
            key = load_ssh_private_key(Path(str(node["key"])).read_bytes(), password=None)
            own, ca = (
                x509.load_pem_x509_certificate(Path(str(node[name])).read_bytes())
                for name in ("certificate", "ca")
            )
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"node-config certificate: cannot be used: {error}") from error
        if not isinstance(key, EllipticCurvePrivateKey):
            raise UserError("node-config key: no elliptic curve key")
        return cls(key, own, ca)


def own_terms(config: RunConfig, limits: Limits) -> Terms:
    """What this client asks of every sum: the run's word, or its site's if that asks for more."""
    return Terms(max(config.sum_min, limits.min_sum or 0), config.sum_threshold)


class SumNotes:
    """What one client of one run keeps; every method but :meth:`key` needs its key to be made."""

    def __init__(self, store: FileStore, run: str, client: str, terms: Terms) -> None:
        self.store, self.run, self.client, self.terms = store, run, client, terms

    def key(self, credentials: Credentials | None) -> SumKey:
        """Its public key with the proof, made when first asked for.

        Raises UserError if the certificate does not prove what others will ask of it.
        """
        with self.store.alone():
            note = self.store.read_note(KEY)
            if note is None:
                private = X25519PrivateKey.generate()
                public, proof = public_bytes(private), None
                if credentials is not None:
                    own = (credentials.key, credentials.certificate)
                    proof = prove(*own, self.run, self.client, public)
                note = {
                    "private": private.private_bytes_raw().hex(),
                    "certificate": proof.certificate.hex() if proof else "",
                    "signature": proof.signature.hex() if proof else "",
                }
                self.store.write_note(KEY, note)
        found = _key(note)
        if found.proof is not None and credentials is not None:
            try:
                check_proof(found.proof, credentials.ca, self.run, self.client, found.public)
            except Refused as error:
                raise UserError(f"node-config certificate: {error}") from error
        return found

    def introduce(self, keys: Mapping[str, SumKey], ca: x509.Certificate | None) -> list[str]:
        """Keep keys of others; returns whose it does not accept.

        With a CA every key must be proved. A key that was kept once is not exchanged for another.
        """
        with self.store.alone():
            private = self._private()
            known = {**(self.store.read_note(KEYS) or {}), self.client: public_bytes(private).hex()}
            certificates = dict(self.store.read_note(CERTIFICATES) or {})
            strange = []
            for client, key in keys.items():
                try:
                    if known.get(client, key.public.hex()) != key.public.hex():
                        raise Refused(f"'{client}' has another key than before", Word.PROOF)
                    if ca is not None:
                        if key.proof is None:
                            raise Refused(f"the key of '{client}' has no proof", Word.PROOF)
                        check_proof(key.proof, ca, self.run, client, key.public)
                    private.exchange(X25519PublicKey.from_public_bytes(key.public))
                except (Refused, ValueError):  # also for a key that gives no secret
                    strange.append(client)
                else:
                    known[client] = key.public.hex()
                    if ca is not None and key.proof is not None:
                        certificates.setdefault(client, key.proof.certificate.hex())
            self.store.write_note(KEYS, known)
            if certificates:
                self.store.write_note(CERTIFICATES, certificates)
        return strange

    def repeated(self, round_: int, cohort: Cohort, sent: bytes) -> Reply | None:
        """The reply that was given to this very request before, if it was.

        Raises Refused for a request that the client's rules forbid.
        """
        member, note = self._member(), self.store.read_note(REPLY)
        asked = (round_, cohort.attempt)
        repeats = note is not None and (note["round"], note["attempt"]) == asked
        if note is not None and repeats and _same(member, round_, cohort, sent):
            return _reply(note)
        member.join(round_, cohort.attempt, cohort.members)
        return None

    def mask(self, round_: int, cohort: Cohort, sent: bytes, words: Words, reply: Reply) -> Reply:
        """``reply`` with the masked words and the boxes, once all of it is written down."""
        with self.store.alone():
            if (before := self.repeated(round_, cohort, sent)) is not None:
                return before
            member = self._member()
            arrays = member.mask(round_, cohort.attempt, cohort.members, sent, words)
            full = Reply(reply.info, reply.metrics, arrays)
            self.store.write_note(REPLY, _note(full, round_, cohort.attempt))
            self._commit(member)
        return full

    def unmask(self, round_: int, survivors: Survivors) -> Opened:
        """What makes the sum readable; Refused for what the client's rules forbid."""
        with self.store.alone():
            member = self._member()
            boxes = survivors.boxes if survivors.boxes is not None else np.zeros((0, 0), np.uint8)
            shares, seeds, closed = member.unmask(
                round_, survivors.attempt, survivors.members, boxes, survivors.signatures
            )
            self._commit(member)
        return Opened(shares, seeds, tuple(closed))

    def sign(self, round_: int, survivors: Survivors, credentials: Credentials | None) -> bytes:
        """Return the signature of who is left; Refused for what the client's rules forbid."""
        if credentials is None:
            raise refusal(Word.PROOF)
        with self.store.alone():
            member = self._member()
            found = member.sign(round_, survivors.attempt, survivors.members, credentials.key)
            self._commit(member)
        return found

    def fewest(self, cohort: Sequence[str]) -> int:
        """Return of how few members of a cohort the sum can be had, also by a lying server."""
        return self._member().terms_for(cohort).fewest(len(cohort))

    def _commit(self, member: Member) -> None:
        assert member.kept is not None
        self.store.write_note(LAST, member.kept.note())

    def _member(self) -> Member:
        private, keys = self._private(), self.store.read_note(KEYS) or {}
        last, certificates = self.store.read_note(LAST), self.store.read_note(CERTIFICATES) or {}
        try:
            known = {client: bytes.fromhex(key) for client, key in keys.items()}
            kept = Commitment.of(last) if last is not None else None
            certified = {
                client: certified_key(bytes.fromhex(c)) for client, c in certificates.items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged() from error
        return Member(self.client, self.run, private, known, self.terms, kept, certified)

    def _private(self) -> X25519PrivateKey:
        note = self.store.read_note(KEY)
        if note is None:
            raise Refused(
                f"client '{self.client}' has lost its key for the sums of this run", Word.STATE
            )
        try:
            return X25519PrivateKey.from_private_bytes(bytes.fromhex(note["private"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged() from error

    def _damaged(self) -> Refused:
        return Refused(f"the notes of client '{self.client}' for sums are damaged", Word.STATE)


def _key(note: Mapping[str, Any]) -> SumKey:
    """The public half of a ``sum-key`` note."""
    values = {name: bytes.fromhex(note[name]) for name in ("private", "certificate", "signature")}
    public = public_bytes(X25519PrivateKey.from_private_bytes(values["private"]))
    proof = Proof(values["certificate"], values["signature"]) if values["signature"] else None
    return SumKey(public, proof)


def _same(member: Member, round_: int, cohort: Cohort, sent: bytes) -> bool:
    """Whether the last commitment was made for this very request."""
    kept, members = member.kept, sorted(cohort.members)
    if kept is None or (kept.round, kept.attempt) != (round_, cohort.attempt):
        return False
    if list(kept.cohort) != members:
        return False
    keys = {client: member.keys[client] for client in members}
    return cohort_digest(keys, sent).hex() == kept.digest


def _note(reply: Reply, round_: int, attempt: int) -> dict[str, Any]:
    return {
        "round": round_,
        "attempt": attempt,
        "info": dict(reply.info),
        "metrics": dict(reply.metrics),
        "arrays": [
            [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]
            for array in reply.arrays
        ],
    }


def _reply(note: Mapping[str, Any]) -> Reply:
    """Inverse of :func:`_note`."""
    arrays = [
        np.frombuffer(base64.b64decode(data), np.dtype(kind)).reshape(shape)
        for kind, shape, data in note["arrays"]
    ]
    return Reply(note["info"], note["metrics"], arrays)
