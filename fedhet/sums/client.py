"""A client's side of a sum: its rules, what it keeps, and how it answers.

A client trusts neither the server nor the others. What must outlive a message lies beside the
private states, as notes that no later state undoes: ``sum-key`` (this run's key pair and its
proof), ``sum-keys`` (keys of other members), ``sum-last`` (the last upload and its answers). No
mask is used for two vectors, so a repeated message gets the same bytes or an error. Notes change
under a lock, and are written before a reply is sent.
"""

import base64
import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, load_ssh_private_key
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as wired

from fedhet.config.schema import RunConfig
from fedhet.errors import Code, Refused, UserError, refusing
from fedhet.protocol.messages import Instruction, Reply, from_wire, pack, unpack
from fedhet.protocol.payload import Empty, Payload
from fedhet.site.local_data import LocalData
from fedhet.site.privacy import Budget, UploadProtection, clipped, share_steps
from fedhet.site.state import SUM_KEY, FileStore
from fedhet.sums import contribution, masks
from fedhet.sums.contribution import Own, Summand, Vector
from fedhet.sums.masks import Cohort, Opened, SumKey, SumTerms, Survivors

KEY, KEYS, LAST = SUM_KEY, "sum-keys", "sum-last"  # notes


def refuse(rules: Mapping[str, bool]) -> None:
    """Raise Refused, with its name, by the first of ``rules`` that is broken."""
    for rule in (rule for rule, broken in rules.items() if broken):
        raise Refused(f"{rule}: {Code.SUM.meaning}", Code.SUM, rule)


@wired(frozen=True)
class Commitment:
    """What a client has uploaded last, and what it has answered since."""

    round: int
    attempt: int
    digest: str  # hexadecimal, of cohort and payload
    cohort: tuple[str, ...]
    fewest_alive: int  # survivors that it masked under, m
    answered: tuple[str, ...] = ()  # the survivors for whom it opened shares
    signed: tuple[str, ...] = ()  # the survivors that it signed
    reply: dict[str, Any] = field(default_factory=dict)  # texts, numbers and packed arrays


NOTHING = Commitment(0, 0, "", (), 0)  # attempts count from 1


@dataclass(frozen=True)
class NodeCertificate:
    """A node's own key with its certificate, and the certificate of the CA."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    ca: x509.Certificate

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "NodeCertificate | None":
        """Return what a node's configuration names (key, certificate, ca); None: nothing.

        Raises UserError for files that are none of these.
        """
        if not node.get("certificate"):
            return None
        try:
            key = load_ssh_private_key(Path(str(node["key"])).read_bytes(), password=None)
            files = (Path(str(node[name])).read_bytes() for name in ("certificate", "ca"))
            certificate, ca = map(x509.load_pem_x509_certificate, files)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"node-config certificate: cannot be used: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError("node-config key: not an elliptic curve key")
        return cls(key, certificate, ca)


def cannot_prove(node: Mapping[str, Any]) -> str:
    """Return why a node's key for sums would not be proved to other members; empty if it would."""
    name = str(node.get("name") or node.get("partition-id", ""))
    try:
        if (certified := NodeCertificate.of(node)) is None:
            return f"there is no certificate '{name}.crt' beside this node's key"
        proof = masks.prove(certified.key, certified.certificate, "", name, bytes(masks.KEY_BYTES))
        masks.check_proof(proof, certified.ca, "", name)
    except UserError as error:
        return str(error)
    return ""


class Member:
    """One client in the sums of one run; every method but :meth:`key` needs its key.

    A proof in ``keys`` is kept only where a CA vouched for it: such keys sign for their members.
    """

    def __init__(self, store: FileStore, run: str, client: str, terms: SumTerms) -> None:
        self.store, self.run, self.client, self.terms = store, run, client, terms
        self.keys: dict[str, SumKey] = {}  # everybody's, its own among them
        self.kept = NOTHING

    def key(self, node: NodeCertificate | None) -> SumKey:
        """Return the client's public key with its proof. The first call makes both.

        Raises UserError if the certificate would not prove the key to other members.
        """
        with self.store.alone():
            note = before = self.store.read_note(KEY)
            if note is None:
                private = X25519PrivateKey.generate()
                key = SumKey(private.public_key().public_bytes_raw())
                note = {"private": private.private_bytes_raw().hex(), "key": key.dump()}
            with self._sound():
                key = SumKey.load(note["key"])
            # Prove the key once, and again once the certificate is renewed.
            if node is not None and key.certificate != node.certificate.public_bytes(Encoding.DER):
                key = masks.prove(node.key, node.certificate, self.run, self.client, key.public)
            if (note := note | {"key": key.dump()}) != before:
                self.store.write_note(KEY, note)
        if node is not None:
            try:
                masks.check_proof(key, node.ca, self.run, self.client)
            except Refused as error:
                raise UserError(f"node-config certificate: {error}") from error
        return key

    def introduce(self, keys: Mapping[str, SumKey], ca: x509.Certificate | None) -> list[str]:
        """Store the keys of others; return the clients whose keys are refused.

        With a CA every key needs a proof. A stored key is never replaced by another.
        """
        with self.store.alone():
            self._read()
            strange = []
            self.keys.setdefault(self.client, SumKey(self.private.public_key().public_bytes_raw()))
            for client, key in keys.items():
                before = self.keys.get(client, SumKey(key.public))
                try:
                    if ca is not None:
                        masks.check_proof(key, ca, self.run, client)
                    self.private.exchange(X25519PublicKey.from_public_bytes(key.public))
                    if before.public != key.public:
                        raise ValueError("another key than before")
                except (Refused, ValueError):  # also for a key that gives no secret
                    strange.append(client)
                else:  # an unchecked certificate proves nothing; a checked one may be a renewed one
                    self.keys[client] = key if ca is not None else before
            self.store.write_note(KEYS, {name: key.dump() for name, key in self.keys.items()})
        return strange

    def terms_for(self, cohort: Sequence[str]) -> SumTerms:
        """Return the terms of a cohort, whose members agree if all of their keys are certified."""
        proved = {client for client, key in self.keys.items() if key.certificate}
        return replace(self.terms, agreed=proved.issuperset(cohort))

    def repeated(self, round_: int, cohort: Cohort, sent: bytes) -> Reply | None:
        """Return the reply that was given to this very request before, if it was.

        ``sent`` is the digest of what was sent down. Raises Refused for a cohort that the rules
        forbid. Attempt numbers grow over the whole run, so that a round can be repeated.
        """
        self._read()
        kept, names, members = self.kept, cohort.members, tuple(sorted(cohort.members))
        same = (kept.round, kept.attempt, kept.cohort) == (round_, cohort.attempt, members)
        if same and self._digest(members, sent).hex() == kept.digest:
            note = kept.reply
            return Reply(note["info"], note["metrics"], unpack(base64.b64decode(note["arrays"])))
        count, keys = len(names), {self.keys[c].public if c in self.keys else c for c in names}
        refuse({
            "not-in-cohort": self.client not in names,
            "stranger-in-cohort": not set(names) <= set(self.keys),
            "member-named-twice": len(keys) < count,
            "cohort-too-small": count < self.terms.min_members,
            "threshold-too-low": not count // 2 < self.terms.needed(count) <= count,
            "attempt-not-new": cohort.attempt <= kept.attempt,
        })  # fmt: skip
        return None

    def mask(self, round_: int, cohort: Cohort, sent: bytes, reply: Reply) -> Reply:
        """Return ``reply`` with masked words (L,) uint32 and a box for each member (n, 82) uint8.

        ``sent`` is the digest of what was sent down. Raises Refused as :meth:`repeated` does.
        """
        with self._changing():
            if (before := self.repeated(round_, cohort, sent)) is not None:
                return before
            members, seed = tuple(sorted(cohort.members)), os.urandom(masks.SECRET_BYTES)
            alive = self.terms_for(members).survivors(len(members))
            digest, words = self._digest(members, sent).hex(), reply.arrays[0]
            kept = Commitment(round_, cohort.attempt, digest, members, alive)
            secrets = self._secrets(kept)
            masked = words + masks.stream(seed, len(words))
            for other in members:
                if other != self.client:
                    pair = masks.stream(secrets.pair_seed(other), len(words))
                    masked = masked + pair if other > self.client else masked - pair
            shares = masks.split(seed, len(members), self.terms.needed(len(members)))
            boxes = b"".join(map(secrets.seal, members, shares))
            arrays = masked, np.frombuffer(boxes, np.uint8).reshape(-1, masks.BOX_BYTES)
            packed = base64.b64encode(pack(arrays)).decode()
            note = {"info": dict(reply.info), "metrics": dict(reply.metrics), "arrays": packed}
            self.kept = replace(kept, reply=note)
        return replace(reply, arrays=arrays)

    def open_shares(self, round_: int, survivors: Survivors) -> Opened:
        """Return the shares and seeds that unmask the sum of ``survivors``, the list V.

        Its boxes (|V|, 82) uint8 have a sealed share from each of them. A box that cannot be opened
        gives zeros and its sender's name. A client answers for one V only. Raises Refused.
        """
        with self._changing():
            kept, alive = self._may_speak(round_, survivors)
            gone = [client for client in kept.cohort if client not in alive]
            if gone and self.terms_for(kept.cohort).agreed:
                self._check_agreed(kept, alive, survivors)
            boxes, size = survivors.boxes or b"", masks.BOX_BYTES
            refuse({"boxes-malformed": len(boxes) != len(alive) * size})
            secrets, shares, closed = self._secrets(kept), [], []
            for place, other in enumerate(alive):
                try:
                    shares.append(secrets.open(other, boxes[place * size :][:size]))
                except InvalidTag:  # damaged, or for another attempt
                    shares.append(bytes(masks.SHARE_BYTES))
                    closed.append(other)
            self.kept = replace(kept, answered=alive)
        seeds = b"".join(map(secrets.pair_seed, gone))
        return Opened(self.client, round_, b"".join(shares), seeds, tuple(closed))

    def sign(self, round_: int, survivors: Survivors, key: ec.EllipticCurvePrivateKey) -> bytes:
        """Return this client's signature of V, the survivors that it was told.

        A client signs one V only, and opens no share for another. Raises Refused.
        """
        with self._changing():
            kept, alive = self._may_speak(round_, survivors)
            self.kept = replace(kept, signed=alive)
        return key.sign(self._list(kept, alive), ec.ECDSA(SHA384()))

    def _may_speak(self, round_: int, survivors: Survivors) -> tuple[Commitment, tuple[str, ...]]:
        """Return the commitment and V in order, if this client may answer for V at all."""
        kept, alive = self.kept, tuple(sorted(survivors.members))
        # Check the terms of the upload and the present ones, since they may have changed.
        fewest = max(kept.fewest_alive, self.terms_for(kept.cohort).survivors(len(kept.cohort)))
        refuse({
            "unmask-without-upload": (kept.round, kept.attempt) != (round_, survivors.attempt),
            "member-named-twice": len(set(alive)) < len(alive),
            "survivors-not-the-cohort": not set(alive) <= set(kept.cohort),
            "not-a-survivor": self.client not in alive,
            "too-few-survivors": len(alive) < fewest,
            "other-survivors-than-answered": not {kept.answered, kept.signed} <= {(), alive},
        })  # fmt: skip
        return kept, alive

    def _check_agreed(self, kept: Commitment, alive: tuple[str, ...], survivors: Survivors) -> None:
        """Raise Refused unless this client signed V, and enough others signed the same."""
        text, valid = self._list(kept, alive), 0
        for client, signature in zip(survivors.members, survivors.signatures, strict=False):
            with contextlib.suppress(InvalidSignature, ValueError):
                key = masks.certified_key(self.keys[client].certificate)
                key.verify(signature, text, ec.ECDSA(SHA384()))
                valid += 1
        few = valid < self.terms.needed(len(kept.cohort))
        refuse({"survivors-not-signed": few or not kept.signed})

    def _list(self, kept: Commitment, alive: Sequence[str]) -> bytes:
        """Return what is signed: V, in this round and attempt of this cohort's run."""
        survivors = hashlib.sha256(masks.encode(alive)).digest()
        digest = bytes.fromhex(kept.digest)
        return masks.encode(["alive", self.run, kept.round, kept.attempt, digest, survivors])

    def _digest(self, members: Sequence[str], sent: bytes) -> bytes:
        return masks.cohort_digest({c: self.keys[c].public for c in members}, sent)

    def _secrets(self, kept: Commitment) -> masks.Secrets:
        digest = bytes.fromhex(kept.digest)
        attempt: list[masks.Part] = [self.run, kept.round, kept.attempt, digest]
        public = {client: self.keys[client].public for client in kept.cohort}
        return masks.Secrets(self.client, self.private, public, attempt)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock and read the notes, then write what the member is committed to."""
        with self.store.alone():
            self._read()
            yield
            self.store.write_note(LAST, asdict(self.kept))

    def _read(self) -> None:
        own, others, last = map(self.store.read_note, (KEY, KEYS, LAST))
        if own is None:
            text = f"client '{self.client}' has lost its key for the sums of this run"
            raise Refused(text, Code.STATE)
        with self._sound():
            self.private = X25519PrivateKey.from_private_bytes(bytes.fromhex(own["private"]))
            self.keys = {client: SumKey.load(key) for client, key in (others or {}).items()}
            self.kept = from_wire(Commitment, last) if last is not None else NOTHING

    def _sound(self) -> contextlib.AbstractContextManager[None]:
        text = f"the notes of client '{self.client}' for sums are damaged"
        return refusing(Code.STATE, text, (KeyError, TypeError, ValueError))


class _Summing(Protocol):  # the class of a strategy
    noise_on_steps: bool

    @property
    def metric_ranges(self) -> contribution.Ranges: ...
    def contribution(self, upload: Payload, own: Own) -> Summand: ...


@dataclass
class SumProtection(UploadProtection):
    """One client's upload to one attempt at a sum, by a message of the server."""

    data: LocalData
    config: RunConfig
    method: _Summing
    what: Instruction
    cohort: Cohort
    sent: bytes  # digest of what came down
    member: Member
    fewest: int = 0  # min-class of the site's limits, by which metrics are coarse; 0: exact
    _steps: list[NDArray[np.int64]] = field(default_factory=list)  # of the vector's parts

    def __post_init__(self) -> None:
        place = {name: position for position, name in enumerate(self.what.classes)}
        images = dict(sorted((place[n], count) for n, count in self.data.class_counts().items()))
        self.shared = self.cohort.shared
        self.own = Own(self.config, len(place), tuple(images), tuple(images.values()), self.shared)

    def trained(self, numbers: Mapping[str, float], digest: str) -> Reply:
        """Return the masked vector of a client that has trained, with these ``numbers``."""
        shown = numbers
        if self.config.sum_metrics:
            entries = contribution.SumMetrics(self.config.sum_range, self.method.metric_ranges)
            sizes = {"val": len(self.data.split.val), "test": len(self.data.split.test)}
            summed = contribution.coarse(numbers, sizes, self.fewest) if self.fewest else numbers
            self._put(entries.vector({**summed, contribution.IMAGES: sum(self.own.images)}))
            shown = {name: value for name, value in numbers.items() if name == contribution.SPENT}
        return self._masked(shown, digest=digest)

    def owners(self) -> Reply:
        """Return the masked classes that this client has, with ones and zeros."""
        self._put(contribution.ownership(self.own))
        return self._masked()

    def confusion(self, matrix: NDArray[np.int64]) -> Reply:
        """Return a masked confusion matrix; classes with too few owners have no entries."""
        own, most = self.own, 2**contribution.BITS
        matrix[~((contribution.ownership(own) > 0) & own.shares(np.arange(own.classes)))] = 0
        self._put(np.minimum(matrix, most).ravel() * (self.config.sum_range / most))
        return self._masked()

    def _masked(self, metrics: Mapping[str, float] | None = None, **info: str) -> Reply:
        words = np.concatenate(self._steps).astype(np.uint32)  # modulo 2^32
        reply = self.what.reply(self.data.client, metrics, [words], **info)
        return self.member.mask(self.what.round, self.cohort, self.sent, reply)

    def protect(self, upload: Payload, received: Payload, round_: int, budget: Budget) -> Payload:
        """Add the upload to this client's vector, with ``dp-clip`` clipped and noised."""
        clip = self.config.dp_clip
        if clip and self.method.noise_on_steps:
            upload = upload.since(received)
        added = self.method.contribution(upload, self.own)
        self._put(clipped(added.values, clip) if clip else added.values, budget if clip else None)
        self._put(added.counts)
        return Empty()

    def _put(self, vector: Vector, budget: Budget | None = None) -> None:
        """Append a part of the vector in steps of the words' grid, noised if there is a budget."""
        config, cohort = self.config, self.cohort
        bits = masks.fraction_bits(cohort.size, config.sum_range)
        steps = masks.grid(vector, bits, config.sum_range)
        if budget is not None and len(vector):
            fewest = self.member.terms_for(cohort.members).fewest(len(cohort.members))
            sigma = share_steps(config, len(vector), bits, fewest)
            steps += budget.share(vector, sigma, self.what.round, attempt=cohort.attempt)
        self._steps.append(steps)
