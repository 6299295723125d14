"""Serve the page of a run or sweep on 127.0.0.1 to those who have its address.

Every request needs the random token in its path, this address as ``Host`` and, where a browser
sends it, this page as its origin. The content policy lets the page load only its own files.
"""

import asyncio
import os
import secrets
import socket

import uvicorn
from jinja2 import Environment, PackageLoader
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fedhet.errors import UserError
from fedhet.watch.view import RunView, SweepView, word

HOST = "127.0.0.1"
HEAD = 16_384  # bytes of a request: larger ones are refused
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store",
}  # fmt: skip


def _application(view: RunView | SweepView, token: str, host: str) -> Starlette:
    """Return what answers requests below the token, with a check of every request in front."""
    lock, pages = asyncio.Lock(), Environment(autoescape=True, trim_blocks=True)
    pages.loader = PackageLoader("fedhet", "watch")
    pages.filters["word"] = word

    async def check(request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Refuse requests of other pages and other hosts."""
        sent = request.headers.getlist
        if sent("host") != [host]:
            answer: Response = PlainTextResponse("no such host", 421)
        elif set(sent("origin")) - {f"http://{host}"}:
            answer = PlainTextResponse("another origin", 403)
        elif set(sent("sec-fetch-site")) - {"same-origin", "none"}:
            answer = PlainTextResponse("another site", 403)
        elif not secrets.compare_digest(request.url.path.split("/")[1].encode(), token.encode()):
            answer = PlainTextResponse("not found", 404)
        else:
            answer = await call_next(request)
        answer.headers.update(HEADERS)
        return answer

    async def page(request: Request) -> Response:
        """Return the page of all or of a cell as it is now."""
        cell = request.path_params.get("cell", "")
        shown = view.runs.get(cell) if cell else view
        if shown is None:
            return PlainTextResponse("not found", 404)
        async with lock:
            look = await run_in_threadpool(shown.look)
        template = pages.get_template("page.html")
        return HTMLResponse(template.render(root=f"/{token}/", inner=cell, look=look))

    routes = [
        Route("/{token}/", page), Route("/{token}/run/{cell}/", page),
        Mount("/{token}", StaticFiles(packages=[("fedhet.watch", "page")])),
    ]  # fmt: skip
    checks = [Middleware(BaseHTTPMiddleware, dispatch=check)]
    app = Starlette(routes=routes, middleware=checks)
    app.router.redirect_slashes = False
    return app


def listen(port: int) -> socket.socket:
    """Return a socket at 127.0.0.1, at any free port if ``port`` is 0; UserError if it is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise UserError(
            f"--port: {port} cannot be used: {os.strerror(error.errno or 0)}; give another one, "
            "or 0 for any free port"
        ) from error


def page_server(view: RunView | SweepView, found: socket.socket) -> tuple[uvicorn.Server, str]:
    """Return a server of the page, to be run with the socket ``found``, and its address."""
    token, port = secrets.token_urlsafe(24), found.getsockname()[1]
    config = uvicorn.Config(
        _application(view, token, f"{HOST}:{port}"), log_level="critical", access_log=False,
        ws="none", server_header=False, proxy_headers=False, lifespan="off", http="h11",
        timeout_graceful_shutdown=3, h11_max_incomplete_event_size=HEAD,
    )  # fmt: skip
    return uvicorn.Server(config), f"http://{HOST}:{port}/{token}/"
