"""Launches a run, follows it to its end, and leaves no process behind."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedhet.config.load import envelope
from fedhet.config.schema import RunConfig
from fedhet.deploy.server_folder import CONNECTION, connect
from fedhet.engines.process_groups import Herd, environment
from fedhet.engines.signals import Interrupted, undisturbed
from fedhet.engines.superlink import (
    SLOW_START,
    SuperLink,
    clear,
    flower_home,
    flwr,
    run_status,
    submit,
)
from fedhet.errors import RunFailedError, UserError, VerifyError, one_line
from fedhet.files import private_files
from fedhet.records.run_folder import OWNER, RunFolder
from fedhet.records.summary import partition_clients

POLL = 0.2  # seconds between looks at rounds.jsonl
REMOTE_POLL = 15.0  # seconds between questions to somebody else's SuperLink: one costs CPU seconds
REMOTE_END = 1.0  # the same once the run folder says that the run is over
REMOTE_SILENCES = 8  # questions in a row without an answer before we give up
TAKE_OVER = 10.0  # seconds that another command may take to notice that its run is dead
RESTARTS = 2  # further tries on a machine so busy that Ray does not start in time; 1 if it dies
OnRounds = Callable[[Sequence[Mapping[str, Any]]], None]


@dataclass(frozen=True)
class Launch:
    """A run folder that is to be filled, and how."""

    config: RunConfig
    folder: RunFolder
    resume: bool = False
    python_path: tuple[str, ...] = ()

    def envelope(self, owner: int) -> str:
        """What the ServerApp gets; it ends itself when process ``owner`` is gone (0: nobody)."""
        identity = {
            "folder": str(self.folder.path),
            "experiment": self.folder.experiment,
            "owner": owner,
            "resume": self.resume,
        }
        return envelope(self.config, identity)

    def write_config(self) -> None:
        """A resumed folder gets this launch's configuration, if it had another."""
        if self.resume and self.folder.started_config() != self.config.flat():
            self.folder.change_config(self.config)

    def status(self) -> tuple[str, str]:
        """Status and reason in ``summary.json``; empty while there is none."""
        summary = self.folder.read_summary()
        return str(summary.get("status", "")), str(summary.get("reason", ""))

    def clients(self) -> int:
        """N, as far as it is known here."""
        return self.config.clients or len(partition_clients(self.folder.partition))


def take_over(folder: RunFolder) -> FileLock:
    """Become the one command that runs this folder; end what a killed one left behind.

    UserError if another command, or a ServerApp that is not ours, is at it.
    """
    herd = Herd(folder.path)
    lock = FileLock(folder.path / OWNER, blocking=False)
    busy = UserError(f"run folder '{folder.path}' is in use by another process")
    deadline = time.monotonic() + TAKE_OVER
    while True:
        try:
            lock.acquire()
            break
        except Timeout:
            herd.adopt_leftovers()
            # With its processes dead, the other command is about to notice and to end.
            if herd.living() or time.monotonic() > deadline:
                raise busy from None
            time.sleep(POLL)
        except OSError as error:  # a link (which is not followed), or a folder has the name
            raise VerifyError(
                f"'{folder.path / '.owner'}' cannot be opened: {error.strerror}"
            ) from error
    herd.adopt_leftovers()
    herd.stop(grace=0.0)
    clear(folder.path)
    folder.lock().release()
    return lock


def simulate(launch: Launch, on_rounds: OnRounds) -> None:
    """Run it in a simulation of our own; RunFailedError if it did not complete.

    The caller holds :func:`take_over`'s lock. ``summary.json`` is written in every case.
    """
    launch.folder.summary.unlink(missing_ok=True)
    link = SuperLink(launch.config, launch.folder.path, launch.python_path)
    ending = ("failed", "the command ended early")
    try:
        link.start()
        link.submit(launch.envelope(os.getpid()))
        ending = _follow(launch, link, on_rounds)
    except Interrupted as interrupt:
        ending = ("stopped", str(interrupt))
        raise
    except (RunFailedError, OSError, subprocess.SubprocessError) as error:
        ending = ("failed", one_line(error))
    finally:
        with undisturbed():
            link.stop()
            conclude(launch, ending)
    raise_unless_completed(launch, f"log: {launch.folder.log}")


def _follow(launch: Launch, link: SuperLink, on_rounds: OnRounds) -> tuple[str, str]:
    """Report finished rounds until the run has ended; returns its status and the reason."""
    reader = Reader(launch.folder, on_rounds)
    deadline = time.monotonic() + launch.config.start_timeout
    restarts = 0
    while True:
        trouble = link.trouble()  # before the summary: a run that ends well leaves one first
        reader.read()
        status, reason = launch.status()
        if status:
            link.settle(patience=5.0)
            return status, reason
        if not trouble and not link.started() and time.monotonic() > deadline:
            trouble = f"the simulation did not start in {launch.config.start_timeout:g} s"
        tries = RESTARTS if SLOW_START in trouble else int(link.ray_died()) if trouble else 0
        if restarts < tries:
            restarts += 1
            link.again(launch.envelope(os.getpid()), trouble)
            deadline = time.monotonic() + launch.config.start_timeout
        elif trouble:
            return "failed", trouble
        time.sleep(POLL)


class Reader:
    """Hands on ``rounds.jsonl`` whenever it has grown, and what the server waits for."""

    def __init__(
        self, folder: RunFolder, on_rounds: OnRounds, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder = folder
        self.on_rounds = on_rounds
        self.tell = tell
        self.size = -1
        self.told = ""

    def say(self, text: str) -> None:
        """Tell something that is not what was told last."""
        if text and text != self.told:
            self.told = text
            self.tell(text)

    def read(self) -> None:
        """Look once."""
        self.say(self.folder.waits_for())
        size = self.folder.rounds.stat().st_size if self.folder.rounds.exists() else 0
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
            launch.folder.write_summary(launch.config, ending[0], launch.clients(), ending[1])


def raise_unless_completed(launch: Launch, where: str, cause: BaseException | None = None) -> None:
    """RunFailedError with the reason in ``summary.json``, because of ``cause``."""
    status, reason = launch.status()
    if status != "completed":
        why = f"{status}: {reason}" if status else "failed, and summary.json could not be written"
        raise RunFailedError(f"run {why} ({where})") from cause


def submit_remote(
    launch: Launch, connection: str, on_rounds: OnRounds, tell: Callable[[str], None]
) -> None:
    """Run it on somebody else's SuperLink and wait for it; RunFailedError if it did not complete.

    ``tell`` is called with what is waited for, and since when.
    Rounds are reported where the run folder is on this machine, too. An interruption stops the
    run. UserError if the run could not even be submitted.
    """
    connection = connect(connection)
    env = environment()
    run_id = _submit_remote(launch, connection, env)
    try:
        reader = Reader(launch.folder, on_rounds, tell)
        status, details = _await(launch, connection, run_id, reader)
    except Interrupted as interrupt:
        with undisturbed():
            with contextlib.suppress(RunFailedError):
                flwr(["stop", run_id, connection], env)
            conclude(launch, ("stopped", str(interrupt)))
        raise
    # Only with a server's own FLWR_HOME does `flwr log` know the connection of its folder.
    where = f"log: flwr log {run_id} {connection}"
    if connection == CONNECTION:
        where = f"run folder: {launch.folder.path}"
    if status != "finished:completed":
        conclude(launch, ("stopped" if status == "finished:stopped" else "failed", details))
        raise RunFailedError(f"run {status}: {details} ({where})")
    if launch.status()[0]:
        raise_unless_completed(launch, where)


def _submit_remote(launch: Launch, connection: str, env: Mapping[str, str]) -> str:
    """The run's id; if nobody takes it, the folder says what it said before."""
    folder = launch.folder
    try:
        with _restored_on_error(folder.identity, folder.config, folder.summary):
            folder.summary.unlink(missing_ok=True)  # the old one must not pass for this run's
            launch.write_config()
            try:
                home = flower_home(folder.path)
                return submit(connection, home, launch.envelope(owner=0), "", env)
            except RunFailedError as error:
                raise UserError(
                    f"superlink: '{connection}' does not take the run: {error}"
                ) from error
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"run folder '{folder.path}' cannot be written: {reason}") from error
    finally:
        clear(folder.path)


@contextlib.contextmanager
def _restored_on_error(*paths: Path) -> Iterator[None]:
    """Files as they were, their modes too, if the body fails; absent ones are let be.

    They are copied first: putting a copy back takes no space, which may be what is missing.
    """
    copies = {path: path.with_name(f".{path.name}.before") for path in paths if path.exists()}
    try:
        with private_files():  # nobody reads them meanwhile
            for path, copy in copies.items():
                shutil.copy2(path, copy)
        try:
            yield
        except BaseException:
            with undisturbed():
                for path, copy in copies.items():
                    copy.replace(path)
            raise
    finally:
        for copy in copies.values():
            with contextlib.suppress(OSError):
                copy.unlink(missing_ok=True)


def _await(launch: Launch, connection: str, run_id: str, reader: Reader) -> tuple[str, str]:
    """Follow a submitted run; a SuperLink that is away for a while is asked again."""
    env, asked, silent, away = environment(), time.monotonic(), 0, ""
    while True:
        reader.read()
        pause = REMOTE_END if launch.status()[0] and not silent else REMOTE_POLL
        if time.monotonic() - asked > pause:
            try:
                status, details = run_status(connection, run_id, env)
                silent = 0
            except RunFailedError:
                status, details = "", ""
                silent += 1
                away = away if silent > 1 else f"{datetime.now():%H:%M:%S}"
                reader.say(f"waiting for '{connection}', which has not answered since {away}")
                if silent > REMOTE_SILENCES:
                    raise
            asked = time.monotonic()
            if status.startswith("finished"):
                reader.read()
                return status, details
        time.sleep(POLL)
