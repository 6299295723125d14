"""``fedhet sweep`` and ``fedhet tune``: what they do and print."""

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from textwrap import shorten

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedhet.cli import display, execute
from fedhet.cli.saying import say, tell
from fedhet.config.checks import check_cells, small_cohort
from fedhet.config.load import read_overrides
from fedhet.engines import session
from fedhet.engines.session import find_preset
from fedhet.engines.system import Interrupted, interruptible
from fedhet.errors import RunFailed, UserError
from fedhet.files import plain_path, tried_folder, write_text
from fedhet.records.summary import duration, percent
from fedhet.sweeps.grid import Cell, once, read_cells, title_of
from fedhet.sweeps.sweep import (
    ENDED,
    FAILED,
    RUNNING,
    Job,
    Sweep,
    Work,
    for_ray,
    joined,
    shard,
)
from fedhet.sweeps.tune import Search, Trial, best, preset_text, validation

QUICK = "profile quick: a tenth of the rounds, a fifth of the epochs; no figure of the papers"
SHOWN = 20  # lines of cells in the table of progress
WAITS = "is being run by another process, which is waited for since {}"
REASON = 120  # characters of a cell's reason in the table; the end of the sweep prints it whole


@dataclass(frozen=True)
class Options:
    """How a sweep was asked for."""

    out: Path
    profile: str = "full"
    shard: str = "1/1"
    cell: str = ""
    workers: int = 0
    accept_mixed: bool = False
    ray: str = ""


@dataclass(frozen=True)
class TuneOptions:
    """How a search was asked for."""

    out: Path
    runs: Path
    trials: int = 0
    search_seed: int = 0
    workers: int = 0
    ray: str = ""


def sweep(preset: str, overrides: Sequence[str], options: Options, *, as_json: bool) -> None:
    """Run all cells; raise RunFailed if one failed (one that diverged is a result)."""
    path, found = open_sweep(preset, overrides, options)
    mixed = found.mixed()
    if mixed and not options.accept_mixed:
        raise UserError(
            f"{mixed}: results of different code are not compared; take another --out, or say "
            "--accept-mixed"
        )
    run_all(found, options.workers, options.ray, quiet=as_json)
    counts = found.counts()
    if as_json:
        print(json.dumps(found.index() | {"folder": str(found.out)}, indent=2))
    else:
        for job in found.jobs:
            if job.state in ENDED and job.reason:
                print(f"{job.cell.name} {job.state}: {job.reason}", file=sys.stderr)
        print(_counted(counts) or "no cell")
        if found.note:
            print(found.note)
        print(found.out)
    if counts[FAILED]:
        raise RunFailed(
            f"{counts[FAILED]} of {len(found.jobs)} cells of '{path.stem}' failed; the same "
            f"command tries them again (logs: {found.folder})"
        )


def run_all(found: Sweep, workers: int, ray: str = "", *, quiet: bool, blind: bool = False) -> None:
    """Run the cells here, or on a Ray cluster, and show progress.

    ``--ray`` comes before ``RAY_ADDRESS``; ``blind`` as of :class:`Progress`.
    """
    address = ray or os.environ.get("RAY_ADDRESS", "")
    with contextlib.ExitStack() as stack:
        if address and any(job.due for job in found.jobs):
            if any(job.cell.config.engine != "inline" for job in found.jobs) and not quiet:
                tell("engine: inline, since each cell is one process of the cluster")
            for job in found.jobs:
                job.cell = for_ray(job.cell)
            found.place = stack.enter_context(joined(address))
        stack.enter_context(interruptible())
        progress = stack.enter_context(Progress(found, quiet=quiet, blind=blind))
        found.run(workers, progress.update)


def dry_run(preset: str, overrides: Sequence[str], options: Options, *, as_json: bool) -> None:
    """List the cells with their state, and the FLOPs of what is left; write nothing."""
    path, found = open_sweep(preset, overrides, options)
    if not as_json:
        print(f"{index_name(preset, path)}: {len(found.jobs)} cells in '{found.out}'", flush=True)
        for job in found.jobs:
            print(f"{job.cell.name}  {job.state:9} {job.cell.label}", flush=True)
    from fedhet.sweeps.flops import CellFlops  # noqa: PLC0415  (every method's client)

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


def print_commands(preset: str, overrides: Sequence[str], options: Options) -> None:
    """Print one command line per cell, for a scheduler; it holds in any folder."""
    path, found = open_sweep(preset, overrides, options)
    name = preset if _shipped(preset, path) else str(path.absolute())
    changed = read_overrides(overrides)
    for job in found.jobs:
        now = job.cell.config.flat()  # its paths are absolute
        pairs = [f"{k}={now[k] if k in session.PATHS and v else v}" for k, v in changed.items()]
        words = ["fedhet", "sweep", name, *pairs, "--out", str(found.out)]
        words += [] if options.profile == "full" else ["--profile", options.profile]
        words += ["--workers", str(options.workers)] if options.workers else []
        words += ["--accept-mixed"] if options.accept_mixed else []
        print(shlex.join([*words, "--cell", job.cell.name]))


def open_sweep(preset: str, overrides: Sequence[str], options: Options) -> tuple[Path, Sweep]:
    """Return the preset's file and its cells as they stand; UserError for a mistake in any."""
    path = find_preset(preset)
    out = plain_path(options.out)
    blocked = next((one for one in (out, *out.parents) if one.exists() and not one.is_dir()), None)
    if blocked is not None:
        raise UserError(f"--out: '{blocked}' is not a folder; give another one")
    cells = [placed(cell, out) for cell in read_cells(path, overrides, options.profile)]
    configs = [cell.config for cell in cells]
    small = dict.fromkeys(line for config in configs for line in small_cohort(config))
    for line in (*check_cells(configs, read_overrides(overrides)), *small):
        tell(f"note: {line}")
    chosen = shard(cells, options.shard)
    if options.cell:
        chosen = [cell for cell in cells if cell.name == options.cell]
        if not chosen:
            raise UserError(
                f"--cell: '{options.cell}' is none of the {len(cells)} of '{path.stem}'; "
                "--dry-run lists them"
            )
    name = index_name(preset, path)
    if options.profile != "full":
        name += f"-{options.profile}"
    if options.shard != "1/1":
        name += f"-{options.shard.replace('/', 'of')}"
    if options.cell:
        name += f"-{options.cell}"
    found = Sweep.open(name, out, chosen, execute, QUICK if options.profile == "quick" else "")
    found.title = title_of(path)
    return path, found


def index_name(preset: str, path: Path) -> str:
    """Return the name of a preset's index: compare/x and paper/x may share a folder."""
    return preset.replace("/", "-") if _shipped(preset, path) else path.stem


def _shipped(preset: str, path: Path) -> bool:
    return path != Path(preset).expanduser()


def placed(cell: Cell, out: Path) -> Cell:
    """Return the cell with its folder and with paths that hold everywhere."""
    config = cell.config.model_copy(update={"out": str(out), "name": cell.name})
    return Cell(cell.values, session.absolute_paths(config))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


class Progress:
    """A table of the cells on a terminal; elsewhere a line per cell that has ended.

    ``blind`` leaves out test accuracies, by which a search must not be followed.
    """

    def __init__(self, found: Sweep, *, quiet: bool, blind: bool = False) -> None:
        self.console = Console(stderr=True, markup=False)
        self.quiet, self.blind = quiet, blind
        self.told = {job.cell.name for job in found.jobs if job.state in ENDED - {FAILED}}
        self.waiting: dict[str, str] = {}  # since when, by cell
        self.live: Live | None = None
        if not quiet and self.console.is_terminal:
            self.live = Live(
                _table(found, {}, blind=blind), console=self.console, auto_refresh=False
            )

    def __enter__(self) -> "Progress":
        if self.live is not None:
            self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.live is not None:
            self.live.__exit__(None, None, None)
        if kind is Interrupted:
            tell("interrupted; the same command goes on")

    def update(self, found: Sweep) -> None:
        """Show how it stands."""
        news = [job.cell.name for job in found.jobs if job.waits]
        news = [name for name in news if name not in self.waiting]
        self.waiting |= dict.fromkeys(news, f"{datetime.now():%H:%M:%S}")
        if self.live is not None:
            self.live.update(_table(found, self.waiting, blind=self.blind), refresh=True)
            return
        for job in found.jobs:
            if job.cell.name in news and not self.quiet:
                tell(f"{job.cell.name} {WAITS.format(self.waiting[job.cell.name])}")
            ended = job.state in ENDED and (job.state != FAILED or job.process is not None)
            if ended and job.cell.name not in self.told and not self.quiet:
                self.told.add(job.cell.name)
                accuracy = percent(None if self.blind else job.accuracy)
                why = f": {job.reason}" if job.reason else ""
                left = found.seconds_left()
                more = f", about {duration(left)} left" if left else ""
                line = f"{job.cell.name} {job.state} {accuracy}  {job.cell.label}{why}{more}"
                say(f"fedhet: {line}", sys.stderr)


def _table(found: Sweep, waiting: Mapping[str, str], *, blind: bool) -> Group:
    table = Table(box=None, pad_edge=False)
    for column in ("cell", "state", "round", "accuracy", "what"):
        table.add_column(column, no_wrap=column != "what")
    running = [job for job in found.jobs if job.state == RUNNING]
    others = [job for job in found.jobs if job.state != RUNNING]
    others.sort(key=lambda job: job.state not in ENDED)
    for job in (*running, *others)[:SHOWN]:
        table.add_row(*_row(job, waiting.get(job.cell.name, ""), blind=blind))
    left = found.seconds_left()
    more = f", {len(found.jobs) - SHOWN} cells not shown" if len(found.jobs) > SHOWN else ""
    line = f"{_counted(found.counts())}{more}" + (f", about {duration(left)} left" if left else "")
    return Group(table, Text(line), Text(found.note)) if found.note else Group(table, Text(line))


def _row(job: Job, since: str, *, blind: bool) -> tuple[str, ...]:
    rounds = f"{job.rounds}/{job.cell.config.rounds}"
    if job.state == RUNNING and job.rounds > job.begun_at:
        pace = (time.monotonic() - job.started) / (job.rounds - job.begun_at)
        rounds += f" {duration(pace * (job.cell.config.rounds - job.rounds))} left"
    accuracy = percent(None if blind else job.accuracy)
    ended = job.state in ENDED and job.reason
    why = f": {shorten(job.reason, REASON, placeholder=' ...')}" if ended else ""
    why = f": {WAITS.format(since)}" if job.waits else why
    return job.cell.name, job.state, rounds, accuracy, f"{job.cell.label}{why}"


def tune(
    preset: str, words: Sequence[str], options: TuneOptions, *, as_json: bool, work: Work = execute
) -> None:
    """Run all trials; raise RunFailed if one failed (one that diverged is the worst)."""
    path = find_preset(preset)
    _check_out(options.out.expanduser())
    search = Search.read(path, words)
    trials = search.trials(options.trials, options.search_seed)
    runs = plain_path(options.runs)
    cells = once(placed(cell, runs) for trial in trials for cell in trial.cells)
    found = Sweep.open(f"tune-{index_name(preset, path)}", runs, cells, work)
    if mixed := found.mixed():
        raise UserError(f"{mixed}: trials of different code are not compared; take another --runs")
    run_all(found, options.workers, options.ray, quiet=as_json, blind=True)
    if found.counts()[FAILED]:
        raise RunFailed(
            f"{found.counts()[FAILED]} of {len(found.jobs)} runs failed; the same command "
            f"tries them again (logs: {found.folder})"
        )
    scores = [validation([runs / cell.name for cell in trial.cells]) for trial in trials]
    chosen = best(trials, scores)
    seeds = f" --search-seed {options.search_seed}" if options.search_seed else ""
    count = f" --trials {options.trials}" if options.trials else ""
    command = f"by: fedhet tune {shlex.join([preset, *words])}{count}{seeds}"
    scored = list(zip(trials, scores, strict=True))
    written = _write(options.out.expanduser(), command, search, scored, chosen)
    if as_json:
        rows = [
            {"method": trial.method, "values": dict(trial.values), "val_accuracy_mean": score,
             "chosen": chosen.get(trial.method) == i}
            for i, (trial, score) in enumerate(scored)
        ]  # fmt: skip
        print(json.dumps({"trials": rows, "presets": [str(one) for one in written]}, indent=2))
        return
    display.show_table(
        f"{len(trials)} trials, {len(trials) // len(search.methods)} for each method",
        ("method", "values", "validation", ""),
        [
            (trial.method, trial.label, percent(score) if score is not None else "diverged",
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
    search: Search,
    trials: Sequence[tuple[Trial, float | None]],
    chosen: Mapping[str, int],
) -> list[Path]:
    """Write a preset of every method's best trial; of several methods ``out`` is a sweep of all.

    The presets of the single methods have the method's name in theirs.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for method, position in chosen.items():
        name = f"{out.stem}-{method}{out.suffix}" if len(search.methods) > 1 else out.name
        lines = ["validation accuracy of each trial, percent:"]
        lines += [
            f"{'-' if score is None else format(score, '.2f')}  {trial.label}"
            for trial, score in trials
            if trial.method == method
        ]
        keys = search.preset(trials[position][0])
        write_text(out.with_name(name), preset_text(keys, f"run {name}", command, lines))
        written.append(out.with_name(name))
    if len(chosen) > 1:
        keys = search.sweep([trials[position][0] for position in chosen.values()])
        lines = ["every method with what was chosen for it, in blocks that no trial had"]
        write_text(out, preset_text(keys, f"sweep {out.name} --out DIR", command, lines))
        written.append(out)
    return written
