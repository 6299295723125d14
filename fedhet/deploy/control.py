"""A server of ``fedhet server``: its folder, its connection, and what ``fedhet status`` shows.

``fedhet certs --out tls`` makes ``tls``; the server adds ``tls/server/``: its database, its logs,
and the address at which its Control API answers, on this machine only. ``--superlink tls`` then
names it to ``fedhet run``, ``resume``, ``watch`` and ``status``.
"""

import contextlib
import math
import shutil
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhet.config.schema import METRICS
from fedhet.deploy.certs import (
    CA_DAYS,
    RENEW,
    CertificateFolder,
    make,
    read_certificate,
    validity,
    warning,
)
from fedhet.errors import Damaged, UserError
from fedhet.files import read_json, write_json
from fedhet.protocol.flower import Control, RunStatus

ANSWER = 10.0  # seconds within which a server on this machine takes a connection


class ServerFolder:
    """Places below ``tls``, a folder made by ``fedhet certs``."""

    def __init__(self, tls: Path) -> None:
        self.tls, self.credentials = tls, CertificateFolder(tls)
        self.home = tls / "server"  # what the server writes; mode 700
        self.database = self.home / "superlink.db"  # Flower's: registered keys, nodes, runs
        self.log = self.home / "superlink.log"  # what Flower prints
        self.flwr_home = self.home / "flwr"
        # Certificates of the SuperLink on 127.0.0.1: renewing the clients' never ends it.
        self.inner = CertificateFolder(self.home / "inner")
        self._address = self.home / "address.json"

    def keys(self) -> dict[str, Path]:
        """Public keys of the clients, by client id."""
        return {path.stem: path for path in sorted((self.tls / "clients").glob("*.pub"))}

    def make(self) -> None:
        """Make the folder; UserError without certificates."""
        own = self.credentials
        for path in (own.ca, own.certificate, own.key):
            if not path.is_file():
                how = f"make one with `fedhet certs --out {self.tls} --server HOST --client NAME`"
                raise UserError(f"'{path}' is missing: give a folder of `fedhet certs`, or {how}")
        self.flwr_home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        inner = self.inner.certificate
        if not inner.is_file() or warning(read_certificate(inner)):
            shutil.rmtree(self.inner.folder, ignore_errors=True)
            make(self.inner.folder, ["localhost"], [], CA_DAYS).ca_key.unlink()

    def prepare(self, inner: int) -> None:
        """Note, in the folder, that the Control API answers at 127.0.0.1:``inner``."""
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

    def connect(self) -> Control:
        """Return a connection to the server that was started from this folder; UserError: none."""
        try:
            return Control.at(self.control(), self.inner.ca.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"'{self.inner.ca}' is not a certificate: {error}") from error

    def check_running(self) -> None:
        """Raise UserError, with what to do, if no server listens or the certificate has expired."""
        self.check_certificates()
        host, _, port = self.control().rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER).close()
        except (OSError, ValueError) as error:
            how = f"start it with `fedhet server {self.tls}`"
            text = f"--superlink: the server of '{self.tls}' is not running: {how}"
            raise UserError(text) from error

    def control(self) -> str:
        """Address of the Control API, ``host:port``; UserError if no server was started here."""
        try:
            return str(read_json(self._address)["control"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"'{self.tls}' has no server yet: start one with `fedhet server {self.tls}`"
            ) from error


def tls_of(superlink: str | None) -> str:
    """Return the folder that ``--superlink`` names, if it names one of ours; else empty."""
    path = Path(superlink or "").expanduser()
    return str(path.absolute()) if superlink and (path / "ca.crt").is_file() else ""


def connect(superlink: str) -> Control:
    """Return a connection to a server of ours, by its folder, or of Flower's configuration."""
    tls = tls_of(superlink)
    return ServerFolder(Path(tls)).connect() if tls else Control.named(superlink)


def collect(control: Control) -> dict[str, Any]:
    """Nodes and runs; ``nodes`` know more where the newest run's folder can be read here."""
    runs: dict[str, RunStatus] = {}  # of a run that was resumed only the newest submission
    for run in control.runs():
        runs.setdefault(run.folder or str(run.id), run)
    told = [(run, _told(run)) for run in runs.values()]
    latest = next((what for _, what in told if what), {})
    clients = latest.get("clients", {})
    nodes = [
        {"name": node.name, "node": str(node.id), "status": node.status}
        | clients.get(node.name, {})
        for node in sorted(control.nodes(), key=lambda node: node.name)
    ]
    known = [
        {"run": str(run.id), "status": run.status, "started": run.started,
         "method": run.config.get("method"), "folder": run.folder}
        | {key: value for key, value in what.items() if key != "clients"}
        for run, what in told
    ]  # fmt: skip
    return {"nodes": nodes, "runs": known}


def _told(run: RunStatus) -> dict[str, Any]:
    """Return what a run folder says about the run and its clients; nothing of damaged files."""
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
        for client, images in read_partition(folder.partition)[1].items():
            clients[client] = {"images": sum(images)} if images else {}
    with contextlib.suppress(Damaged, OSError):
        for row in read_evaluations(folder.clients):
            accuracy = math.nan if row["test_accuracy"] is None else row["test_accuracy"]
            clients.setdefault(row["client"], {}).update(
                model=row["model"], last_round=row["generation"], test_accuracy=accuracy
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
