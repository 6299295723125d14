"""The reverse proxy of ``fedhet server``: Flower's Fleet API passes, nothing else does.

One port of Flower carries the clients' API and two others that ask for no credential. So the
SuperLink listens on 127.0.0.1 only, and this proxy is what the outside reaches. It is nginx where
that is installed; otherwise the one below, of Starlette, uvicorn and httpx.
"""

import contextlib
import re
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedhet.deploy.certs import Credentials
from fedhet.deploy.network import address

FLEET = "/v1/fleet/"
METHOD = re.compile(re.escape(FLEET) + "[a-z-]+")
LARGEST = 64 << 20  # bytes of one request; Flower sends larger payloads in pieces of 5 MB
PATIENCE = 300.0  # seconds for the SuperLink's answer
HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host"}

NGINX = """\
# Written by `fedhet server`: clients reach Flower's Fleet API and nothing else.
daemon off;
pid {home}/nginx.pid;
error_log stderr warn;
worker_processes 1;
events {{ worker_connections 10000; }}
http {{
  access_log off;
  client_body_temp_path {home}/nginx-body;
  proxy_temp_path {home}/nginx-proxy;
  fastcgi_temp_path {home}/nginx-fastcgi;
  uwsgi_temp_path {home}/nginx-uwsgi;
  scgi_temp_path {home}/nginx-scgi;
  upstream superlink {{ server 127.0.0.1:{inner}; keepalive 64; }}
  server {{
    listen {listen} ssl;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3;
    location {fleet} {{
      proxy_pass https://superlink;
      proxy_ssl_trusted_certificate {ca};
      proxy_ssl_verify on;
      proxy_ssl_name localhost;  # every certificate of `fedhet certs` has it
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_read_timeout {patience}s;
      client_max_body_size {largest};
    }}
    location / {{ return 403; }}
  }}
}}
"""


@dataclass(frozen=True)
class ReverseProxy:
    """Listens at ``host``:``port`` and passes on to 127.0.0.1:``inner``."""

    host: str
    port: int
    inner: int
    credentials: Credentials

    def command(self, home: Path) -> tuple[str, list[str]]:
        """Name and command line of the proxy; files that it needs are written to ``home``."""
        nginx = shutil.which("nginx")
        if nginx is not None:
            listen = address(self.host, self.port)
            text = NGINX.format(
                home=home, inner=self.inner, listen=listen, fleet=FLEET, patience=int(PATIENCE),
                largest=LARGEST, certificate=self.credentials.certificate, key=self.credentials.key,
                ca=self.credentials.ca,
            )  # fmt: skip
            (home / "nginx.conf").write_text(text, encoding="utf-8")
            return "nginx", [nginx, "-e", "stderr", "-p", str(home), "-c", str(home / "nginx.conf")]
        words = [self.host, str(self.port), str(self.inner), str(self.credentials.folder)]
        return "built in", [sys.executable, "-P", "-m", "fedhet.deploy.reverse_proxy", *words]


def application(proxy: ReverseProxy) -> Starlette:
    """The proxy as an ASGI application."""
    trust = ssl.create_default_context(cafile=str(proxy.credentials.ca))
    client = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{proxy.inner}", verify=trust, timeout=PATIENCE,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64), trust_env=False,
    )  # fmt: skip

    async def fleet(request: Request) -> Response:
        """Hand a request on as it is, and its answer back."""
        if not METHOD.fullmatch(request.url.path):
            return await refuse(request)
        length = request.headers.get("content-length", "")
        if not length.isdigit():  # Flower always says it
            return PlainTextResponse("a request of unknown length", 411)
        if int(length) > LARGEST:
            return PlainTextResponse("too large", 413)
        kept = [(k, v) for k, v in request.headers.raw if k.decode("latin-1").lower() not in HOP]
        try:
            sent = client.build_request(
                request.method, request.url.path, headers=kept, content=request.stream()
            )
            answer = await client.send(sent, stream=True)
        except httpx.TransportError:  # nodes take 502 for a server that is away for a while
            return PlainTextResponse("the SuperLink does not answer", 502)
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in {*HOP, "date"}}

        async def body() -> AsyncIterator[bytes]:
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()

        return StreamingResponse(body(), answer.status_code, headers)

    async def refuse(request: Request) -> Response:
        """Everything else."""
        del request
        return PlainTextResponse("only /v1/fleet/ is open to clients", 403)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    verbs = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    routes = [
        Route(FLEET + "{rest}", fleet, methods=["POST"]),
        Route("/{rest:path}", refuse, methods=verbs),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def main(words: list[str]) -> None:
    """Serve until a signal: HOST PORT INNER TLS."""
    host, port, inner, folder = words
    proxy = ReverseProxy(host, int(port), int(inner), Credentials(Path(folder)))
    uvicorn.run(
        application(proxy), host=host, port=proxy.port, log_level="warning", access_log=False,
        ssl_certfile=str(proxy.credentials.certificate), ssl_keyfile=str(proxy.credentials.key),
        timeout_graceful_shutdown=1, server_header=False,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
