"""The page of a run or sweep, on 127.0.0.1, for whoever was given its address.

Every request needs the random token in its path, this address as ``Host`` and, where a browser
tells, this page as its origin. GET is all there is. The content policy lets the page load its own
script and style and nothing else.
"""

import asyncio
import contextlib
import hashlib
import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import uvicorn
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fedhet.engines.system import guarded
from fedhet.errors import UserError
from fedhet.files import finite
from fedhet.watch.view import RunView, SweepView, open_view

HOST = "127.0.0.1"
POLL, REST = 0.9, 5.0  # seconds that a look is kept while a run goes on, and when it is over
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
    """Answers requests below the token; all who look share a look."""

    def __init__(self, view: RunView | SweepView, token: str, port: int) -> None:
        self.token, self.host = token, f"{HOST}:{port}"
        self.views: dict[str, RunView | SweepView] = {"": view}
        self.looks: dict[str, tuple[float, str]] = {}  # when to look again, and the JSON
        self.lock = asyncio.Lock()
        place = files("fedhet.watch") / "page"
        self.assets = {name: (place / name).read_bytes() for name in ASSETS}
        html = (place / "page.html").read_text(encoding="utf-8")
        self.page = Environment(autoescape=True).from_string(html)

    def app(self) -> Starlette:
        """The application; the check stands before everything."""
        check = Middleware(BaseHTTPMiddleware, dispatch=self.check)
        app = Starlette(routes=[Route("/{token}/{rest:path}", self.answer)], middleware=[check])
        app.router.redirect_slashes = False
        return app

    async def check(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Refuse requests of other pages, other hosts and other methods."""
        headers = request.headers
        if request.method != "GET":
            answer: Response = PlainTextResponse("GET only", 405, {"Allow": "GET"})
        elif headers.getlist("host") != [self.host]:
            answer = PlainTextResponse("no such host", 421)
        elif set(headers.getlist("origin")) - {f"http://{self.host}"}:
            answer = PlainTextResponse("another origin", 403)
        elif set(headers.getlist("sec-fetch-site")) - {"same-origin", "none"}:
            answer = PlainTextResponse("another site", 403)
        else:
            answer = await call_next(request)
        answer.headers.update(HEADERS)
        return answer

    async def answer(self, request: Request) -> Response:
        """The page (``""``), its data (``data``), both of a cell (``run/NAME/``), or an asset."""
        token, rest = request.path_params["token"], request.path_params["rest"]
        missing = PlainTextResponse("not found", 404)
        if not secrets.compare_digest(token.encode(errors="replace"), self.token.encode()):
            return missing
        if rest in self.assets:
            return Response(self.assets[rest], media_type=f"{ASSETS[rest]}; charset=utf-8")
        name, last = "", rest
        if rest.startswith("run/"):
            name, _, last = rest.removeprefix("run/").partition("/")
        slash = rest.endswith(("/", "/data")) or "/" not in rest
        found = await self.look(name) if last in {"", "data"} and slash else None
        if found is None:
            return missing
        if last == "data":
            tag = f'"{hashlib.sha256(found.encode()).hexdigest()[:20]}"'
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304)
            return Response(found, media_type="application/json", headers={"ETag": tag})
        shown = self.page.render(root=f"/{self.token}/", inner=name, name=json.loads(found)["name"])
        return Response(shown, media_type="text/html; charset=utf-8")

    async def look(self, name: str) -> str | None:
        """What a view says now, as JSON; None for a cell that is not there."""
        async with self.lock:
            if name not in self.views:
                view = self.views[""].inside(name)
                if view is None:
                    return None
                self.views[name] = view
            until, text = self.looks.get(name, (0.0, ""))
            if time.monotonic() >= until:
                look = await run_in_threadpool(self.views[name].look)
                text = json.dumps(finite(look), allow_nan=False)
                pause = REST if look["over"] else POLL
                self.looks[name] = time.monotonic() + pause, text
            return text


def listen(port: int) -> socket.socket:
    """A socket at 127.0.0.1, at any free port if ``port`` is 0; UserError if it is taken."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen(64)
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--port: {port} cannot be used: {reason}; give another one, or 0 for any that is free"
        ) from error
    return found


def new_token() -> str:
    """24 random bytes, as text for an address."""
    return secrets.token_urlsafe(24)


def address(found: socket.socket, token: str) -> str:
    """Return where the page is."""
    return f"http://{HOST}:{found.getsockname()[1]}/{quote(token)}/"


def serve(view: RunView | SweepView, found: socket.socket, token: str) -> None:
    """Serve the page until a signal."""
    config = uvicorn.Config(
        Page(view, token, found.getsockname()[1]).app(), log_level="critical", access_log=False,
        server_header=False, proxy_headers=False, ws="none", lifespan="off",
        timeout_graceful_shutdown=3, http="h11", h11_max_incomplete_event_size=HEAD,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[found])


@contextlib.contextmanager
def watcher(folder: Path, tls: str = "") -> Iterator[str]:
    """Serve the page of a run folder meanwhile, from a process of its own; yield its address.

    ``tls`` is the folder of the server whose sites are shown with it, if there is one. The token
    goes through a pipe, where no list of processes shows it.
    """
    token = new_token()
    with listen(0) as found:
        program = [sys.executable, "-P", "-m", "fedhet.watch.server"]
        process = subprocess.Popen(
            guarded([*program, str(found.fileno()), str(folder), tls]), stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, pass_fds=[found.fileno()], start_new_session=True,
        )  # fmt: skip
        where = address(found, token)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(token.encode())
        yield where
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(FAREWELL)
        process.kill()
        process.wait()


if __name__ == "__main__":
    number, run, superlink = sys.argv[1:]
    serve(open_view(Path(run), superlink), socket.socket(fileno=int(number)), sys.stdin.read())
