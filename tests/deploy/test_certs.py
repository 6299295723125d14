"""Certificates and keys: the right names, the right modes, nothing overwritten."""

import os
import socket
import ssl
import stat
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedhet.deploy.certs import advice, make
from fedhet.errors import UserError


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_keys_are_private_from_the_start(tmp_path):
    old = os.umask(0)  # a careless umask must not open a private key
    try:
        places = make(tmp_path / "tls", ["fl.example.org"], ["a", "hospital-b"])
    finally:
        os.umask(old)
    for path in (places.key, places.ca_key, places.client("a"), places.client("hospital-b")):
        assert mode(path) == 0o600
    assert mode(tmp_path / "tls" / "clients") == 0o700


def test_client_keys_are_what_ssh_keygen_writes(tmp_path):
    """flower-supernode wants an elliptic curve key in OpenSSH's format."""
    places = make(tmp_path, ["fl.example.org"], ["a", "b"])
    text = places.client("a").read_bytes()
    assert text.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    key = load_ssh_private_key(text, password=None)
    public = places.client("a").with_name("a.pub").read_bytes()
    assert public.startswith(b"ecdsa-sha2-nistp384 ") and public.endswith(b" a\n")
    assert load_ssh_public_key(public) == key.public_key()
    assert key.curve.name == "secp384r1"
    assert places.client("a").read_bytes() != places.client("b").read_bytes()


def test_the_server_certificate_names_the_server_and_loopback(tmp_path):
    places = make(tmp_path, ["fl.example.org", "10.1.2.3", "fe80::1", "superlink"], [])
    certificate = x509.load_pem_x509_certificate(places.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "superlink", "localhost"]
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    assert list(addresses) == ["10.1.2.3", "fe80::1", "127.0.0.1"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(places.ca.read_bytes()))


@pytest.mark.parametrize(("name", "trusted"), [("fl.example.org", True), ("evil.org", False)])
def test_openssl_accepts_the_certificate_for_its_names_only(tmp_path, name, trusted):
    places = make(tmp_path, ["fl.example.org"], [])
    assert handshake(places.ca, places, name) is trusted
    stranger = make(tmp_path / "other", ["fl.example.org"], [])
    assert not handshake(stranger.ca, places, name)


def handshake(ca, places, name) -> bool:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(places.certificate, places.key)
    ours, theirs = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    context = ssl.create_default_context(cafile=str(ca))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    try:
        context.wrap_socket(ours, server_hostname=name).close()
        return True
    except ssl.SSLCertVerificationError:
        return False
    finally:
        ours.close()
        thread.join()


def test_nothing_is_overwritten_and_nothing_half_made(tmp_path):
    places = make(tmp_path, ["fl.example.org"], ["a"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for servers, clients in ((["x"], ["b"]), ([], ["c", "a"])):
        with pytest.raises(UserError, match="already exists") as error:
            make(tmp_path, servers, clients)
        assert "\n" not in str(error.value)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert before == after
    make(tmp_path, [], ["b"])  # a client that joins later
    assert places.client("b").exists() and places.ca.read_bytes() == before[places.ca]


@pytest.mark.parametrize("server", ["https://x", "x:8000", "a b", "", "-x", "300.1.1.1", "*"])
def test_a_wrong_server_name_is_one_line(tmp_path, server):
    with pytest.raises(UserError, match=r"^--server: .* host name"):
        make(tmp_path / "new", [server], ["a"])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("client", ["..", "a/b", "", "x" * 65, "a.pub", "ä"])
def test_a_wrong_client_id_is_one_line(tmp_path, client):
    with pytest.raises(UserError, match="^--client: "):
        make(tmp_path / "new", ["x"], [client])
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        make(tmp_path / "file" / "tls", ["x"], ["a"])


def test_the_advice_names_every_client(tmp_path):
    places = make(tmp_path, ["x"], ["a", "b"])
    assert f"fedhet server {places.folder}" in advice(places, ["x"])


def test_a_client_has_a_certificate_of_its_key_under_its_name(tmp_path):
    places = make(tmp_path, ["fl.example.org"], ["a"])
    make(tmp_path, [], ["later"])  # ca.key is still there
    ca = x509.load_pem_x509_certificate(places.ca.read_bytes())
    for name in ("a", "later"):
        found = x509.load_pem_x509_certificate((tmp_path / "clients" / f"{name}.crt").read_bytes())
        found.verify_directly_issued_by(ca)
        assert found.subject.rfc4514_string() == f"CN={name}"
        key = load_ssh_private_key(places.client(name).read_bytes(), password=None)
        assert found.public_key() == key.public_key()
    places.ca_key.unlink()  # put away, as it should be
    make(tmp_path, [], ["last"])
    assert not (tmp_path / "clients" / "last.crt").exists()


def test_a_strange_ca_key_signs_nothing(tmp_path):
    places = make(tmp_path, ["fl.example.org"], [])
    other = make(tmp_path / "other", ["fl.example.org"], [])
    places.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(UserError, match=r"ca\.key' is not the key of"):
        make(tmp_path, [], ["a"])
    assert not places.client("a").exists()
