"""The commands that list, compare and begin something: arguments only."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

from pathlib import Path
from typing import Annotated

import typer

from fedhet.cli.options import Json, Register, Trust, loading
from fedhet.errors import UserError


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="folder that is searched for run folders")
    ] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List runs with status, method and accuracy."""
    from fedhet.cli import listings

    listings.runs(folder, as_json=as_json)


def init(
    path: Annotated[str, typer.Argument(metavar="FILE", help="a table, texts, signals, images")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="what you know of it")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the preset to write; FILE.yaml here")] = None,
) -> None:
    """Say what a file of yours holds, and write a preset that runs it."""
    loading(as_json=False)
    from fedhet.config.load import build_config, read_overrides
    from fedhet.data.describe import initialise, preset_lines
    from fedhet.site.local_data import load_dataset, reading_of

    def checked(keys):  # type: ignore[no-untyped-def]
        config = build_config(keys)
        return reading_of(config), lambda: load_dataset(config)

    found, target = initialise(path, read_overrides(words or []), out, checked)
    for line in preset_lines(found, target):
        print(line)


def keys(
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD|WORD", help="add this method's own keys; or all that speak of the word"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the keys of a configuration with defaults, ranges and meaning, or search them."""
    from fedhet.cli import listings

    listings.keys(word, as_json=as_json)


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="one method in full, or module:METHOD")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods and the keys that only they have; one with what it does and sends."""
    from fedhet.cli import listings

    listings.methods(name, as_json=as_json)


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|KEY=VALUE...",
            help="models and groups, those alone; module:factory; keys of a run (dataset, "
            "data-path, representation, ...) that say what they are built for",
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="image, signal, table or tokens: those for such examples")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, help="number of classes; default: of the data, or 10")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models with parameters, size and cost; your own too, if you name them."""
    from fedhet.cli.model_list import models as show

    show(words or [], classes, kind, as_json=as_json)


def new(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="method")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="of its module, such as my_method")],
) -> None:
    """Write a method of your own and its test into this folder (docs/how-to/own-method.md)."""
    if what != "method":
        raise UserError(f"'{what}' is not allowed: method is all that can be made new")
    from fedhet.cli.new import new_method

    for path in new_method(name, Path.cwd()):
        print(path)
    print(f"fedhet run quickstart method={name}:METHOD")


def report(  # noqa: PLR0913, PLR0917  (one parameter per option)
    places: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_SWEEP...", help="run folders, sweeps, packed records"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the report; files in it are replaced")],
    formats: Annotated[
        str,
        typer.Option("--format", help="beside the page, of md, csv, latex, svg"),
    ] = "md,csv,latex,svg",
    baseline: Annotated[
        str, typer.Option(help="method that others are compared with; standalone if it was run")
    ] = "",
    title: Annotated[str, typer.Option(help="heading of the page")] = "fedhet report",
    records: Annotated[
        Path | None, typer.Option(help="write the runs there as packed records, to be committed")
    ] = None,
    models: Annotated[
        bool, typer.Option("--models/--no-models", help="draw what needs the clients' models")
    ] = True,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare runs: tables with intervals, figures, and one self-contained page."""
    loading(as_json=as_json)
    from fedhet.cli.display import show_report
    from fedhet.reports.report import report as write

    made = write(
        places, out, formats=[one.strip() for one in formats.split(",") if one.strip()],
        baseline=baseline, title=title, records=records, models=models, trust=trust,
    )  # fmt: skip
    show_report(made, out, as_json=as_json)


def add_commands(command: Register) -> None:
    """Make them commands of ``fedhet``."""
    for function in (init, runs, keys, methods, models, new, report):
        command()(function)
