"""Lines about something that goes on. It goes on as well where nobody can read them."""

import os
import sys
from typing import TextIO

from fedhet.errors import one_line


def tell(text: str) -> None:
    """A line for people; what programs read goes to stdout."""
    say(f"fedhet: {one_line(text, None)}", sys.stderr)


def say(line: str, stream: TextIO) -> None:
    """Print at once; from the first time that this is impossible the stream takes no more text."""
    try:
        print(line, file=stream, flush=True)
    except OSError:  # whoever read it has gone, or the disk is full
        silence(stream)


def silence(stream: TextIO) -> None:
    """Let all text vanish: what could not be written is tried again otherwise, with the next."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
