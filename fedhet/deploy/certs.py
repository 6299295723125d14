"""Certificates and keys of a deployment: one CA, one server certificate, one key pair per client.

A client makes its key where it stays, and sends a request, which the holder of the CA signs. By
the name in its certificate clients know each other (``secure-sum``): the CA's key must not be with
the server. The SuperLink starts a process that reaches it as ``localhost``, so its certificate
names that as well. A client's key is an elliptic curve key in OpenSSH's format, as Flower wants it.
"""

import contextlib
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhet.errors import UserError
from fedhet.files import is_id, replacing

LOOPBACK = ("localhost", "127.0.0.1")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
CA_DAYS, DAYS = 3650, 825
_SKEW = timedelta(hours=1)  # a machine whose clock is behind accepts them, too
SOON = timedelta(days=30)  # before the end of a certificate
RENEW = "renew it with `fedhet certs --renew` where ca.key is"
T = TypeVar("T")
Hosts = Sequence[x509.GeneralName]
Private = ec.EllipticCurvePrivateKey
Public = ec.EllipticCurvePublicKey
_new_key = partial(ec.generate_private_key, ec.SECP384R1())


class CertificateFolder:
    """Where things are below ``folder``; the public key of a client lies beside its key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"  # for every machine
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.ca_key = folder / "ca.key"  # its holder can make certificates in any name

    def client(self, name: str) -> Path:
        """Private key of a client: for that client only; its certificate is beside it."""
        return self.folder / "clients" / name


def make(
    out: Path, servers: Sequence[str], clients: Sequence[str], days: int = DAYS
) -> CertificateFolder:
    """Write a CA, a server certificate and the clients' keys and certificates below ``out``.

    ``servers`` are the server's names and addresses. Without any, the CA in ``out`` signs. Private
    keys have mode 600 from the moment they exist. Raises UserError for a name that is not allowed,
    a file that is there already (nothing is written then), OSError if they cannot be written.
    """
    places, files = CertificateFolder(out), dict[Path, bytes]()
    authority = _Authority.new() if servers else _Authority.read(places)
    if servers:
        names, key = _names(servers), _new_key()
        files[places.ca] = authority.certificate.public_bytes(Encoding.PEM)
        files[places.ca_key] = _private(authority.key, PrivateFormat.PKCS8)
        files[places.certificate] = authority.issue("fedhet server", key.public_key(), days, names)
        files[places.key] = _private(key, PrivateFormat.PKCS8)
    for client in clients:
        key, path = _new_key(), places.client(_client(client, "--client"))
        files[path] = _private(key, PrivateFormat.OpenSSH)
        files[_beside(path, ".pub")] = _public(client, key.public_key())
        files[_beside(path, ".crt")] = authority.issue(client, key.public_key(), days)
    _write(out / "clients", files)
    return places


def make_key(folder: Path, name: str) -> Path:
    """Write a client's key pair, and a request for its certificate; UserError as in :func:`make`.

    Only the request leaves the site. Returns its path.
    """
    key, path = _new_key(), folder / _client(name, "NAME")
    asked = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    pem = asked.sign(key, SHA384()).public_bytes(Encoding.PEM)
    private, public = _private(key, PrivateFormat.OpenSSH), _public(name, key.public_key())
    request = _beside(path, ".csr")
    _write(folder, {path: private, _beside(path, ".pub"): public, request: pem})
    return request


def sign(out: Path, request: Path) -> str:
    """Write the certificate and the public key that a request asks for; return the client's name.

    Raises UserError for a file that is no such request, and as :func:`make` does.
    """
    places = CertificateFolder(out)
    try:
        asked = x509.load_pem_x509_csr(request.read_bytes())
        (common,) = asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        public, valid = asked.public_key(), asked.is_signature_valid
    except (OSError, ValueError) as error:
        raise UserError(f"--request: '{request}' is no request of `fedhet key`: {error}") from error
    if not valid or not isinstance(public, Public):
        raise UserError(f"--request: '{request}' is not signed with its own elliptic curve key")
    name = _client(str(common.value), "--request")
    path, certificate = places.client(name), _Authority.read(places).issue(name, public, DAYS)
    signed = {_beside(path, ".crt"): certificate, _beside(path, ".pub"): _public(name, public)}
    _write(path.parent, signed)
    return name


def renew(out: Path) -> list[Path]:
    """Renew the certificates of server and clients for the same keys; return what was written.

    The CA's own is renewed if it would expire before them. Raises UserError if there is no CA with
    its key, or a file that cannot be read or written.
    """
    places = CertificateFolder(out)
    authority, files = _Authority.read(places), {}
    if authority.certificate.not_valid_after_utc < _after(DAYS):
        authority = _Authority.new(authority.key)
        files[places.ca] = authority.certificate.public_bytes(Encoding.PEM)
    try:
        for path in [places.certificate, *sorted((out / "clients").glob("*.crt"))]:
            old, names, name = x509.load_pem_x509_certificate(path.read_bytes()), [], path.stem
            if path == places.certificate:
                known = old.extensions.get_extension_for_class(x509.SubjectAlternativeName)
                names, name = list(known.value), "fedhet server"
            public = old.public_key()
            assert isinstance(public, Public)
            files[path] = authority.issue(name, public, DAYS, names)
        for path, content in files.items():
            with replacing(path) as temporary:
                temporary.write_bytes(content)
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise UserError(f"'{out}': a certificate cannot be renewed: {error}") from error
    return list(files)


def _client(name: str, what: str) -> str:
    if not is_id(name) or name.endswith((".pub", ".crt", ".csr")):
        raise UserError(f"{what}: '{name}' is not allowed: up to 64 of A-Z a-z 0-9 . _ -")
    return name


def _names(servers: Sequence[str]) -> list[x509.GeneralName]:
    """Subject alternative names; UserError for one that is neither a host name nor an address."""
    names: list[x509.GeneralName] = []
    for server in dict.fromkeys([*servers, *LOOPBACK]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(server)))
        except ValueError:
            if not _HOST.fullmatch(server) or re.fullmatch(r"[0-9.]+", server):
                text = "is neither a host name nor an IP address (no scheme, no port)"
                raise UserError(f"--server: '{server}' {text}") from None
            names.append(x509.DNSName(server))
    return names


def _write(folder: Path, files: Mapping[Path, bytes]) -> None:
    """Create files, private keys with mode 600; UserError if one is there: none is written then."""
    for path in files:
        if path.exists() or path.is_symlink():
            text = "already exists and is not overwritten: choose another --out, or move it away"
            raise UserError(f"'{path}' {text}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, content in files.items():  # no link is followed
        mode = 0o600 if b"PRIVATE KEY" in content else 0o644
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)


class _Authority(NamedTuple):
    """A CA that can sign."""

    certificate: x509.Certificate
    key: Private

    @classmethod
    def new(cls, key: Private | None = None) -> "_Authority":
        """Make a new one, or a new certificate of the same key; it signs itself."""
        key = key or _new_key()
        return cls(_signed("fedhet CA", key.public_key(), CA_DAYS, key), key)

    @classmethod
    def read(cls, places: CertificateFolder) -> "_Authority":
        """Return the one in the folder; UserError if its key is not there, or for other files."""
        certificate = read_certificate(places.ca)
        load = partial(serialization.load_pem_private_key, password=None)
        key = _loaded(places.ca_key, load, "a private key")
        if not isinstance(key, Private) or key.public_key() != certificate.public_key():
            raise UserError(f"'{places.ca_key}' is not the key of '{places.ca}'")
        return cls(certificate, key)

    def issue(self, name: str, public: Public, days: int, hosts: Hosts = ()) -> bytes:
        """Certify a server with these hosts, or without any a client; return PEM."""
        made = _signed(name, public, days, self.key, self.certificate, hosts)
        return made.public_bytes(Encoding.PEM)


def _signed(
    name: str, public: Public, days: int, key: Private,
    ca: x509.Certificate | None = None, hosts: Hosts = (),
) -> x509.Certificate:  # fmt: skip
    """Return a certificate of ``ca``'s, for handshakes, or a new CA's own, which only signs."""
    subject, root, until = _subject(name), ca is None, _after(days)
    usage = x509.KeyUsage(
        digital_signature=not root, key_cert_sign=root, crl_sign=root, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    more: list[x509.ExtensionType] = [x509.SubjectKeyIdentifier.from_public_key(public)]
    if ca is not None:
        until = min(until, ca.not_valid_after_utc)  # not longer than its CA
        use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        more.append(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()))
        more.append(x509.ExtendedKeyUsage([use]))
    if hosts:
        more.append(x509.SubjectAlternativeName(hosts))
    issuer, serial = ca.subject if ca else subject, x509.random_serial_number()
    unsigned = (
        x509.CertificateBuilder(issuer, subject, public, serial)
        .not_valid_before(_after(0) - _SKEW)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(root, path_length=0 if root else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in more:
        unsigned = unsigned.add_extension(extension, critical=False)
    return unsigned.sign(key, SHA384())


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _private(key: Private, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, serialization.NoEncryption())


def _public(name: str, key: Public) -> bytes:
    """Return a public key in the format of ``ssh-keygen -t ecdsa -b 384``."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()


def _after(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _loaded(path: Path, load: Callable[[bytes], T], what: str) -> T:
    """Return what a file holds; raise UserError if that is not ``what``."""
    try:
        return load(path.read_bytes())
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise UserError(f"'{path}' is not {what}: {error}") from error


def read_key(path: Path) -> Private:
    """Return a client's private key; UserError if the file holds none."""
    load = partial(serialization.load_ssh_private_key, password=None)
    key = _loaded(path, load, "a private key of `fedhet`")
    if not isinstance(key, Private):
        raise UserError(f"'{path}' is not an elliptic curve key, which `fedhet certs` makes")
    return key


def read_public(path: Path) -> bytes:
    """Return a client's public key as PEM; UserError if the file holds none."""
    public = _loaded(path, serialization.load_ssh_public_key, "a public key")
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_certificate(path: Path) -> x509.Certificate:
    """Return a certificate (PEM); UserError if the file holds none."""
    return _loaded(path, x509.load_pem_x509_certificate, "a certificate")


def validity(certificate: x509.Certificate) -> str:
    """Say that a certificate has expired or is not valid yet, with the date; else nothing."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end < datetime.now(UTC):
        return f"expired on {end:%Y-%m-%d %H:%M} UTC"
    clock = f"is valid from {begin:%Y-%m-%d %H:%M} UTC on only: is this machine's clock right?"
    return clock if begin > datetime.now(UTC) else ""


def warning(certificate: x509.Certificate) -> str:
    """Say that a certificate expires within 30 days, or has expired; else nothing."""
    until = certificate.not_valid_after_utc
    if until - datetime.now(UTC) > SOON:
        return ""
    return validity(certificate) or f"expires on {until:%Y-%m-%d %H:%M} UTC"


class Certificates:
    """Certificates that a running command uses: says when one is renewed or is about to expire."""

    def __init__(self, paths: Iterable[Path], say: Callable[[str], None]) -> None:
        self.say = say
        self._known: dict[Path, tuple[x509.Certificate | None, str]]
        self._known = dict.fromkeys(paths, (None, ""))
        self.look()

    def look(self) -> list[Path]:
        """Return those that were replaced since the last look; print a line for each."""
        renewed = []
        for path, (before, warned) in self._known.items():
            with contextlib.suppress(UserError):  # not whole yet
                certificate = read_certificate(path)
                self._known[path] = certificate, (text := warning(certificate))
                if before not in (None, certificate):
                    renewed.append(path)
                    until = f"valid until {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
                    self.say(f"'{path}' was renewed: it is {until}")
                if text not in ("", warned):
                    self.say(f"'{path}' {text}: {RENEW}")
        return renewed
