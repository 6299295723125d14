"""Submit a run to a deployed SuperLink, and follow it to its end."""

import contextlib
import time
from collections.abc import Callable

from fedhet.deploy.control import server_folder
from fedhet.deploy.network import Waiting
from fedhet.engines.launch import Launch, OnRounds, Reader, conclude, raise_unless_completed
from fedhet.engines.system import Interrupted, undisturbed
from fedhet.errors import RunFailed, UserError
from fedhet.protocol.flower import Control
from fedhet.records.run_folder import LOCK, held

POLL = 0.2  # seconds between looks at rounds.jsonl
ASK = 5.0  # seconds between questions to the SuperLink
ASK_END = 1.0  # the same once the run folder says that the run is over
GONE = 2  # questions in a row at which the run's process is away before it is taken for dead
DIED = "finished:failed", "its process on the server ended without a word"
SILENCES = 24  # questions in a row without an answer before we give up


def submit_remote(
    launch: Launch, superlink: str, on_rounds: OnRounds, tell: Callable[[str], None]
) -> None:
    """Run it on a SuperLink and wait for its end; raise RunFailed if it did not complete.

    ``tell`` is called with what is waited for. Rounds are reported if the run folder is on this
    machine. An interruption stops the run. UserError if the run could not even be submitted.
    """
    waiting = Waiting(f"'{superlink}'", tell)
    with contextlib.closing(server_folder(superlink).connect()) as control:
        with waiting.answer():
            run_id = _submit(launch, superlink, control)
        try:
            reader = Reader(launch.folder, on_rounds, tell)
            status, details = _follow(launch, control, run_id, reader, waiting)
        except Interrupted as interrupt:
            with undisturbed():
                with contextlib.suppress(UserError, RunFailed):
                    control.stop(run_id)
                conclude(launch, ("stopped", str(interrupt)))
            raise
    where = f"run folder: {launch.folder.path}"
    if status != "finished:completed":
        conclude(launch, ("stopped" if status == "finished:stopped" else "failed", details))
        raise RunFailed(f"run {status}: {details} ({where})")
    if launch.status()[0]:
        raise_unless_completed(launch, where)


def _submit(launch: Launch, superlink: str, control: Control) -> int:
    """Submit the run and return its id; if it is rejected, the folder stays as it was."""
    folder, before = launch.folder, 0
    try:
        with contextlib.suppress(FileNotFoundError):
            before = folder.summary.stat().st_mtime_ns
        folder.wait_for("")  # what a server that was killed waited for
        run_id = control.start(launch.envelope())
        with contextlib.suppress(FileNotFoundError):
            if folder.summary.stat().st_mtime_ns == before:  # it must not be taken for this run's
                folder.summary.unlink()
    except UserError as error:
        raise UserError(f"superlink: '{superlink}' rejects the run: {error}") from error
    except RunFailed as error:
        text = f"the SuperLink may or may not have accepted the run: {error}; check with"
        raise RunFailed(f"{text} `fedhet status` before you submit it again") from error
    return run_id


def _follow(
    launch: Launch, control: Control, run_id: int, reader: Reader, waiting: Waiting
) -> tuple[str, str]:
    """Follow a submitted run; ask again if the SuperLink is away for a while."""
    # The run's process holds the folder's lock, if that is here. One that let go without a word is
    # dead, which Flower notices by its missing heartbeats a minute later.
    asked, silent, begun, gone = time.monotonic(), 0, False, 0
    starting = Waiting("the run's process", reader.tell)
    while True:
        reader.read()
        ended = launch.status()[0]
        if time.monotonic() - asked > (ASK_END if ended and not silent else ASK):
            try:
                with waiting.answer():
                    (run,) = control.runs(run_id=run_id)
                status, silent = run.status, 0
            except (UserError, RunFailed) as error:
                status, silent = "", silent + 1
                waiting.failed(str(error))
                if silent > SILENCES:
                    raise RunFailed(f"{waiting.what} does not answer: {error}") from error
            asked, alive = time.monotonic(), bool(ended) or held(launch.folder.path / LOCK)
            begun, gone = begun or alive, 0 if alive else gone + 1
            if not begun:
                starting.failed("the server starts it")
            dead = begun and gone and not launch.status()[0]
            if dead and (gone >= GONE or status == "finished:stopped"):  # by a server's next start
                with contextlib.suppress(UserError, RunFailed):
                    control.stop(run_id)
                return DIED
            if status.startswith("finished"):
                reader.read()
                return status, run.details
        time.sleep(POLL)
