"""A server of ``fedhet server``: its folder, its connection, and what ``fedhet status`` shows.

``fedhet certs --out tls`` makes ``tls``; the server adds ``tls/server/``: its database, its logs,
and where its Control API answers, on this machine only. ``--superlink tls`` names it to commands.
"""

import contextlib
import shutil
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhet.config.schema import METRICS
from fedhet.deploy import certs
from fedhet.deploy.certs import CertificateFolder, read_certificate
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
        for path in (self.credentials.ca, self.credentials.certificate, self.credentials.key):
            if not path.is_file():
                how = f"make one with `fedhet certs --out {self.tls} --server HOST --client NAME`"
                raise UserError(f"'{path}' is missing: give a folder of `fedhet certs`, or {how}")
        self.flwr_home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        inner = self.inner.certificate
        if not inner.is_file() or certs.warning(read_certificate(inner)):
            shutil.rmtree(self.inner.folder, ignore_errors=True)
            certs.make(self.inner.folder, ["localhost"], [], certs.CA_DAYS).ca_key.unlink()

    def prepare(self, inner: int) -> None:
        """Note, in the folder, that the Control API answers at 127.0.0.1:``inner``."""
        write_json(self._address, {"control": f"127.0.0.1:{inner}"})

    def check_certificates(self) -> None:
        """Raise UserError, with file and date, for a certificate that is not valid now."""
        for path in (self.credentials.certificate, self.credentials.ca):
            if path.is_file() and (reason := certs.validity(read_certificate(path))):
                raise UserError(f"'{path}' {reason}; {certs.RENEW}")

    def connect(self) -> Control:
        """Return a connection to the server that was started from this folder; UserError: none."""
        try:
            return Control(self.control(), self.inner.ca.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"'{self.inner.ca}' is not a certificate: {error}") from error

    def check_running(self) -> None:
        """Raise UserError, which says what to do, unless the server takes a connection."""
        self.check_certificates()
        host, _, port = self.control().rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER).close()
        except (OSError, ValueError) as error:
            text = f"is not running: start it with `fedhet server {self.tls}`"
            raise UserError(f"--superlink: the server of '{self.tls}' {text}") from error

    def control(self) -> str:
        """Address of the Control API, ``host:port``; UserError if no server was started here."""
        try:
            return str(read_json(self._address)["control"])
        except (OSError, ValueError, KeyError) as error:
            text = f"has no server yet: start one with `fedhet server {self.tls}`"
            raise UserError(f"'{self.tls}' {text}") from error


def server_folder(superlink: str | Path) -> ServerFolder:
    """Return the folder that ``--superlink`` names; UserError if `fedhet certs` did not make it."""
    folder = ServerFolder(Path(superlink).expanduser().absolute())
    if not folder.credentials.ca.is_file():
        text = "is not a folder of `fedhet certs` (it has no ca.crt): give that of `fedhet server`"
        raise UserError(f"--superlink: '{superlink}' {text}")
    return folder


def collect(control: Control) -> dict[str, Any]:
    """Nodes and runs; ``nodes`` know more where the newest run's folder can be read here."""
    runs: dict[str, RunStatus] = {}  # of a run that was resumed only the newest submission
    for run in control.runs():
        runs.setdefault(run.folder or str(run.id), run)
    read = [(run, *_progress(run)) for run in runs.values()]
    clients = next((clients for _, what, clients in read if what), {})
    nodes = [
        {"name": n.name, "node": str(n.node_id), "status": n.status} | clients.get(n.name, {})
        for n in sorted(control.nodes(), key=lambda node: node.name)
    ]
    known = [
        {"run": str(run.id), "status": run.status, "started": run.started,
         "method": run.config.get("method"), "folder": run.folder, **what}
        for run, what, _ in read
    ]  # fmt: skip
    return {"nodes": nodes, "runs": known}


def _progress(run: RunStatus) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return how far a run has come, and its clients, by its folder; nothing of damaged files."""
    # Not at the top: PyTorch comes with them, which a server need not have in its memory.
    from fedhet.records.formats import read_evaluations, read_partition  # noqa: PLC0415
    from fedhet.records.run_folder import RunFolder  # noqa: PLC0415

    if not run.folder or not Path(run.folder).is_dir():
        return {}, {}
    folder, clients = RunFolder(Path(run.folder)), dict[str, dict[str, Any]]()
    records, metric = list[dict[str, Any]](), run.config.get("metric")
    metric = metric if metric in METRICS else "accuracy"
    with contextlib.suppress(Damaged, OSError):
        records = folder.read_rounds()
    failures = Counter(failure["client"] for record in records for failure in record["failures"])
    with contextlib.suppress(Damaged, OSError):
        for client, counts in read_partition(folder.partition)[1].items():
            clients[client] = {"images": sum(counts)} if counts else {}
    with contextlib.suppress(Damaged, OSError):
        for row in read_evaluations(folder.clients, last=True):
            known = clients.setdefault(row["client"], {})
            known |= {"model": row["model"], "last_round": row["generation"]}
    clients = {client: known | {"failures": failures[client]} for client, known in clients.items()}
    last: Mapping[str, Any] = records[-1] if records else {}
    return {
        "round": last.get("round", 0), "rounds": run.config.get("rounds"), "metric": metric,
        **{key: last.get(key) for key in ("test_accuracy_mean", f"test_{metric}_mean")},
        "failures": failures.total(),
    }, clients  # fmt: skip
