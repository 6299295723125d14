"""Certificates and keys of a deployment: one CA, one server certificate, one key pair per client.

A client makes its key where it stays, and sends a request (:func:`make_key`), which the holder of
the CA signs (:func:`sign`). Each client's certificate has the client's name: by it clients know
each other (``secure-sum``). The server has no part in it, and the CA's key must not be there.
Certificates are renewed under the same CA and for the same keys (:func:`renew`).

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
from fedhet.files import is_id, replacing

LOOPBACK = ("localhost", "127.0.0.1")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
CA_DAYS, DAYS = 3650, 825
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
    out: Path, servers: Sequence[str], clients: Sequence[str], days: int = DAYS
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
    authority = _Authority.new() if names is not None else _Authority.find(places)
    files: dict[Path, tuple[bytes, int]] = {}
    for client in clients:
        if clients.count(client) > 1:
            raise UserError(f"--client: '{client}' is given twice")
        key = generate_private_key(SECP384R1())
        path = places.client(_client_name(client, "--client"))
        files |= _key_files(path, key)
        if authority is not None:
            files[path.with_name(f"{client}.crt")] = (authority.client(client, key, days), 0o644)
    if names is not None:
        assert authority is not None
        files = {**_server_files(places, names, authority, days), **files}
    _write(out / "clients", files)
    return places


def make_key(folder: Path, name: str) -> Path:
    """Write a client's key pair below ``folder``, and a request for its certificate.

    Only the request leaves the site. Returns its path. Raises UserError as :func:`make` does.
    """
    key, path = generate_private_key(SECP384R1()), folder / _client_name(name, "NAME")
    asked = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    pem = asked.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
    request = path.with_name(f"{name}.csr")
    _write(folder, _key_files(path, key) | {request: (pem, 0o644)})
    return request


def sign(out: Path, request: Path) -> str:
    """Write the certificate and the public key that a request asks for; return the client's name.

    Raises UserError for a file that is no such request, and as :func:`make` does.
    """
    places = CertificateFolder(out)
    try:
        asked = x509.load_pem_x509_csr(request.read_bytes())
        (common,) = asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        public = asked.public_key()
        valid = asked.is_signature_valid
    except (OSError, ValueError) as error:
        raise UserError(f"--request: '{request}' is no request of `fedhet key`: {error}") from error
    if not valid or not isinstance(public, EllipticCurvePublicKey):
        raise UserError(f"--request: '{request}' is not signed with its own elliptic curve key")
    name = _client_name(str(common.value), "--request")
    path, certificate = places.client(name), _Authority.read(places).client(name, public, DAYS)
    _write(
        path.parent,
        _public_file(path, public) | {path.with_name(f"{name}.crt"): (certificate, 0o644)},
    )
    return name


def renew(out: Path) -> list[Path]:
    """Renew the certificates of the server and all clients, for the same keys and names.

    The CA's own is renewed if it would expire before them. Returns what was written. Raises
    UserError if there is no CA with its key, or a file that cannot be read or written.
    """
    places = CertificateFolder(out)
    authority, files = _Authority.read(places), {}
    if authority.left < datetime.timedelta(days=DAYS):
        authority = _Authority.new(authority.key)
        files[places.ca] = authority.certificate.public_bytes(serialization.Encoding.PEM)
    try:
        for path in [places.certificate, *sorted((out / "clients").glob("*.crt"))]:
            old = x509.load_pem_x509_certificate(path.read_bytes())
            public = old.public_key()
            assert isinstance(public, EllipticCurvePublicKey)
            if path == places.certificate:
                known = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
                files[path] = authority.server(list(known), public, DAYS)
            else:
                files[path] = authority.client(path.stem, public, DAYS)
        for path, content in files.items():
            with replacing(path) as temporary:
                temporary.write_bytes(content)
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise UserError(f"'{out}': a certificate cannot be renewed: {error}") from error
    return list(files)


def _client_name(name: str, what: str) -> str:
    if not is_id(name) or name.endswith((".pub", ".crt", ".csr")):
        raise UserError(f"{what}: '{name}' is not allowed: up to 64 of A-Z a-z 0-9 . _ -")
    return name


def _write(folder: Path, files: Mapping[Path, tuple[bytes, int]]) -> None:
    """Create files with their modes; UserError if one is there already: then none is written."""
    for path in files:
        if path.exists() or path.is_symlink():
            raise UserError(
                f"'{path}' already exists and is not overwritten: choose another --out, or move "
                "it away"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, (content, mode) in files.items():  # no link is followed
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
    except OSError as error:
        raise UserError(f"'{folder}': cannot be written: {error.strerror or error}") from error


def advice(places: CertificateFolder, servers: Sequence[str]) -> str:
    """Return what to do with the files, as lines to print."""
    lines = []
    if servers:
        lines += [
            f"on the server:   {places.ca}, {places.certificate}, {places.key}",
            f"on every client: {places.ca}, its key (made there by `fedhet key NAME`), its .crt",
            f"put away:        {places.ca_key} (its holder can make certificates in any name)",
        ]
    elif not places.ca.exists():
        return f"only keys were made: '{places.folder}' has no CA; --server HOST makes one"
    lines += [
        f"then, on the server:  fedhet server {places.folder}",
        "on a client:          fedhet node NAME --server HOST:8443 --data FILE",
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

    @classmethod
    def new(cls, key: EllipticCurvePrivateKey | None = None) -> "_Authority":
        """Make a new one, or a new certificate of the same key; it signs itself."""
        key, name = key or generate_private_key(SECP384R1()), _subject("fedhet CA")
        certificate = (
            _unsigned(name, name, key.public_key(), _days(CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .sign(key, hashes.SHA384())
        )
        return cls(certificate, key)

    @property
    def left(self) -> datetime.timedelta:
        """How long its certificate is still valid."""
        return self.certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)

    @classmethod
    def find(cls, places: CertificateFolder) -> "_Authority | None":
        """Return the one in the folder, if its key is there."""
        return cls.read(places) if places.ca_key.exists() and places.ca.exists() else None

    @classmethod
    def read(cls, places: CertificateFolder) -> "_Authority":
        """Return the one in the folder; UserError if its key is not there, or for other files."""
        try:
            certificate = x509.load_pem_x509_certificate(places.ca.read_bytes())
            key = serialization.load_pem_private_key(places.ca_key.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise UserError(f"'{places.ca_key}': cannot be used: {error}") from error
        if not isinstance(key, EllipticCurvePrivateKey):
            raise UserError(f"'{places.ca_key}' is not an elliptic curve key")
        if key.public_key() != certificate.public_key():
            raise UserError(f"'{places.ca_key}' is not the key of '{places.ca}'")
        return cls(certificate, key)

    def client(
        self, name: str, key: EllipticCurvePrivateKey | EllipticCurvePublicKey, days: int
    ) -> bytes:
        """Certify that this key is that client's; return PEM."""
        public = key.public_key() if isinstance(key, EllipticCurvePrivateKey) else key
        certificate = (
            self._issued(name, public, days)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self.key, hashes.SHA384())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def server(
        self, names: Sequence[x509.GeneralName], public: EllipticCurvePublicKey, days: int
    ) -> bytes:
        """Certify that this key is the server's under these names; return PEM."""
        certificate = (
            self._issued("fedhet server", public, days)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA384())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _issued(
        self, name: str, public: EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        until = min(_days(days), self.certificate.not_valid_after_utc)  # not longer than its CA
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            _unsigned(_subject(name), self.certificate.subject, public, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=False), critical=True)
            .add_extension(own, critical=False)
        )


def _key_files(path: Path, key: EllipticCurvePrivateKey) -> dict[Path, tuple[bytes, int]]:
    """Private and public key of a client, in the format of ``ssh-keygen -t ecdsa -b 384``."""
    private = _private(key, serialization.PrivateFormat.OpenSSH)
    return {path: (private, 0o600)} | _public_file(path, key.public_key())


def _public_file(path: Path, key: EllipticCurvePublicKey) -> dict[Path, tuple[bytes, int]]:
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    text = key.public_bytes(*form) + f" {path.name}\n".encode()
    return {path.with_name(f"{path.name}.pub"): (text, 0o644)}


def _server_files(
    places: CertificateFolder, names: Sequence[x509.GeneralName], authority: _Authority, days: int
) -> Mapping[Path, tuple[bytes, int]]:
    key, form = generate_private_key(SECP384R1()), serialization.PrivateFormat.PKCS8
    ca = authority.certificate.public_bytes(serialization.Encoding.PEM)
    return {
        places.ca: (ca, 0o644),
        places.ca_key: (_private(authority.key, form), 0o600),
        places.certificate: (authority.server(names, key.public_key(), days), 0o644),
        places.key: (_private(key, form), 0o600),
    }


def _unsigned(
    subject: x509.Name, issuer: x509.Name, public: EllipticCurvePublicKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_days(0) - _SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _days(days: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


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
