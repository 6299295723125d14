"""Who may say that a key is whose."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.x509.oid import NameOID

from fedhet.errors import Refused
from fedhet.sums.masks import SumKey, check_proof, prove


def certificate(subject, key, issuer, signer, days=(-1, 1)):
    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name(subject)).issuer_name(name(issuer)).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .sign(signer, SHA384())
    )  # fmt: skip


def broken(whole: SumKey, place: int) -> SumKey:
    """With one bit of the certificate turned over."""
    der = bytearray(whole.certificate)
    der[place] ^= 1
    return replace(whole, certificate=bytes(der))


CA_KEY, KEY, OTHER = (generate_private_key(SECP384R1()) for _ in range(3))
CA = certificate("ca", CA_KEY, "ca", CA_KEY)
OWN = certificate("a", KEY, "ca", CA_KEY)
PUBLIC = bytes(32)


def test_a_clients_own_key_is_accepted() -> None:
    check_proof(prove(KEY, OWN, "run", "a", PUBLIC), CA, "run", "a")


@pytest.mark.parametrize(
    ("proof", "text"),
    [
        (prove(OTHER, certificate("a", OTHER, "ca", OTHER), "run", "a", PUBLIC), "our CA"),
        (prove(OTHER, OWN, "run", "a", PUBLIC), "not signed"),
        (prove(KEY, certificate("b", KEY, "ca", CA_KEY), "run", "a", PUBLIC), "another name"),
        (prove(KEY, OWN, "old run", "a", PUBLIC), "not signed"),
        (prove(KEY, certificate("a", KEY, "ca", CA_KEY, (-2, -1)), "run", "a", PUBLIC), "clock"),
        (SumKey(PUBLIC, b"rubbish"), "our CA"),
        (SumKey(PUBLIC), "without a proof"),
        (replace(prove(KEY, OWN, "run", "a", PUBLIC), public=b"\x01" * 32), "not signed"),
    ],
)
def test_nobody_elses_is(proof, text) -> None:
    with pytest.raises(Refused, match=text):
        check_proof(proof, CA, "run", "a")


def test_no_bit_of_a_certificate_raises_anything_else() -> None:
    """One that did would end the introduction of everybody."""
    whole = prove(KEY, OWN, "run", "a", PUBLIC)
    for place in range(len(whole.certificate)):
        with suppress(Refused):
            check_proof(broken(whole, place), CA, "run", "a")
