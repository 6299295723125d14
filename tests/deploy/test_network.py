"""A node's way to its server: proxies, certificates, addresses, and what is said of them."""

import contextlib
import re
import shutil
import socket
from functools import partial

import httpx
import pytest
from helpers.programs import ConnectProxy

from fedhet.cli.app import execute
from fedhet.cli.deploy import _address
from fedhet.deploy import certs
from fedhet.deploy.network import address, knows, reach, via
from fedhet.engines.system import direct, free_ports
from fedhet.errors import RunFailed, UserError
from fedhet.protocol.flower import Control

ELSEWHERE = "127.0.0.2"  # loopback, too, but not this machine's name for itself


@pytest.fixture
def tls(tmp_path, monkeypatch):
    """Certificates for `ELSEWHERE`, where nobody has set a proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return certs.make(tmp_path / "tls", [ELSEWHERE], ["a"])


@pytest.fixture
def proxy(monkeypatch):
    """A proxy that lets nobody but `ELSEWHERE` through."""
    made = ConnectProxy()
    made.allow(ELSEWHERE)
    monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{made.port}")
    yield made
    made.stop()


def test_a_server_elsewhere_is_reached_through_the_proxy_and_this_machine_without(
    tls, serve, proxy, monkeypatch
):
    there, here = serve(tls, ELSEWHERE).where, serve(tls).where
    assert reach(there, tls.ca).status_code == 404
    assert f"CONNECT {there}" in proxy.log()
    assert via(there) == f" through the proxy 127.0.0.1:{proxy.port} of https_proxy"
    for name, value in direct().items():
        monkeypatch.setenv(name, value)
    assert via(here) == "" and via(there)
    assert reach(here, tls.ca).status_code == 404 and here not in proxy.log()


def test_a_proxy_that_refuses_or_is_not_there_is_named_with_its_variable(tls, proxy, monkeypatch):
    with pytest.raises(UserError) as refused:
        reach("127.0.0.3:8443", tls.ca)
    assert "through the proxy" in str(refused.value) and "403" in str(refused.value)
    assert "of https_proxy" in str(refused.value) and "secret" not in str(refused.value)
    (other,) = free_ports(1)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{other}")
    with pytest.raises(UserError, match=f"through the proxy 127.0.0.1:{other} of https_proxy: .*"):
        reach(f"{ELSEWHERE}:1", tls.ca)


@pytest.mark.parametrize("variable", ["https_proxy", "ALL_PROXY", "http_proxy"])
@pytest.mark.parametrize(
    "password", ["17#7", "17/7", "17?7", "17@7", "17#7@x", "1 7", "17#7:70000"]
)
def test_a_password_that_is_not_escaped_is_neither_shown_nor_looked_up(
    tls, monkeypatch, variable, password
):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name is looked up"))
    monkeypatch.setenv(variable, f"http://secret:{password}@127.0.0.1:9")
    for ask in (reach, partial(knows, path=tls.client("a"))):
        with pytest.raises(UserError, match=f"^{variable}: is no URL of a proxy: .*%23") as refused:
            ask(f"{ELSEWHERE}:1", tls.ca)
        assert not re.search(r"secret|17|127", str(refused.value))


def test_what_is_wrong_with_a_certificate_is_said(tls, serve, tmp_path, capsys):
    other = certs.make(tmp_path / "other", [ELSEWHERE], [])
    with pytest.raises(UserError, match=rf"refused: .*: it must be from the CA in '{other.ca}'"):
        reach(serve(tls, ELSEWHERE).where, other.ca)
    with pytest.raises(UserError, match=r"refused: IP address mismatch, .*127\.0\.0\.3"):
        reach(serve(tls, "127.0.0.3").where, tls.ca)
    old = certs.make(tmp_path / "old", [ELSEWHERE], [], days=0)
    with pytest.raises(UserError, match=r"refused: certificate has expired: .*renew it"):
        reach(serve(old, ELSEWHERE).where, old.ca)
    assert execute(["server", str(old.folder), "--host", "127.0.0.1"]) == 2  # at once
    said = capsys.readouterr().err
    assert f"'{old.certificate}' expired on 20" in said and "fedhet certs" in said
    with pytest.raises(UserError, match="cannot be reached: .*refused"):
        reach(f"{ELSEWHERE}:{free_ports(1)[0]}", tls.ca)


def test_plain_text_and_missing_certificates_are_told_in_one_line(tls, serve, tmp_path, capsys):
    """No command falls back to plain text, and a TLS server answers nothing that comes in it."""
    there = serve(tls, ELSEWHERE).where
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{there}/v1/fleet/check", trust_env=False, timeout=60)
    plain = serve(None, ELSEWHERE).where
    with pytest.raises(UserError, match=f"{plain} cannot be reached: it answers without TLS, so"):
        reach(plain, tls.ca)
    key = shutil.copy(tls.client("a"), tmp_path / "a")
    for more in ([], ["--check"]):
        assert execute(["node", str(key), "--server", there, "--partition", "0/1", *more]) == 2
        assert f"--ca: ca.crt is not in '{tmp_path}" in capsys.readouterr().err


def test_an_ipv6_address_is_written_in_brackets():
    assert address("::1", 8443) == "[::1]:8443" and address("h", 1) == "h:1"
    assert _address("::1") == "[::1]:8443" == _address("[::1]") == _address("[::1]:8443")
    assert _address("h") == "h:8443" and _address("h:9") == "h:9"
    with pytest.raises(UserError):
        _address("[::1]:x")


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [(200, b"", None), (409, b'{"code": 23}', None), (404, b"", UserError), (500, b"", RunFailed)],
)
def test_calls_of_the_control_api_say_whose_fault_it_is(tls, serve, status, body, error):
    server = serve(tls, status=status, body=body)
    with contextlib.closing(Control(server.where, tls.ca.read_bytes())) as control:
        if error is not None:
            with pytest.raises(error):
                control.register("a", b"key")
            return
        assert control.register("a", b"key") == (status == 200)
        if status == 200:
            assert control.nodes() == control.runs() == control.runs(run_id=1) == []
            control.stop(1)
            with pytest.raises(UserError, match="no run id"):
                control.start("{}")
