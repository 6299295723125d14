"""``fedhet tune``: runs the trials of a search, prints its table, writes the winners' presets."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhet.cli import display, execute
from fedhet.cli.sweep import index_name, placed, run_all
from fedhet.engines.session import find_preset
from fedhet.errors import RunFailedError, UserError
from fedhet.files import plain_path, tried_folder, write_text
from fedhet.records.summary import percent
from fedhet.sweeps.executor import Work
from fedhet.sweeps.grid import once
from fedhet.sweeps.job import FAILED
from fedhet.sweeps.sweep import Sweep
from fedhet.sweeps.tune import Search, Trial, best, preset_text, validation


@dataclass(frozen=True)
class Options:
    """How a search was asked for."""

    out: Path
    runs: Path
    trials: int = 0
    search_seed: int = 0
    workers: int = 0
    ray: str = ""


def tune(
    preset: str, words: Sequence[str], options: Options, *, as_json: bool, work: Work = execute
) -> None:
    """Run all trials; RunFailedError if one failed (one that diverged is the worst)."""
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
        raise RunFailedError(
            f"{found.counts()[FAILED]} of {len(found.jobs)} runs failed; the same command "
            f"tries them again (logs: {found.folder})"
        )
    scores = [validation([runs / cell.name for cell in trial.cells]) for trial in trials]
    chosen = best(trials, scores)
    written = _write(preset, words, options, search, trials, scores, chosen)
    if as_json:
        rows = [
            {"method": trial.method, "values": dict(trial.values), "val_accuracy_mean": score,
             "chosen": chosen.get(trial.method) == i}
            for i, (trial, score) in enumerate(zip(trials, scores, strict=True))
        ]  # fmt: skip
        print(json.dumps({"trials": rows, "presets": [str(one) for one in written]}, indent=2))
        return
    display.show_table(
        f"{len(trials)} trials, {len(trials) // len(search.methods)} for each method",
        ("method", "values", "validation", ""),
        [
            (trial.method, trial.label, percent(score) if score is not None else "diverged",
             "chosen" if chosen.get(trial.method) == i else "")
            for i, (trial, score) in enumerate(zip(trials, scores, strict=True))
        ],
    )  # fmt: skip
    for one in written:
        print(plain_path(one))


def _check_out(out: Path) -> None:
    """UserError, before hours of trials, if the preset that they lead to cannot be written."""
    if out.is_dir():
        raise UserError(f"--out: '{out}' is a folder: give the file to write, such as tuned.yaml")
    try:
        with tried_folder(out.parent):
            pass
    except OSError as error:
        raise UserError(f"--out: '{out}' cannot be written: {error.strerror}") from error


def _write(  # noqa: PLR0913, PLR0917  (all that there is to say)
    preset: str,
    words: Sequence[str],
    options: Options,
    search: Search,
    trials: Sequence[Trial],
    scores: Sequence[float | None],
    chosen: dict[str, int],
) -> list[Path]:
    """A preset of every method's best trial; of several methods ``out`` is a sweep of all.

    Those of the single methods have the method's name in theirs.
    """
    seeds = f" --search-seed {options.search_seed}" if options.search_seed else ""
    count = f" --trials {options.trials}" if options.trials else ""
    command = f"by: fedhet tune {shlex.join([preset, *words])}{count}{seeds}"
    written = []
    for method, position in chosen.items():
        out = options.out.expanduser()
        if len(search.methods) > 1:
            out = out.with_name(f"{out.stem}-{method}{out.suffix}")
        lines = ["validation accuracy of each trial, percent:"]
        lines += [
            f"{'-' if score is None else format(score, '.2f')}  {trial.label}"
            for trial, score in zip(trials, scores, strict=True)
            if trial.method == method
        ]
        keys = search.preset(trials[position])
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, preset_text(keys, f"run {out.name}", command, lines))
        written.append(out)
    if len(chosen) > 1:
        out = options.out.expanduser()
        keys = search.sweep([trials[position] for position in chosen.values()])
        lines = ["every method with what was chosen for it, in blocks that no trial had"]
        write_text(out, preset_text(keys, f"sweep {out.name} --out DIR", command, lines))
        written.append(out)
    return written
