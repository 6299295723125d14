"""Flower's Control API from this process: register keys, list nodes and runs.

``flwr supernode ...`` does the same, at two CPU seconds a call.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fedhet.errors import RunFailedError, UserError
from fedhet.protocol.flower import ControlCalls
from fedhet.reading.structured import parse_object

SINCE = {
    "registered": "registered_at", "online": "last_activated_at", "offline": "last_deactivated_at",
}  # fmt: skip
KNOWN_KEY = 23  # Flower's code for a public key that is registered already


@dataclass(frozen=True)
class Node:
    """A SuperNode as the SuperLink knows it; ``status``: registered, online or offline.

    ``since`` is when it became that (ISO 8601), as far as the SuperLink tells: silence is noticed
    when the heartbeats have been missing for a while, and counts from the last that was due.
    """

    id: int
    name: str
    status: str
    since: str = ""


@dataclass(frozen=True)
class Run:
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
            raise UserError(f"'{ca}' is no certificate: {error}") from error

    def close(self) -> None:
        """Hang up."""
        self._calls.close()

    def register(self, name: str, key: Path) -> bool:
        """Let the owner of a public key take part under ``name``; False if it may already.

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
        except AlreadyThereError:
            return False
        return True

    def nodes(self) -> list[Node]:
        """All nodes that were ever registered and not removed."""
        with self._calling():
            found = self._calls.nodes()
        return [
            Node(
                node.node_id, node.name, node.status, getattr(node, SINCE.get(node.status, ""), "")
            )
            for node in found
            if node.status != "unregistered"
        ]

    def runs(self, limit: int = 20) -> list[Run]:
        """The last runs, newest first."""
        with self._calling():
            found = self._calls.runs(limit)
        runs = []
        for run in found:
            sent = parse_object(run.override_config["config"].string or "{}", f"run {run.run_id}")
            own = sent.get("run") or {}
            status = ":".join(filter(None, (run.status.status, run.status.sub_status)))
            runs.append(
                Run(run.run_id, status, run.pending_at, sent.get("config") or {},
                    str(own.get("folder", "")))
            )  # fmt: skip
        return sorted(runs, key=lambda run: run.started, reverse=True)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            text = error.response.text
            with contextlib.suppress(ValueError, AttributeError):
                answer = parse_object(text)
                if answer.get("code") == KNOWN_KEY:
                    raise AlreadyThereError from error
                text = str(answer.get("detail") or text)
            raise RunFailedError(f"SuperLink at {self.address}: {text[:200]}") from error
        except httpx.HTTPError as error:
            raise RunFailedError(f"SuperLink at {self.address} does not answer: {error}") from error


class AlreadyThereError(Exception):
    """The key is registered already."""
