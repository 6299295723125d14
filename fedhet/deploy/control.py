"""Read a server of ``fedhet server``: its folder and Flower's Control API.

``fedhet certs --out tls`` makes ``tls``; the server adds ``tls/server/``: its database, its logs,
and the address at which its Control API answers, on this machine only. ``--superlink tls`` then
names it to ``fedhet run``, ``resume``, ``watch`` and ``status``. The Control API registers keys and
lists nodes and runs; ``flwr supernode ...`` does the same at two CPU seconds a call.
"""

import contextlib
import json
import math
import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fedhet.config.schema import METRICS
from fedhet.deploy.certs import CA_DAYS, CertificateFolder, make
from fedhet.deploy.network import RENEW, read_certificate, validity, warning
from fedhet.errors import Damaged, RunFailed, UserError
from fedhet.files import parse_object, read_json, write_json, write_text
from fedhet.protocol.flower import ControlCalls

CONNECTION = "fedhet-server"
ANSWER = 10.0  # seconds within which a server on this machine takes a connection


@dataclass(frozen=True)
class ServerFolder:
    """Places below a folder made by ``fedhet certs``."""

    tls: Path

    @property
    def credentials(self) -> CertificateFolder:
        """Certificates and keys."""
        return CertificateFolder(self.tls)

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
    def inner(self) -> CertificateFolder:
        """Certificates of the SuperLink on 127.0.0.1: renewing the clients' never ends it."""
        return CertificateFolder(self.home / "inner")

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
                f"'{missing[0]}' is missing: give a folder of `fedhet certs`, or make one with "
                f"`fedhet certs --out {self.tls} --server HOST --client NAME`"
            )
        if not str(self.tls.absolute()).isprintable():  # TOML takes no such characters
            raise UserError(
                f"'{self.tls}' is not allowed: its path has characters that cannot be printed, "
                "which Flower cannot read: rename the folder"
            )
        self.flwr_home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        if not self.inner.certificate.is_file() or warning(
            read_certificate(self.inner.certificate)
        ):
            shutil.rmtree(self.inner.folder, ignore_errors=True)
            make(self.inner.folder, ["localhost"], [], CA_DAYS).ca_key.unlink()

    def prepare(self, inner: int) -> None:
        """Note, in the folder, that the Control API answers at 127.0.0.1:``inner``."""
        ca = self.inner.ca.absolute()
        write_text(
            self.flwr_home / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f"address = {json.dumps(f'127.0.0.1:{inner}')}\n"
            # As it is: TOML knows no pair of escapes for a character such as 😀.
            f"root-certificates = {json.dumps(str(ca), ensure_ascii=False)}\n",
        )
        write_json(self._address, {"control": f"127.0.0.1:{inner}"})

    def last_port(self) -> int:
        """Return the last port of the Control API, to keep it in a restart; 0 if it is used."""
        try:
            port = int(self.control().rpartition(":")[2])
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except (UserError, OSError):
            return 0
        return port

    def check_certificates(self) -> None:
        """Raise UserError, with file and date, for a certificate that is not valid now."""
        for path in (self.credentials.certificate, self.credentials.ca):
            if path.is_file() and (reason := validity(read_certificate(path))):
                raise UserError(f"'{path}' {reason}; {RENEW}")

    def connect(self) -> "Control":
        """Return a connection to the server that was started from this folder; UserError: none."""
        return Control(self.control(), self.inner.ca)

    def check_running(self) -> None:
        """Raise UserError, with what to do, if no server listens or the certificate has expired."""
        self.check_certificates()
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
                f"'{self.tls}' has no server yet: start one with `fedhet server {self.tls}`"
            ) from error


def connect(superlink: str) -> str:
    """Return the name of ``--superlink``'s connection in Flower's configuration.

    A folder of ``fedhet certs`` means the server that was started from it: Flower then reads that
    server's own configuration. Else it is a connection of Flower's, which says if it has none.
    """
    path = Path(superlink).expanduser()
    if not (path / "ca.crt").is_file():
        return superlink
    folder = ServerFolder(path.absolute())
    folder.control()
    os.environ["FLWR_HOME"] = str(folder.flwr_home)
    return CONNECTION


def tls_of(superlink: str | None) -> str:
    """Return the folder that ``--superlink`` names, if it names one of ours; else empty."""
    path = Path(superlink or "").expanduser()
    return str(path.absolute()) if superlink and (path / "ca.crt").is_file() else ""


SINCE = {
    "registered": "registered_at", "online": "last_activated_at", "offline": "last_deactivated_at",
}  # fmt: skip
KNOWN_KEY = 23  # Flower's code for a public key that is registered already


@dataclass(frozen=True)
class NodeStatus:
    """A SuperNode as the SuperLink knows it; ``status``: registered, online or offline.

    ``since`` is when it became that (ISO 8601), as far as the SuperLink tells: silence is noticed
    when the heartbeats have been missing for a while, and counts from the last that was due.
    """

    id: int
    name: str
    status: str
    since: str = ""


@dataclass(frozen=True)
class RunStatus:
    """A run; ``config`` and ``folder`` are empty where somebody else's app ran."""

    id: int
    status: str
    started: str
    config: dict[str, Any]
    folder: str


class Control:
    """A connection to the Control API of the SuperLink at ``address``, ``host:port``."""

    def __init__(self, address: str, ca: Path) -> None:
        self.address = address
        try:
            self._calls = ControlCalls(address, ca.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"'{ca}' is not a certificate: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._calls.close()

    def register(self, name: str, key: Path) -> bool:
        """Register a public key under ``name``; return False if it is registered already.

        Raises UserError for a file that holds no public key.
        """
        try:
            public = load_ssh_public_key(key.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"'{key}' is not a public key: {error}") from error
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        try:
            with self._calling():
                self._calls.register(name, pem)
        except RunFailed as error:
            if isinstance(error.__cause__, httpx.HTTPStatusError) and (
                _answered(error.__cause__).get("code") == KNOWN_KEY
            ):
                return False
            raise
        return True

    def nodes(self) -> list[NodeStatus]:
        """All nodes that were ever registered and not removed."""
        with self._calling():
            found = self._calls.nodes()
        return [
            NodeStatus(
                node.node_id, node.name, node.status, getattr(node, SINCE.get(node.status, ""), "")
            )
            for node in found
            if node.status != "unregistered"
        ]

    def runs(self, limit: int = 20) -> list[RunStatus]:
        """Return the last runs, newest first."""
        with self._calling():
            found = self._calls.runs(limit)
        runs = []
        for run in found:
            sent = parse_object(run.override_config["config"].string or "{}", f"run {run.run_id}")
            own = sent.get("run") or {}
            status = ":".join(filter(None, (run.status.status, run.status.sub_status)))
            runs.append(
                RunStatus(run.run_id, status, run.pending_at, sent.get("config") or {},
                    str(own.get("folder", "")))
            )  # fmt: skip
        return sorted(runs, key=lambda run: run.started, reverse=True)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            text = str(_answered(error).get("detail") or error.response.text)
            raise RunFailed(f"SuperLink at {self.address}: {text[:200]}") from error
        except httpx.HTTPError as error:
            raise RunFailed(f"SuperLink at {self.address} does not answer: {error}") from error


def _answered(error: httpx.HTTPStatusError) -> dict[str, Any]:
    """Return the JSON object of an error's answer, empty if it is none."""
    with contextlib.suppress(ValueError):
        return parse_object(error.response.text)
    return {}


def collect(control: Control) -> dict[str, Any]:
    """Nodes and runs; ``nodes`` know more where the newest run's folder can be read here."""
    runs: dict[str, RunStatus] = {}  # of a run that was resumed only the newest submission
    for run in control.runs():
        runs.setdefault(run.folder or str(run.id), run)
    told = [(run, _told(run)) for run in runs.values()]
    latest = next((what for _, what in told if what), {})
    clients = latest.get("clients", {})
    nodes = [
        {
            "name": node.name,
            "node": str(node.id),
            "status": node.status,
            **clients.get(node.name, {}),
        }
        for node in sorted(control.nodes(), key=lambda node: node.name)
    ]
    return {
        "nodes": nodes,
        "runs": [
            {
                "run": str(run.id),
                "status": run.status,
                "started": run.started,
                "method": run.config.get("method"),
                "folder": run.folder,
                **{key: value for key, value in what.items() if key != "clients"},
            }
            for run, what in told
        ],
    }


def _told(run: RunStatus) -> dict[str, Any]:
    """Return what a run folder says about the run and its clients; empty without one.

    A line that is being written just now, or a file that is damaged, is left out.
    """
    # Not at the top: PyTorch comes with them, which a server need not have in its memory.
    from fedhet.records.formats import read_evaluations, read_partition  # noqa: PLC0415
    from fedhet.records.run_folder import RunFolder  # noqa: PLC0415

    folder = RunFolder(Path(run.folder)) if run.folder else None
    if folder is None or not folder.path.is_dir():
        return {}
    records: list[dict[str, Any]] = []
    clients: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(Damaged, OSError):
        records = folder.read_rounds()
    with contextlib.suppress(Damaged, OSError):
        for client, images in read_partition(folder.partition).counts.items():
            # A masked sum tells the server no counts: all are zero.
            clients[client] = {"images": sum(images)} if any(images) else {}
    with contextlib.suppress(Damaged, OSError):
        for row in read_evaluations(folder.clients):
            accuracy = math.nan if row.test_accuracy is None else row.test_accuracy
            clients.setdefault(row.client, {}).update(
                model=row.model, last_round=row.generation, test_accuracy=accuracy
            )
    failures = Counter(f["client"] for record in records for f in record["failures"])
    for client, known in clients.items():
        known["failures"] = failures[client]
    last: Mapping[str, Any] = records[-1] if records else {}
    metric = run.config.get("metric")
    metric = metric if metric in METRICS else "accuracy"
    return {
        "clients": clients,
        "round": last.get("round", 0),
        "rounds": run.config.get("rounds"),
        "metric": metric,
        **{key: last.get(key) for key in ("test_accuracy_mean", f"test_{metric}_mean")},
        "failures": sum(failures.values()),
    }
