"""``fedhet sweep``: what it does and what it shows; :mod:`fedhet.sweeps` has the machinery."""

import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from fedhet.cli import execute
from fedhet.cli.saying import tell
from fedhet.cli.sweep_display import Progress
from fedhet.config.checks import check_cells, small_cohort
from fedhet.config.load import read_overrides
from fedhet.engines import preflight
from fedhet.engines.session import find_preset
from fedhet.engines.signals import interruptible
from fedhet.errors import RunFailedError, UserError
from fedhet.files import plain_path
from fedhet.records.summary import duration
from fedhet.sweeps.grid import Cell, read_cells, title_of
from fedhet.sweeps.job import ENDED, FAILED, Job
from fedhet.sweeps.sweep import Sweep, default_workers, shard

if TYPE_CHECKING:
    from fedhet.sweeps.estimate import Guess

QUICK = "profile quick: a tenth of the rounds, a fifth of the epochs; no figure of the papers"
EVERYWHERE = 1_000_000  # cells at a time where machines say how many fit


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
    calibrate: bool = False


def sweep(preset: str, overrides: Sequence[str], options: Options, *, as_json: bool) -> None:
    """Run all cells; RunFailedError if one failed (one that diverged is a result)."""
    path, found = open_sweep(preset, overrides, options)
    mixed = found.mixed()
    if mixed and not options.accept_mixed:
        raise UserError(
            f"{mixed}: results of different code are not compared; take another --out, or say "
            "--accept-mixed"
        )
    run_all(found, options.workers, options.ray, quiet=as_json)
    _report(found, path, as_json=as_json)


def run_all(found: Sweep, workers: int, ray: str = "", *, quiet: bool, blind: bool = False) -> None:
    """Run the cells here, or on the machines of a Ray cluster, and show how it goes.

    ``--ray`` comes before ``RAY_ADDRESS``; ``blind`` as of :class:`Progress`.
    """
    address = ray or os.environ.get("RAY_ADDRESS", "")
    with contextlib.ExitStack() as stack:
        if address and any(job.due for job in found.jobs):
            _on_cluster(found, address, stack, quiet=quiet)
        workers = workers or (EVERYWHERE if address else at_a_time(found, 0))
        stack.enter_context(interruptible())
        progress = stack.enter_context(Progress(found, quiet=quiet, blind=blind))
        found.run(workers, progress.update)


def _on_cluster(found: Sweep, address: str, stack: contextlib.ExitStack, *, quiet: bool) -> None:
    """Have the cells run there; machines are joined before signals get a meaning of ours."""
    from fedhet.sweeps.cluster import Cluster, fitting  # noqa: PLC0415
    from fedhet.sweeps.ray_machines import joined  # noqa: PLC0415

    if any(job.cell.config.engine == "ray" for job in found.jobs) and not quiet:
        tell("engine: inline, not ray: each cell is one process of the cluster")
    for job in found.jobs:
        job.cell = fitting(job.cell)
    found.executor = Cluster(stack.enter_context(joined(address)))


def dry_run(preset: str, overrides: Sequence[str], options: Options, *, as_json: bool) -> None:
    """List the cells with an estimate of their time and of what they leave on the disk.

    No image is opened, and nothing is written but what this machine is known to take.
    """
    from fedhet.sweeps.estimate import Estimator  # noqa: PLC0415  (every method's client)

    path, found = open_sweep(preset, overrides, options)
    if not as_json:
        print(f"{index_name(preset, path)}: {len(found.jobs)} cells in '{found.out}'", flush=True)
    estimator = Estimator(measure=options.calibrate, tell=tell)
    guesses: dict[str, Guess] = {}
    for job in found.jobs:
        if job.due:
            guesses[job.cell.name] = estimator.guess(job.cell.config)
        if not as_json:
            time_ = _time(guesses[job.cell.name]) if job.cell.name in guesses else ""
            print(f"{job.cell.name}  {job.state:9} {time_:>9}  {job.cell.label}", flush=True)
    if as_json:
        print(json.dumps({"note": found.note, "cells": _rows(found, guesses)}, indent=2))
        return
    todo = [job for job in found.jobs if job.due]
    workers = at_a_time(found, options.workers)
    print(f"{len(found.jobs)} cells, {len(todo)} to run{_altogether(todo, guesses, workers)}")
    if estimator.uncalibrated:
        print(
            f"rough (~): {len(estimator.uncalibrated)} kinds of these cells were never timed here; "
            "their FLOPs and a matrix product say this much; --calibrate times each, once"
        )
    for reason in dict.fromkeys(one.reason for one in guesses.values() if one.reason):
        print(f"no estimate: {reason}")
    kept = sum(one.kept for one in guesses.values())
    if kept:
        print(
            f"states of their clients: about {decimal(round(kept))} stay ({_free(found.out)}); "
            "keep-state=false deletes a cell's when it has finished"
        )
    if found.note:
        print(found.note)


def _rows(found: Sweep, guesses: Mapping[str, "Guess"]) -> list[dict[str, object]]:
    """The cells of a dry run, for programs."""
    return [
        {"name": job.cell.name, "values": dict(job.cell.values), "state": job.state,
         "estimated_seconds": one.seconds if one else None,
         "rough": one.rough if one else None,
         "estimated_state_bytes": round(one.kept) if one and one.seconds is not None else None,
         "reason": one.reason if one else ""}
        for job in found.jobs
        for one in [guesses.get(job.cell.name)]
    ]  # fmt: skip


def _altogether(todo: Sequence[Job], guesses: Mapping[str, "Guess"], workers: int) -> str:
    """How long the rest takes: cells side by side, those with Ray one after the other."""
    left = {"inline": [0.0], "ray": [0.0]}
    for job in todo:
        share = max(0.0, 1 - job.rounds / job.cell.config.rounds)
        left[job.cell.config.engine].append(share * (guesses[job.cell.name].seconds or 0.0))
    inline, ray = left["inline"], left["ray"]
    total = sum(ray) + max(*inline, sum(inline) / workers)
    unknown = sum(guesses[job.cell.name].seconds is None for job in todo)
    more = f", and {unknown} of which nobody knows" if unknown else ""
    about = "roughly" if any(one.rough for one in guesses.values()) else "about"
    return f": {about} {duration(total)} with {workers} at a time{more}" if total else ""


def _free(out: Path) -> str:
    """How much room the disk of a folder has that need not exist yet."""
    there = next(one for one in (out, *out.parents) if one.is_dir())
    return f"{decimal(shutil.disk_usage(there).free)} are free in '{there}'"


def print_commands(preset: str, overrides: Sequence[str], options: Options) -> None:
    """One command line per cell, for a scheduler of another machine; it holds in any folder."""
    path, found = open_sweep(preset, overrides, options)
    name = preset if _shipped(preset, path) else str(path.absolute())
    changed = read_overrides(overrides)
    for job in found.jobs:
        now = job.cell.config.flat()  # its paths are absolute
        pairs = [f"{k}={now[k] if k in preflight.PATHS and v else v}" for k, v in changed.items()]
        words = ["fedhet", "sweep", name, *pairs, "--out", str(found.out)]
        words += [] if options.profile == "full" else ["--profile", options.profile]
        words += ["--workers", str(options.workers)] if options.workers else []
        words += ["--accept-mixed"] if options.accept_mixed else []
        print(shlex.join([*words, "--cell", job.cell.name]))


def open_sweep(preset: str, overrides: Sequence[str], options: Options) -> tuple[Path, Sweep]:
    """The preset's file and its cells as they stand; UserError for a mistake in any of them."""
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
    note = QUICK if options.profile == "quick" else ""
    found = Sweep.open(name, out, chosen, execute, note)
    found.title = title_of(path)
    return path, found


def index_name(preset: str, path: Path) -> str:
    """What a preset's index is called: compare/x and paper/x may share a folder."""
    return preset.replace("/", "-") if _shipped(preset, path) else path.stem


def _shipped(preset: str, path: Path) -> bool:
    return path != Path(preset).expanduser()


def at_a_time(found: Sweep, workers: int) -> int:
    """Cells that run side by side, by default one per core; a shard may have none at all."""
    threads = max((job.cell.config.threads for job in found.jobs), default=1)
    return workers or default_workers(threads)


def placed(cell: Cell, out: Path) -> Cell:
    """The cell with paths that hold everywhere, in its own process unless it asks for Ray."""
    config = cell.config.model_copy(update={"out": str(out), "name": cell.name})
    return Cell(cell.values, preflight.absolute_paths(config))


def _report(found: Sweep, path: Path, *, as_json: bool) -> None:
    counts = found.counts()
    if as_json:
        print(json.dumps(found.index() | {"folder": str(found.out)}, indent=2))
    else:
        for job in found.jobs:
            if job.state in ENDED and job.reason:
                print(f"{job.cell.name} {job.state}: {job.reason}", file=sys.stderr)
        print(
            ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no cell"
        )
        if found.note:
            print(found.note)
        print(found.out)
    if counts[FAILED]:
        raise RunFailedError(
            f"{counts[FAILED]} of {len(found.jobs)} cells of '{path.stem}' failed; the same "
            f"command tries them again (logs: {found.folder})"
        )


def _time(guess: "Guess") -> str:
    if guess.seconds is None:
        return "?"
    return f"{'~' if guess.rough else ''}{duration(guess.seconds)}"
