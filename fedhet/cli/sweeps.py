"""Commands about many runs: ``fedhet sweep`` and ``fedhet tune``."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from fedhet.cli.common import ConfigName, Json, Overrides, RunProgress, loading, show_table, tell
from fedhet.engines.system import Interrupted, interruptible
from fedhet.errors import RunFailed, UserError
from fedhet.files import plain_path, tried_folder, write_text

if TYPE_CHECKING:
    from fedhet.sweeps.grid import Cell
    from fedhet.sweeps.sweep import Sweep
    from fedhet.sweeps.tune import Search, Trial

Ray = Annotated[
    str,
    typer.Option(
        help="run the cells on this Ray cluster, HOST:PORT; default: RAY_ADDRESS",
        metavar="ADDRESS",
    ),
]
QUICK = "profile quick: a tenth of the rounds, a fifth of the epochs; only for trying"


@dataclass(frozen=True)
class Selection:
    """A preset and which of its cells are run where."""

    preset: str
    overrides: Sequence[str]
    out: Path
    profile: str
    shard: str
    cell: str


def sweep(  # noqa: PLR0913, PLR0917  (one argument per option)
    preset: Annotated[
        str,
        typer.Argument(metavar="PRESET", help="YAML with `grid:`, or a shipped one (paper/...)"),
    ],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="folder of the cells' run folders")] = Path("runs"),
    profile: Annotated[
        str, typer.Option(help="full, or quick: a tenth of the rounds, a fifth of the epochs")
    ] = "full",
    part: Annotated[
        str, typer.Option("--shard", help="i/n: every n-th cell from the i-th")
    ] = "1/1",
    cell: Annotated[str, typer.Option(help="only the cell of this name")] = "",
    workers: Annotated[int, typer.Option(min=0, help="cells at a time; 0: one per core")] = 0,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="list the cells and the FLOPs left; run nothing")
    ] = False,
    lines: Annotated[bool, typer.Option("--print", help="print one command per cell")] = False,
    accept_mixed: Annotated[
        bool, typer.Option("--accept-mixed", help="continue although fedhet or torch has changed")
    ] = False,
    ray: Ray = "",
    as_json: Json = False,
) -> None:
    """Run every combination of a preset's grid; skip finished cells, continue interrupted ones."""
    if ray and (dry or lines):
        raise UserError(f"--ray cannot be used with {'--dry-run' if dry else '--print'}: give one")
    if lines and (dry or as_json):
        raise UserError(f"--print cannot be used with {'--dry-run' if dry else '--json'}: give one")
    loading(as_json=as_json or lines)
    selection = Selection(preset, overrides or [], out, profile, part, cell)
    path, found = open_sweep(selection)
    if lines:
        _print_commands(selection, path, found, workers, accept_mixed=accept_mixed)
    elif dry:
        _dry_run(index_name(preset, path), found, as_json=as_json)
    else:
        _check_mixed(found, "results", "--out, or --accept-mixed", accept=accept_mixed)
        run_all(found, workers, ray, quiet=as_json)
        _print_result(found, as_json=as_json)
        _raise_failed(found, f"cells of '{path.stem}' failed")


def _check_mixed(found: "Sweep", what: str, other: str, *, accept: bool = False) -> None:
    """Raise UserError if finished cells are of other code."""
    mixed = found.mixed()
    if mixed and not accept:
        raise UserError(f"{mixed}: {what} of different code are not compared; use another {other}")


def _raise_failed(found: "Sweep", what: str) -> None:
    """Raise RunFailed if a cell failed; one that diverged is a result."""
    from fedhet.sweeps.sweep import FAILED

    if failed := found.counts()[FAILED]:
        raise RunFailed(
            f"{failed} of {len(found.jobs)} {what}; the same command tries them again "
            f"(logs: {found.folder})"
        )


def _print_result(found: "Sweep", *, as_json: bool) -> None:
    from fedhet.sweeps.sweep import ENDED

    if as_json:
        print(json.dumps(found.index() | {"folder": str(found.out)}, indent=2))
        return
    for job in found.jobs:
        if job.state in ENDED and job.reason:
            print(f"{job.cell.name} {job.state}: {job.reason}", file=sys.stderr)
    print(_counted(found.counts()) or "no cells")
    if found.note:
        print(found.note)
    print(found.out)


def run_all(
    found: "Sweep", workers: int, ray: str = "", *, quiet: bool, blind: bool = False
) -> None:
    """Run the cells here, or on a Ray cluster, and show progress.

    ``--ray`` comes before ``RAY_ADDRESS``; ``blind`` as of :class:`SweepProgress`.
    """
    from fedhet.sweeps.sweep import for_ray, joined

    address = ray or os.environ.get("RAY_ADDRESS", "")
    with contextlib.ExitStack() as stack:
        if address and any(job.due for job in found.jobs):
            if any(job.cell.config.engine != "inline" for job in found.jobs) and not quiet:
                tell("engine: inline, since each cell is one process of the cluster")
            for job in found.jobs:
                job.cell = for_ray(job.cell)
            found.place = stack.enter_context(joined(address))
        stack.enter_context(interruptible())
        progress = stack.enter_context(SweepProgress(found, quiet=quiet, blind=blind))
        found.run(workers, progress.update)


def _dry_run(name: str, found: "Sweep", *, as_json: bool) -> None:
    """List the cells with their state, and the FLOPs of what is left; write nothing."""
    from fedhet.sweeps.flops import CellFlops

    if not as_json:
        print(f"{name}: {len(found.jobs)} cells in '{found.out}'", flush=True)
        for job in found.jobs:
            print(f"{job.cell.name}  {job.state:9} {job.cell.label}", flush=True)
    counter, flops, reasons = CellFlops(), {}, {}
    todo = [job for job in found.jobs if job.due]
    for job in todo:
        left = 1 - job.rounds / job.cell.config.rounds
        try:
            flops[job.cell.name] = left * counter.of(job.cell.config)
        except (UserError, RunFailed) as error:
            reasons[job.cell.name] = str(error)
    if as_json:
        rows = [
            {"name": job.cell.name, "values": dict(job.cell.values), "state": job.state,
             "train_flops_left": flops.get(job.cell.name) if job.due else 0.0,
             "reason": reasons.get(job.cell.name, "")}
            for job in found.jobs
        ]  # fmt: skip
        print(json.dumps({"note": found.note, "cells": rows}, indent=2))
        return
    total = f": {sum(flops.values()):.3g} FLOPs of training" if flops else ""
    more = f", and {len(reasons)} cells whose FLOPs are unknown" if flops and reasons else ""
    print(f"{_counted(found.counts())}; {len(todo)} to run{total}{more}")
    for reason in dict.fromkeys(reasons.values()):
        print(f"FLOPs unknown: {reason}")
    if found.note:
        print(found.note)


def _print_commands(
    chosen: Selection, path: Path, found: "Sweep", workers: int, *, accept_mixed: bool
) -> None:
    """Print one command line per cell, for a scheduler; it holds in any folder."""
    from fedhet.config.load import read_overrides
    from fedhet.config.schema import PATHS

    name = chosen.preset if _shipped(chosen.preset, path) else str(path.absolute())
    changed = read_overrides(chosen.overrides)
    for job in found.jobs:
        now = job.cell.config.flat()  # its paths are absolute
        pairs = [f"{k}={now[k] if k in PATHS and v else v}" for k, v in changed.items()]
        words = ["fedhet", "sweep", name, *pairs, "--out", str(found.out)]
        words += [] if chosen.profile == "full" else ["--profile", chosen.profile]
        words += ["--workers", str(workers)] if workers else []
        words += ["--accept-mixed"] if accept_mixed else []
        print(shlex.join([*words, "--cell", job.cell.name]))


def open_sweep(chosen: Selection) -> tuple[Path, "Sweep"]:
    """Return the preset's file and its cells as they stand; UserError for a mistake in any."""
    from fedhet.cli.app import execute
    from fedhet.config.checks import check_cells, small_cohort
    from fedhet.config.load import read_overrides
    from fedhet.engines.session import find_preset
    from fedhet.sweeps.grid import read_cells, title_of
    from fedhet.sweeps.sweep import Sweep, shard

    path = find_preset(chosen.preset)
    out = plain_path(chosen.out)
    blocked = next((one for one in (out, *out.parents) if one.exists() and not one.is_dir()), None)
    if blocked is not None:
        raise UserError(f"--out: '{blocked}' is not a folder; give another one")
    cells = [placed(cell, out) for cell in read_cells(path, chosen.overrides, chosen.profile)]
    configs = [cell.config for cell in cells]
    small = dict.fromkeys(line for config in configs for line in small_cohort(config))
    for line in (*check_cells(configs, read_overrides(chosen.overrides)), *small):
        tell(f"note: {line}")
    wanted = shard(cells, chosen.shard)
    if chosen.cell:
        wanted = [cell for cell in cells if cell.name == chosen.cell]
        if not wanted:
            raise UserError(
                f"--cell: '{chosen.cell}' is not one of the {len(cells)} cells of '{path.stem}'; "
                "--dry-run lists them"
            )
    name = index_name(chosen.preset, path)
    if chosen.profile != "full":
        name += f"-{chosen.profile}"
    if chosen.shard != "1/1":
        name += f"-{chosen.shard.replace('/', 'of')}"
    if chosen.cell:
        name += f"-{chosen.cell}"
    found = Sweep.open(name, out, wanted, execute, QUICK if chosen.profile == "quick" else "")
    found.title = title_of(path)
    return path, found


def index_name(preset: str, path: Path) -> str:
    """Return the name of a preset's index: compare/x and paper/x may share a folder."""
    return preset.replace("/", "-") if _shipped(preset, path) else path.stem


def _shipped(preset: str, path: Path) -> bool:
    return path != Path(preset).expanduser()


def placed(cell: "Cell", out: Path) -> "Cell":
    """Return the cell with its folder and with paths that hold everywhere."""
    from fedhet.engines import session
    from fedhet.sweeps.grid import Cell

    config = cell.config.model_copy(update={"out": str(out), "name": cell.name})
    return Cell(cell.values, session.absolute_paths(config))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


class SweepProgress:
    """A line per cell that has ended and, on a terminal, a bar of the rounds of all cells.

    ``blind`` leaves out test metrics, by which a search must not be followed.
    """

    def __init__(self, found: "Sweep", *, quiet: bool, blind: bool = False) -> None:
        from fedhet.sweeps.sweep import ENDED, FAILED

        self.quiet, self.blind = quiet, blind
        self.shown = {job.cell.name for job in found.jobs if job.state in ENDED - {FAILED}}
        self.waiting: set[str] = set()
        rounds = sum(job.cell.config.rounds for job in found.jobs)
        self.bar = RunProgress("rounds", rounds, quiet=True, silent=quiet)

    def __enter__(self) -> Self:
        self.bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bar.__exit__()
        if kind is Interrupted:
            tell("interrupted; the same command continues")

    def update(self, found: "Sweep") -> None:
        """Show how it stands."""
        from fedhet.records.summary import duration, headline
        from fedhet.sweeps.sweep import ENDED, FAILED

        left = found.seconds_left()
        more = f", about {duration(left)} left" if left else ""
        self.bar.show(sum(job.rounds for job in found.jobs), f"{_counted(found.counts())}{more}")
        for job in () if self.quiet else found.jobs:
            name = job.cell.name
            if job.waits and name not in self.waiting:
                self.waiting.add(name)
                now = f"{datetime.now():%H:%M:%S}"
                tell(f"waiting since {now} for {name}, which another process is running")
            ended = job.state in ENDED and (job.state != FAILED or job.process is not None)
            if ended and name not in self.shown:
                self.shown.add(name)
                figure = headline(job.cell.config.metric, {} if self.blind else job.last)
                why = f": {job.reason}" if job.reason else ""
                tell(f"{name} {job.state}, {figure}, {job.cell.label}{why}{more}")


def tune(  # noqa: PLR0913, PLR0917  (one argument per option)
    config: ConfigName,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUES...",
            help="KEY=V1,V2 or KEY=LOW..HIGH is searched, KEY=VALUE fixed, seed=0,1 repeated",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="the preset to write")] = Path("tuned.yaml"),
    runs: Annotated[Path, typer.Option(help="folder of the run folders")] = Path("runs"),
    trials: Annotated[
        int,
        typer.Option(min=0, help="trials per method; 0: the smallest grid, or 10 of ranges"),
    ] = 0,
    search_seed: Annotated[int, typer.Option(min=0, help="seed of drawn trials")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="runs at a time; 0: one per core")] = 0,
    ray: Ray = "",
    as_json: Json = False,
) -> None:
    """Search keys by validation metric, with equal trials per method; write the best preset."""
    loading(as_json=as_json)
    from fedhet.cli.app import execute
    from fedhet.engines.session import find_preset
    from fedhet.records.summary import headline
    from fedhet.sweeps.grid import once
    from fedhet.sweeps.sweep import Sweep
    from fedhet.sweeps.tune import Search, best, validation

    path = find_preset(config)
    target, folder = out.expanduser(), plain_path(runs)
    _check_out(target)
    search = Search.read(path, words or [])
    made = search.trials(trials, search_seed)
    cells = once(placed(cell, folder) for trial in made for cell in trial.cells)
    found = Sweep.open(f"tune-{index_name(config, path)}", folder, cells, execute)
    _check_mixed(found, "trials", "--runs")
    run_all(found, workers, ray, quiet=as_json, blind=True)
    _raise_failed(found, "runs failed")
    metric = made[0].cells[0].config.metric
    scores = [validation([folder / cell.name for cell in trial.cells], metric) for trial in made]
    chosen = best(made, scores)
    seeds = f" --search-seed {search_seed}" if search_seed else ""
    count = f" --trials {trials}" if trials else ""
    command = f"by: fedhet tune {shlex.join([config, *(words or [])])}{count}{seeds}"
    scored = list(zip(made, scores, strict=True))
    written = _write(target, command, search, scored, chosen)
    if as_json:
        rows = [
            {"method": trial.method, "values": dict(trial.values), f"val_{metric}_mean": score,
             "chosen": chosen.get(trial.method) == i}
            for i, (trial, score) in enumerate(scored)
        ]  # fmt: skip
        print(json.dumps({"trials": rows, "presets": [str(one) for one in written]}, indent=2))
        return
    show_table(
        f"{len(made)} trials, {len(made) // len(search.methods)} for each method",
        ("method", "values", "validation", ""),
        [
            (trial.method, trial.label, "diverged" if score is None else
             headline(metric, {f"val_{metric}_mean": score}, "val"),
             "chosen" if chosen.get(trial.method) == i else "")
            for i, (trial, score) in enumerate(scored)
        ],
    )  # fmt: skip
    for one in written:
        print(plain_path(one))


def _check_out(out: Path) -> None:
    """Raise UserError, before hours of trials, if the preset cannot be written."""
    if out.is_dir():
        raise UserError(f"--out: '{out}' is a folder: give the file to write, such as tuned.yaml")
    try:
        with tried_folder(out.parent):
            pass
    except OSError as error:
        raise UserError(f"--out: '{out}' cannot be written: {error.strerror}") from error


def _write(
    out: Path,
    command: str,
    search: "Search",
    trials: Sequence[tuple["Trial", float | None]],
    chosen: Mapping[str, int],
) -> list[Path]:
    """Write a preset of every method's best trial; of several methods ``out`` is a sweep of all.

    The presets of the single methods have the method's name in theirs.
    """
    from fedhet.config.schema import METRICS
    from fedhet.sweeps.tune import preset_text

    out.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for method, position in chosen.items():
        name = f"{out.stem}-{method}{out.suffix}" if len(search.methods) > 1 else out.name
        metric = METRICS[trials[position][0].cells[0].config.metric]
        lines = [f"validation {metric.title} of each trial:"]
        lines += [
            f"{'-' if score is None else metric.text(score)}  {trial.label}"
            for trial, score in trials
            if trial.method == method
        ]
        keys = search.preset(trials[position][0])
        write_text(out.with_name(name), preset_text(keys, f"run {name}", command, lines))
        written.append(out.with_name(name))
    if len(chosen) > 1:
        keys = search.sweep([trials[position][0] for position in chosen.values()])
        lines = ["every method with its chosen values, on seeds that no trial used"]
        write_text(out, preset_text(keys, f"sweep {out.name} --out DIR", command, lines))
        written.append(out)
    return written
