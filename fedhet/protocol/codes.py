"""Error codes: why a client takes no part, and what the server shows of it.

A deployed node sends a code of this list and a number; its own log has the text under that
number. What its disk looks like, how its classes are called and what an exception says stays
there. The number is drawn: one that counts would tell how often a site has failed. A simulation
is one owner's on one machine: there the whole text is sent.
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum

from fedhet.errors import Refused, UserError, one_line

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
    PAYLOAD = ("payload", "it received other arrays than the method sends: do server and node "
        "run the same version of it?")  # fmt: skip
    GENERATION = "generation", "it was asked for generation 0, which it no longer keeps"
    STATE = "state", "its private state cannot be written or read"
    STATE_LOST = "state-lost", "the private state that the server asks for is lost or damaged"
    NOT_FINITE = "not-finite", "training ended in NaN or infinity: a smaller lr, or grad-clip"
    BUDGET = "budget", "its privacy budget does not allow this upload"
    MEMORY = "out-of-memory", "it has too little memory: a smaller batch-size, or fewer processes"
    CONFIGURATION = "configuration", "the run's configuration cannot work there"
    CLASSES = ("classes", "the run must name the classes (classes, or labels of a file), since a "
        "site does not tell them")  # fmt: skip
    DATA = ("data", "its data cannot be used: missing, damaged, or with a class that the run "
        "lacks")  # fmt: skip
    MODEL = "model", "its model cannot be built there"
    DEVICE = "device", "its device is not available"
    METHOD = ("method", "its method, model or data set does not fit this version of fedhet")
    UNEXPECTED = "unexpected", "an unexpected error"
    LIMITS_FILE = ("limits-file", "its site's file of limits cannot be read, so no run is "
        "allowed")  # fmt: skip
    LIMIT = "limit", "the run breaks a limit of its site"
    RANGE = "sum-range", "its vector has an entry that is not finite, or beyond sum-range"
    PROOF = "sum-proof", "its certificate does not prove that its key for the sums is its own"
    SUM = "sum", "it may not answer this by its own rules for sums"  # about: which one


def refusal(rule: str) -> Refused:
    """Return the refusal of a member of a sum, by the name of its rule."""
    return Refused(f"{rule}: {Code.SUM.meaning}", Code.SUM, rule)


@contextlib.contextmanager
def coded(code: Code) -> Iterator[None]:
    """Give a UserError without a code this one, within this block."""
    try:
        yield
    except UserError as error:
        error.code = error.code or code
        raise


@contextlib.contextmanager
def refusing(code: Code = Code.PAYLOAD, text: str = "") -> Iterator[None]:
    """Raise Refused for a ValueError within this block, with this text or the error's."""
    try:
        yield
    except ValueError as error:
        raise Refused(text or str(error), code) from error


def failure_text(error: object, number: object, about: object = "") -> str:
    """Return what the server shows of a failure: its code, where to look, what the code means.

    ``about`` is the limit, or a thing that the run named, which the code is about. Without a number
    it is a simulated client's text, and shown as it is, on one line.
    """
    if number is None:
        return one_line(error) or "failed without a reason"
    place = number if type(number) is int and 1 <= number <= MOST else "unknown"
    code = next((one for one in Code if one == str(error)), None)
    if code is None:
        return f"an unknown error code (its log: no. {place})"
    more = f" ({one_line(about, 80)})" if about else ""
    return f"{code} (its log: no. {place}): {code.meaning}{more}"


def distinct(reasons: Iterable[str], most: int = sys.maxsize) -> str:
    """Return reasons side by side, each once whatever its number; of more than ``most`` a count."""
    found = sorted({re.sub(r" \(its log: no\. \w+\)", "", text) for text in reasons})
    return "; ".join([*found[:most], *[f"{len(found) - most} more"] * (len(found) > most)])
