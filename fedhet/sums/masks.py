"""Keys that two clients share, and the streams of words that are made from them.

X25519 (RFC 7748) gives two clients a secret, HKDF-SHA256 (RFC 5869) a seed for one purpose, round
and attempt, the ChaCha20 key stream (RFC 8439) the mask.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedhet.sums.encoding import Part, encode
from fedhet.sums.fixed_point import Words

SALT = b"fedhet-sum/1"
KEY_BYTES = 32
TAG_BYTES = 16  # of a sealed box


def public_bytes(private: X25519PrivateKey) -> bytes:
    """The 32 bytes of its public key."""
    return private.public_key().public_bytes_raw()


def cohort_digest(keys: Mapping[str, bytes], payload: bytes | None = None) -> bytes:
    """H = SHA-256(enc(id, key, id, key, ...)) in order of the ids' code points.

    With the digest of what was sent down to them: SHA-256(enc(H, payload)), so that clients which
    were sent different bytes share no mask.
    """
    parts = [part for client in sorted(keys) for part in (client, keys[client])]
    found = hashlib.sha256(encode(parts)).digest()
    return found if payload is None else hashlib.sha256(encode([found, payload])).digest()


def stream(seed: bytes, length: int) -> Words:
    """``length`` words of the key stream, counter and nonce zero, little endian."""
    encryptor = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * length)), "<u4").astype(np.uint32, copy=False)


@dataclass(frozen=True)
class Attempt:
    """One attempt at one round of one run, by a cohort with a digest."""

    run: str
    round: int
    number: int
    digest: bytes

    def parts(self, purpose: str, first: str, second: str) -> list[Part]:
        """What a key of this attempt is for."""
        return [purpose, self.run, self.round, self.number, self.digest, first, second]


class Secrets:
    """What one client shares with the others of a cohort, in one attempt."""

    def __init__(
        self, client: str, private: X25519PrivateKey, keys: Mapping[str, bytes], attempt: Attempt
    ) -> None:
        """Raises ValueError for a key that gives no secret (a point of small order)."""
        self.client, self.attempt = client, attempt
        self._shared = {
            other: private.exchange(X25519PublicKey.from_public_bytes(key))
            for other, key in keys.items()
        }

    def _derive(self, other: str, parts: Sequence[Part]) -> bytes:
        return HKDF(SHA256(), KEY_BYTES, SALT, encode(parts)).derive(self._shared[other])

    def pair_seed(self, other: str) -> bytes:
        """The seed of the mask that this client and ``other`` share."""
        first, second = sorted((self.client, other))
        return self._derive(other, self.attempt.parts("mask", first, second))

    def seal(self, other: str, text: bytes) -> bytes:
        """A box that only ``other`` opens. A key seals once, so the nonce is zero."""
        key = self._derive(other, self.attempt.parts("share", self.client, other))
        return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)

    def open(self, other: str, box: bytes) -> bytes:
        """What ``other`` put into a box for this client; cryptography's InvalidTag if not so."""
        key = self._derive(other, self.attempt.parts("share", other, self.client))
        return ChaCha20Poly1305(key).decrypt(bytes(12), box, None)
