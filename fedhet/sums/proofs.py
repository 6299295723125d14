"""Proofs that a sum key is a client's own, so that a server cannot introduce itself as others.

``fedhet certs`` signs a certificate of every client's key under the client's name; the CA's key is
not on the server. The proof is that certificate and a signature with the client's key.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fedhet.sums.encoding import encode

PURPOSE = "fedhet-sum-key/1"
LONGEST = 8192  # bytes of a certificate or signature


class ProofError(ValueError):
    """A key that is not proved to be the named client's; one line."""


@dataclass(frozen=True)
class Proof:
    """The client's certificate (DER) and its signature over run, name and public sum key."""

    certificate: bytes
    signature: bytes


def prove(
    key: EllipticCurvePrivateKey, certificate: x509.Certificate, run: str, name: str, public: bytes
) -> Proof:
    """ECDSA-SHA384 over enc("fedhet-sum-key/1", run, name, public)."""
    signed = key.sign(encode([PURPOSE, run, name, public]), ECDSA(SHA384()))
    return Proof(certificate.public_bytes(Encoding.DER), signed)


def check(proof: Proof, ca: x509.Certificate, run: str, name: str, public: bytes) -> None:
    """Raise ProofError unless the CA says that the key that signed is that client's."""
    if max(len(proof.certificate), len(proof.signature)) > LONGEST:
        raise ProofError(f"the proof of '{name}' is too long")
    try:
        certificate = x509.load_der_x509_certificate(proof.certificate)
        certificate.verify_directly_issued_by(ca)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        key = certificate.public_key()
        until, since = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    except Exception as error:  # a stranger's bytes: the parser has a dozen kinds, and new ones
        raise ProofError(f"the certificate of '{name}' is not from our CA") from error
    if [one.value for one in names] != [name]:
        raise ProofError(f"the certificate for '{name}' has another name")
    if not since <= datetime.now(UTC) <= until:
        raise ProofError(f"the certificate of '{name}' is not valid now: see the clock")
    if not isinstance(key, EllipticCurvePublicKey):
        raise ProofError(f"the certificate of '{name}' holds no elliptic curve key")
    try:
        key.verify(proof.signature, encode([PURPOSE, run, name, public]), ECDSA(SHA384()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError) as error:
        raise ProofError(f"the sum key of '{name}' is not signed with its key") from error
