"""The commands that run something, and those that check it: arguments only."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

from pathlib import Path
from typing import Annotated

import typer

from fedhet.cli.options import (
    Changes,
    ConfigName,
    Connection,
    Json,
    Overrides,
    Ray,
    Register,
    Trust,
    loading,
)
from fedhet.errors import UserError


def run(  # noqa: PLR0913, PLR0917  (one argument per option)
    config: ConfigName,
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(help="folder of run folders")] = None,
    name: Annotated[str | None, typer.Option(help="name of the run folder")] = None,
    superlink: Connection = None,
    watching: Annotated[
        bool, typer.Option("--watch", help="serve a page of it meanwhile, as `fedhet watch` does")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a configuration; the last line printed is the run folder."""
    loading(as_json=as_json)
    from fedhet.cli import actions

    words = list(overrides or [])
    words += [f"{key}={value}" for key, value in (("out", out), ("name", name)) if value]
    actions.run(config, words, connection=superlink, watching=watching, as_json=as_json)


def watch(
    place: Annotated[
        Path | None, typer.Argument(metavar="RUN_OR_SWEEP", help="run folder, or a folder of them")
    ] = None,
    superlink: Annotated[
        str, typer.Option(metavar="TLS", help="its server's folder: its sites, and its last run")
    ] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="lines of text instead of a page")] = False,
) -> None:
    """Show a run or a sweep while it goes on: a page on 127.0.0.1, or text; ended ones too."""
    if plain and port:
        raise UserError("--port does not go with --plain: say one")
    from fedhet.cli import watch as work

    work.watch(place, superlink, port, plain=plain)


def demo(
    out: Annotated[str, typer.Option(help="folder of run folders")] = "runs",
    as_json: Json = False,
) -> None:
    """FedSSA, LG-FedAvg and Standalone on the embedded digits, in about a minute."""
    loading(as_json=as_json)
    from fedhet.cli import actions

    actions.demo(out, as_json=as_json)


def resume(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="run folder")],
    overrides: Changes = None,
    superlink: Connection = None,
    accept_lost: Annotated[
        bool, typer.Option(help="go on without the clients whose states are gone or damaged")
    ] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Continue a run after its last finished round; rounds=N extends a finished one."""
    loading(as_json=as_json)
    from fedhet.cli import actions

    actions.resume(
        run_folder,
        overrides or [],
        connection=superlink,
        as_json=as_json,
        accept_lost=accept_lost,
        trust=trust,
    )


def verify(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="run folder")],
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Check a run folder: lines, checkpoint, summary and states against each other."""
    loading(as_json=as_json)
    from fedhet.cli import actions

    actions.verify(run_folder, as_json=as_json, trust=trust)


def partition(
    config: ConfigName,
    overrides: Overrides = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="draw it there: .png, .svg or .pdf")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how a configuration deals the images to clients."""
    loading(as_json=as_json)
    from fedhet.cli import actions

    actions.partition(config, overrides or [], plot, as_json=as_json)


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
        bool, typer.Option("--dry-run", help="list the cells, and the FLOPs left")
    ] = False,
    lines: Annotated[bool, typer.Option("--print", help="print one command per cell")] = False,
    accept_mixed: Annotated[
        bool, typer.Option("--accept-mixed", help="go on although code or torch has changed")
    ] = False,
    ray: Ray = "",
    as_json: Json = False,
) -> None:
    """Run every combination of a preset's grid; finished cells are skipped, broken ones go on."""
    if ray and (dry or lines):
        raise UserError(f"--ray does not go with {'--dry-run' if dry else '--print'}: say one")
    if lines and (dry or as_json):
        raise UserError(f"--print does not go with {'--dry-run' if dry else '--json'}: say one")
    loading(as_json=as_json or lines)
    from fedhet.cli import sweep as work

    options = work.Options(out, profile, part, cell, workers, accept_mixed, ray)
    words = overrides or []
    if lines:
        work.print_commands(preset, words, options)
    elif dry:
        work.dry_run(preset, words, options, as_json=as_json)
    else:
        work.sweep(preset, words, options, as_json=as_json)


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
        typer.Option(min=0, help="trials for each method; 0: the smallest grid, 10 of ranges"),
    ] = 0,
    search_seed: Annotated[int, typer.Option(min=0, help="seed of what is drawn")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="runs at a time; 0: one per core")] = 0,
    ray: Ray = "",
    as_json: Json = False,
) -> None:
    """Search keys by validation accuracy, as often for each method; writes the best as a preset."""
    loading(as_json=as_json)
    from fedhet.cli import sweep as work

    options = work.TuneOptions(out, runs, trials, search_seed, workers, ray)
    work.tune(config, words or [], options, as_json=as_json)


def add_commands(command: Register) -> None:
    """Make them commands of ``fedhet``."""
    for function in (run, watch, demo, resume, verify, partition, sweep, tune):
        command()(function)
