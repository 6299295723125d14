"""``fedhet server``: a SuperLink behind a reverse proxy, with the keys of ``tls/clients``.

One port of Flower carries the clients' API and two others without a login. So the SuperLink listens
on 127.0.0.1 only, and clients reach the reverse proxy below, which passes only Flower's Fleet API.
The SuperLink has a certificate of its own: the clients' can be renewed while it runs.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import uvicorn
from filelock import FileLock, Timeout
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedhet.deploy.certs import Certificates, read_public
from fedhet.deploy.control import ServerFolder
from fedhet.deploy.network import Waiting, address
from fedhet.engines.system import environment, free_ports, guarded, script
from fedhet.errors import RunFailed, UserError
from fedhet.protocol.flower import Control

START = 120.0  # seconds for a SuperLink to answer, on a machine that is busy
LOOK = 5.0  # seconds between looks at nodes, runs and new keys
PATIENCE = 30.0  # seconds for an orderly end
Say = Callable[[str], None]
BEGUN = {"starting", "running"}  # states of a run whose process ends with its server
METHOD = re.compile("/v1/fleet/[a-z-]+")
LARGEST = 64 << 20  # bytes of one request; Flower sends larger payloads in pieces of 5 MB
ANSWER = 300.0  # seconds for the SuperLink's answer
HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host"}


def application(inner: int, ca: Path) -> ASGIApp:
    """Return the reverse proxy of the SuperLink at 127.0.0.1:``inner``, whose CA is ``ca``."""
    trust = ssl.create_default_context(cafile=str(ca))
    client = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{inner}", verify=trust, timeout=ANSWER,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64), trust_env=False,
    )  # fmt: skip

    async def answer(request: Request, stack: contextlib.AsyncExitStack) -> Response:
        if request.method != "POST" or not METHOD.fullmatch(request.url.path):
            return PlainTextResponse("only /v1/fleet/ is open to clients", 403)
        length = request.headers.get("content-length", "")
        if not length.isdigit():  # Flower always says it
            return PlainTextResponse("a request of unknown length", 411)
        if int(length) > LARGEST:
            return PlainTextResponse("too large", 413)
        kept = [(k, v) for k, v in request.headers.raw if k.decode("latin-1").lower() not in HOP]
        try:
            path, content = request.url.path, request.stream()
            sent = client.build_request("POST", path, headers=kept, content=content)
            got = await client.send(sent, stream=True)
        except httpx.TransportError:  # nodes take 502 for a server that is away for a while
            return PlainTextResponse("the SuperLink does not answer", 502)
        headers = {k: v for k, v in got.headers.items() if k.lower() not in {*HOP, "date"}}
        stack.push_async_callback(got.aclose)
        return StreamingResponse(got.aiter_raw(), got.status_code, headers)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await (await answer(Request(scope, receive), stack))(scope, receive, send)

    return serve


@dataclass
class FederationServer:
    """SuperLink and reverse proxy; the command ends if one of them ends."""

    folder: ServerFolder
    host: str
    port: int
    database: Path
    say: Say
    _keys: dict[str, str | None] = field(default_factory=dict)  # what is wrong; None: registered
    _nodes: dict[int, tuple[str, str]] = field(default_factory=dict)
    _runs: dict[int, str] = field(default_factory=dict)
    _begun: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    def run(self) -> None:
        """Run until a signal raises an exception; raise UserError if it cannot start."""
        self.folder.check_certificates()
        home = self.database.parent
        if self.database.is_dir() or not (home.is_dir() or home == self.folder.home):
            raise UserError(f"--database: '{self.database}' is not allowed: a file in a folder")
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            socket.create_server((self.host, self.port), family=family).close()
        except OSError as error:
            where = address(self.host, self.port)
            raise UserError(f"--host, --port: {where} cannot be used: {error}") from error
        self.folder.make()
        lock = FileLock(self.folder.home / ".lock", blocking=False)
        try:
            with lock, contextlib.ExitStack() as stack:
                # Under the lock, since these files must describe the running server.
                (inner,) = free_ports(1)
                self.folder.prepare(inner)
                self._serve(inner, stack)
        except Timeout as error:
            raise UserError(f"'{self.folder.tls}' already has a running server") from error

    def _serve(self, inner: int, stack: contextlib.ExitStack) -> None:
        """Serve; ``stack`` ends the proxy first: clients must not reach a SuperLink that ends."""
        tls, log = self.folder.credentials, self.folder.log
        logging.basicConfig(filename=log)  # of the proxy's libraries
        link = self._start(inner)
        stack.callback(_stop, link)
        # A SuperLink does not end before its connections.
        control = stack.enter_context(contextlib.closing(self.folder.connect()))
        proxy = uvicorn.Server(config := uvicorn.Config(
            application(inner, self.folder.inner.ca), host=self.host, port=self.port,
            ssl_keyfile=str(tls.key), ssl_certfile=str(tls.certificate), access_log=False,
            timeout_graceful_shutdown=1, server_header=False, lifespan="off", ws="none",
            log_config=None,
        ))  # fmt: skip
        config.load()
        thread = threading.Thread(target=proxy.run, daemon=True)
        waiting = Waiting("the SuperLink", self.say)
        certificates = Certificates([tls.certificate, tls.ca], self.say)
        until = time.monotonic() + START
        while True:
            if certificates.look() and config.ssl is not None:
                with contextlib.suppress(OSError):  # its key is not that of server.key
                    config.ssl.load_cert_chain(tls.certificate, tls.key)
            if (code := link.poll()) is not None:
                raise RunFailed(f"the SuperLink ended with code {code}: see {log}")
            if thread.ident and not thread.is_alive():
                raise RunFailed(f"the reverse proxy ended: see {log}")
            try:
                self._look(control)
                waiting.over()
                if not thread.ident:  # now that it answers
                    thread.start()
                    stack.callback(thread.join, PATIENCE)
                    stack.callback(setattr, proxy, "should_exit", True)
                    self.say(f"clients reach {address(self.host, self.port)}; log: {log}")
                    self.say(f"submit a run: fedhet run CONFIG --superlink {self.folder.tls}")
            except (UserError, RunFailed) as error:  # mostly busy for a moment
                waiting.failed(text := f"{error} (log: {log})")
                if not thread.ident and time.monotonic() > until:
                    raise RunFailed(f"the SuperLink does not start: {text}") from error
            time.sleep(LOOK if thread.ident else 0.2)

    def _start(self, inner: int) -> subprocess.Popen[bytes]:
        within, env = self.folder.inner, environment({"FLWR_HOME": str(self.folder.flwr_home)})
        words = [
            script("flower-superlink"), "--ssl-ca-certfile", str(within.ca),
            "--ssl-certfile", str(within.certificate), "--ssl-keyfile", str(within.key),
            "--enable-supernode-auth", "--database", str(self.database),
            "--host", "127.0.0.1", "--port", str(inner),
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        with self.folder.log.open("ab") as log:
            return subprocess.Popen(
                guarded(words), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _look(self, control: Control) -> None:
        """Register new keys; print what changed since the last look."""
        for name, path in self.folder.keys().items():
            if (before := self._keys.get(name, "")) is None:
                continue
            try:
                public = read_public(path)
            except UserError as error:  # it is being written, or somebody's mistake: said once
                self._keys[name] = text = str(error)
                if text != before:
                    self.say(text)
                continue
            if control.register(name, public):
                self.say(f"{name}: key registered")
            self._keys[name] = None
        for node in control.nodes():
            last, since = self._nodes.get(node.node_id, ("", ""))
            self._nodes[node.node_id] = node.status, node.last_activated_at
            old = not last and node.last_activated_at < self._begun
            again = node.status == last == "online" and node.last_activated_at != since
            if again or (node.status != last and "online" in {node.status, last}):
                how = " again: it was gone for a moment" * again + " before this start" * old
                self.say(f"{node.name or node.node_id}: {node.status}{how}")
        for run in control.runs():
            last, name = self._runs.get(run.id, ""), Path(run.folder).name or str(run.id)
            old, status = not last and run.started < self._begun, run.status
            if old and status in BEGUN:  # so nodes are free, and `status` says what is so
                control.stop(run.id)  # if this fails, the next look tries it again
                status = "finished:stopped"
                how = f"fedhet resume {run.folder or 'RUN'} --superlink {self.folder.tls}"
                self.say(f"run {name} ended with the last server; to go on: {how}")
            elif status != last and not old:
                self.say(f"run {name}: {status}")
            self._runs[run.id] = status


def _stop(link: subprocess.Popen[bytes]) -> None:
    link.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        link.wait(PATIENCE)
    with contextlib.suppress(ProcessLookupError):  # and what it started
        os.killpg(link.pid, signal.SIGKILL)
    link.wait()
