"""Certificates and keys: the right names, the right modes, nothing overwritten."""

import datetime
import os
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedhet.cli.app import execute
from fedhet.deploy import certs
from fedhet.deploy.certs import Certificates, make, renew
from fedhet.errors import UserError
from fedhet.site.state import FileStore
from fedhet.sums.client import Member, NodeCertificate, cannot_prove
from fedhet.sums.masks import SumTerms, check_proof


def read(path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_client_has_a_key_as_ssh_keygen_writes_it_and_a_certificate_under_its_name(tmp_path):
    """flower-supernode wants an elliptic curve key in OpenSSH's format."""
    old = os.umask(0)  # a careless umask must not open a private key
    try:
        places = make(tmp_path / "tls", ["fl.example.org"], ["a"])
        make(tmp_path / "tls", [], ["later"])  # ca.key is still there
    finally:
        os.umask(old)
    for path in (places.key, places.ca_key, places.client("a"), places.client("later")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "tls" / "clients").stat().st_mode) == 0o700
    for name in ("a", "later"):
        key = load_ssh_private_key(places.client(name).read_bytes(), password=None)
        public = places.client(name).with_name(f"{name}.pub").read_bytes()
        assert public.startswith(b"ecdsa-sha2-nistp384 ") and public.endswith(f" {name}\n".encode())
        assert load_ssh_public_key(public) == key.public_key() and key.curve.name == "secp384r1"
        found = read(places.client(name).with_name(f"{name}.crt"))
        found.verify_directly_issued_by(read(places.ca))
        assert found.subject.rfc4514_string() == f"CN={name}"
        assert found.public_key() == key.public_key()
    places.ca_key.unlink()  # put away, as it should be
    with pytest.raises(UserError, match=r"ca\.key"):
        make(tmp_path / "tls", [], ["last"])
    assert not places.client("last").exists()


def test_the_server_certificate_names_the_server_and_loopback(tmp_path):
    places = make(tmp_path, ["fl.example.org", "10.1.2.3", "fe80::1", "superlink"], [])
    certificate = read(places.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "superlink", "localhost"]
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    assert list(addresses) == ["10.1.2.3", "fe80::1", "127.0.0.1"]


def test_nothing_is_overwritten_and_nothing_half_made(tmp_path):
    places = make(tmp_path, ["fl.example.org"], ["a"])
    other = make(tmp_path / "other", ["fl.example.org"], [])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for servers, clients in ((["x"], ["b"]), ([], ["c", "a"])):
        with pytest.raises(UserError, match="already exists"):
            make(tmp_path, servers, clients)
    with pytest.raises(NotADirectoryError):
        make(places.ca / "tls", ["x"], ["a"])
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    places.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(UserError, match=r"ca\.key' is not the key of"):
        make(tmp_path, [], ["b"])
    assert not places.client("b").exists()


@pytest.mark.parametrize(
    ("option", "name"),
    [*(("server", n) for n in ("https://x", "x:8000", "a b", "", "-x", "300.1.1.1", "*")),
     *(("client", n) for n in ("..", "a/b", "", "x" * 65, "a.pub", "ä"))],
)  # fmt: skip
def test_a_wrong_name_is_one_line(tmp_path, option, name):
    servers, clients = ([name], ["a"]) if option == "server" else (["x"], [name])
    with pytest.raises(UserError, match=rf"^--{option}: ") as error:
        make(tmp_path / "new", servers, clients)
    assert not (tmp_path / "new").exists() and "\n" not in str(error.value)


def test_a_key_is_made_at_the_site_and_only_a_request_leaves(tmp_path, capsys):
    tls, site = make(tmp_path / "tls", ["fl.example.org"], []), tmp_path / "site"
    assert execute(["key", "hospital-a", "--out", str(site)]) == 0
    request, key = site / "hospital-a.csr", site / "hospital-a"
    assert key.stat().st_mode & 0o777 == 0o600 and b"PRIVATE" not in request.read_bytes()
    words = ["certs", "--out", str(tls.folder), "--request", str(request)]
    assert execute(words) == 0 and execute(words) == 2  # nothing is overwritten
    assert sorted(p.name for p in (tls.folder / "clients").iterdir()) == [
        "hospital-a.crt", "hospital-a.pub"
    ]  # fmt: skip
    signed = tls.client("hospital-a")
    assert signed.with_suffix(".pub").read_bytes() == key.with_suffix(".pub").read_bytes()
    key.with_suffix(".crt").write_bytes(signed.with_suffix(".crt").read_bytes())
    node = {"key": key, "certificate": key.with_suffix(".crt"), "ca": tls.ca, "name": "hospital-a"}
    assert cannot_prove(node) == ""
    assert "another name" in cannot_prove(node | {"name": "hospital-b"})
    other = make(tmp_path / "other", ["fl.example.org"], [])
    assert "not from our CA" in cannot_prove(node | {"ca": other.ca})
    assert "no certificate" in cannot_prove({"name": "hospital-a"})
    request.write_bytes(request.read_bytes().replace(b"M", b"N", 3))
    capsys.readouterr()
    assert execute(words) == 2 and "--request: '" in capsys.readouterr().err


def test_certificates_are_renewed_under_the_same_ca_and_for_the_same_keys(tmp_path, monkeypatch):
    tls = make(tmp_path, ["fl.example.org"], ["a"], days=10)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = []
    paths = [tls.certificate, tls.folder / "clients" / "a.crt"]
    watched = Certificates([*paths, tls.ca], said.append)
    assert watched.look() == [] and len(said) == 2  # both end within 30 days
    assert all("expires on 20" in line and "--renew" in line for line in said)
    note = Member(FileStore(tmp_path / "state" / "a", sync=False), "run", "a", SumTerms())
    node = {"key": tls.client("a"), "certificate": paths[1], "ca": tls.ca, "name": "a"}
    old = note.key(NodeCertificate.of(node))
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=824)
    assert renew(tmp_path) == paths and read(paths[0]).not_valid_after_utc > until
    assert watched.look() == paths and "was renewed: it is valid until" in said[-1]
    changed = {path for path, content in before.items() if path.read_bytes() != content}
    assert changed == set(paths)  # no key, and not the CA
    new = note.key(NodeCertificate.of(node))  # of a run that began before: proved anew
    assert new.public == old.public and new.certificate != old.certificate
    check_proof(new, read(tls.ca), "run", "a")
    other = Member(FileStore(tmp_path / "state" / "b", sync=False), "run", "b", SumTerms())
    other.key(None)
    ca = read(tls.ca)
    assert other.introduce({"a": old}, ca) == other.introduce({"a": new}, ca) == []
    assert other.keys["a"] == new

    monkeypatch.setattr(certs, "DAYS", 4000)  # longer than the CA's
    assert tls.ca in renew(tmp_path)
    checked = read(paths[1])
    for pem in (before[tls.ca], tls.ca.read_bytes()):  # a site with the old ca.crt goes on
        checked.verify_directly_issued_by(x509.load_pem_x509_certificate(pem))
    tls.ca_key.unlink()
    with pytest.raises(UserError, match=r"ca\.key"):
        renew(tmp_path)
