"""A cell that runs on another machine, as a sweep sees it: a process with a folder here.

A thread sends what there is of its run, starts it there, brings its files home while it runs, so
that another machine can go on from them, and at the end all of them. Until then its folder here is
locked, as if the run were written here. What comes back is bytes; names, sizes and digests are
checked before anything gets its place, the checkpoint after the states that it names.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import yaml

from fedhet.config.schema import RunConfig, kebab
from fedhet.errors import RunFailedError, UserError, one_line
from fedhet.files import private_files
from fedhet.reading.bounds import decoded
from fedhet.reading.structured import MOST_JSON, parse_object, parse_yaml
from fedhet.records import register
from fedhet.records.run_folder import RunFolder
from fedhet.sweeps.executor import FAREWELL, begun, command
from fedhet.sweeps.ray_actor import GIVEN, RUN
from fedhet.sweeps.transfer import (
    PIECE,
    Arriving,
    TransferError,
    Tree,
    from_json,
    listing,
    names,
    pieces,
    read,
    spans_to_json,
    to_json,
)

LOOK = 0.5  # seconds between looks at a cell
FIRST, SHARE = 2.0, 10.0  # seconds until files come home; pause after it, in times it took
IDENTITY, CONFIG, PRESET = "checkpoint/run.json", "config.yaml", "cell.yaml"
CHECKPOINT, SUMMARY = "checkpoint/server.safetensors", "summary.json"
LAST = (CONFIG, CHECKPOINT)  # get their place after all others; the summary follows these
PATHS = ("out", "data_path", "partition_file", "state_dir")  # keys that differ by machine


class LostError(Exception):
    """The machine of a cell, or the cell's keeper there, is gone; says which."""


class Keeper(Protocol):
    """A :class:`~fedhet.sweeps.ray_actor.Host` on some machine."""

    def call(self, method: str, *words: object, limit: int = PIECE) -> bytes:
        """Its answer, at most ``limit`` bytes; LostError if none will come.

        RunFailedError with what it says if it could not do that.
        """

    def kill(self) -> None:
        """End it and what it runs."""


def opened(answer: object, name: str, limit: int) -> bytes:
    """What a keeper answered; RunFailedError if that is an error, or no bytes, or too many."""
    if type(answer) is not bytes or not 0 < len(answer) <= limit + 1:
        raise RunFailedError(f"machine {name} gave an answer of another kind")
    if answer[:1] != b"+":
        said = one_line(answer[1:].decode(errors="replace"))
        raise RunFailedError(f"machine {name}: {said}")
    return answer[1:]


class RemoteCell:
    """One cell on one machine; see :class:`~fedhet.sweeps.executor.CellProcess`."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        log: Path,
        make: Callable[[threading.Event], Keeper],
        send_data: Callable[[Keeper, str], str],
    ) -> None:
        """Begin; UserError if another process is at the folder.

        ``make`` starts a keeper, whose calls end when the event is set; ``send_data`` sees to it
        that a user's path is there, and says where.
        """
        self.config, self.folder, self.log = config, folder, log
        self.make, self.send_data = make, send_data
        self.lost, self.exitcode = "", None
        self.arriving = Arriving(log.with_suffix(".arriving"))
        self._known: Tree = {}
        self._said = 0
        self._begun = False
        self._ending, self._killed = threading.Event(), threading.Event()
        self._error: OSError | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = RunFolder(folder).lock()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    lost: str
    exitcode: int | None

    def is_alive(self) -> bool:
        """Whether it runs or its files come; OSError if these could not be written."""
        alive = self._thread.is_alive()
        if not alive and self._error is not None:
            raise self._error
        return alive

    def exists(self) -> bool:
        """Whether it may still hold something of its machine."""
        return self._thread.is_alive()

    def terminate(self) -> None:
        """Ask it to end; its files come home. One that has not begun has none."""
        self._ending.set()
        if not self._begun:
            self._killed.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for it and its files."""
        self._thread.join(timeout)

    def kill(self) -> None:
        """End it at once; what came home stays."""
        self._killed.set()

    def _live(self) -> None:
        keeper: Keeper | None = None
        try:
            keeper = self.make(self._killed)
            self._run(keeper)
        except LostError as error:
            self.lost = one_line(error)
        except (RunFailedError, UserError) as error:
            self.exitcode = error.exit_code
            self._say(f"error: {error}\n".encode())
        except OSError as error:
            self._error = error
        finally:
            with suppress(LostError, RunFailedError):
                if keeper is not None:
                    if not self.lost:
                        keeper.call("leave")
                    keeper.kill()
            self.arriving.clear()
            self._release()

    def _release(self) -> None:
        self._lock.release()
        with suppress(OSError):  # nothing came: as if it had never begun
            if [one.name for one in self.folder.iterdir()] == [".lock"]:
                (self.folder / ".lock").unlink()
                self.folder.rmdir()

    def _run(self, keeper: Keeper) -> None:
        there = Path(keeper.call("place").decode())
        paths = {key: self.send_data(keeper, str(getattr(self.config, key))) for key in PATHS[1:3]}
        paths["out"] = str(there / RUN)
        going_on = begun(self.folder)
        self._give(keeper, paths, going_on=going_on)
        run = there / RUN / self.folder.name
        words = command(run, there / GIVEN / PRESET, begun=going_on)
        if going_on and self._is_ours():
            words.append("--trust")  # that machine knows of none of our runs
        keeper.call("start", words)
        self._begun = True
        due, told = time.monotonic() + FIRST, False
        while not (code := keeper.call("code")):
            if self._killed.is_set():
                return
            if self._ending.is_set() and not told:
                told = True
                keeper.call("end", FAREWELL / 2)
                continue
            if time.monotonic() > due:
                began = time.monotonic()
                self._bring(keeper)
                due = time.monotonic() + max(FIRST, SHARE * (time.monotonic() - began))
            self._killed.wait(LOOK)
        self._bring(keeper)
        self.exitcode = int(code)

    def _give(self, keeper: Keeper, paths: dict[str, str], *, going_on: bool) -> None:
        """Send the cell's configuration, or the whole run as it stands here."""
        self.arriving.clear()  # serves both ways
        own = self.arriving.folder
        changed: dict[str, bytes] = {}
        if going_on:
            self._known = listing(self.folder)
            changed = {n: _with_paths(n, (self.folder / n).read_bytes(), paths) for n in TEXTS}
            send(keeper, self.folder, {n: e for n, e in self._known.items() if n not in changed},
                 f"{RUN}/{self.folder.name}")  # fmt: skip
        else:
            flat = self.config.model_copy(update=paths).flat()
            changed[PRESET] = yaml.safe_dump(flat, sort_keys=False, allow_unicode=True).encode()
        with private_files():
            for name, data in changed.items():
                (own / name).parent.mkdir(parents=True, exist_ok=True)
                (own / name).write_bytes(data)
        place = f"{RUN}/{self.folder.name}" if going_on else GIVEN
        tree = listing(own)
        send(keeper, own, tree, place)
        self._known |= tree if going_on else {}
        self.arriving.clear()

    def _bring(self, keeper: Keeper) -> None:
        """Bring home what is new there, as it was at one moment."""
        self._say(keeper.call("said", self._said))
        answer = keeper.call("tree", self.folder.name, limit=MOST_JSON)
        if not answer:
            return
        tree = from_json(answer)
        new = {name: entry for name, entry in tree.items() if self._known.get(name) != entry}
        self.arriving.clear()
        for spans in pieces(new):
            self.arriving.write(spans, keeper.call("read", spans_to_json(spans)))
        self.arriving.check(new)
        for name in TEXTS:
            if name in new:
                path = self.arriving.folder / name
                path.write_bytes(_with_paths(name, path.read_bytes(), self._home()))
        if IDENTITY in new:
            self._take_for_ours()
        self._put(new, tree)
        self._known = tree

    def _is_ours(self) -> bool:
        """Whether this user's fedhet made the run that is here."""
        names = register.named(self.config.flat())
        return register.trusts(RunFolder(self.folder).experiment, self.folder, names)

    def _take_for_ours(self) -> None:
        """Remember that this user made the run that arrives.

        TransferError if it names code or services that the cell does not, or has another's id.
        """
        run = RunFolder(self.arriving.folder)
        there, here = parse_object(run.identity.read_bytes())["config"], self.config.flat()
        for what in (register.named, lambda flat: flat.get("tracker")):
            if what(there) != what(here):
                raise TransferError(f"a machine sent a run of other code: {what(there)}"[:300])
        known = register.find(run.experiment)
        if known is not None and known.folder != str(self.folder.resolve()):
            raise TransferError(f"a machine sent the id of the run '{known.folder}'")
        register.note(run.experiment, self.folder, register.named(here))

    def _put(self, new: Tree, tree: Tree) -> None:
        """Give what arrived its place; a kill meanwhile leaves what a run can go on from."""
        ordered = [name for name in new if name not in {*LAST, SUMMARY}]
        for name in (*ordered, *(n for n in LAST if n in new)):
            self._place(name)
        for name in names(self.folder):
            if name not in tree:
                (self.folder / name).unlink()
        if SUMMARY in new:
            self._place(SUMMARY)

    def _place(self, name: str) -> None:
        target = self.folder / name
        with private_files():
            target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.arriving.folder / name, target)

    def _home(self) -> dict[str, str]:
        return {key: str(getattr(self.config, key)) for key in PATHS}

    def _say(self, data: bytes) -> None:
        self._said += len(data)
        if data:
            with self.log.open("ab") as log:
                log.write(data)


TEXTS = (CONFIG, IDENTITY)


def send(keeper: Keeper, root: Path, tree: Tree, place: str) -> None:
    """Send files into a folder of the cell, and have them checked there."""
    for spans in pieces(tree):
        keeper.call("receive", place, spans_to_json(spans), read(root, spans))
    keeper.call("check", place, to_json(tree))


def _with_paths(name: str, data: bytes, paths: dict[str, str]) -> bytes:
    """A run's configuration with the paths of another machine."""
    changes = {kebab(key): value for key, value in paths.items()}
    if name == CONFIG:
        config = parse_yaml(decoded(data, f"'{name}'"), f"'{name}'")
    else:
        identity = parse_object(data, f"'{name}'")
        config = identity.get("config")
    if not isinstance(config, dict):
        raise TransferError(f"'{name}' is damaged: no configuration")
    if name == CONFIG:
        return yaml.safe_dump(config | changes, sort_keys=False, allow_unicode=True).encode()
    return (json.dumps(identity | {"config": config | changes}, indent=2) + "\n").encode()
