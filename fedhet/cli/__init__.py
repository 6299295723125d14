"""The command line: arguments, what the commands do, what is printed."""

import sys
from collections.abc import Sequence

from fedhet.engines.fork_server import start_early


def execute(arguments: list[str]) -> int:
    """Run one command line in this process; see :func:`fedhet.cli.app.execute`."""
    from fedhet.cli.app import execute as run  # noqa: PLC0415  (and what all commands need)

    return run(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``fedhet``; see :func:`fedhet.cli.app.main`."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    start_early(words)
    from fedhet.cli.app import main as run  # noqa: PLC0415

    run(words)
