"""Serve the page of a run or sweep on 127.0.0.1 to those who have its address.

Every request needs the random token in its path, this address as ``Host`` and, where a browser
sends it, this page as its origin. Only GET and HEAD are answered. The content policy lets the page
load only its own script and style.
"""

import asyncio
import contextlib
import hashlib
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import uvicorn
from jinja2 import Environment, PackageLoader
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fedhet.errors import UserError
from fedhet.files import finite
from fedhet.watch.view import RunView, SweepView, open_view, word

HOST = "127.0.0.1"
HEAD = 16_384  # bytes of a request: larger ones are refused
FAREWELL = 5.0  # seconds for an orderly end
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store",
}  # fmt: skip
ASSETS = {"page.js": "text/javascript", "page.css": "text/css"}


class Page:
    """Answers requests below the token."""

    def __init__(self, view: RunView | SweepView, token: str, port: int) -> None:
        self.token, self.host = token, f"{HOST}:{port}"
        self.view, self.lock = view, asyncio.Lock()
        loader = PackageLoader("fedhet.watch", "page")
        self.pages = Environment(autoescape=True, loader=loader, trim_blocks=True)
        self.pages.filters["word"] = word

    def app(self) -> Starlette:
        """Return the application, with the check of requests in front."""
        check = Middleware(BaseHTTPMiddleware, dispatch=self.check)
        app = Starlette(routes=[Route("/{token}/{rest:path}", self.answer)], middleware=[check])
        app.router.redirect_slashes = False
        return app

    async def check(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Refuse requests of other pages and other hosts."""
        headers = request.headers
        if headers.getlist("host") != [self.host]:
            answer: Response = PlainTextResponse("no such host", 421)
        elif set(headers.getlist("origin")) - {f"http://{self.host}"}:
            answer = PlainTextResponse("another origin", 403)
        elif set(headers.getlist("sec-fetch-site")) - {"same-origin", "none"}:
            answer = PlainTextResponse("another site", 403)
        else:
            answer = await call_next(request)
        answer.headers.update(HEADERS)
        return answer

    async def answer(self, request: Request) -> Response:
        """Return the page (``""``), its ``data``, both of a cell (``run/NAME/``), or an asset."""
        token, rest = request.path_params["token"], request.path_params["rest"]
        known = secrets.compare_digest(token.encode(errors="replace"), self.token.encode())
        if known and rest in ASSETS:
            content = (files("fedhet.watch") / "page" / rest).read_bytes()
            return Response(content, media_type=f"{ASSETS[rest]}; charset=utf-8")
        cell, _, last = rest.rpartition("/")
        name = cell.removeprefix("run/")
        view = None
        if known and last in {"", "data"} and (not cell or name != cell):
            view = self.view.runs.get(name) if name else self.view
        if view is None:
            return PlainTextResponse("not found", 404)
        async with self.lock:
            look = await run_in_threadpool(view.look)
        root = f"/{token}/"
        if not last:
            page = self.pages.get_template("page.html")
            shown = page.render(root=root, inner=name, name=look["name"])
            return Response(shown, media_type="text/html; charset=utf-8")
        look["html"] = self.pages.get_template("look.html").render(root=root, look=look)
        text = json.dumps(finite(look), allow_nan=False)
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304)
        return Response(text, media_type="application/json", headers={"ETag": tag})


def listen(port: int) -> socket.socket:
    """Return a socket at 127.0.0.1, at any free port if ``port`` is 0; UserError if it is taken."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen(64)
    except OSError as error:
        found.close()
        raise UserError(
            f"--port: {port} cannot be used: {error.strerror}; give another one, or 0 for any free "
            "port"
        ) from error
    return found


def page_server(view: RunView | SweepView, found: socket.socket) -> tuple[uvicorn.Server, str]:
    """Return a server of the page, to be run with the socket ``found``, and its address."""
    token, port = secrets.token_urlsafe(24), found.getsockname()[1]
    config = uvicorn.Config(
        Page(view, token, port).app(), log_level="critical", access_log=False, ws="none",
        server_header=False, proxy_headers=False, lifespan="off", timeout_graceful_shutdown=3,
        http="h11", h11_max_incomplete_event_size=HEAD,
    )  # fmt: skip
    return uvicorn.Server(config), f"http://{HOST}:{port}/{token}/"


@contextlib.contextmanager
def watcher(folder: Path, tls: str = "") -> Iterator[str]:
    """Serve the page of a run folder from a thread within this block; yield its address.

    ``tls`` is the folder of the server whose sites are shown with it, if there is one.
    """
    with listen(0) as found:
        server, where = page_server(open_view(folder, tls), found)
        thread = threading.Thread(target=server.run, args=([found],), daemon=True)
        thread.start()
        try:
            yield where
        finally:
            server.should_exit = True
            thread.join(FAREWELL)
