"""Run folders, models, records and sweeps as somebody might send them, and every command on them.

An honest run is copied and changed by seeded draws: fields, lines, bytes, whole files. Who makes
them can compute every digest, and so does this: of every second folder the marks and digests are
made to fit what was changed, so that the damage is found, if at all, by what it says.
"""

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from PIL import Image

import fedhet
from benchmarks.hostile_craft import FAILURES, craft, craft_model, craft_record
from fedhet.cli.app import execute
from fedhet.config.load import build_config
from fedhet.deploy.control_api import Run
from fedhet.deploy.status import collect
from fedhet.sweeps.grid import read_cells
from fedhet.testing import simulate
from fedhet.watch.run import RunView
from fedhet.watch.server import Sent
from fedhet.watch.sweep import SweepView

SECONDS = 60  # for one command
GROWTH = 1_000_000  # KiB that the process may grow by over one crafted folder
GRID = {
    "method": "fedssa", "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
    "rounds": 2, "local-epochs": 1, "batch-size": 16, "grid": {"seed": [0]},
}  # fmt: skip


@dataclass(frozen=True)
class Base:
    """What the crafted folders are made of: honest work, in one folder."""

    place: Path
    preset: Path
    run: Path
    model: Path
    record: Path
    image: Path

    @classmethod
    def make(cls, place: Path) -> "Base":
        """Train three small clients for two rounds; export one; pack the records."""
        preset = place / "preset.yaml"
        preset.write_text(yaml.safe_dump(GRID))
        (cell,) = read_cells(preset, [])
        run = place / "runs" / cell.name
        changes = {"out": str(run.parent), "name": run.name}
        config = build_config(cell.config.flat() | changes)
        folder, _ = simulate(config)
        state = next((run / "state").glob("*/0"))
        records = place / "records"
        with _quiet():
            assert execute(["export", str(state), "--out", str(place / "model")]) == 0
            words = ["report", str(run), "--out", str(place / "report"), "--no-models"]
            assert execute([*words, "--records", str(records)]) == 0
        image = place / "image.png"
        Image.new("RGB", (8, 8)).save(image)
        return cls(place, preset, folder.path, place / "model", next(records.glob("*.run")), image)


@dataclass
class Found:
    """What came of a number of crafted folders."""

    tried: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    escapes: list[str] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Counts for one line: ``tried`` folders, and of the commands on them how each ended."""
        kinds = {name: self.commands[name] for name in ("refused", "named", "without_effect")}
        return {"tried": self.tried, "commands": sum(self.commands.values()), **kinds,
                "escapes": len(self.escapes), "effects": len(self.effects)}  # fmt: skip


@dataclass
class Sandbox:
    """A home with things that are dear, a folder that somebody sent, and what may be written."""

    root: Path
    base: Base
    found: Found = field(default_factory=Found)

    def __post_init__(self) -> None:
        self.sent, self.home, self.out = (self.root / n for n in ("sent", "home", "out"))
        (self.home / ".ssh").mkdir(parents=True)
        (self.home / ".ssh" / "id").write_text("dear")
        (self.home / "dear").write_text("dear")
        self.register = self.root / "register"

    def attack(self, seed: int, change: Callable[[Path], object] | None = None) -> None:
        """One crafted folder with a model and a record in it, and every command on them.

        ``change`` takes the place of what ``seed`` would do to the run folder.
        """
        rng = random.Random(seed)
        for place in (self.sent, self.out):
            shutil.rmtree(place, ignore_errors=True)
        self.out.mkdir()
        run = self.sent / self.base.run.name
        shutil.copytree(self.base.run, run)
        shutil.copytree(self.base.model, self.sent / "model")
        record = Path(shutil.copy(self.base.record, self.sent / "x.run"))
        mark = self.home / "imported"
        (run / "evil_module.py").write_text(f"open({str(mark)!r}, 'w')\n")
        what, more = (f"{change(run)}", False) if change else craft(rng, run)
        also = {
            "predict": craft_model(rng, self.sent / "model"),
            "record": craft_record(rng, record),
        }
        self.found.tried += 1
        before, memory = self._dear(), _peak()
        with self._standing_in(run):
            for name, action in self._commands(run, record, resume=not more):
                label = f"seed {seed} {name}: {also.get(name, what)}"
                self._try(label, action)
                after = self._dear()
                if after != before:
                    changed = sorted(set(before.items()) ^ set(after.items()))
                    self.found.effects.append(f"{label}: {changed[:4]}")
                    before = after
        if _peak() - memory > GROWTH:
            self.found.escapes.append(f"seed {seed}: {_peak() - memory} KiB: {what}; {also}")

    def _commands(
        self, run: Path, record: Path, *, resume: bool
    ) -> Iterator[tuple[str, Callable[[], int]]]:
        out = str(self.out)

        def cli(*words: str) -> Callable[[], int]:
            return lambda: execute(list(words))

        state = next(iter(sorted(self.base.run.glob("state/*/0")))).relative_to(self.base.run)
        yield "verify", cli("verify", str(run))
        yield "runs", cli("runs", str(self.sent), "--json")
        yield "status", lambda: _status(run)
        yield "watch", lambda: _watch(run)
        yield "load_run", lambda: _load_run(run)
        yield "sweep", cli("sweep", str(self.base.preset), "--out", str(self.sent), "--print")
        yield "report", cli("report", str(run), "--out", f"{out}/a", "--no-models")
        yield "record", cli("report", str(record), "--out", f"{out}/b", "--no-models")
        yield "export", cli("export", str(run / state), "--out", f"{out}/model")
        yield (
            "predict",
            cli("predict", str(self.sent / "model"), str(self.base.image), "--out", f"{out}/p.csv"),
        )
        if resume:
            yield "resume", cli("resume", str(run), "engine=inline", "--json")

    @contextlib.contextmanager
    def _standing_in(self, run: Path) -> Iterator[None]:
        """In the folder that was sent, on another machine than the one that made it."""
        here, kept = Path.cwd(), dict(os.environ)
        os.environ |= {"HOME": str(self.home), "XDG_STATE_HOME": str(self.register)}
        os.chdir(run)
        try:
            yield
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(kept)
            sys.modules.pop("evil_module", None)

    def _try(self, label: str, action: Callable[[], int]) -> None:
        try:
            with _quiet() as said, _bounded():
                code = action()
        except BaseException as error:  # noqa: BLE001  (whatever escapes is what is looked for)
            self.found.escapes.append(f"{label}: {type(error).__name__}: {error}"[:600])
            self.found.commands["escaped"] += 1
            return
        text = said.getvalue()
        if code not in {0, 2, 3} or "Traceback" in text:
            self.found.escapes.append(f"{label}: code {code}: {text[-600:]}")
            self.found.commands["escaped"] += 1
        elif code:
            self.found.commands["refused"] += 1
        else:
            named = "left out" in text or "damaged" in text or "not imported" in text
            self.found.commands["named" if named else "without_effect"] += 1

    def _dear(self) -> dict[str, str]:
        """Everything that no command may change; the folder that was sent is its own."""
        found = {}
        for place in (self.home, self.register, self.base.place):
            for path in sorted(place.rglob("*")):
                if path.is_symlink() or not path.is_file():
                    found[str(path)] = "entry"
                else:
                    stat = path.stat()
                    found[str(path)] = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_mode}"
        for path in self.sent.iterdir():
            found[str(path)] = "entry"
        # That a model was exported here is noted, as it should be.
        noted = [name for name in found if Path(name).is_relative_to(self.register)]
        for name in noted:
            if name.endswith(("fedhet", "made")) or Path(name).stem.startswith("model-"):
                del found[name]
        return found


def _status(run: Path) -> int:
    """``fedhet status`` after it has heard of a run from a SuperLink."""

    class Control:
        def nodes(self) -> list[Any]:
            return []

        def runs(self) -> list[Run]:
            return [Run(1, "running", "", {"rounds": 2}, str(run))]

    json.dumps(collect(Control()))  # type: ignore[arg-type]
    return 0


def _watch(run: Path) -> int:
    """What ``fedhet watch`` sends to its page of a run and of the folder of it."""
    for view in (RunView(run), SweepView(run.parent)):
        for _ in range(2):
            Sent().new(view.look())
    return 0


def _load_run(run: Path) -> int:
    """All that Python can ask of a run folder; worded as the command line does."""
    code = 0
    for ask in (
        str, lambda one: one.summary, lambda one: one.rounds,
        lambda one: one.clients, lambda one: one.model("0"), lambda one: one.config,
    ):  # fmt: skip
        try:
            ask(fedhet.load_run(run))
        except FAILURES as error:
            code = error.exit_code
    return code


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
