"""The command line: arguments, what the commands do, what is printed."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``fedhet``; see :func:`fedhet.cli.arguments.main`."""
    from fedhet.cli.arguments import main as run  # noqa: PLC0415

    run(arguments)
