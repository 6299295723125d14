"""What keeps a cell on another machine: an actor of Ray, which :mod:`fedhet.sweeps.remote` calls.

It starts ``fedhet run`` or ``fedhet resume`` in an interpreter of its own, so that whatever a cell
does to its process (threads, signals, memory) is that process's, and lists and reads its files. It
imports no torch, answers with bytes alone, and never raises: an answer begins with ``+``, or with
``-`` and a line that says what is wrong.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from fedhet import layout
from fedhet.engines.process_groups import guarded
from fedhet.errors import RunFailedError, brief
from fedhet.sweeps.transfer import (
    PIECE,
    Arriving,
    extent,
    from_json,
    listing,
    read,
    spans_from_json,
    to_json,
)

PREFIX = "fedhet-cell-"  # of a cell's folder below the machine's temporary one
PROGRAM = [sys.executable, "-m", "fedhet"]
GROWING = ("rounds.jsonl", "clients.csv", "log.txt")  # appended to, not replaced
YOUNG = 60.0  # seconds in which a new folder's keeper takes hold of it
TRIES = 20  # to list a run's files between two of its checkpoints
RUN, GIVEN, SEEN = "run", "given", "seen"  # folders of a cell: its run, what came with it, its copy
_P = ParamSpec("_P")


def facts() -> dict[str, str]:
    """What must be the same on every machine of a sweep, and where its cache is."""
    from fedhet.data.cache import default_cache_dir  # noqa: PLC0415  (torch: seconds)
    from fedhet.records.environment import source_digest, versions  # noqa: PLC0415

    rooms = hashlib.sha256()
    for name, path in layout.sources():
        if name.startswith("fedhet/sweeps/"):
            rooms.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    kept = {key: versions()[key] for key in ("fedhet", "torch")}
    source = {"source": source_digest(), "sweeps": rooms.hexdigest()}
    return kept | source | {"cache": str(default_cache_dir().expanduser().absolute())}


def _answering(method: Callable[_P, bytes]) -> Callable[_P, bytes]:
    """The method's bytes after a plus, or its error's line after a minus."""

    @functools.wraps(method)
    def answer(*words: _P.args, **named: _P.kwargs) -> bytes:
        try:
            return b"+" + method(*words, **named)
        except RunFailedError as error:
            return b"-" + str(error).encode()
        except Exception as error:  # noqa: BLE001  (Ray would unpickle it on the other side)
            return b"-" + brief(error).encode()

    return answer


class Host:
    """Keeps one cell on this machine; its folder goes with it."""

    def __init__(self) -> None:
        _remove_left()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = _locked(self.folder)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "said"

    @_answering
    def facts(self) -> bytes:
        """:func:`facts` of the interpreter that would run a cell, as JSON."""
        program = (
            "import json; from fedhet.sweeps.ray_actor import facts; print(json.dumps(facts()))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=False, cwd=self.folder,
            stdin=subprocess.DEVNULL, env=_environment(self.folder),
        )  # fmt: skip
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise RunFailedError(lines[-1] if lines else f"it ended with code {done.returncode}")
        return done.stdout

    @_answering
    def place(self) -> bytes:
        """The folder that this cell has here."""
        return str(self.folder).encode()

    @_answering
    def extent(self, path: str) -> bytes:
        """Digest of the names and sizes of a user's file or folder; empty if it is not here."""
        return extent(Path(path)).encode()

    @_answering
    def holds(self, folder: str) -> bytes:
        """``1`` if what is kept for all cells of this machine is here."""
        return b"1" if Path(folder).is_dir() else b""

    @_answering
    def receive(self, place: str, spans: bytes, payload: bytes) -> bytes:
        """Take pieces of files into the folder ``place`` of this cell."""
        Arriving(self.folder / place).write(spans_from_json(spans), payload)
        return b""

    @_answering
    def check(self, place: str, tree: bytes) -> bytes:
        """Whether all of them are here, and whole."""
        Arriving(self.folder / place).check(from_json(tree))
        return b""

    @_answering
    def keep(self, place: str, folder: str) -> bytes:
        """Move what arrived to where all cells of this machine find it, in one step."""
        target = Path(folder)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
        try:
            shutil.move(self.folder / place, made / target.name)
            with contextlib.suppress(OSError):  # another sweep's was quicker, with the same bytes
                (made / target.name).rename(target)
        finally:
            shutil.rmtree(made)
        return b""

    @_answering
    def start(self, words: list[str]) -> bytes:
        """Start ``fedhet`` with these words; once, however often it is said."""
        if self.process is None:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    guarded([*PROGRAM, *words]), env=_environment(self.folder), cwd=self.folder,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    pass_fds=(self.lock,),
                )  # fmt: skip
        return b""

    @_answering
    def code(self) -> bytes:
        """The code with which the cell has ended; empty while it runs."""
        code = None if self.process is None else self.process.poll()
        return b"" if code is None else str(code).encode()

    @_answering
    def said(self, offset: int) -> bytes:
        """What it printed from there."""
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read(PIECE)

    @_answering
    def tree(self, name: str) -> bytes:
        """The files of its run at one moment, to be read from now on; empty if there are none."""
        seen = self.folder / SEEN
        shutil.rmtree(seen, ignore_errors=True)
        return to_json(listing(seen)) if _copy(self.folder / RUN / name, seen) else b""

    @_answering
    def read(self, spans: bytes) -> bytes:
        """Pieces of those files."""
        return read(self.folder / SEEN, spans_from_json(spans))

    @_answering
    def end(self, patience: float) -> bytes:
        """Ask the cell to end, wait for it, and kill it if it does not."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        return b""

    @_answering
    def leave(self) -> bytes:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return b""


def _copy(run: Path, into: Path) -> bool:
    """Hard links to a run's files as a kill at this moment would leave them; False if too soon.

    The checkpoint is taken first, and must be the same at the end: then all states that it names
    are there, since clients delete none of them before the next.
    """
    for _ in range(TRIES):
        if not (run / "config.yaml").is_file():
            return False
        shutil.rmtree(into, ignore_errors=True)
        before = _stamp(run / "checkpoint" / "server.safetensors")
        first = [run / "checkpoint"]
        for top in (*first, *(one for one in sorted(run.iterdir()) if one not in first)):
            _link(top, into / top.name)
        if _stamp(run / "checkpoint" / "server.safetensors") == before:
            return True
    return False


def _link(path: Path, into: Path) -> None:
    if path.name.startswith("."):  # locks, and what is half written
        return
    with contextlib.suppress(FileNotFoundError):  # it was replaced meanwhile
        if path.is_dir():
            into.mkdir(parents=True)
            for one in path.iterdir():
                _link(one, into / one.name)
        elif path.name in GROWING:
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, into)
        else:
            into.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, into, follow_symlinks=False)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _locked(folder: Path) -> int:
    """A handle that holds the folder as long as this process or its cell lives."""
    handle = os.open(folder / ".held", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _remove_left() -> None:
    """Remove the folders of cells that nobody keeps any more: their keepers were killed."""
    for found in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = found.lstat()
            young = time.time() - status.st_mtime < YOUNG
            if young or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            with (found / ".held").open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(found, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    """The cell's own: it is one process, and of no cluster; what it made goes with its folder."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return kept | {"XDG_STATE_HOME": str(folder / "register")}
