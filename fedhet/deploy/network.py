"""Reach a node's server: TLS, proxies, reasons of failures, whether the server knows the node.

Requests are made by httpx, as Flower's SuperNode makes them: both use the same proxy.
"""

import contextlib
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from fedhet.deploy.certs import RENEW, read_certificate, read_key
from fedhet.errors import UserError, one_line
from fedhet.files import parse_object
from fedhet.protocol.flower import BAD_INTERVAL, NO_SUCH_KEY, tell_fleet

TIMEOUT = 60.0  # seconds for a server that is busy
TOLD_AFTER = 10.0  # seconds of waiting after which a line is printed
OTHER_TIME = (9, 10)  # OpenSSL's codes of a certificate that is not valid now
REFUSED = "refused"  # code of the error of another certificate, for which waiting does not help
KINDS = ("http", "all", "https")  # of proxies: the last one set counts, the first never for TLS
PORTS = 1 << 16
PROXY = re.compile(
    r"((https?|socks5h?)://)?([^\s/?#@]*@)?(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+)"
    r"(:(?P<port>[0-9]{1,5}))?/?"
)


class Waiting:
    """Print what is waited for after ten seconds, and again when the reason changes."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self.what, self.say = what, say
        self.since: datetime | None = None  # while it waits
        self._started, self._told = 0.0, ""

    @contextlib.contextmanager
    def answer(self) -> Iterator[None]:
        """Print a line if this block, which waits for one answer, takes long."""
        self.failed()
        timer = threading.Timer(TOLD_AFTER, self.failed, ["no answer yet"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        self.over()

    def failed(self, reason: str = "") -> None:
        """Note that it waits, and why, if that is known."""
        if self.since is None:
            self.since, self._started = datetime.now(), time.monotonic()
        late = time.monotonic() - self._started >= TOLD_AFTER
        if late and reason not in {"", self._told}:
            self._told = reason
            self.say(f"waiting for {self.what} since {self.since:%H:%M:%S}: {one_line(reason)}")

    def over(self) -> None:
        """Note that the wait is over; who has read that it waits reads this, too."""
        if self._told:
            self.say(f"{self.what} answered")
        self.since, self._told = None, ""


def address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def via(server: str) -> str:
    """Say through which proxy of which variable ``host:port`` is reached; empty if directly.

    UserError for a variable that is no URL: httpx would look up a part of a password as a host.
    """
    through, proxies = "", getproxies()
    for kind in KINDS:
        if not (value := proxies.get(kind)):
            continue
        variables = f"{kind}_proxy", f"{kind}_proxy".upper()
        variable = next((name for name in variables if name in os.environ), kind)
        url = PROXY.fullmatch(value)
        if url is None or int(url["port"] or 0) >= PORTS:
            raise UserError(
                f"{variable}: is no URL of a proxy: http://USER:PASSWORD@HOST:PORT, where signs of "
                "the password such as # / ? @ are written %23 %2F %3F %40"
            )
        if kind != "http":  # without its password
            through = f" through the proxy {url['host']}:{url['port'] or 80} of {variable}"
    return "" if proxy_bypass(urlsplit(f"//{server}").hostname or "") else through


def reach(server: str, ca: Path) -> httpx.Response:
    """Make a request without effect at ``host:port``, and return the answer.

    Raises UserError if it cannot be reached, with code ``REFUSED`` if its certificate is false.
    """
    via(server)
    try:
        context = ssl.create_default_context(cadata=read_ca(ca).decode("ascii"))
        with httpx.Client(verify=context, timeout=TIMEOUT) as client:
            answer = client.post(f"https://{server}/v1/fleet/check", content=b"")
    except httpx.ProxyError as error:
        raise UserError(f"{server} cannot be reached{via(server)}: it answers {error}") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            text = f"the server's certificate is refused: {cause.verify_message}{via(server)}"
            need = f"it must be from the CA in '{ca}', for this name, and valid ({RENEW})"
            code = "" if cause.verify_code in OTHER_TIME else REFUSED
            raise UserError(f"{server}: {text}: {need}", code) from error
        text = str(error) or type(error).__name__
        if "WRONG_VERSION_NUMBER" in text:  # OpenSSL's words for an answer in plain text
            text = "it answers without TLS, so it is not `fedhet server`"
        raise UserError(f"{server} cannot be reached{via(server)}: {text}") from error
    if answer.is_server_error:
        raise UserError(f"{server} answers {answer.status_code}: its SuperLink does not run")
    return answer


def read_ca(path: Path) -> bytes:
    """Return a CA's certificate (PEM) as it is in the file; UserError if it holds none."""
    read_certificate(path)
    return path.read_bytes()


def knows(server: str, ca: Path, path: Path) -> bool:
    """Whether the server at ``host:port`` knows the public half of the key in ``path``.

    The request activates a node, with a heartbeat interval that no server accepts: which of key
    and interval the server complains about tells. Raises UserError without key or certificate, and
    for a server that cannot be reached or refuses the signature, as it does when clocks differ.
    """
    via(server)
    try:
        tell_fleet(server, read_ca(ca), read_key(path))
    except httpx.HTTPStatusError as error:
        answer, code = error.response, None
        with contextlib.suppress(ValueError, KeyError):
            code = parse_object(answer.text)["code"]
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            text = "refuses this key's signature: the clocks differ, set this machine's"
            raise UserError(f"{server} {text}") from error
        if code not in {BAD_INTERVAL, NO_SUCH_KEY}:
            raise UserError(f"{server}: {answer.status_code} {answer.text[:100]}") from error
        return bool(code == BAD_INTERVAL)
    except httpx.HTTPError as error:
        raise UserError(f"{server} cannot be reached{via(server)}: {error}") from error
    raise UserError(f"{server} is not a SuperLink of Flower 1.41 or 1.42")  # it accepted that
