"""The kinds of failure that a user sees, and how they are worded."""

import contextlib
import difflib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from fedhet import HERE, TOP


class UserError(Exception):
    """A mistake that the user can mend: one line naming the thing, its value and what is allowed.

    Exit code 2. ``code`` is the :class:`Code` that a deployed node sends instead of the text, with
    ``about``, a word that the server knows already.
    """

    exit_code = 2

    def __init__(self, text: str = "", code: str = "", about: str = "") -> None:
        super().__init__(text)
        self.code, self.about = code, about


class RunFailed(Exception):
    """A run that started but did not complete; the command line exits with code 3."""

    exit_code = 3


class Damaged(RunFailed, ValueError):
    """A file or message that does not hold what was written; names it. Exit code 3."""

    def __init__(self, text: str, what: str = "") -> None:
        super().__init__(text)
        self.what = what or text

    @classmethod
    def at(cls, source: str, place: str, what: str) -> "Damaged":
        """Name the source, the place in it, and what is wrong there."""
        return cls(f"{source}{place and f': {place}'} is damaged: {what}", what)


class Refused(UserError):
    """A run or a message that a site does not accept; its text is for the node's own log."""

    def __init__(self, text: str, code: str = "payload", about: str = "") -> None:
        super().__init__(text, code, about)


class Rejected(ValueError):
    """A reply, or a sum of replies, that must not be aggregated; the text is the reason."""


def nearest(word: str, allowed: Iterable[str], cutoff: float = 0.5) -> str:
    """Return a hint "(did you mean 'x'?)" with the closest word (1: the same), or nothing."""
    by_lower = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def one_line(text: object, limit: int | None = 500) -> str:
    """Text from elsewhere, printable, on one line of at most ``limit`` characters."""
    whole = str(text)  # a foreign text may be long: only what can be shown is looked at
    words = " ".join((whole if limit is None else whole[: 20 * limit]).split())[:limit]
    return "".join(c if c.isprintable() else "?" for c in words)


def brief(error: BaseException) -> str:
    """Kind and text of an error, as :func:`one_line`; the kind alone if it has no text."""
    kind = type(error).__name__
    return one_line(f"{kind}: {error}" if str(error).strip() else kind)


def place(error: BaseException) -> str:
    """Return where a user's own file raised an error, as `` (x.py:7)``; nothing elsewhere."""
    frames = _theirs(traceback.extract_tb(error.__traceback__))
    files = [frame for frame in frames if Path(frame.filename).is_file()]  # a notebook has none
    return f" ({Path(files[-1].filename).name}:{files[-1].lineno})" if files else ""


def shortened(error: BaseException, what: str) -> str:
    """Return ``what`` failed in a line, and below it the traceback, of a user's frames alone."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = traceback.format_list(_theirs(frames) or frames)
    end = traceback.format_exception_only(error)
    head = f"fedhet: {what}: {brief(error)}\nTraceback (most recent call last):\n"
    return "".join([head, *lines, *end]).rstrip()


def _theirs(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """Return the frames that are neither ours, nor a library's, nor Python's own."""
    known = HERE, TOP / "strategies", TOP / "clients", Path(traceback.__file__).parent
    ours = tuple(map(str, known))
    strange = (f for f in frames if "site-packages" not in f.filename)
    return [frame for frame in strange if not frame.filename.startswith(ours)]


# --- error codes: why a client takes no part -----------------------------------------------------
# A deployed node sends a code and a number, drawn, since one that counts would tell how often a
# site has failed; its own log has the text under that number. In a simulation the text is sent.

MOST = 999_999  # the largest number of an entry


class Code(StrEnum):
    """Error codes of a deployed node, each with its meaning."""

    meaning: str

    def __new__(cls, code: str, meaning: str = "") -> "Code":
        """Make a member from its code and its meaning."""
        made = str.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    INSTRUCTION = "instruction", "it received an invalid instruction"
    PAYLOAD = "payload", "it received other arrays than the method sends: is its version another?"
    GENERATION = "generation", "it was asked for generation 0, which it no longer keeps"
    STATE = "state", "its private state cannot be written or read"
    STATE_LOST = "state-lost", "the private state that the server asks for is lost or damaged"
    NOT_FINITE = "not-finite", "training ended in NaN or infinity: a smaller lr, or grad-clip"
    BUDGET = "budget", "its privacy budget does not allow this upload"
    MEMORY = "out-of-memory", "it has too little memory: a smaller batch-size, or fewer processes"
    CONFIGURATION = "configuration", "the run's configuration cannot work there"
    CLASSES = "classes", "the run must name the classes (classes, or labels): a site tells none"
    DATA = "data", "its data are missing, damaged, or have a class that the run lacks"
    MODEL = "model", "its model cannot be built there"
    DEVICE = "device", "its device is not available"
    METHOD = "method", "its method, model or data set does not fit this version of fedhet"
    UNEXPECTED = "unexpected", "an unexpected error"
    LIMITS_FILE = "limits-file", "its site's file of limits cannot be read, so it allows no run"
    LIMIT = "limit", "the run breaks a limit of its site"
    RANGE = "sum-range", "its vector has an entry that is not finite, or beyond sum-range"
    PROOF = "sum-proof", "its certificate does not prove that its key for the sums is its own"
    SUM = "sum", "it may not answer this by its own rules for sums"  # about: which one


@contextlib.contextmanager
def coded(code: Code) -> Iterator[None]:
    """Give a UserError without a code this one, within this block."""
    try:
        yield
    except UserError as error:
        error.code = error.code or code
        raise


@contextlib.contextmanager
def refusing(code: str = Code.PAYLOAD, text: str = "", kinds: Any = ValueError) -> Iterator[None]:
    """Raise Refused for an error of these kinds in this block, with this text or the error's."""
    try:
        yield
    except kinds as error:
        raise Refused(text or str(error), code) from error


def distinct(reasons: Iterable[str], most: int = sys.maxsize) -> str:
    """Return reasons side by side, each once whatever its number; of more than ``most`` a count."""
    found = sorted({re.sub(r" \(its log: no\. \w+\)", "", text) for text in reasons})
    return "; ".join([*found[:most], *[f"{len(found) - most} more"] * (len(found) > most)])
