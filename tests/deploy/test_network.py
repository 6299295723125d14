"""A node's way to its server: proxies, certificates, addresses, and what is said of them."""

import http.server
import ssl
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedhet.cli.app import execute
from fedhet.cli.deploy_commands import _address
from fedhet.deploy import certs, network
from fedhet.deploy.network import Waiting, address, reach, via
from fedhet.engines.system import direct, free_ports
from fedhet.errors import UserError

ELSEWHERE = "127.0.0.2"  # loopback, too, but not this machine's name for itself
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers everything with 404."""

    def do_POST(self):
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Certificates for `ELSEWHERE`, and ``serve``: a server there, or elsewhere."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    tls = certs.make(tmp_path / "tls", [ELSEWHERE], ["a"])
    servers = []

    def serve(host=ELSEWHERE):
        server = http.server.ThreadingHTTPServer((host, 0), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"{host}:{server.server_port}"

    yield SimpleNamespace(tls=tls, ca=tls.ca, serve=serve)
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    """A tinyproxy that lets nobody but ``allow`` through; its address."""
    (port,) = free_ports(1)
    config, log, hosts = tmp_path / "tinyproxy.conf", tmp_path / "tinyproxy.log", tmp_path / "hosts"
    config.write_text(
        f'Port {port}\nListen 127.0.0.1\nLogFile "{log}"\nFilter "{hosts}"\nFilterDefaultDeny Yes\n'
    )
    hosts.write_text("^127\\.0\\.0\\.2$\n")
    process = subprocess.Popen(["tinyproxy", "-d", "-c", str(config)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (log.exists() and "listen" in log.read_text().lower()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{port}")
    yield SimpleNamespace(port=port, log=log, hosts=hosts)
    process.terminate()
    process.wait()


def test_a_server_elsewhere_is_reached_through_the_proxy_and_this_machine_without(
    site, proxy, monkeypatch
):
    server, here = site.serve(), site.serve("127.0.0.1")
    assert reach(server, site.ca).status_code == 404
    assert f"CONNECT {server}" in proxy.log.read_text()
    assert via(server) == f" through the proxy 127.0.0.1:{proxy.port} of https_proxy"
    for name, value in direct().items():
        monkeypatch.setenv(name, value)
    assert via(here) == "" and via(server)
    assert reach(here, site.ca).status_code == 404
    assert here not in proxy.log.read_text()


def test_a_proxy_that_refuses_or_is_not_there_is_named_with_its_variable(site, proxy, monkeypatch):
    port = proxy.port
    with pytest.raises(UserError) as refused:
        reach("127.0.0.3:8443", site.ca)
    assert "through the proxy" in str(refused.value) and "403" in str(refused.value)
    assert "of https_proxy" in str(refused.value) and "secret" not in str(refused.value)
    (other,) = free_ports(1)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{other}")
    with pytest.raises(UserError, match=f"through the proxy 127.0.0.1:{other} of https_proxy: .*"):
        reach(f"{ELSEWHERE}:{port}", site.ca)


def renewed(tls, name, days):
    """Give the server another certificate of its CA."""
    key = load_pem_private_key(tls.key.read_bytes(), None).public_key()
    authority = certs._Authority.read(tls, days)
    tls.certificate.write_bytes(authority.server(certs._names([name]), key))


def test_what_is_wrong_with_a_certificate_is_said(site, tmp_path):
    other = certs.make(tmp_path / "other", [ELSEWHERE], [])
    with pytest.raises(UserError, match="is not from the CA in"):
        reach(site.serve(), other.ca)
    with pytest.raises(UserError, match=r"certificate is for .*127.0.0.2.*, not for 127.0.0.3"):
        reach(site.serve("127.0.0.3"), site.ca)
    renewed(site.tls, ELSEWHERE, 0)
    with pytest.raises(UserError, match=r"server's certificate expired on 20\d\d-\d\d-\d\d"):
        reach(site.serve(), site.ca)
    gone = certs.make(tmp_path / "gone", [ELSEWHERE], [], days=0)
    with pytest.raises(UserError, match=r"CA's certificate '.*gone/ca.crt' expired on 20\d\d"):
        reach(site.serve(), gone.ca)
    (port,) = free_ports(1)
    with pytest.raises(UserError, match="cannot be reached: .*refused"):
        reach(f"{ELSEWHERE}:{port}", site.ca)


def test_a_server_with_an_expired_certificate_ends_at_once(site, capsys):
    renewed(site.tls, ELSEWHERE, 0)
    assert execute(["server", str(site.tls.folder), "--host", "127.0.0.1"]) == 2
    said = capsys.readouterr().err
    assert f"'{site.tls.certificate}' expired on 20" in said and "fedhet certs" in said


def test_an_ipv6_address_is_written_in_brackets():
    assert address("::1", 8443) == "[::1]:8443" and address("h", 1) == "h:1"
    assert _address("::1") == "[::1]:8443" == _address("[::1]") == _address("[::1]:8443")
    assert _address("h") == "h:8443" and _address("h:9") == "h:9"
    with pytest.raises(UserError):
        _address("[::1]:x")


def test_a_wait_is_told_after_ten_seconds_and_when_its_reason_changes(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr(network.time, "monotonic", lambda: now[0])
    waiting = Waiting("h:1", said.append)
    for moment, reason in ((0, "a"), (9, "a"), (11, "a"), (12, "a"), (13, "b")):
        now[0] = moment
        waiting.failed(reason)
    first, second = said
    assert first.startswith("waiting for h:1 since ") and first.endswith(": a")
    assert second.endswith(": b")
    waiting.over()
    waiting.failed("c")
    assert len(said) == 2
