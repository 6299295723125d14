"""The kinds of failure that a user sees, and how they are worded."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend: one line naming the thing, its value and what is allowed.

    The command line prints the line without a traceback and exits with code 2.
    """

    exit_code = 2
    word = ""  # what a deployed node tells of it: see fedhet.protocol.reasons


class HookError(Exception):
    """A method, model or data set gave the base what it cannot work with; one line names the hook.

    A client's becomes the reason for which it is left out; a server's ends the run.
    """


class RunFailedError(Exception):
    """A run that started but did not complete; the command line exits with code 3."""

    exit_code = 3


class VerifyError(RunFailedError):
    """What a run left behind is damaged or does not fit together; names the file. Exit code 3."""


class ReadError(VerifyError, ValueError):
    """A file or message that is not what it must be: which, where in it, and what is wrong."""

    def __init__(self, source: str, place: str, what: str) -> None:
        self.source, self.place, self.what = source, place, what
        where = f"{source}: {place}" if place else source
        super().__init__(f"{where} is damaged: {what}")


def nearest(word: str, allowed: Iterable[str], least: float = 0.5) -> str:
    """``; did you mean 'x'?`` for the closest allowed word, or nothing.

    ``least`` is the likeness that it must have, 1 for the same word.
    """
    by_lower = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=least)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""


def one_line(text: object, limit: int | None = 500) -> str:
    """Text from elsewhere, printable, on one line of at most ``limit`` characters."""
    whole = str(text)  # of a stranger's megabytes no more is taken apart than may be shown
    words = " ".join((whole if limit is None else whole[: 20 * limit]).split())[:limit]
    return "".join(c if c.isprintable() else "?" for c in words)


def brief(error: BaseException) -> str:
    """Kind and text of an error, as :func:`one_line`; the kind alone if it has no text."""
    kind = type(error).__name__
    return one_line(f"{kind}: {error}" if str(error).strip() else kind)
