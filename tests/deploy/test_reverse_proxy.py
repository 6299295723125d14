"""The reverse proxy of `fedhet server`: the Fleet API passes as it is, nothing else does."""

import asyncio
import http.server
import ssl
import threading

import httpx
import pytest

from fedhet.deploy.certs import make
from fedhet.deploy.server import LARGEST, ReverseProxy, application
from fedhet.engines.system import free_ports


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it was sent, and says who asked."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-path", self.path)
        self.send_header("x-signature", self.headers.get("signature", ""))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    tls = make(tmp_path_factory.mktemp("proxy") / "tls", ["127.0.0.1"], [])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield ReverseProxy("127.0.0.1", 1, server.server_port, tls)
    server.shutdown()


def ask(proxy, path, **more):
    async def one():
        transport = httpx.ASGITransport(application(proxy))
        async with httpx.AsyncClient(transport=transport, base_url="https://proxy") as client:
            return await client.request(more.pop("method", "POST"), path, **more)

    return asyncio.run(one())


def test_a_clients_request_passes_as_it_is(proxy):
    body = bytes(range(256)) * 4096
    answer = ask(proxy, "/v1/fleet/pull-messages", content=body, headers={"signature": "s"})
    assert answer.status_code == 200 and answer.content == body
    assert answer.headers["x-path"] == "/v1/fleet/pull-messages"
    assert answer.headers["x-signature"] == "s"


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/runtime/acquire-task", "/health", "/", "/docs",
     "/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/..%2fcontrol%2flist-runs",
     "/v1/fleet//v1/control/list-runs", "/v1/fleet/", "/V1/FLEET/pull-messages"],
)  # fmt: skip
def test_nothing_else_passes(proxy, path):
    assert ask(proxy, path).status_code == 403


def test_neither_other_verbs_nor_too_much(proxy):
    assert ask(proxy, "/v1/fleet/pull-messages", method="GET").status_code == 403
    assert ask(proxy, "/v1/fleet/push-object", content=b"x" * (LARGEST + 1)).status_code == 413

    async def endless():
        for _ in range(3):
            yield b"x"

    assert ask(proxy, "/v1/fleet/push-object", content=endless()).status_code == 411


def test_a_server_that_is_away_looks_like_one_that_comes_back(proxy):
    away = ReverseProxy(proxy.host, proxy.port, free_ports(1)[0], proxy.credentials)
    assert ask(away, "/v1/fleet/pull-messages").status_code == 502
