"""The command line as a whole: its commands put together, and how each may end.

A command is one function: its arguments, then what it does. What imports torch, which takes
seconds, is imported inside it, so that ``fedhet --help`` and a mistyped option answer at once.
"""

import errno
import sys
from collections.abc import Sequence
from functools import partial

import click
import typer.main

import fedhet
from fedhet.cli import deploy, lists, runs, sweeps
from fedhet.cli.common import Command, carry_out, complain, silence
from fedhet.engines.system import open_streams

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does, too
    help="Model-heterogeneous personalised federated learning.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in (
    runs.run, runs.watch, sweeps.demo, runs.resume, runs.verify, runs.partition, sweeps.sweep,
    sweeps.tune, lists.init, lists.runs, lists.keys, lists.methods, lists.models, lists.new,
    lists.report, runs.export, runs.predict, deploy.certs, deploy.key, deploy.server, deploy.node,
    deploy.status, deploy.unit,
):  # fmt: skip
    app.command(cls=Command)(function)
version = click.version_option(fedhet.__version__, message="fedhet %(version)s")
execute = partial(carry_out, version(typer.main.get_command(app)))  # runs one command line


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
                code = code or complain(error)
    sys.exit(code)
