"""The command line as a whole: its commands put together, and how each may end.

A command is one function: its arguments, then what it does. What imports torch, which takes
seconds, is imported inside it, so that ``fedhet --help`` and a mistyped option answer at once.
"""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import click
import typer

import fedhet
from fedhet.cli import deploy, lists, runs, sweeps
from fedhet.cli.common import Command, silence, tell
from fedhet.config.schema import RunConfig, kebab
from fedhet.engines.system import Interrupted, direct, open_streams
from fedhet.errors import RunFailed, UserError, brief
from fedhet.files import HOMELESS
from fedhet.plugins import look_here

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does, too
    help="Model-heterogeneous personalised federated learning.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


for function in (
    runs.run, runs.watch, runs.demo, runs.resume, runs.verify, runs.partition, sweeps.sweep,
    sweeps.tune, lists.init, lists.runs, lists.keys, lists.methods, lists.models, lists.new,
    lists.report, runs.export, runs.predict, deploy.certs, deploy.server, deploy.node,
    deploy.status, deploy.unit,
):  # fmt: skip
    app.command(cls=Command)(function)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every mistake is one line on stderr and an exit code, without a traceback."""
    open_streams()
    code = execute(sys.argv[1:] if arguments is None else list(arguments))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:  # Python would try again, and exit with 120
            silence(stream)
            if error.errno == errno.ENOSPC:  # and not a terminal or a reader that has gone
                code = code or _complain(_of_system(error), UserError.exit_code)
    sys.exit(code)


def execute(arguments: list[str]) -> int:
    """Run one command line; returns 0, 2 (mistake), 3 (run failed) or 128 + signal."""
    os.environ.update(direct())
    try:
        return _call(arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
    except (UserError, RunFailed) as error:
        return _complain(str(error), error.exit_code)
    except click.ClickException as error:
        return _complain(_usage(error), UserError.exit_code)
    except (click.Abort, KeyboardInterrupt):  # Ctrl-C before anything was started
        return 130
    except Interrupted as error:
        return error.exit_code


def _of_system(error: OSError) -> str:
    """Return what the system refused, and for which file."""
    why = error.strerror or brief(error)
    return f"'{error.filename}': {why}" if error.filename else why


def _call(arguments: list[str]) -> int:
    """Parse and run; UserError for what the system refuses, where nothing nearer has words for it.

    Such as a home, which some users of containers have not.
    """
    try:
        look_here()
    except OSError as error:
        raise UserError("the working folder no longer exists: change to another") from error
    try:
        code = app(arguments, prog_name="fedhet", standalone_mode=False)
    except OSError as error:
        raise UserError(_of_system(error)) from error
    except RuntimeError as error:
        if "home directory" not in str(error):
            raise
        raise UserError(HOMELESS) from error
    return code if isinstance(code, int) else 0


def _usage(error: click.ClickException) -> str:
    """Return what is wrong with the words; keys of a configuration are no options."""
    if isinstance(error, click.NoSuchOption):
        key = error.option_name.lstrip("-")
        if key in {kebab(name) for name in RunConfig.model_fields if name != "params"}:
            return f"No such option '--{key}': keys are written without dashes: {key}=VALUE"
    text, context = error.format_message(), getattr(error, "ctx", None)
    misses = type(error) in {click.UsageError, click.MissingParameter}  # or has a word too many
    if misses and context and context.info_name == "export":
        return (
            f"{text.rstrip('.')}: `fedhet export RUN/state/*/CLIENT --out DIR` exports one client, "
            "`fedhet export RUN --all --out DIR` all, "
            "`fedhet export RUN --predictions --out FILE.csv` the predictions of all"
        )
    return text


def _complain(message: str, code: int) -> int:
    """One line, whatever a text that came from elsewhere contains."""
    tell(f"error: {message}")
    return code
