"""The command line. Arguments are read here, the work is done in :mod:`fedhet.cli.commands`.

That module imports torch, which takes seconds: each command imports it when it is called, so
that ``fedhet --help`` and a mistyped option answer at once.
"""
# ruff: noqa: PLC0415

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import click
import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

import fedhet
from fedhet.cli.deploy import add_commands
from fedhet.errors import RunFailedError, UserError, one_line
from fedhet.plugins import look_here
from fedhet.runtime.signals import Interrupted
from fedhet.schema import RunConfig, kebab


class Command(TyperCommand):
    """A command whose ``--help`` shows what its arguments mean.

    Since click's arguments have a help text of their own (8.2), theirs, empty, replaces typer's.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            for note in getattr(hints.get(str(parameter.name)), "__metadata__", ()):
                if isinstance(note, ArgumentInfo) and isinstance(parameter, TyperArgument):
                    parameter.help = parameter.help or note.help


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does, too
    help="Model-heterogeneous personalised federated learning.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
command = partial(app.command, cls=Command)

ConfigName = Annotated[
    str, typer.Argument(metavar="CONFIG", help="YAML file, or a shipped preset (quickstart)")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="keys that replace the file's")
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="engine, rounds and other keys that may change"),
]
Connection = Annotated[
    str | None,
    typer.Option(help="run there: a connection in Flower's config.toml", metavar="CONNECTION"),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


def _version(wanted: bool) -> None:  # noqa: FBT001  (typer calls it)
    if wanted:
        print(f"fedhet {fedhet.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Model-heterogeneous personalised federated learning."""


@command()
def run(
    config: ConfigName,
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(help="folder of run folders")] = None,
    name: Annotated[str | None, typer.Option(help="name of the run folder")] = None,
    superlink: Connection = None,
    as_json: Json = False,
) -> None:
    """Run a configuration; the last line printed is the run folder."""
    from fedhet.cli import commands

    words = list(overrides or [])
    words += [f"{key}={value}" for key, value in (("out", out), ("name", name)) if value]
    commands.run(config, words, connection=superlink, as_json=as_json)


@command()
def demo(
    out: Annotated[str, typer.Option(help="folder of run folders")] = "runs",
    as_json: Json = False,
) -> None:
    """FedSSA, LG-FedAvg and Standalone on the embedded digits, in about a minute."""
    from fedhet.cli import commands

    commands.demo(out, as_json=as_json)


@command()
def resume(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="run folder")],
    overrides: Changes = None,
    superlink: Connection = None,
    accept_lost: Annotated[
        bool, typer.Option(help="go on without the clients whose states are gone or damaged")
    ] = False,
    as_json: Json = False,
) -> None:
    """Continue a run after its last finished round; rounds=N extends a finished one."""
    from fedhet.cli import commands

    commands.resume(
        run_folder,
        overrides or [],
        connection=superlink,
        as_json=as_json,
        accept_lost=accept_lost,
    )


@app.command()
def verify(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="run folder")],
    as_json: Json = False,
) -> None:
    """Check a run folder: lines, checkpoint, summary and states against each other."""
    from fedhet.cli import commands

    commands.verify(run_folder, as_json=as_json)


@command()
def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="folder that is searched for run folders")
    ] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List runs with status, method and accuracy."""
    from fedhet.cli import listings

    listings.runs(folder, as_json=as_json)


@command()
def keys(
    method: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="add this method's own keys")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the keys of a configuration with defaults, ranges and meaning."""
    from fedhet.cli import listings

    listings.keys(method, as_json=as_json)


@command()
def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="one method, in full")] = None,
    as_json: Json = False,
) -> None:
    """List the methods and the keys that only they have; one with what it does and sends."""
    from fedhet.cli import listings

    listings.methods(name, as_json=as_json)


@command()
def new(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="method")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="of its module, such as my_method")],
) -> None:
    """Write a method of your own and its test into this folder (docs/extend.md)."""
    if what != "method":
        raise UserError(f"'{what}' is not allowed: method is all that can be made new")
    from fedhet.cli.new import new_method

    for path in new_method(name, Path.cwd()):
        print(path)
    print(f"fedhet run quickstart method={name}:METHOD")


@command()
def models(
    classes: Annotated[int, typer.Option(min=1, help="number of classes")] = 10,
    as_json: Json = False,
) -> None:
    """List the models with parameters, size and cost."""
    from fedhet.cli import listings

    listings.models(classes, as_json=as_json)


@command()
def partition(
    config: ConfigName,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="folder of the picture")] = Path(),
    as_json: Json = False,
) -> None:
    """Show how a configuration deals the images to clients, as a table and a bubble plot."""
    from fedhet.cli import commands

    commands.partition(config, overrides or [], out, as_json=as_json)


@command()
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
    dry: Annotated[bool, typer.Option("--dry-run", help="list the cells and their time")] = False,
    lines: Annotated[bool, typer.Option("--print", help="print one command per cell")] = False,
    accept_mixed: Annotated[
        bool, typer.Option("--accept-mixed", help="go on although code or torch has changed")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run every combination of a preset's grid; finished cells are skipped, broken ones go on."""
    from fedhet.cli import sweep as work

    options = work.Options(out, profile, part, cell, workers, accept_mixed)
    words = overrides or []
    if lines:
        work.print_commands(preset, words, options)
    elif dry:
        work.dry_run(preset, words, options, as_json=as_json)
    else:
        work.sweep(preset, words, options, as_json=as_json)


@command()
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
        int, typer.Option(min=0, help="trials for each method; 0: the smallest method's grid")
    ] = 0,
    search_seed: Annotated[int, typer.Option(min=0, help="seed of what is drawn")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="runs at a time; 0: one per core")] = 0,
    as_json: Json = False,
) -> None:
    """Search keys by validation accuracy, as often for each method; writes the best as a preset."""
    from fedhet.cli import tune as work

    options = work.Options(out, runs, trials, search_seed, workers)
    work.tune(config, words or [], options, as_json=as_json)


@command()
def report(  # noqa: PLR0913  (one parameter per option)
    places: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_SWEEP...", help="run folders, sweeps, packed records"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the report; files in it are replaced")],
    baseline: Annotated[str, typer.Option(help="method that others are compared with")] = (
        "standalone"
    ),
    title: Annotated[str, typer.Option(help="heading of the page")] = "fedhet report",
    records: Annotated[
        Path | None, typer.Option(help="write the runs there as packed records, to be committed")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Markdown file whose marked part becomes the tables")
    ] = None,
    models: Annotated[
        bool, typer.Option("--models/--no-models", help="draw what needs the clients' models")
    ] = True,
    as_json: Json = False,
) -> None:
    """Compare runs: tables with intervals, figures, and one self-contained page."""
    from fedhet.cli.show import show_report
    from fedhet.experiments.report import report as write

    page = write(
        places, out, baseline=baseline, title=title, records=records, into=into, models=models
    )
    show_report(page, out, as_json=as_json)


@command()
def certs(
    out: Annotated[Path, typer.Option(help="folder to make them in")],
    server: Annotated[
        list[str] | None, typer.Option(help="name or address of the server; repeat for more")
    ] = None,
    client: Annotated[list[str] | None, typer.Option(help="client id; repeat for more")] = None,
) -> None:
    """Make a CA, a server certificate and a key pair per client; only keys without --server."""
    from fedhet.runtime.certs import advice, make

    servers, clients = server or [], client or []
    if not servers and not clients:
        raise UserError("certs: give --server NAME, --client ID, or both")
    print(advice(make(out, servers, clients), servers))


@command()
def export(
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="<state-dir>/<experiment>/<client>")
    ],
    out: Annotated[Path, typer.Option(help="new folder for the model")],
    generation: Annotated[
        int | None, typer.Option(help="round whose state is taken; the newest if left out")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="write model.onnx as well")] = False,
    images: Annotated[
        list[Path] | None,
        typer.Option(help="file or folder to compare ONNX with torch on; repeat for more"),
    ] = None,
) -> None:
    """Write a client's personalised model; the last line printed is its folder."""
    from fedhet.export.save import export as write

    if images and not onnx:
        raise UserError("--images: only used with --onnx")
    print(write(state, out, generation=generation, images=(images or []) if onnx else None))


@command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="folder made by `fedhet export`")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="files or folders")],
    out: Annotated[Path, typer.Option(help="CSV to write, replaced if it exists")] = Path(
        "predictions.csv"
    ),
) -> None:
    """Classify images with an exported model: a CSV with a probability per class."""
    from fedhet.export.predict import predict as classify

    found = classify(model, images, out)
    if found.warning:
        print(f"fedhet: warning: {found.warning}", file=sys.stderr)
    print(f"{found.images} images: {out}")


add_commands(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every mistake is one line on stderr and an exit code, without a traceback."""
    code = execute(sys.argv[1:] if arguments is None else list(arguments))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a closed terminal: Python would try again, and exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def execute(arguments: list[str]) -> int:
    """Run one command line; returns 0, 2 (mistake), 3 (run failed) or 128 + signal."""
    look_here()
    try:
        code = app(arguments, prog_name="fedhet", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
    except (UserError, RunFailedError) as error:
        return _complain(str(error), error.exit_code)
    except click.ClickException as error:
        return _complain(_usage(error, arguments), UserError.exit_code)
    except (click.Abort, KeyboardInterrupt):  # Ctrl-C before anything was started
        return 130
    except Interrupted as error:
        return error.exit_code


def _usage(error: click.ClickException, arguments: Sequence[str]) -> str:
    """What is wrong with the words; keys of a configuration are no options."""
    if not isinstance(error, click.NoSuchOption):
        return error.format_message()
    word = next((w for w in arguments if w.partition("=")[0] == error.option_name), "")
    key, _, value = word.lstrip("-").partition("=")
    if key not in {kebab(name) for name in RunConfig.model_fields if name != "params"}:
        return error.format_message()
    following = [*arguments, ""][arguments.index(word) + 1]
    value = value or ("" if following.startswith("-") else following) or "VALUE"
    return f"No such option '{error.option_name}': keys are written without dashes: {key}={value}"


def _complain(message: str, code: int) -> int:
    """One line, whatever a text that came from elsewhere contains."""
    print(f"fedhet: error: {one_line(message, None)}", file=sys.stderr)
    return code
