"""The commands for a client's model outside any run: arguments only."""
# ruff: noqa: PLC0415  (imports that take seconds wait until their command is called)

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedhet.cli.options import Register, Trust, loading
from fedhet.errors import UserError, one_line
from fedhet.files import plain_path


def export(  # noqa: PLR0913, PLR0917  (options of a command)
    state: Annotated[
        Path,
        typer.Argument(
            metavar="STATE|RUN",
            help="a client's folder of states: in a run folder state/<experiment>/<client> "
            "(runs/NAME/state/...), at a node <its --state>/<experiment>/<client>",
        ),
    ],
    out: Annotated[Path, typer.Option(help="new folder for the model")],
    generation: Annotated[
        int | None, typer.Option(help="round whose state is taken; the newest if left out")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="STATE is a run folder: every client's, in OUT/<client>")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="the state of the best validation round (keep-best)")
    ] = False,
    predictions: Annotated[
        bool,
        typer.Option(
            "--predictions",
            help="STATE is a run folder: its clients' answers (keep-predictions) "
            "as the CSV file OUT",
        ),
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="write model.onnx as well")] = False,
    images: Annotated[
        list[Path] | None,
        typer.Option(help="file or folder to compare ONNX with torch on; repeat for more"),
    ] = None,
    trust: Trust = False,
) -> None:
    """Write a client's personalised model, or all of a run's; the last line is the folder."""
    loading()
    from fedhet.export.save import export as write
    from fedhet.export.save import export_all, export_predictions

    if images and not onnx:
        raise UserError("--images: only used with --onnx")
    if best and generation is not None:
        raise UserError("--generation does not go with --best")
    if predictions:
        print(f"{export_predictions(state, out, trust=trust)} examples: {plain_path(out)}")
        return
    if every and generation is not None:
        raise UserError("--generation does not go with --all, which takes each client's newest")
    wanted = (images or []) if onnx else None
    if every:
        made, left_out = export_all(state, out, best=best, images=wanted, trust=trust)
        for client, reason in left_out.items():
            print(one_line(f"fedhet: left out: client {client}: {reason}", None), file=sys.stderr)
        print(f"{len(made)} of {len(made) + len(left_out)} clients")
        print(plain_path(out))
        return
    print(write(state, out, generation="best" if best else generation, images=wanted, trust=trust))


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="folder made by `fedhet export`")],
    examples: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="images or folders; a CSV, an NPZ, a text file"),
    ],
    out: Annotated[Path, typer.Option(help="CSV to write, replaced if it exists")] = Path(
        "predictions.csv"
    ),
    trust: Trust = False,
) -> None:
    """Classify examples with an exported model: a CSV with a probability per class."""
    loading()
    from fedhet.export.predict import predict as classify

    found = classify(model, examples, out, trust=trust)
    if found.warning:
        print(one_line(f"fedhet: warning: {found.warning}", None), file=sys.stderr)
    print(f"{found.examples} {found.what}: {out}")


def add_commands(command: Register) -> None:
    """Make them commands of ``fedhet``."""
    for function in (export, predict):
        command()(function)
