"""The command line. Arguments are read here, the work is done in :mod:`fedhet.cli.commands`.

That module imports torch, which takes seconds: each command imports it when it is called, so
that ``fedhet --help`` and a mistyped option answer at once.
"""
# ruff: noqa: PLC0415

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import click
import typer

from fedhet.errors import RunFailedError, UserError
from fedhet.runtime.signals import Interrupted

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does, too
    help="Model-heterogeneous personalised federated learning.",
)

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


@app.command()
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


@app.command()
def demo(
    out: Annotated[str, typer.Option(help="folder of run folders")] = "runs",
) -> None:
    """FedSSA, LG-FedAvg and Standalone on the embedded digits, in about two minutes."""
    from fedhet.cli import commands

    commands.demo(out)


@app.command()
def resume(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="run folder")],
    overrides: Changes = None,
    superlink: Connection = None,
    as_json: Json = False,
) -> None:
    """Continue a run after its last finished round; rounds=N extends a finished one."""
    from fedhet.cli import commands

    commands.resume(run_folder, overrides or [], connection=superlink, as_json=as_json)


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods and the keys that only they have."""
    from fedhet.cli import commands

    commands.methods(as_json=as_json)


@app.command()
def models(
    classes: Annotated[int, typer.Option(min=1, help="number of classes")] = 10,
    as_json: Json = False,
) -> None:
    """List the models with parameters, size and cost."""
    from fedhet.cli import commands

    commands.models(classes, as_json=as_json)


@app.command()
def partition(
    config: ConfigName,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="folder of the picture")] = Path(),
    as_json: Json = False,
) -> None:
    """Show how a configuration deals the images to clients, as a table and a bubble plot."""
    from fedhet.cli import commands

    commands.partition(config, overrides or [], out, as_json=as_json)


@app.command()
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


@app.command()
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
    print(advice(make(out, servers, clients), servers, clients))


@app.command()
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


@app.command()
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every mistake is one line on stderr and an exit code, without a traceback."""
    sys.exit(execute(sys.argv[1:] if arguments is None else list(arguments)))


def execute(arguments: list[str]) -> int:
    """Run one command line; returns 0, 2 (mistake), 3 (run failed) or 128 + signal."""
    try:
        code = app(arguments, prog_name="fedhet", standalone_mode=False)
    except (UserError, RunFailedError) as error:
        return _complain(" ".join(str(error).split()), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
    except click.ClickException as error:
        return _complain(" ".join(error.format_message().split()), UserError.exit_code)
    except click.Abort:  # Ctrl-C before anything was started
        return 130
    except Interrupted as error:
        return error.exit_code
    else:
        return code if isinstance(code, int) else 0
    return 0


def _complain(message: str, code: int) -> int:
    print(f"fedhet: error: {message}", file=sys.stderr)
    return code
