"""The run folder: everything that a run leaves behind, readable while the run goes on.

``config.yaml environment.json partition.csv rounds.jsonl clients.csv checkpoint/ summary.json
log.txt``, and ``state/`` with the states of simulated clients unless ``state-dir`` says otherwise.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from fedhet import HERE, __version__, files, plugins
from fedhet.config.schema import RunConfig
from fedhet.errors import Damaged, UserError, one_line
from fedhet.records import summary as figures
from fedhet.records.formats import CLIENT_COLUMNS, OTHER, Identity, Line, Summary, without_gone

LOCK = ".lock"  # of whoever writes a run, or runs a sweep
OWNER = ".owner"  # of the command that has a run done
DATA = "data_sha256"  # in environment.json; empty where the data lies at the clients


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
        self.confusion = path / "confusion.csv"
        self.log = path / "log.txt"
        self._waiting = path / "waiting.txt"
        self.checkpoint = path / "checkpoint" / "server.safetensors"
        self.attempts = path / "checkpoint" / "attempts"  # of sums: a record of each attempt
        self.identity = path / "checkpoint" / "run.json"
        self._rounds, self._clients = Lines(self.rounds), Lines(self.clients)
        self._read, self._text = list[dict[str, Any]](), b""  # of rounds.jsonl, checked already
        self.states_named = False  # whether the user said where the states are

    @classmethod
    def create(cls, config: RunConfig, default_name: str, data: str = "") -> "RunFolder":
        """Make the folder of a new run on data with this digest; UserError if it cannot be made."""
        base, stamp = files.plain_path(config.out), time.strftime("%Y%m%d-%H%M%S")
        # Before there is a folder: a run that is killed meanwhile leaves none.
        made_by = environment(config) | {DATA: data}
        names = (f"{default_name}-{stamp}" + f"-{n}" * (n > 1) for n in itertools.count(1))
        free = (base / name for name in names if not (base / name).exists())
        folder = cls(path := base / config.name if config.name else next(free))
        with contextlib.ExitStack() as undo:  # half a folder would block its name
            try:
                base.mkdir(parents=True, exist_ok=True)
                path.mkdir()
                undo.callback(folder.discard)
                folder.checkpoint.parent.mkdir(mode=0o700)
                files.write_json(folder.environment, made_by)
                folder.write_config(config, secrets.token_hex(8))
            except FileExistsError as error:
                raise UserError(
                    f"run folder '{path}' already exists: choose another name, or continue it with "
                    f"`fedhet resume {path}` (a completed run needs rounds=N, more than it has)"
                ) from error
            except OSError as error:
                raise UserError(f"run folder '{path}' cannot be made: {error.strerror}") from error
            undo.pop_all()
        return folder

    def check_data(self, data: str) -> None:
        """Raise UserError if the run was started on data with another digest."""
        # A missing file is found by `verify`.
        before = files.read_json(self.environment).get(DATA) if self.environment.exists() else ""
        if before and before != data:
            raise UserError(
                f"run '{self.path}' cannot be resumed: its data has other values than when it was "
                "started: put the old file back, or start a new run"
            )

    def discard(self) -> None:
        """Remove a folder that was made just now."""
        shutil.rmtree(self.path, ignore_errors=True)

    def started_config(self) -> dict[str, Any]:
        """Return the configuration that the run was started with.

        Raises UserError if this is no run, or if ``config.yaml`` was edited since.
        """
        started = self._started()["config"]
        now = files.read_yaml(self.config)
        for key in sorted(set(now) | set(started)):
            if now.get(key) != started.get(key):
                raise UserError(
                    f"{key}: config.yaml says '{now.get(key)}', but the run was started with "
                    f"'{started.get(key)}': undo the edit, or start a new run"
                )
        return without_gone(str(started.get("method")), started)

    def made_here(self) -> bool:
        """Return whether this user's fedhet made the run, with the configuration that it has."""
        return plugins.made_here(self._started())

    def opened(self, *, trust: bool) -> dict[str, Any]:
        """Return the configuration that the run was started with.

        Raise UserError if it names code of others, unless this user made the run, or ``trust``.
        """
        started = self.started_config()
        plugins.require_trust(f"'{self.path}'", started, trusted=trust or self.made_here())
        return started

    def check_reach(self, config: RunConfig) -> None:
        """Raise UserError if a run of somebody else's would send or write outside its folder."""
        if self.made_here():
            return
        if config.tracker not in {"none", "tensorboard"}:
            raise UserError(
                f"tracker: '{config.tracker}' is not allowed for a run that you did not make: it "
                "would send results under your account; give tracker=none, or --trust"
            )
        from fedhet.data.sources import TORCHVISION  # noqa: PLC0415  (torch)

        if config.dataset in TORCHVISION and config.data_path:
            raise UserError(
                f"data-path: '{config.data_path}' is not allowed for a run that you did not make: "
                f"'{config.dataset}' would be downloaded there; give --trust to allow it"
            )

    def write_config(self, config: RunConfig, experiment: str, without: Sequence[str] = ()) -> None:
        """Write the run's identity and ``config.yaml``, which the caller has checked to be allowed.

        ``without``: keys that mean nothing in this run.
        """
        keys = {key: value for key, value in config.flat().items() if key not in without}
        identity = {"experiment": experiment, "config": keys}
        identity[plugins.MAC] = plugins.sign(identity)
        files.write_json(self.identity, identity, private=True)
        files.write_text(self.config, yaml.safe_dump(keys, sort_keys=False, allow_unicode=True))

    @property
    def experiment(self) -> str:
        """Random id of the run: names the clients' states, reused only by resume."""
        return str(self._started()["experiment"])

    def _started(self) -> dict[str, Any]:
        try:
            identity = files.read_json(self.identity)
        except OSError as error:
            if self.rounds.exists() or self.checkpoint.exists():
                raise Damaged(f"'{self.identity}' cannot be read: {error.strerror}") from error
            raise UserError(
                f"'{self.path}' is not a run folder: it has no checkpoint/run.json; "
                "`fedhet runs DIR` lists the run folders in DIR"
            ) from error
        files.shaped(Identity, identity, f"'{self.identity}'")
        return identity

    def lock(self, name: str = LOCK) -> FileLock:
        """Acquire the writer's lock, or OWNER's; UserError if another process has it."""
        # Of no thread: a sweep releases it in another one. An interrupted run takes time to end.
        path = self.path / name
        lock = FileLock(path, timeout=5.0, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(f"run folder '{self.path}' is in use by another process") from error
        except OSError as error:  # a link (which is not followed), or a folder has the name
            raise Damaged(f"'{path}' cannot be opened: {error.strerror}") from error
        return lock

    def being_written(self) -> bool:
        """Whether a process writes this run, or has it written; nothing is made or changed here.

        Raises Damaged for a lock that a run does not make, such as a link.
        """
        return any(held(self.path / name) for name in (LOCK, OWNER))

    def status(
        self, summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]],
        written: Callable[[], bool] | None = None,
    ) -> tuple[str, str]:  # fmt: skip
        """Return the state of a run with this summary and these rounds, and a reason for it.

        It is completed, failed, stopped or diverged; without a summary waiting, running,
        interrupted or gone. ``written`` replaces :meth:`being_written`.
        """
        if summary:
            status, reason = one_line(summary["status"], 40), one_line(summary["reason"], 500)
            last = status == "completed" and rounds and figures.diverged(rounds[-1])
            overflow = last or (status == "failed" and figures.DIVERGENCE.search(reason))
            return "diverged" if overflow else status, reason
        if not self.path.is_dir():
            return "gone", "the folder does not exist"
        if not (written or self.being_written)():
            again = "it was interrupted; `fedhet resume` continues it"
            return "interrupted", again if rounds else "it has not begun, or was interrupted"
        if (waits := self.waits_for()) or not rounds:
            return "waiting", waits or "it is starting: no round is finished yet"
        return "running", ""

    # --- states of simulated clients -------------------------------------------------------

    def state_dir(self, config: RunConfig) -> Path:
        """Return the folder in which simulated clients of runs keep their states."""
        return Path(config.state_dir or self.path / "state").expanduser().resolve()

    def states(self, config: RunConfig) -> Path:
        """Return the folder of this run's states.

        Raise Damaged if it lies outside the run folder, and this user neither made the run nor
        named the place: then a stranger's configuration does.
        """
        path = self.state_dir(config) / self.experiment
        inside = path.resolve() == self.path.resolve() / "state" / self.experiment
        if not (inside or self.states_named or self.made_here()):
            raise Damaged(
                f"state-dir: '{path.parent}' lies outside '{self.path}', and you did not make the "
                f"run; if the states are yours, give `fedhet resume {self.path} "
                f"state-dir={path.parent}`"
            )
        return path

    def remove_states(self, config: RunConfig) -> None:
        """Delete the states of a completed run; what is not this run folder's stays."""
        with contextlib.suppress(Damaged):
            shutil.rmtree(self.states(config), ignore_errors=True)  # follows no link

    # --- notes while the run goes on -------------------------------------------------------

    def wait_for(self, what: str) -> None:
        """Let others see what the server waits for; empty: for nothing any more."""
        with contextlib.suppress(OSError):  # a note: on a full disk there is none
            if what:
                files.write_text(self._waiting, f"{what}\n")
            else:
                self._waiting.unlink(missing_ok=True)

    def waits_for(self) -> str:
        """Return what the server waits for; empty if for nothing."""
        try:
            return one_line(files.decoded(files.read_bytes(self._waiting), "what is waited for"))
        except (OSError, Damaged):
            return ""

    def append_round(self, record: Mapping[str, Any]) -> None:
        """Add one line to ``rounds.jsonl``; not-a-number becomes null."""
        self._rounds.append(json.dumps(files.finite(record), allow_nan=False) + "\n")

    def append_clients(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add one line per evaluated client to ``clients.csv``; further numbers go to ``other``."""
        columns, lines = list(CLIENT_COLUMNS), list[list[Any]]()
        if self._clients.size:  # a resumed run goes on under its own header, which may be older
            with self.clients.open(encoding="utf-8") as file:
                columns = file.readline().rstrip("\r\n").split(",")[:-1]
        else:
            lines.append([*columns, OTHER])
        for row in rows:
            other = {k: v for k, v in row.items() if k not in columns}
            text = json.dumps(files.finite(other)) if other else ""
            lines.append([*(row.get(column, "") for column in columns), text])
        self._clients.append(files.csv_text(lines))

    def read_rounds(self) -> list[dict[str, Any]]:
        """Return all finished rounds, without a line that a crash cut short.

        Only lines that are new since the last call are read. Raise Damaged for the first field that
        is not of its kind, and for a line that is not of the round after the one before it.
        """
        text = b""
        with contextlib.suppress(FileNotFoundError):
            text = files.read_bytes(self.rounds)
        if not text.startswith(self._text):  # a resumed run has dropped some
            self._read, self._text = [], b""
        source = f"'{self.rounds}'"
        for line in text[len(self._text) :].split(b"\n")[:-1]:
            place = f"line {(number := len(self._read) + 1)}"
            record = files.parse_object(line, source, place)
            files.shaped(Line, record, source, place)
            if record["round"] != number:
                raise Damaged.at(source, place, f"round: {record['round']}, where {number} is next")
            self._read.append(record)
            self._text += line + b"\n"
        return list(self._read)

    def marks(self) -> dict[str, Any]:
        """Return what a checkpoint says about the other files: what is before it is final."""
        return {
            "rounds": self._rounds.mark(), "clients": self._clients.mark(),
            "experiment": self.experiment, "environment": digest(self.environment),
        }  # fmt: skip

    def check_unbegun(self) -> None:
        """Damaged if there are lines; called where there is no checkpoint."""
        for path in (self.rounds, self.clients):
            if path.exists():
                raise Damaged(f"'{self.checkpoint}' is missing, but '{path.name}' has lines")

    def take_up(self, marks: Mapping[str, Any]) -> None:
        """Go on after a checkpoint: later lines are dropped; Damaged if earlier ones changed.

        What is later was written between a crash and the checkpoint that would have made it final.
        """
        self._rounds.take_up(marks["rounds"])
        self._clients.take_up(marks["clients"])

    def write_partition(
        self, counts: Sequence[tuple[str, list[int]]], classes: Sequence[str]
    ) -> None:
        """``partition.csv``: training images per client (rows) and class (columns), if told."""
        rows = ([client, *(row or ("",) * len(classes))] for client, row in counts)
        text = files.csv_text((("client", *classes), *rows))
        files.write_text(self.partition, text, private=True)

    def write_confusion(self, rows: Iterable[list[Any]]) -> None:
        """``confusion.csv``: how often each class was taken for each other one, by client."""
        files.write_text(self.confusion, files.csv_text(rows), private=True)

    def read_summary(self) -> dict[str, Any]:
        """``summary.json``; empty while there is none, Damaged if it is damaged."""
        try:
            summary = files.read_json(self.summary)
            files.shaped(Summary, summary, f"'{self.summary}'")
            return summary
        except OSError:
            return {}
        except Damaged as error:
            again = "without this file `fedhet resume` computes it again"
            raise Damaged(f"{error}; {again}") from error

    def read_result(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return :meth:`read_summary` and :meth:`read_rounds`.

        Raise Damaged if the run is completed and these are not of the same rounds.
        """
        summary, rounds = self.read_summary(), self.read_rounds()  # in the order they are final
        if summary.get("status") == "completed":
            (lines, name), of = (self.rounds, self.summary.name), summary["rounds"]
            if not 0 < of == len(rounds):
                raise Damaged(f"'{lines}' has {len(rounds)} of the {of} rounds that '{name}' is of")
            if rounds[-1]["sha256"] != summary.get("run_sha256"):
                text = f"run_sha256 is not what '{lines.name}' ends with"
                raise Damaged(f"'{self.summary}': {text}")
        return summary, rounds

    def removed(self) -> str:
        """Return the reason why nothing can be written: the folder is gone; empty if it is not."""
        if self.identity.exists():
            return ""
        return f"run folder '{self.path}' was removed or renamed while the run went on"

    def write_summary(self, config: RunConfig, status: str, clients: int, reason: str = "") -> None:
        """Write ``summary.json`` from the rounds on disk; also for a run that did not complete.

        Raise OSError if it cannot be written, or if the folder was removed.
        """
        if removed := self.removed():
            raise FileNotFoundError(errno.ENOENT, removed, str(self.path))
        rounds = self.read_rounds()
        summary = figures.summarise(config, rounds, status, clients, reason)
        privacy = figures.privacy_summary(config, rounds, figures.partition_clients(self.partition))
        files.write_json(self.summary, summary | {"privacy": privacy}, synced=True, private=True)


def digest(path: Path) -> str:
    """SHA-256 of a file, hex; empty if it is not there."""
    return hashlib.sha256(files.read_bytes(path)).hexdigest() if path.exists() else ""


# --- files that only grow, and locks ------------------------------------------------------------


class Lines:
    """A text file that one process appends to; every append is on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._digest = hashlib.sha256()

    def append(self, text: str) -> None:
        """Add ``text``, whole lines; a full disk may leave a part of it, which no mark covers."""
        data = text.encode()
        new = not self.path.exists()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(data)
        files.sync(self.path)
        if new:
            files.sync(self.path.parent)
        self._digest.update(data)
        self.size += len(data)

    def mark(self) -> dict[str, Any]:
        """Where the file is now, for a checkpoint: whatever comes after it is not final."""
        return {"bytes": self.size, "sha256": self._digest.hexdigest()}

    def take_up(self, mark: Mapping[str, Any]) -> None:
        """Go on from a mark: what was written after it is dropped.

        Raises Damaged if what was written before it has changed.
        """
        data, _ = parts(self.path, mark)
        if self.path.exists():
            os.truncate(self.path, len(data))
            files.sync(self.path)
        self.size, self._digest = len(data), hashlib.sha256(data)


def parts(path: Path, mark: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return the bytes up to the mark and after it; Damaged if they are not what was marked."""
    data, size = files.read_bytes(path) if path.exists() else b"", int(mark["bytes"])
    final, later = data[:size], data[size:]
    if len(final) < size:
        raise Damaged(f"'{path}' is cut: {len(final)} bytes of {size} are there")
    if hashlib.sha256(final).hexdigest() != mark["sha256"]:
        raise Damaged(f"'{path}' is not what was written: a line was altered, added or lost")
    return final, later


def held(path: Path) -> bool:
    """Whether somebody holds a lock.

    It is asked for with others (for the moment of this call) by who cannot make or change it; a
    command that begins in that very moment finds the folder in use, so this is not asked often.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Damaged(f"'{path}' cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


# --- what a run was made with: versions, machine, a digest of the code ---------------------------

_PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy", "safetensors")
_CPUINFO = Path("/proc/cpuinfo")
# Packages of fedhet that no result depends on.
_ROOMS_WITHOUT_RESULTS = ("cli", "sweeps", "reports", "watch", "export")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    packages = {name: version(name) for name in _PACKAGES}
    return {"fedhet": __version__, **packages, "python": platform.python_version()}


@functools.cache
def source_digest() -> str:
    """SHA-256 of the source files that can change a run's result, names and contents."""
    digest = hashlib.sha256()
    for name, path in files.sources():
        if name.split("/")[1] not in _ROOMS_WITHOUT_RESULTS:
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def processor() -> str:
    """Architecture, model as far as the system tells, and the vector instructions in use.

    Sums are rounded in an order that depends on them: runs that were made on two kinds of processor
    drift apart. Example: ``x86_64, AMD EPYC (family 25, model 17), AVX512``.
    """
    import torch  # noqa: PLC0415  (who only reads a run folder waits for no torch)

    text = ""
    with contextlib.suppress(OSError):  # Linux's; not there elsewhere
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    cpu = dict(re.findall(r"(?m)^([^\t:]+?)\s*:\s*(\S.*)$", text))
    keys = ("cpu family", "model", "CPU implementer", "CPU part")  # the last two are ARM's
    known = ", ".join(f"{key.split()[-1]} {cpu[key]}" for key in keys if key in cpu)
    make = cpu.get("model name", platform.processor()) + (f" ({known})" if known else "")
    parts = (platform.machine(), make.strip(), torch.backends.cpu.get_cpu_capability())
    return ", ".join(part for part in dict.fromkeys(parts) if part)


def commit(package: Path = HERE) -> str | None:
    """Return the commit of our checkout; None in a wheel, also one in another repository."""
    git = ["git", "-C", str(package), "rev-parse", "HEAD", "HEAD:./client_app.py"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):  # a container has no git
        return subprocess.check_output(git, text=True, stderr=subprocess.DEVNULL).split()[0]
    return None


def environment(config: RunConfig) -> dict[str, Any]:
    """Versions, device, threads, git commit and source digest, for ``environment.json``."""
    import torch  # noqa: PLC0415  (seconds, which commands that only read do not need)

    gpus = range(torch.cuda.device_count()) if config.device != "cpu" else ()
    return {
        "versions": versions(), "platform": platform.platform(), "processor": processor(),
        "cores": os.cpu_count(), "cuda": [torch.cuda.get_device_name(i) for i in gpus],
        "device": config.device, "threads": config.threads, "git_commit": commit(),
        "source_sha256": source_digest(), "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip
