"""A run that is about to start: its folder, who may fill it, how it is followed and concluded."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from filelock import FileLock

from fedhet.config.load import envelope
from fedhet.config.schema import RunConfig
from fedhet.errors import RunFailed
from fedhet.records.run_folder import OWNER, RunFolder
from fedhet.records.summary import partition_clients

OnRound = Callable[[Mapping[str, Any]], object]
OnRounds = Callable[[Sequence[Mapping[str, Any]]], None]


@dataclass(frozen=True)
class Launch:
    """A run folder that is to be filled, and how."""

    config: RunConfig
    folder: RunFolder
    resume: bool = False
    on_round: OnRound | None = None  # is given the line of every round; False ends the run

    def envelope(self) -> str:
        """Return what the ServerApp gets."""
        identity = {
            "folder": str(self.folder.path),
            "experiment": self.folder.experiment,
            "resume": self.resume,
        }
        return envelope(self.config, identity)

    def write_config(self) -> None:
        """Give a resumed folder this launch's configuration, if it had another."""
        if self.resume and self.folder.started_config() != self.config.flat():
            self.folder.write_config(self.config, self.folder.experiment)

    def status(self) -> tuple[str, str]:
        """Return status and reason of ``summary.json``; empty while there is none."""
        summary = self.folder.read_summary()
        return str(summary.get("status", "")), str(summary.get("reason", ""))


def take_over(folder: RunFolder) -> FileLock:
    """Lock this folder for this command; UserError if another one runs it."""
    lock = folder.lock(OWNER)
    folder.lock().release()
    return lock


class Reader:
    """Pass on ``rounds.jsonl`` whenever it has grown, and what the server waits for."""

    def __init__(
        self, folder: RunFolder, on_rounds: OnRounds, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder = folder
        self.on_rounds = on_rounds
        self.tell = tell
        self.size = -1
        self.last = ""

    def read(self) -> None:
        """Look once; tell what is waited for if it was not what was told last."""
        if (text := self.folder.waits_for()) and text != self.last:
            self.last = text
            self.tell(text)
        size = 0
        with contextlib.suppress(FileNotFoundError):
            size = self.folder.rounds.stat().st_size
        if size != self.size:
            self.size = size
            self.on_rounds(self.folder.read_rounds())


def conclude(launch: Launch, ending: tuple[str, str]) -> None:
    """Write ``summary.json`` unless the ServerApp did.

    A ServerApp that was ended says that it failed or was stopped; this knows which.
    """
    status, _ = launch.status()
    if not status or {status, ending[0]} == {"stopped", "failed"}:
        with contextlib.suppress(OSError):  # on a full disk nothing more can be written
            clients = launch.config.clients or len(partition_clients(launch.folder.partition))
            launch.folder.write_summary(launch.config, ending[0], clients, ending[1])


def raise_unless_completed(launch: Launch, where: str, cause: BaseException | None = None) -> None:
    """Raise RunFailed from ``cause``, with the reason in ``summary.json``."""
    status, reason = launch.status()
    if status != "completed":
        if removed := launch.folder.removed():
            raise RunFailed(removed) from cause
        why = f"{status}: {reason}" if status else "failed, and summary.json could not be written"
        raise RunFailed(f"run {why} ({where})") from cause
