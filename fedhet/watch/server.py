"""The page of a run or sweep, on 127.0.0.1 alone, for whoever was given its address.

Nobody else may read it: every request needs the random token in its path, a ``Host`` that is this
address (a page elsewhere whose name is made to lead here has its own), and, where a browser tells,
an origin that is this page. GET is all there is. What is sent comes with a content policy under
which the page loads its own script and style and asks nothing of anybody else.
"""

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedhet.errors import UserError
from fedhet.files import finite
from fedhet.watch.view import Look, Value, View

HOST = "127.0.0.1"
POLL, REST = 1.0, 5.0  # seconds between looks at what goes on, and at what is over
ALIVE = 15.0  # seconds of silence after which the browser is told that we are there
HEAD = 16_384  # bytes of a request: others are refused before all of it is there
STREAMS = 32  # pages that may be open at a time
ROUNDS = 2_000  # that are sent: of more every n-th, which a curve does not show
VIEWS = 64  # runs of a sweep whose pages are remembered
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ASSETS = {"page.js": "text/javascript", "page.css": "text/css"}


class Guard:
    """Answers whoever may not read with a status and nothing else."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.host = f"{HOST}:{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI; the headers of every answer are set here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        await (refusal or self.app)(scope, receive, dressed)

    def _refusal(self, method: str, headers: Headers) -> Response | None:
        if method != "GET":
            return PlainTextResponse("GET only", 405, {"Allow": "GET"})
        if headers.getlist("host") != [self.host]:
            return PlainTextResponse("no such host", 421)
        origins = set(headers.getlist("origin"))
        if origins - {f"http://{self.host}"}:
            return PlainTextResponse("another origin", 403)
        if set(headers.getlist("sec-fetch-site")) - {"same-origin", "none"}:
            return PlainTextResponse("another site", 403)
        return None


@dataclass
class Shared:
    """One view for all who look: read at most once in ``POLL`` seconds."""

    view: View
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: Look | None = None
    _at: float = 0.0

    async def look(self) -> Look:
        """What the last look found, or a new one."""
        async with self._lock:
            last = self._last
            pause = REST if last is not None and last.state.over else POLL
            if last is None or time.monotonic() - self._at >= pause:
                last = self._last = await run_in_threadpool(self.view.look)
                self._at = time.monotonic()
            return last


class Pages:
    """Answers requests below the token."""

    def __init__(self, view: View, token: str, stopping: Callable[[], bool]) -> None:
        self.token, self.stopping = token, stopping
        self.views: dict[str, Shared] = {"": Shared(view)}
        self.streams = 0
        place = files("fedhet.watch") / "page"
        self.assets = {name: (place / name).read_bytes() for name in ASSETS}
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        self.page = environment.from_string((place / "page.html").read_text(encoding="utf-8"))

    def app(self, port: int) -> ASGIApp:
        """With the guard before everything."""
        routes = [
            Route("/{token}/", self.html),
            Route("/{token}/run/{name}/", self.html),
            Route("/{token}/events", self.events),
            Route("/{token}/run/{name}/events", self.events),
            Route("/{token}/{asset}", self.asset),
        ]
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        return Guard(app, port)

    async def html(self, request: Request) -> Response:
        """The page, without any figure: those come as events."""
        shared = self._shared(request)
        if shared is None:
            return PlainTextResponse("not found", 404)
        inner = "name" in request.path_params
        state = (await shared.look()).state
        text = self.page.render(root=f"/{self.token}/", inner=inner, name=state.name)
        return Response(text, media_type="text/html; charset=utf-8")

    async def asset(self, request: Request) -> Response:
        """Script and style."""
        name = request.path_params["asset"]
        if not self._knows(request) or name not in self.assets:
            return PlainTextResponse("not found", 404)
        return Response(self.assets[name], media_type=f"{ASSETS[name]}; charset=utf-8")

    async def events(self, request: Request) -> Response:
        """Server-sent events: all at first, then what is new."""
        shared = self._shared(request)
        if shared is None:
            return PlainTextResponse("not found", 404)
        if self.streams >= STREAMS:
            return PlainTextResponse("too many pages are open", 503)
        return StreamingResponse(self._stream(shared), media_type="text/event-stream")

    def _knows(self, request: Request) -> bool:
        return secrets.compare_digest(
            request.path_params["token"].encode(errors="replace"), self.token.encode()
        )

    def _shared(self, request: Request) -> Shared | None:
        """The view that a path names; None if it names none, or the token is another."""
        if not self._knows(request):
            return None
        name = request.path_params.get("name", "")
        if name not in self.views:
            view = self.views[""].view.inside(name)
            if view is None:
                return None
            while len(self.views) > VIEWS:
                del self.views[next(key for key in self.views if key)]
            self.views[name] = Shared(view)
        return self.views[name]

    async def _stream(self, shared: Shared) -> AsyncIterator[str]:
        sent, spoke = Sent(), time.monotonic()
        self.streams += 1
        try:
            while not self.stopping():
                for event in sent.new(await shared.look()):
                    spoke = time.monotonic()
                    yield event
                if time.monotonic() - spoke > ALIVE:
                    spoke = time.monotonic()
                    yield ": still here\n\n"
                await asyncio.sleep(POLL)
        finally:
            self.streams -= 1


@dataclass
class Sent:
    """What one page has been told."""

    look: Look | None = None
    state: str = ""
    era: int = -1
    rounds: int = 0

    def new(self, look: Look) -> list[str]:
        """Events that bring it up to date."""
        events: list[str] = []
        if look is self.look:
            return events
        self.look = look
        state = json.dumps(finite(asdict(look.state)), allow_nan=False)
        if state != self.state:
            self.state = state
            events.append(event("state", state))
        count = len(look.rounds)
        grown = count > self.rounds
        again = look.era != self.era and bool(count or self.rounds)
        # A curve of every n-th round is drawn again as a whole.
        anew = again or (grown and count > ROUNDS)
        if anew or grown:
            rows = thinned(look.rounds) if anew else look.rounds[self.rounds :]
            self.era, self.rounds = look.era, count
            told: Mapping[str, Any] = {"anew": anew, "of": count, "rows": rows}
            events.append(event("rounds", json.dumps(finite(told), allow_nan=False)))
        return events


def event(name: str, data: str) -> str:
    """One event; JSON has no line ends."""
    return f"event: {name}\ndata: {data}\n\n"


def thinned(rows: Sequence[Sequence[Value]]) -> Sequence[Sequence[Value]]:
    """At most ``ROUNDS`` of them, evenly, with the last."""
    step = -(-len(rows) // ROUNDS)
    return rows[(len(rows) - 1) % step :: step] if step > 1 else rows


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
    """What nobody guesses: 24 random bytes, as text for an address."""
    return secrets.token_urlsafe(24)


def address(found: socket.socket, token: str) -> str:
    """Where the page is."""
    return f"http://{HOST}:{found.getsockname()[1]}/{quote(token)}/"


def serve(view: View, found: socket.socket, token: str) -> None:
    """Until a signal."""
    server: uvicorn.Server | None = None
    pages = Pages(view, token, lambda: server is not None and server.should_exit)
    config = uvicorn.Config(
        pages.app(found.getsockname()[1]), log_level="critical", access_log=False,
        server_header=False, proxy_headers=False, ws="none", lifespan="off",
        timeout_graceful_shutdown=3, http="h11", h11_max_incomplete_event_size=HEAD,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.run(sockets=[found])
