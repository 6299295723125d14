"""The reverse proxy of `fedhet server`: the Fleet API passes as it is, nothing else does."""

import asyncio
import contextlib
import ssl
import subprocess
import sys

import httpx
import pytest
from helpers.programs import wait_for

from fedhet.deploy.certs import make, renew
from fedhet.deploy.server import LARGEST, MODULE, application
from fedhet.engines.system import free_ports

PULL = "/v1/fleet/pull-messages"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, serve):
    tls = make(tmp_path_factory.mktemp("proxy") / "tls", ["127.0.0.1"], [])
    return serve(tls, status=200, body=None).server_port, tls.ca


def ask(proxy, path, method="POST", **more):
    async def one():
        transport = httpx.ASGITransport(application(*proxy))
        async with httpx.AsyncClient(transport=transport, base_url="https://proxy") as client:
            return await client.request(method, path, **more)

    return asyncio.run(one())


def test_a_clients_request_passes_as_it_is(proxy):
    body = bytes(range(256)) * 4096
    answer = ask(proxy, PULL, content=body, headers={"signature": "s"})
    assert answer.status_code == 200 and answer.content == body
    assert (answer.headers["x-path"], answer.headers["x-signature"]) == (PULL, "s")


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/runtime/acquire-task", "/health", "/", "/docs",
     "/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/..%2fcontrol%2flist-runs",
     "/v1/fleet//v1/control/list-runs", "/v1/fleet/", "/V1/FLEET/pull-messages"],
)  # fmt: skip
def test_nothing_else_passes(proxy, path):
    assert ask(proxy, path).status_code == 403


def test_neither_other_verbs_nor_too_much_nor_a_server_that_is_away(proxy):
    async def endless():
        yield b"x"

    assert ask(proxy, PULL, "GET").status_code == 403
    large = b"x" * (LARGEST + 1)
    assert ask(proxy, "/v1/fleet/push-object", content=large).status_code == 413
    assert ask(proxy, "/v1/fleet/push-object", content=endless()).status_code == 411
    assert (
        ask((free_ports(1)[0], proxy[1]), PULL).status_code == 502
    )  # nodes take it for one that comes back


def test_a_renewed_certificate_is_taken_up_while_it_runs(tmp_path):
    tls, (port,) = make(tmp_path / "tls", ["127.0.0.1"], []), free_ports(1)
    place = ["127.0.0.1", port, free_ports(1)[0], tls.folder, tls.ca]
    process = subprocess.Popen([sys.executable, "-P", "-m", MODULE, *map(str, place)])
    try:

        def shown():
            with contextlib.suppress(OSError):
                return ssl.get_server_certificate(("127.0.0.1", port), timeout=5)

        wait_for(shown, "it listens")
        old = shown()
        renew(tls.folder)
        wait_for(lambda: shown() not in (old, None), "it shows the new one")
        assert shown().split() == tls.certificate.read_text().split() and process.poll() is None
    finally:
        process.terminate()
        process.wait(60)
