"""The command line: arguments, what the commands do, what is printed."""

import gc
import os
import sys
from collections.abc import Sequence

from fedhet.engines.fork_server import NO_THREADS, RARELY


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``fedhet``; see :func:`fedhet.cli.app.main`."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] in (["run"], ["resume"]):
        os.environ |= NO_THREADS
    gc.set_threshold(*RARELY)
    from fedhet.cli.app import main as run  # noqa: PLC0415  (the environment comes first)

    run(words)
