"""What ``fedhet server`` keeps beside the certificates, and how other commands find it.

``fedhet certs --out tls`` makes ``tls``; the server adds ``tls/server/``: its database, its logs,
and the address at which its Control API answers, on this machine only. ``--superlink tls`` then
names it to ``fedhet run``, ``resume`` and ``status``.
"""

import json
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from fedhet.deploy.certs import Credentials
from fedhet.errors import UserError
from fedhet.files import write_json, write_text
from fedhet.reading.structured import read_json, read_toml

CONNECTION = "fedhet-server"
ANSWER = 10.0  # seconds within which a server on this machine takes a connection
DEFAULTS = ("supergrid", "local")  # connections of a configuration that Flower makes


@dataclass(frozen=True)
class ServerFolder:
    """Places below a folder made by ``fedhet certs``."""

    tls: Path

    @property
    def credentials(self) -> Credentials:
        """Certificates and keys."""
        return Credentials(self.tls)

    @property
    def home(self) -> Path:
        """What the server writes; mode 700."""
        return self.tls / "server"

    @property
    def database(self) -> Path:
        """Flower's state: registered keys, nodes, runs."""
        return self.home / "superlink.db"

    @property
    def log(self) -> Path:
        """What Flower prints."""
        return self.home / "superlink.log"

    @property
    def flwr_home(self) -> Path:
        """FLWR_HOME of the SuperLink and of the commands that talk to it."""
        return self.home / "flwr"

    @property
    def _address(self) -> Path:
        return self.home / "address.json"

    def keys(self) -> dict[str, Path]:
        """Public keys of the clients, by client id."""
        return {path.stem: path for path in sorted((self.tls / "clients").glob("*.pub"))}

    def make(self) -> None:
        """Make the folder; UserError without certificates, or if Flower could not read its name."""
        missing = [
            path
            for path in (self.credentials.ca, self.credentials.certificate, self.credentials.key)
            if not path.is_file()
        ]
        if missing:
            raise UserError(
                f"'{missing[0]}' is missing: make it with `fedhet certs --out {self.tls} "
                "--server HOST --client NAME`"
            )
        if not str(self.tls.absolute()).isprintable():  # TOML takes no such characters
            raise UserError(
                f"'{self.tls}' is not allowed: its path has characters that cannot be printed, "
                "which Flower does not read: rename the folder"
            )
        self.flwr_home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)

    def prepare(self, inner: int) -> None:
        """Note, in the folder, that the Control API answers at 127.0.0.1:``inner``."""
        ca = self.credentials.ca.absolute()
        write_text(
            self.flwr_home / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f"address = {json.dumps(f'127.0.0.1:{inner}')}\n"
            # As it is: TOML knows no pair of escapes for a character such as 😀.
            f"root-certificates = {json.dumps(str(ca), ensure_ascii=False)}\n",
        )
        write_json(self._address, {"control": f"127.0.0.1:{inner}"})

    def last_port(self) -> int:
        """Where the Control API answered last: a restart keeps it, if it is free; 0 if not."""
        try:
            port = int(self.control().rpartition(":")[2])
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except (UserError, OSError):
            return 0
        return port

    def check_running(self) -> None:
        """UserError, with the command that starts it, if nothing listens at that address."""
        host, _, port = self.control().rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER).close()
        except (OSError, ValueError) as error:
            raise UserError(
                f"--superlink: the server of '{self.tls}' is not running: start it with "
                f"`fedhet server {self.tls}`"
            ) from error

    def control(self) -> str:
        """Address of the Control API, ``host:port``; UserError if no server was started here."""
        try:
            return str(read_json(self._address)["control"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"'{self.tls}' has no server yet: start it with `fedhet server {self.tls}`"
            ) from error


def connect(superlink: str) -> str:
    """The name of a connection in Flower's configuration for what was given as ``--superlink``.

    A folder of ``fedhet certs`` means the server that was started from it: Flower then reads that
    server's own configuration. UserError for what is neither.
    """
    path = Path(superlink).expanduser()
    if not (path / "ca.crt").is_file():
        known = _connections()
        if known is not None and superlink not in known:
            address = re.fullmatch(r"(\w+://)?[\w.\[\]:-]+:\d{1,5}", superlink)
            if address:
                raise UserError(
                    f"superlink: '{superlink}' is an address: give the folder of `fedhet certs` "
                    f"there, or the NAME of a connection: [superlink.NAME] in '{_config()}', with "
                    f'address = "{superlink}" and root-certificates'
                )
            raise UserError(
                f"superlink: '{superlink}' is neither a folder of `fedhet certs` (no ca.crt is "
                f"there) nor a connection in Flower's config.toml ({', '.join(known) or 'none'})"
            )
        return superlink
    folder = ServerFolder(path.absolute())
    folder.control()
    os.environ["FLWR_HOME"] = str(folder.flwr_home)
    return CONNECTION


def tls_of(superlink: str | None) -> str:
    """The folder that ``--superlink`` names, if it names one of ours; else empty."""
    path = Path(superlink or "").expanduser()
    return str(path.absolute()) if superlink and (path / "ca.crt").is_file() else ""


def _config() -> Path:
    """Flower's own configuration."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "config.toml"


def _connections() -> list[str] | None:
    """Names in Flower's own configuration; None where it cannot be read.

    Where there is none, Flower makes one at its first command: those that it has then.
    """
    try:
        content = read_toml(_config())
    except FileNotFoundError:
        return list(DEFAULTS)
    except (OSError, ValueError):
        return None
    return [name for name, value in content.get("superlink", {}).items() if isinstance(value, dict)]
