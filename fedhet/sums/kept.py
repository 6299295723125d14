"""What a client keeps for sums (``secure-sum``), and what it does with it: keys, members, masks.

Three notes beside the private states, which no generation takes back: ``sum-key`` is its own key
pair of this run with the proof, ``sum-keys`` whom it was introduced to, ``sum-last`` what it has
committed itself to. ``sum-reply`` repeats a lost reply: masks never meet two vectors, so that a
message that comes again is answered with the same bytes, or not at all.

Whatever changes a note does so alone (a repeated message may be at work beside the first one), and
writes it down before anything leaves.
"""

import base64
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedhet.config.schema import RunConfig
from fedhet.errors import UserError
from fedhet.protocol.messages import Reply
from fedhet.protocol.reasons import MEANING, Refused, Word
from fedhet.site.limits import Limits
from fedhet.site.state import SUM_KEY, StateError, StateStore
from fedhet.sums.fixed_point import Words
from fedhet.sums.masks import cohort_digest, public_bytes
from fedhet.sums.member import Commitment, Member, RefusedError, Terms
from fedhet.sums.messages import Cohort, Opened, SumKey, Survivors
from fedhet.sums.proofs import Proof, ProofError, check, prove

KEY, KEYS, LAST, REPLY = SUM_KEY, "sum-keys", "sum-last", "sum-reply"


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


def terms_of(config: RunConfig, limits: Limits) -> Terms:
    """What this client asks of every sum: the run's word, or its site's if that asks for more."""
    return Terms(max(config.sum_min, limits.min_sum or 0), config.sum_threshold)


class SumNotes:
    """What one client of one run keeps; every method but :meth:`key` needs its key to be made."""

    def __init__(self, store: StateStore, run: str, client: str, terms: Terms) -> None:
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
                check(found.proof, credentials.ca, self.run, self.client, found.public)
            except ProofError as error:
                raise UserError(f"node-config certificate: {error}") from error
        return found

    def introduce(self, keys: Mapping[str, SumKey], ca: x509.Certificate | None) -> list[str]:
        """Keep keys of others; returns whose it does not accept.

        With a CA every key must be proved. A key that was kept once is not exchanged for another.
        """
        with self.store.alone():
            private = self._private()
            known = {**(self.store.read_note(KEYS) or {}), self.client: public_bytes(private).hex()}
            strange = []
            for client, key in keys.items():
                try:
                    if known.get(client, key.public.hex()) != key.public.hex():
                        raise ProofError(f"'{client}' has another key than before")
                    if ca is not None:
                        if key.proof is None:
                            raise ProofError(f"the key of '{client}' comes without a proof")
                        check(key.proof, ca, self.run, client, key.public)
                    private.exchange(X25519PublicKey.from_public_bytes(key.public))
                except ValueError:  # also for a key that gives no secret
                    strange.append(client)
                else:
                    known[client] = key.public.hex()
            self.store.write_note(KEYS, known)
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
        with _telling_rule():
            member.join(round_, cohort.attempt, cohort.members)
        return None

    def mask(self, round_: int, cohort: Cohort, sent: bytes, words: Words, reply: Reply) -> Reply:
        """``reply`` with the masked words and the boxes, once all of it is written down."""
        with self.store.alone():
            if (before := self.repeated(round_, cohort, sent)) is not None:
                return before
            member = self._member()
            with _telling_rule():
                arrays = member.mask(round_, cohort.attempt, cohort.members, sent, words)
            full = Reply(reply.info, reply.metrics, arrays)
            self.store.write_note(REPLY, _note(full, round_, cohort.attempt))
            self._commit(member)
        return full

    def unmask(self, round_: int, survivors: Survivors) -> Opened:
        """What makes the sum readable; Refused for what the client's rules forbid."""
        with self.store.alone():
            member = self._member()
            with _telling_rule():
                shares, seeds, closed = member.unmask(
                    round_, survivors.attempt, survivors.members, survivors.boxes
                )
            self._commit(member)
        return Opened(shares, seeds, tuple(closed))

    def _commit(self, member: Member) -> None:
        assert member.kept is not None
        self.store.write_note(LAST, member.kept.note())

    def _member(self) -> Member:
        private, keys = self._private(), self.store.read_note(KEYS) or {}
        last = self.store.read_note(LAST)
        try:
            known = {client: bytes.fromhex(key) for client, key in keys.items()}
            kept = Commitment.of(last) if last is not None else None
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged() from error
        return Member(self.client, self.run, private, known, self.terms, kept)

    def _private(self) -> X25519PrivateKey:
        note = self.store.read_note(KEY)
        if note is None:
            raise StateError(f"client '{self.client}' has lost its key for the sums of this run")
        try:
            return X25519PrivateKey.from_private_bytes(bytes.fromhex(note["private"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged() from error

    def _damaged(self) -> StateError:
        return StateError(f"the notes of client '{self.client}' for sums are damaged")


@contextlib.contextmanager
def _telling_rule() -> Iterator[None]:
    """A rule that forbids something is told by its word."""
    try:
        yield
    except RefusedError as error:
        word = Word(error.word.value)
        raise Refused(f"{word}: {MEANING[word]}", word) from error


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
