"""Commands about many runs: demo, sweep and tune."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

import contextlib
import os
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import yaml
from typer import Argument, Option, Typer

from fedhet.cli import common
from fedhet.cli import runs as single
from fedhet.cli.common import ConfigName, Overrides, Texts, Workers, show_table, tell
from fedhet.engines.system import Interrupted, interruptible
from fedhet.errors import RunFailed, UserError, one_line
from fedhet.files import check_folder, plain_path, write_text

if TYPE_CHECKING:
    from fedhet.sweeps.sweep import Sweep

DEMO_METHODS = ("standalone", "lg_fedavg", "fedssa")
Ray = Annotated[str, Option(help="Ray cluster, HOST:PORT; default: RAY_ADDRESS")]
_CELLS = Typer(pretty_exceptions_enable=False)  # what the process of a cell is asked for
for function in (single.run, single.resume):
    _CELLS.command(cls=common.Command)(function)


def run_cell(words: list[str]) -> int:
    """Run the command line of one cell."""
    return common.carry_out(_CELLS, words)


def demo(out: Annotated[str, Option(help="folder of run folders")] = "runs") -> None:
    """Compare FedSSA, LG-FedAvg and Standalone on the embedded digits, in a minute or two."""
    from fedhet.records.summary import percent
    from fedhet.reports.report import load_sweep

    base = plain_path(out) / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    _, opened = _open_sweep("compare/digits", ["seed=0"], base)
    opened.jobs = [job for job in opened.jobs if job.cell.config.method in DEMO_METHODS]
    tell(f"starting {len(opened.jobs)} runs side by side, one process each; logs: {opened.folder}")
    _run_all(opened, len(opened.jobs))
    for job in opened.jobs:
        if job.state != "completed":
            raise RunFailed(f"{job.cell.config.method} {job.state}: {job.reason} ({base})")
    frame = load_sweep(base).frame().set_index("method").loc[list(DEMO_METHODS)]
    rows = [
        (name, percent(row.accuracy), percent(row.accuracy_p10), f"{row.floats_up:,.0f}",
         f"{row.floats_down:,.0f}", f"{row.gflops:.1f}", f"{row.wall_seconds:.0f}")
        for name, row in frame.iterrows()
    ]  # fmt: skip
    columns = "method", "accuracy", "10th percentile", "floats up", "floats down", "GFLOPs"
    show_table("10 clients with 4 of 10 classes, CNN-1 to CNN-5", (*columns, "seconds"), rows)
    print(
        "accuracy: own test images, mean over clients (simulated sites); "
        "floats and GFLOPs: per client and round"
    )
    print(base)


def sweep(  # noqa: PLR0913, PLR0917  (one argument per option)
    preset: Annotated[str, Argument(metavar="PRESET", help="YAML with `grid:`, or paper/...")],
    overrides: Overrides = None,
    out: Annotated[Path, Option(help="folder of the cells' run folders")] = Path("runs"),
    part: Annotated[str, Option("--shard", help="i/n: every n-th cell")] = "1/1",
    workers: Workers = 0,
    dry: Annotated[bool, Option("--dry-run", help="list the cells; run nothing")] = False,
    accept_mixed: Annotated[bool, Option(help="although code or torch differ")] = False,
    ray: Ray = "",
) -> None:
    """Run every combination of a preset's grid; skip finished cells, continue interrupted ones."""
    if dry and ray:
        raise UserError("--dry-run cannot be used with --ray: give one of them")
    name, opened = _open_sweep(preset, overrides or [], out, part)
    if dry:
        print(f"{name}: {len(opened.jobs)} cells in '{opened.out}'")
        for job in opened.jobs:
            print(f"{job.cell.name}  {job.state:9} {one_line(job.cell.label, None)}")
        print(f"{_counted(opened)}; {sum(job.due for job in opened.jobs)} to run")
        return
    if not accept_mixed:
        _check_mixed(opened, "results", "--out, or --accept-mixed")
    for job in opened.jobs:
        if not job.due and job.reason:  # of those that are due now, progress tells
            tell(f"{job.cell.name} {job.state}: {job.reason}")
    _run_all(opened, workers, ray)
    print(_counted(opened) or "no cells", opened.out, sep="\n")
    _raise_failed(opened, f"cells of '{name}' failed")


def _check_mixed(opened: "Sweep", what: str, other: str) -> None:
    if mixed := opened.mixed():
        text = f"{what} of different code or data are not compared; use another {other}"
        raise UserError(f"{mixed}: {text}")


def _raise_failed(opened: "Sweep", what: str) -> None:
    """Raise RunFailed if a cell failed; one that diverged is a result."""
    counts = opened.counts()
    if failed := counts["failed"] + counts["damaged"]:
        raise RunFailed(
            f"{failed} of {len(opened.jobs)} {what}; the same command tries them again "
            f"(logs: {opened.folder})"
        )


def _run_all(opened: "Sweep", workers: int, ray: str = "", *, blind: bool = False) -> None:
    """Run the cells here, or on the Ray cluster of ``--ray`` or RAY_ADDRESS; show progress."""
    address = ray or os.environ.get("RAY_ADDRESS", "")
    with contextlib.ExitStack() as stack:
        if address and any(job.due for job in opened.jobs):
            if any(job.cell.config.engine != "inline" for job in opened.jobs):
                tell("engine: inline, since each cell is one process of the cluster")
            opened.join(address)
            stack.callback(opened.ray.shutdown)
        stack.enter_context(interruptible())
        progress = stack.enter_context(SweepProgress(opened, blind=blind))
        opened.run(workers, progress.update)


def _open_sweep(
    preset: str, overrides: Sequence[str], out: Path, part: str = "1/1"
) -> tuple[str, "Sweep"]:
    """Return the preset's name and its cells as they stand; UserError for a mistake in any."""
    from fedhet.config.load import find_preset, idle_notes, read_overrides
    from fedhet.sweeps.grid import read_cells
    from fedhet.sweeps.sweep import Sweep, shard

    path, out = find_preset(preset), plain_path(out)
    if not out.is_dir():
        check_folder(out, "--out")
    cells = read_cells(path, overrides)
    for line in idle_notes([one.config for one in cells], read_overrides(overrides)):
        tell(f"note: {line}")
    name = index_name(preset, path)
    index = name + f"-{part.replace('/', 'of')}" * (part != "1/1")
    return name, Sweep(index, out, shard(cells, part), run_cell)


def index_name(preset: str, path: Path) -> str:
    """Return the name of a preset's index: compare/x and paper/x may share a folder."""
    return path.stem if path == Path(preset).expanduser() else preset.replace("/", "-")


def _counted(opened: "Sweep") -> str:
    return ", ".join(f"{count} {state}" for state, count in opened.counts().items() if count)


class SweepProgress(common.Bar):
    """A line per cell that has ended (``blind``: no test metric), and a bar of all rounds."""

    def __init__(self, opened: "Sweep", *, blind: bool = False) -> None:
        super().__init__("rounds", sum(job.cell.config.rounds for job in opened.jobs), stderr=True)
        self.blind = blind
        self.shown = {job.cell.name for job in opened.jobs if not job.due}
        self.waiting: set[str] = set()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if error[:1] == (Interrupted,):
            tell("interrupted; the same command continues")

    def update(self, opened: "Sweep") -> None:
        """Show how it stands."""
        from fedhet.records.summary import headline

        self.show(sum(job.rounds for job in opened.jobs), _counted(opened))
        for job in opened.jobs:
            name = job.cell.name
            if job.waits and name not in self.waiting:
                self.waiting.add(name)
                now = f"{datetime.now():%H:%M:%S}"
                tell(f"waiting since {now} for {name}, which another process is running")
            tried = job.state != "failed" or job.process is not None
            if job.ended and tried and name not in self.shown:
                self.shown.add(name)
                figure = headline(job.cell.config.metric, {} if self.blind else job.last)
                why = f": {job.reason}" if job.reason else ""
                tell(f"{name} {job.state}, {figure}, {job.cell.label}{why}")


def tune(  # noqa: PLR0913, PLR0917  (one argument per option)
    config: ConfigName,
    words: Annotated[Texts, Argument(metavar="KEY=VALUES...", help="KEY=V1,V2, seed=0,1")] = None,
    out: Annotated[Path, Option(help="the preset to write")] = Path("tuned.yaml"),
    runs: Annotated[Path, Option(help="folder of the run folders")] = Path("runs"),
    trials: Annotated[int, Option(min=0, help="per method; 0: the smallest grid")] = 0,
    search_seed: Annotated[int, Option(min=0, help="seed of drawn trials")] = 0,
    workers: Workers = 0,
    ray: Ray = "",
) -> None:
    """Search keys by validation metric, with equal trials per method; write the best preset."""
    from fedhet.config.load import find_preset
    from fedhet.config.schema import METRICS
    from fedhet.sweeps.grid import Search, best, validation
    from fedhet.sweeps.sweep import Sweep

    path = find_preset(config)
    target, folder = out.expanduser(), plain_path(runs)
    if target.is_dir():
        raise UserError(f"--out: '{out}' is a folder: give the file to write, such as tuned.yaml")
    check_folder(target.parent, "--out")  # before hours of trials
    search = Search.read(path, words or [])
    tried = search.trials(trials, search_seed)
    cells = [cell for trial in tried for cell in trial.cells]
    opened = Sweep(f"tune-{index_name(config, path)}", folder, cells, run_cell)
    _check_mixed(opened, "trials", "--runs")
    _run_all(opened, workers, ray, blind=True)
    _raise_failed(opened, "runs failed")
    name = tried[0].cells[0].config.metric
    scores = [validation([folder / cell.name for cell in trial.cells], name) for trial in tried]
    chosen = best(tried, scores)
    about = METRICS[name]
    figures = ["diverged" if s is None else f"{about.title} {about.text(s)}" for s in scores]
    rows = [
        (trial.method, trial.label, figure, "chosen" if trial in chosen else "")
        for trial, figure in zip(tried, figures, strict=True)
    ]
    each = len(tried) // len(search.methods)
    heading = f"{len(tried)} trials, {each} for each method"
    show_table(heading, ("method", "values", "validation", ""), rows)
    if not chosen:
        return
    options = {"--trials": trials, "--search-seed": search_seed}
    more = "".join(f" {key} {value}" for key, value in options.items() if value)
    head = [
        f"fedhet sweep {out.name} --out DIR" if len(chosen) > 1 else f"fedhet run {out.name}",
        f"by: fedhet tune {shlex.join([config, *(words or [])])}{more}",
        "validation of each trial:", *("  ".join(row).rstrip() for row in rows),
    ]  # fmt: skip
    text = yaml.safe_dump(search.preset(chosen), sort_keys=False, allow_unicode=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, "".join(f"# {line}\n" for line in head) + f"\n{text}")
    print(plain_path(target))
