"""The run folder: everything a run leaves behind, readable while it runs."""

import contextlib
import hashlib
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from fedhet.config.schema import RunConfig
from fedhet.errors import ReadError, UserError, VerifyError, one_line
from fedhet.files import csv_text, finite, plain_path, private_files, write_json, write_text
from fedhet.reading.bounds import decoded, read_bytes
from fedhet.reading.structured import MOST_JSON, read_json, read_jsonl, read_yaml, shaped
from fedhet.records import register
from fedhet.records.append_only import Lines
from fedhet.records.environment import environment
from fedhet.records.json_models import Identity, Line, Summary
from fedhet.records.locks import LOCK, OWNER, held
from fedhet.records.privacy_cost import partition_clients, privacy_summary
from fedhet.records.summary import summarise
from fedhet.records.tables import CLIENT_COLUMNS, OTHER

WAITING = 65_536  # bytes of the note that says what is waited for
_AGAIN = "; without this file `fedhet resume` goes on, and computes it again"


class RunFolder:
    """Paths and files of one run. Only the process that holds :meth:`lock` may write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.rounds = path / "rounds.jsonl"
        self.clients = path / "clients.csv"
        self.summary = path / "summary.json"
        self.environment = path / "environment.json"
        self.partition = path / "partition.csv"
        self.log = path / "log.txt"
        self.checkpoint = path / "checkpoint" / "server.safetensors"
        self.attempts = path / "checkpoint" / "attempts"  # at sums; see records.append_only
        self.identity = path / "checkpoint" / "run.json"
        self._rounds, self._clients = Lines(self.rounds), Lines(self.clients)

    @classmethod
    def create(cls, config: RunConfig, default_name: str) -> "RunFolder":
        """Make the folder of a new run; UserError if it exists or cannot be made."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        base = plain_path(config.out)
        path = base / (config.name or f"{default_name}-{stamp}")
        made_by = environment(config)  # before there is a folder: one killed meanwhile leaves none
        for number in range(2, 1000):
            if config.name or not path.exists():
                break
            path = base / f"{default_name}-{stamp}-{number}"
        try:
            base.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError as error:
            raise UserError(
                f"run folder '{path}' already exists: choose another name, or continue it with "
                f"`fedhet resume {path}`"
            ) from error
        except OSError as error:
            raise UserError(f"run folder '{path}' cannot be made: {error.strerror}") from error
        folder = cls(path)
        try:
            folder._fill(config, made_by)
        except BaseException as error:
            folder.discard()  # half a folder would block its name
            if not isinstance(error, OSError):
                raise
            raise UserError(f"run folder '{path}' cannot be made: {error.strerror}") from error
        return folder

    def discard(self) -> None:
        """Remove a folder that was made just now, as if it had never been."""
        with contextlib.suppress(UserError, VerifyError):
            register.forget(self.experiment)
        shutil.rmtree(self.path, ignore_errors=True)

    def _enter(self, config: RunConfig) -> None:
        """Note in this user's register that the run was made here, and where its states go.

        Where that cannot be written a run goes on that needs nothing outside its folder.
        """
        states = (self.state_dir(config) / self.experiment).resolve()
        try:
            register.note(self.experiment, self.path, register.named(config.flat()), states)
        except OSError as error:
            if config.state_dir:
                raise UserError(
                    f"state-dir: '{config.state_dir}' cannot be used: '{register.place()}', which "
                    f"says whose states those are, cannot be written: {error.strerror}; "
                    "XDG_STATE_HOME names another place"
                ) from error

    def _fill(self, config: RunConfig, made_by: Mapping[str, Any]) -> None:
        """What a run folder holds before the run begins."""
        with private_files():
            self.checkpoint.parent.mkdir()
        write_json(self.environment, made_by)
        self._write_config(config, secrets.token_hex(8))
        self._enter(config)

    def started_config(self) -> dict[str, Any]:
        """The configuration that the run was started with.

        Raises UserError if this is no run, or if ``config.yaml`` was edited since.
        """
        started = self._started()["config"]
        now = read_yaml(self.config)
        for key in sorted(set(now) | set(started)):
            if now.get(key) != started.get(key):
                raise UserError(
                    f"{key}: config.yaml says '{now.get(key)}', but the run was started with "
                    f"'{started.get(key)}': undo the edit, or start a new run"
                )
        return dict(started)

    def change_config(self, config: RunConfig) -> None:
        """Go on with another configuration; the caller has checked that it may."""
        self._write_config(config, self.experiment)

    def _write_config(self, config: RunConfig, experiment: str) -> None:
        identity = {"experiment": experiment, "config": config.flat()}
        write_json(self.identity, identity, private=True)
        text = yaml.safe_dump(config.flat(), sort_keys=False, allow_unicode=True)
        write_text(self.config, text)

    @property
    def experiment(self) -> str:
        """Random id of the run: names the clients' states, reused only by resume."""
        return str(self._started()["experiment"])

    def _started(self) -> dict[str, Any]:
        """What ``checkpoint/run.json`` says; VerifyError if it is damaged."""
        try:
            identity = read_json(self.identity)
        except OSError as error:
            if self.rounds.exists() or self.checkpoint.exists():
                raise VerifyError(f"'{self.identity}' cannot be read: {error.strerror}") from error
            raise UserError(f"'{self.path}' is not a run folder: no checkpoint/run.json") from error
        shaped(Identity, identity, f"'{self.identity}'")
        return identity

    def lock(self) -> FileLock:
        """Acquire the writer's lock; UserError if another process writes this run."""
        # Of no thread: a sweep releases what it acquired in another one.
        path = self.path / LOCK
        lock = FileLock(path, blocking=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(f"run folder '{self.path}' is in use by another process") from error
        except OSError as error:  # a link (which is not followed), or a folder has the name
            raise VerifyError(f"'{path}' cannot be opened: {error.strerror}") from error
        return lock

    def unfinished(self) -> str:
        """``running`` or ``killed``, for a run without a summary."""
        return "running" if self.being_written() else "killed"

    def being_written(self) -> bool:
        """Whether a process writes this run, or has it written; nothing is made or changed here.

        Raises VerifyError for a lock that a run does not make, such as a link.
        """
        return any(held(self.path / name) for name in (LOCK, OWNER))

    def state_dir(self, config: RunConfig) -> Path:
        """Where simulated clients keep their states."""
        root = Path(config.state_dir).expanduser() if config.state_dir else self.path / "state"
        return root.resolve()

    def wait_for(self, what: str) -> None:
        """Let others see what the server waits for; empty: for nothing any more."""
        with contextlib.suppress(OSError):  # a note: on a full disk there is none
            if what:
                write_text(self._waiting, f"{what}\n")
            else:
                self._waiting.unlink(missing_ok=True)

    def waits_for(self) -> str:
        """What the server waits for, as far as it says; empty if for nothing."""
        try:
            return one_line(decoded(read_bytes(self._waiting, WAITING), "what is waited for"))
        except (OSError, VerifyError):
            return ""

    @property
    def _waiting(self) -> Path:
        return self.path / "waiting.txt"

    @property
    def sites(self) -> Path:
        """A note for who watches a deployment: see :meth:`note_sites`."""
        return self.path / "sites.json"

    def note_sites(self, warm: Mapping[str, bool]) -> None:
        """Let others see whether clients' nodes are warm; nothing where none says so."""
        if warm:
            with contextlib.suppress(OSError):
                write_json(self.sites, {"warm": dict(warm)}, private=True)

    def read_sites(self) -> dict[str, bool]:
        """What :meth:`note_sites` wrote; ReadError if it is something else."""
        found = read_json(self.sites).get("warm")
        if not isinstance(found, dict) or not all(isinstance(one, bool) for one in found.values()):
            raise ReadError(f"'{self.sites}'", "warm", "not true or false by client")
        return found

    def append_round(self, record: Mapping[str, Any]) -> None:
        """Add one line to ``rounds.jsonl``; not-a-number becomes null."""
        self._rounds.append(json.dumps(finite(record), allow_nan=False) + "\n")

    def append_clients(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add one line per evaluated client to ``clients.csv``; further numbers go to ``other``."""
        lines: list[list[Any]] = [] if self._clients.size else [[*CLIENT_COLUMNS, OTHER]]
        for row in rows:
            other = {k: v for k, v in row.items() if k not in CLIENT_COLUMNS}
            text = json.dumps(finite(other)) if other else ""
            lines.append([*(row.get(column, "") for column in CLIENT_COLUMNS), text])
        self._clients.append(csv_text(lines))

    def read_rounds(self) -> list[dict[str, Any]]:
        """All finished rounds; a line cut short by a crash is left out, another is named."""
        return checked_lines(self.rounds, read_jsonl(self.rounds))

    def marks(self) -> dict[str, Any]:
        """What a checkpoint says about the other files: what is before it is final."""
        return {
            "rounds": self._rounds.mark(),
            "clients": self._clients.mark(),
            "experiment": self.experiment,
            "environment": digest(self.environment),
        }

    def check_unbegun(self) -> None:
        """VerifyError if there are lines; called where there is no checkpoint."""
        for path in (self.rounds, self.clients):
            if path.exists():
                raise VerifyError(f"'{self.checkpoint}' is missing, but '{path.name}' has lines")

    def take_up(self, marks: Mapping[str, Any]) -> None:
        """Go on after a checkpoint: later lines are dropped; VerifyError if earlier ones changed.

        What is later was written between a crash and the checkpoint that would have made it final.
        """
        self._rounds.take_up(marks["rounds"])
        self._clients.take_up(marks["clients"])

    def write_partition(
        self, counts: Sequence[tuple[str, list[int]]], classes: Sequence[str]
    ) -> None:
        """``partition.csv``: training images per client (rows) and class (columns)."""
        rows: list[list[Any]] = [["client", *classes], *([client, *row] for client, row in counts)]
        write_text(self.partition, csv_text(rows), private=True)

    def read_summary(self) -> dict[str, Any]:
        """``summary.json``; empty while there is none, VerifyError if it is damaged."""
        try:
            summary = read_json(self.summary)
            shaped(Summary, summary, f"'{self.summary}'")
        except OSError:
            return {}
        except VerifyError as error:
            raise VerifyError(f"{error}{self._again()}") from error
        return summary

    def _again(self) -> str:
        """How to have a damaged summary written anew, where clients' states allow it."""
        config = self._started()["config"]
        kept = config.get("keep-state", True) and config.get("state-backend", "file") == "file"
        return _AGAIN if kept else ""

    def write_summary(self, config: RunConfig, status: str, clients: int, reason: str = "") -> None:
        """Write ``summary.json`` from the rounds on disk; also for a run that did not complete."""
        figures = self.figures(config, self.read_rounds(), status, clients, reason)
        write_json(self.summary, figures, synced=True, private=True)

    def figures(
        self,
        config: RunConfig,
        rounds: Sequence[Mapping[str, Any]],
        status: str,
        clients: int,
        reason: str,
    ) -> dict[str, Any]:
        """What ``summary.json`` says after these rounds."""
        summary = summarise(config, rounds, status, clients, reason)
        ids = partition_clients(self.partition)
        return summary | {"privacy": privacy_summary(config, rounds, ids)}


def checked_lines(path: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of ``rounds.jsonl``; ReadError for the first field that is not of its kind."""
    return list(each_checked(path, records))


def each_checked(path: Path, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same one after the other."""
    for number, record in enumerate(records, 1):
        shaped(Line, record, f"'{path}'", f"line {number}")
        yield record


def digest(path: Path) -> str:
    """SHA-256 of a file, hex; empty if it is not there."""
    return hashlib.sha256(read_bytes(path, MOST_JSON)).hexdigest() if path.exists() else ""
