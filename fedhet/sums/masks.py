"""Words, masks, shares, proofs and messages: the arithmetic and cryptography of the secure sum.

A vector becomes words of 32 bits in fixed point, whose sums modulo 2^32 are exact in any order.
X25519 (RFC 7748) gives two clients a secret, HKDF-SHA256 (RFC 5869) a seed for one purpose, round
and attempt, and the ChaCha20 key stream (RFC 8439) the mask. A self mask is shared by Shamir's
scheme (1979) in the field of 2^521 - 1: the one piece of cryptography that is written here.
A proof is a client's certificate, signed by a CA that is not on the server, and a signature.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from numpy.typing import NDArray
from pydantic import Field, StrictBytes, StrictInt
from pydantic.dataclasses import dataclass as wired

from fedhet.errors import Code, Refused, refusing
from fedhet.protocol.messages import WIRE, Id, from_wire

Part = str | int | bytes


def encode(parts: Iterable[Part]) -> bytes:
    """Return each part as its length in 4 bytes, big endian, then its bytes.

    A text is UTF-8, a number (0 <= n < 2^32) 4 bytes, big endian; OverflowError for another.
    """
    plain = [
        p.encode() if isinstance(p, str) else p.to_bytes(4, "big") if isinstance(p, int) else p
        for p in parts
    ]
    return b"".join(len(p).to_bytes(4, "big") + p for p in plain)


# --- words ------------------------------------------------------------------------------------

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Vector = NDArray[np.float64]

SUM_BITS = 30  # a sum of all clients stays below this power of two: a sign and a spare bit


def fraction_bits(clients: int, largest: float) -> int:
    """Return the bits after the point: the largest f with clients x largest x 2^f < 2^30.

    Raises ValueError if not even whole numbers fit.
    """
    if not clients * largest < 2.0**SUM_BITS:
        raise ValueError(f"{clients} clients with entries up to {largest:g} do not fit 32 bits")
    return SUM_BITS - math.frexp(clients * largest)[1]


def grid(vector: Vector, bits: int, largest: float) -> NDArray[np.int64]:
    """Return entries (L,) float64 in steps of 2^-bits, rounded half to even, as integers.

    Raises Refused, which names no value, for an entry beyond ``largest`` or not finite.
    """
    if not np.isfinite(vector).all() or (np.abs(vector) > largest).any():
        raise Refused(f"an entry is not finite, or beyond sum-range={largest:g}", Code.RANGE)
    return np.asarray(np.rint(np.ldexp(vector, bits)), np.int64)


def from_words(words: Words, bits: int) -> Vector:
    """Return words (L,) uint32 of a sum as float64: two's complement, divided by 2^bits."""
    return np.ldexp(words.view(np.int32).astype(np.float64), -bits)


# --- masks ------------------------------------------------------------------------------------

SALT = b"fedhet-sum/1"
KEY_BYTES = 32


def cohort_digest(keys: Mapping[str, bytes], payload: bytes | None = None) -> bytes:
    """Return H = SHA-256(enc(id, key, id, key, ...)), ids in order of their code points.

    With the digest of what was sent down to them: SHA-256(enc(H, payload)), so that clients which
    were sent different bytes share no mask.
    """
    parts = [part for client in sorted(keys) for part in (client, keys[client])]
    digest = hashlib.sha256(encode(parts)).digest()
    return digest if payload is None else hashlib.sha256(encode([digest, payload])).digest()


def stream(seed: bytes, length: int) -> Words:
    """Return ``length`` words of the key stream, counter and nonce zero, little endian."""
    encryptor = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * length)), "<u4").astype(np.uint32, copy=False)


class Secrets:
    """What one client shares with the others of a cohort, in one attempt.

    ``attempt`` is what tells the attempt from all others: run, round, number, digest of the cohort.
    """

    def __init__(
        self, client: str, own: X25519PrivateKey, keys: Mapping[str, bytes], attempt: Sequence[Part]
    ) -> None:
        """Raise ValueError for a key that gives no secret (a point of small order)."""
        self.client, self.attempt = client, attempt
        public = {other: X25519PublicKey.from_public_bytes(key) for other, key in keys.items()}
        self._shared = {other: own.exchange(key) for other, key in public.items()}

    def key(self, other: str, purpose: str, first: str, second: str) -> bytes:
        """Return the key for one purpose that this client and ``other`` share."""
        info = encode([purpose, *self.attempt, first, second])
        return HKDF(SHA256(), KEY_BYTES, SALT, info).derive(self._shared[other])

    def pair_seed(self, other: str) -> bytes:
        """Return the seed of the mask that this client and ``other`` share."""
        return self.key(other, "mask", *sorted((self.client, other)))

    def seal(self, other: str, text: bytes) -> bytes:
        """Return a box that only ``other`` opens. A key seals once, so the nonce is zero."""
        box = ChaCha20Poly1305(self.key(other, "share", self.client, other))
        return box.encrypt(bytes(12), text, None)

    def open(self, other: str, box: bytes) -> bytes:
        """Return what ``other`` sealed for this client; raise InvalidTag if it did not."""
        key = ChaCha20Poly1305(self.key(other, "share", other, self.client))
        return key.decrypt(bytes(12), box, None)


# --- shares -----------------------------------------------------------------------------------

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32  # of a self mask, or of the seed of a pair
BOX_BYTES = SHARE_BYTES + 16  # of a sealed share, with its tag


def split(
    secret: bytes, members: int, threshold: int, draw: Callable[[int], int] = secrets.randbelow
) -> list[bytes]:
    """Return a share for each of ``members``; any ``threshold`` of them give the secret.

    The member at position i has secret + c_1 x + c_2 x^2 + ... at x = i + 1, 66 bytes, big endian;
    coefficients are the operating system's.
    """
    coefficients = [*(draw(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret, "big")]
    shares = []
    for x in range(1, members + 1):
        value = 0
        for coefficient in coefficients:
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


@lru_cache(maxsize=8)
def lagrange_weights(points: tuple[int, ...]) -> list[int]:
    """Return Lagrange's weights at zero for distinct points x."""
    weights = []
    for x in points:
        others = [other for other in points if other != x]
        below = math.prod(other - x for other in others) % PRIME
        weights.append(math.prod(others) * pow(below, -1, PRIME) % PRIME)
    return weights


def recombine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of shares by their points; ValueError if it is not one of 32 bytes."""
    values = [int.from_bytes(share, "big") for share in shares.values()]
    weights = lagrange_weights(tuple(shares))
    total = sum(w * value for w, value in zip(weights, values, strict=True)) % PRIME
    if max(values) >= PRIME or total >> (8 * SECRET_BYTES):
        raise ValueError("shares do not fit together")
    return total.to_bytes(SECRET_BYTES, "big")


# --- proofs -----------------------------------------------------------------------------------

PURPOSE = "fedhet-sum-key/1"
LONGEST = 8192  # bytes of a certificate or signature
Blob = Annotated[StrictBytes, Field(max_length=LONGEST)]


@wired(frozen=True, config=WIRE)
class SumKey:
    """A client's public key of this run.

    ``certificate`` (DER) and ``signature`` prove that it is its own; both are empty without.
    """

    public: Annotated[StrictBytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    certificate: Blob = b""
    signature: Blob = b""

    @classmethod
    def of_fields(cls, parts: Sequence[bytes] | None) -> "SumKey":
        """Return the key of these fields; raise ValueError, in one line, if they are none."""
        if len(parts or ()) != len(names := [one.name for one in fields(cls)]):
            raise ValueError("a key comes with its certificate and its signature")
        return from_wire(cls, dict(zip(names, parts or (), strict=True)))

    def dump(self) -> list[str]:
        """Return its fields as texts, for a checkpoint or a note."""
        return [part.hex() for part in astuple(self)]

    @classmethod
    def load(cls, kept: Sequence[str]) -> "SumKey":
        """Return what :meth:`dump` gave; raise ValueError or TypeError for anything else."""
        return cls.of_fields([bytes.fromhex(part) for part in kept])


def prove(
    key: ec.EllipticCurvePrivateKey, cert: x509.Certificate, run: str, name: str, public: bytes
) -> SumKey:
    """Return the key with ECDSA-SHA384 over enc("fedhet-sum-key/1", run, name, public)."""
    signed = key.sign(encode([PURPOSE, run, name, public]), ec.ECDSA(SHA384()))
    return SumKey(public, cert.public_bytes(Encoding.DER), signed)


def check_proof(proof: SumKey, ca: x509.Certificate, run: str, name: str) -> None:
    """Raise Refused unless the CA vouches that the key which signed ``proof`` is that client's."""
    if not proof.certificate:
        raise Refused(f"the key of '{name}' comes without a proof", Code.PROOF)
    text = f"the certificate of '{name}' is not from our CA"
    with refusing(Code.PROOF, text, Exception):  # foreign bytes raise a dozen kinds of errors
        certificate = x509.load_der_x509_certificate(proof.certificate)
        certificate.verify_directly_issued_by(ca)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        key = certified_key(proof.certificate)
        until, since = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    if [one.value for one in names] != [name]:
        raise Refused(f"the certificate for '{name}' has another name", Code.PROOF)
    if not since <= datetime.now(UTC) <= until:
        raise Refused(f"the certificate of '{name}' is not valid now: check the clock", Code.PROOF)
    text = f"the sum key of '{name}' is not signed with its key"
    with refusing(Code.PROOF, text, (InvalidSignature, UnsupportedAlgorithm, ValueError)):
        signed = encode([PURPOSE, run, name, proof.public])
        key.verify(proof.signature, signed, ec.ECDSA(SHA384()))


def certified_key(certificate: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key in a certificate (DER) that :func:`check_proof` accepted; ValueError: none."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the certificate holds no elliptic curve key")
    return key


@dataclass(frozen=True)
class SumTerms:
    """What is asked of every sum: its minimum of members, and the threshold (0: a majority).

    ``agreed``: the survivors sign who is left before they open a share (all keys have proofs).
    """

    min_members: int = 3
    threshold: int = 0
    agreed: bool = False

    def needed(self, members: int) -> int:
        """Return how many members must hand over shares: t of n."""
        return self.threshold or members // 2 + 1

    def survivors(self, members: int) -> int:
        """Return how few of ``members`` may be summed: m.

        With an agreement the threshold and ``min_members`` are enough: as t > n/2, no two lists of
        survivors have the signatures of t honest members. Without it a server can tell every member
        other survivors. To learn the sum of s members alone it needs t - s shares of their self
        masks from others, and the pair seeds of those others, who gave shares instead, from the s
        themselves: each opens n - m of them at most. With m >= n + min_members - t no s below
        ``min_members`` is enough.
        """
        needed = self.needed(members)
        without_agreement = 0 if self.agreed else min(members, members + self.min_members - needed)
        return max(needed, self.min_members, without_agreement)

    def fewest(self, members: int) -> int:
        """Return of how few members the sum can be had, also by a server that lies to each."""
        alive = self.survivors(members)
        told_apart = not self.agreed and alive < members
        return self.needed(members) + alive - members if told_apart else alive


# --- what crosses the wire beside payloads ----------------------------------------------------
# The fields of each class are the keys of the record `sum` of a request, or of texts in a reply.
Ids = Annotated[tuple[Id, ...], Field(max_length=100_000)]
Number = Annotated[StrictInt, Field(ge=1, lt=2**32)]  # what is encoded in 4 bytes


@wired(frozen=True, config=WIRE)
class Introduction:
    """Clients, and key, certificate and signature of each, for one that is to know them."""

    members: Ids
    keys: tuple[StrictBytes, ...]

    def by_client(self) -> dict[str, SumKey]:
        """Return the keys; raise ValueError if they are none, or if a client has two."""
        if not len(self.keys) == 3 * len(self.members) == 3 * len(set(self.members)):
            raise ValueError("members: one is named twice, or keys and proofs are not as many")
        parts = [self.keys[place : place + 3] for place in range(0, len(self.keys), 3)]
        return dict(zip(self.members, map(SumKey.of_fields, parts), strict=True))


@wired(frozen=True, config=WIRE)
class Cohort:
    """What a train message says of its sum: who is in it, which attempt it is.

    ``size`` is the number of clients in a whole round of the run; it decides the words' unit.
    ``shared`` are the classes that have owners enough for their rows to be summed; None: nobody has
    counted.
    """

    members: Ids
    attempt: Number
    size: Number
    shared: tuple[Annotated[StrictInt, Field(ge=0)], ...] | None = None

    def __post_init__(self) -> None:
        if self.size < len(self.members):
            raise ValueError(f"size: {self.size} is less than the {len(self.members)} members")


@wired(frozen=True, config=WIRE)
class Survivors:
    """Who is summed; where masks are taken off, what each sealed for the reader.

    ``boxes`` are |V| x 82 bytes, in the order of ``members``. ``signatures`` are the members' of
    this list, empty for one who has not signed; there are none where nobody has to.
    """

    members: Ids
    attempt: Number
    boxes: StrictBytes | None = None
    signatures: tuple[Blob, ...] = ()


@wired(frozen=True, config=WIRE)
class Opened:
    """A client's answer: |V| shares of 66 bytes, |D| pair seeds of 32, whose boxes did not open."""

    client: Id
    round: StrictInt
    shares: StrictBytes
    seeds: StrictBytes
    closed: Ids = ()
