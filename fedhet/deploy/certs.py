"""Certificates and keys of a deployment: one CA, one server certificate, one key pair per client.

Each client's key has a certificate under the client's name, too, by which clients know each other
(``secure-sum``); the server has no part in it, and the CA's key must not be on the server.

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
from fedhet.files import is_id

LOOPBACK = ("localhost", "127.0.0.1")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_SKEW = datetime.timedelta(hours=1)  # a machine whose clock is behind accepts them, too


@dataclass(frozen=True)
class CertificateFolder:
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
        """Private key of the CA, to be kept safe: its holder can make certificates in any name."""
        return self.folder / "ca.key"

    def client(self, name: str) -> Path:
        """Private key of a client: for that client only; its certificate is beside it."""
        return self.folder / "clients" / name


def make(
    out: Path, servers: Sequence[str], clients: Sequence[str], days: int = 825
) -> CertificateFolder:
    """Write a CA, a server certificate and the clients' key pairs below ``out``.

    ``servers`` are the names and addresses by which clients reach the server. Without any, only
    key pairs are made, for clients that join later. Private keys have mode 600 from the moment
    they exist. Clients that join later get certificates while ``ca.key`` is in the folder.

    Raises:
        UserError: a name that is not allowed, a file that is there already (nothing is
            overwritten and nothing written then), or a folder that cannot be written.

    """
    names = _names(servers) if servers else None
    places = CertificateFolder(out)
    authority = _Authority.new(days) if names is not None else _Authority.read(places, days)
    files = _client_files(places, clients, authority)
    if names is not None:
        assert authority is not None
        files = {**_server_files(places, names, authority), **files}
    for path in files:
        if path.exists() or path.is_symlink():
            raise UserError(
                f"'{path}' already exists and is not overwritten: choose another --out, or move "
                "it away"
            )
    try:
        (out / "clients").mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, (content, mode) in files.items():
            _write_new(path, content, mode)
    except OSError as error:
        raise UserError(f"'{out}': cannot be written: {error.strerror or error}") from error
    return places


def advice(places: CertificateFolder, servers: Sequence[str]) -> str:
    """Return what to do with the files, as lines to print."""
    lines = []
    if servers:
        lines += [
            f"on the server:   {places.ca}, {places.certificate}, {places.key}",
            f"on every client: {places.ca}, its own key and .crt, over a channel that you trust",
            f"put away:        {places.ca_key} (its holder can make certificates in any name)",
        ]
    elif not places.ca.exists():
        return f"only keys were made: '{places.folder}' has no CA; --server HOST makes one"
    lines += [
        f"then, on the server:  fedhet server {places.folder}",
        f"on a client:          fedhet node {places.folder}/clients/NAME --server HOST:8443 "
        "--data FILE",
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


@dataclass(frozen=True)
class _Authority:
    """A CA that can sign."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey
    days: int

    @classmethod
    def new(cls, days: int) -> "_Authority":
        """Make a new one, which signs itself."""
        key, name = generate_private_key(SECP384R1()), _subject("fedhet CA")
        certificate = (
            _unsigned(name, name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .sign(key, hashes.SHA384())
        )
        return cls(certificate, key, days)

    @classmethod
    def read(cls, places: CertificateFolder, days: int) -> "_Authority | None":
        """Return the one in the folder; None if its key is not there. UserError for other files."""
        if not places.ca_key.exists() or not places.ca.exists():
            return None
        try:
            certificate = x509.load_pem_x509_certificate(places.ca.read_bytes())
            key = serialization.load_pem_private_key(places.ca_key.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise UserError(f"'{places.ca_key}': cannot be used: {error}") from error
        if not isinstance(key, EllipticCurvePrivateKey):
            raise UserError(f"'{places.ca_key}' is not an elliptic curve key")
        if key.public_key() != certificate.public_key():
            raise UserError(f"'{places.ca_key}' is not the key of '{places.ca}'")
        return cls(certificate, key, days)

    def client(self, name: str, public: EllipticCurvePublicKey) -> bytes:
        """Certify that this key is that client's; return PEM."""
        certificate = (
            self._issued(name, public)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self.key, hashes.SHA384())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, names: Sequence[x509.GeneralName], public: EllipticCurvePublicKey) -> bytes:
        """Certify that this key is the server's under these names; return PEM."""
        certificate = (
            self._issued("fedhet server", public)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA384())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _issued(self, name: str, public: EllipticCurvePublicKey) -> x509.CertificateBuilder:
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            _unsigned(_subject(name), self.certificate.subject, public, self.days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=False), critical=True)
            .add_extension(own, critical=False)
        )


def _client_files(
    places: CertificateFolder, clients: Sequence[str], authority: _Authority | None
) -> Mapping[Path, tuple[bytes, int]]:
    """Private and public key of every client, in the format of ``ssh-keygen -t ecdsa -b 384``.

    With an authority there is the certificate of the key beside them.
    """
    files: dict[Path, tuple[bytes, int]] = {}
    for client in clients:
        if not is_id(client) or client.endswith((".pub", ".crt")):
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
        if authority is not None:
            certificate = authority.client(client, key.public_key())
            files[path.with_name(f"{client}.crt")] = (certificate, 0o644)
    return files


def _server_files(
    places: CertificateFolder, names: Sequence[x509.GeneralName], authority: _Authority
) -> Mapping[Path, tuple[bytes, int]]:
    key, form = generate_private_key(SECP384R1()), serialization.PrivateFormat.PKCS8
    ca = authority.certificate.public_bytes(serialization.Encoding.PEM)
    return {
        places.ca: (ca, 0o644),
        places.ca_key: (_private(authority.key, form), 0o600),
        places.certificate: (authority.server(names, key.public_key()), 0o644),
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
    """Return the usage: a CA signs only certificates, a server only handshakes."""
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
