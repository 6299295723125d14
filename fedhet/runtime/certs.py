"""Certificates and keys of a deployment: one CA, one server certificate, one key pair per client.

The server certificate carries ``localhost`` and ``127.0.0.1`` beside the names it is asked for:
the SuperLink starts a process of its own that reaches it there, and refuses a certificate
without them. A client's identity in Flower is its key: an elliptic curve key in OpenSSH's format.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhet.errors import UserError
from fedhet.ids import is_id

LOOPBACK = ("localhost", "127.0.0.1")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_SKEW = datetime.timedelta(hours=1)  # a machine whose clock is behind accepts them, too


@dataclass(frozen=True)
class Credentials:
    """Where things are below ``folder``; the public key of a client lies beside its key."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Certificate of the CA: for every machine."""
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        """Certificate of the server."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """Private key of the server: for the server only."""
        return self.folder / "server.key"

    @property
    def ca_key(self) -> Path:
        """Private key of the CA: for nobody; whoever has it can pretend to be the server."""
        return self.folder / "ca.key"

    def client(self, name: str) -> Path:
        """Private key of a client: for that client only."""
        return self.folder / "clients" / name


def make(out: Path, servers: Sequence[str], clients: Sequence[str], days: int = 825) -> Credentials:
    """Write a CA, a server certificate and the clients' key pairs below ``out``.

    ``servers`` are the names and addresses by which clients reach the server. Without any, only
    key pairs are made, for clients that join later. Private keys have mode 600 from the moment
    they exist.

    Raises:
        UserError: a name that is not allowed, a file that is there already (nothing is
            overwritten and nothing written then), or a folder that cannot be written.

    """
    names = _names(servers) if servers else None
    places = Credentials(out)
    files = _client_files(places, clients)
    if names is not None:
        files = {**_server_files(places, names, days), **files}
    for path in files:
        if path.exists() or path.is_symlink():
            raise UserError(
                f"'{path}' already exists, and nothing is overwritten: choose another --out, "
                "or move it away"
            )
    try:
        (out / "clients").mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, (content, mode) in files.items():
            _write_new(path, content, mode)
    except OSError as error:
        raise UserError(f"'{out}': cannot be written: {error.strerror or error}") from error
    return places


def advice(places: Credentials, servers: Sequence[str]) -> str:
    """What to do with the files, as lines to print."""
    lines = []
    if servers:
        lines += [
            f"on the server:   {places.ca}, {places.certificate}, {places.key}",
            f"on every client: {places.ca} and its own key, over a channel that you trust",
            f"put away:        {places.ca_key} (whoever has it can pretend to be the server)",
        ]
    elif not places.ca.exists():
        return f"keys only: '{places.folder}' has no CA, which --server HOST makes"
    lines += [
        f"then, on the server:  fedhet server {places.folder}",
        f"on a client:          fedhet node {places.folder}/clients/NAME --server HOST:8443 "
        "--data FOLDER",
    ]
    return "\n".join(lines)


def _names(servers: Sequence[str]) -> list[x509.GeneralName]:
    """Subject alternative names; UserError for one that is neither a host name nor an address."""
    names: dict[str, x509.GeneralName] = {}
    for server in [*servers, *LOOPBACK]:
        try:
            names[server] = x509.IPAddress(ipaddress.ip_address(server))
        except ValueError:
            if not _HOST.fullmatch(server) or re.fullmatch(r"[0-9.]+", server):
                raise UserError(
                    f"--server: '{server}' is neither a host name nor an IP address "
                    "(no scheme, no port)"
                ) from None
            names[server] = x509.DNSName(server)
    return list(names.values())


def _client_files(places: Credentials, clients: Sequence[str]) -> Mapping[Path, tuple[bytes, int]]:
    """Private and public key of every client, in the format of ``ssh-keygen -t ecdsa -b 384``."""
    files: dict[Path, tuple[bytes, int]] = {}
    for client in clients:
        if not is_id(client) or client.endswith(".pub"):
            raise UserError(f"--client: '{client}' is not allowed: up to 64 of A-Z a-z 0-9 . _ -")
        if clients.count(client) > 1:
            raise UserError(f"--client: '{client}' is given twice")
        key = generate_private_key(SECP384R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        path = places.client(client)
        files[path] = (_private(key, serialization.PrivateFormat.OpenSSH), 0o600)
        files[path.with_name(f"{client}.pub")] = (public + f" {client}\n".encode(), 0o644)
    return files


def _server_files(
    places: Credentials, names: Sequence[x509.GeneralName], days: int
) -> Mapping[Path, tuple[bytes, int]]:
    authority, key = generate_private_key(SECP384R1()), generate_private_key(SECP384R1())
    issuer = _subject("fedhet CA")
    ca = (
        _unsigned(issuer, issuer, authority.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    server = (
        _unsigned(_subject("fedhet server"), issuer, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA384())
    )
    form = serialization.PrivateFormat.PKCS8
    return {
        places.ca: (ca.public_bytes(serialization.Encoding.PEM), 0o644),
        places.ca_key: (_private(authority, form), 0o600),
        places.certificate: (server.public_bytes(serialization.Encoding.PEM), 0o644),
        places.key: (_private(key, form), 0o600),
    }


def _unsigned(
    subject: x509.Name, issuer: x509.Name, public: EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, sign: bool) -> x509.KeyUsage:
    """A CA signs certificates and nothing else; a server signs handshakes and nothing else."""
    return x509.KeyUsage(
        digital_signature=not sign, key_cert_sign=sign, crl_sign=sign, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _private(key: EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Create a file with its mode; FileExistsError if something is there (no link is followed)."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
