"""The reverse proxy of `fedhet server`: the Fleet API passes as it is, nothing else does."""

import asyncio
import contextlib
import ssl
import sys
from types import SimpleNamespace

import httpx
import pytest

from fedhet.deploy import network, server
from fedhet.deploy.certs import make, renew
from fedhet.deploy.control import ServerFolder
from fedhet.deploy.server import LARGEST, FederationServer, application
from fedhet.engines.system import free_ports
from fedhet.errors import RunFailed, UserError

SLEEPS = "import time; time.sleep(600)"
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
    away = free_ports(1)[0], proxy[1]
    assert ask(away, PULL).status_code == 502  # nodes take it for one that comes back


class Ended(Exception):
    """What ends a server of these tests."""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Run a server whose SuperLink is a program that sleeps; ``look`` is called at each look."""
    make(tmp_path / "tls", ["127.0.0.1"], [])
    monkeypatch.setattr(server, "script", lambda _name: sys.executable)
    monkeypatch.setattr(server, "guarded", lambda words: [words[0], "-c", SLEEPS])
    monkeypatch.setattr(server, "LOOK", 0.05)
    said, (port,) = [], free_ports(1)
    folder = ServerFolder(tmp_path / "tls")

    def run(look):
        link = SimpleNamespace(nodes=look, runs=list, close=lambda: None)
        monkeypatch.setattr(ServerFolder, "connect", lambda _folder: link)
        FederationServer(folder, "127.0.0.1", port, folder.database, said.append).run()

    return run, said, folder, port


def test_a_renewed_certificate_is_taken_up_while_it_runs(started):
    run, said, folder, port = started
    seen = []

    def look():
        if len(said) < 2:  # it does not listen yet
            return []
        with contextlib.suppress(ConnectionError):
            shown = ssl.get_server_certificate(("127.0.0.1", port), timeout=60)
            if not seen:
                renew(folder.tls)
            elif shown != seen[0]:
                assert shown.split() == folder.credentials.certificate.read_text().split()
                raise Ended
            seen.append(shown)
        return []

    with pytest.raises(Ended):
        run(look)
    with pytest.raises(OSError, match="refused"):  # nothing outlives it
        ssl.get_server_certificate(("127.0.0.1", port))
    assert any("was renewed" in line for line in said)


def test_a_superlink_that_does_not_answer_in_time_ends_the_server(started, monkeypatch):
    monkeypatch.setattr(server, "START", 0.5)
    monkeypatch.setattr(network, "TOLD_AFTER", 0.0)
    run, said, *_ = started

    def look():
        raise UserError("nobody answers")

    with pytest.raises(RunFailed, match="the SuperLink does not start: nobody answers .*log"):
        run(look)
    assert len(said) == 1 and said[0].startswith("waiting for the SuperLink since ")
    monkeypatch.setattr(server, "START", 60.0)
    monkeypatch.setattr(server, "guarded", lambda words: [words[0], "-c", "raise SystemExit(7)"])
    with pytest.raises(RunFailed, match="the SuperLink ended with code 7: see "):
        run(look)
