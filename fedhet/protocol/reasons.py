"""Why a client takes no part: the words that a deployed node tells of its failures.

A node sends a word of this list and a number; its own log has the text under that number. What its
disk looks like, how its classes are called and what an exception says stays there. The number is
drawn: one that counts would tell how often a site has failed. A simulation is one owner's on one
machine: there the whole text is sent.
"""

import contextlib
import re
import secrets
from collections.abc import Iterable, Iterator
from enum import StrEnum

from fedhet.errors import Refused, UserError, one_line

MOST = 999_999  # the largest number of an entry


class Word(StrEnum):
    """What a deployed node says when it fails, and what that means."""

    meaning: str

    def __new__(cls, word: str, meaning: str = "") -> "Word":
        """Make a member from its word and its meaning."""
        made = str.__new__(cls, word)
        made._value_, made.meaning = word, meaning
        return made

    INSTRUCTION = "instruction", "it was sent an instruction that makes no sense"
    PAYLOAD = ("payload", "what it was sent is not what the method sends: do server and node "
        "run the same version of it?")  # fmt: skip
    GENERATION = "generation", "it was to go back to its start, although it has trained on since"
    STATE = "state", "its private state cannot be written or read"
    STATE_LOST = "state-lost", "the private state that the server means is gone or damaged"
    NOT_FINITE = "not-finite", "training ended in NaN or infinity: a smaller lr, or grad-clip"
    BUDGET = "budget", "its privacy budget does not allow this upload"
    MEMORY = "out-of-memory", "it has too little memory: a smaller batch-size, or fewer processes"
    CONFIGURATION = "configuration", "the run's configuration cannot work there"
    CLASSES = ("classes", "what its classes are called it does not tell: the run must name them "
        "(classes, or labels of a file)")  # fmt: skip
    DATA = ("data", "its data cannot be used: gone, damaged, or of a class that the run does "
        "not have")  # fmt: skip
    PUBLIC = ("public-data", "its own copy of the public data set is not there or cannot be "
        "opened (fedhet node --public)")  # fmt: skip
    MODEL = "model", "the model that it is to train cannot be built there"
    DEVICE = "device", "the device that it is to train on is not there"
    METHOD = ("method", "the method, model or data set that it has does not fit this version of "
        "fedhet")  # fmt: skip
    UNEXPECTED = "unexpected", "an error that nobody has foreseen"
    LIMITS_FILE = ("limits-file", "its site's file of limits cannot be read, and then nothing "
        "is allowed")  # fmt: skip
    CODE = "limit-code", "its site runs installed code only"
    MODULES = "limit-modules", "its site does not allow a module that the run names"
    MAX_EPOCHS = "limit-max-epochs", "its site allows fewer epochs a round"
    MAX_ROUNDS = "limit-max-rounds", "its site allows fewer rounds"
    METHODS = "limit-methods", "its site does not allow this method"
    SHARED_MODELS = "limit-shared-models", "its site allows no method that shares a model"
    MIN_NOISE = "limit-min-noise", "its site wants more noise (dp-clip, dp-epsilon)"
    MAX_UPLOAD_BYTES = "limit-max-upload-bytes", "its site allows smaller uploads only"
    CLASS_COUNTS = "limit-class-counts", "its site does not tell images per class"
    MAX_DOWNLOAD_BYTES = "limit-max-download-bytes", "its site takes smaller messages only"
    MAX_DOWNLOAD_NORM = "limit-max-download-norm", "its site takes payloads of a smaller norm only"
    MIN_SUM = "limit-min-sum", "its site wants sums of more clients"
    MIN_SUM_NOISE = ("limit-min-sum-noise", "its site wants more noise in every sum (dp-clip, "
        "dp-epsilon)")  # fmt: skip
    SECURE_SUM = "limit-secure-sum", "its site wants secure-sum=masked"
    RANGE = "sum-range", "its vector has an entry that is not finite, or beyond sum-range"
    PROOF = "sum-proof", "its certificate does not prove that its key for the sums is its own"
    # The rules of a member of a sum: see fedhet.sums.client.
    SMALL = "cohort-too-small", "the cohort is smaller than sum-min, or than its site's min-sum"
    ABSENT = "not-in-cohort", "it is not in the cohort of its own round"
    STRANGER = ("stranger-in-cohort", "somebody in the cohort was not introduced to it, or not "
        "accepted")  # fmt: skip
    TWICE = "member-named-twice", "somebody, or somebody's key, is in the cohort twice"
    OLD = "attempt-not-new", "the attempt is not newer than the last one that it answered"
    THRESHOLD = "threshold-too-low", "the threshold would allow two answers for one attempt"
    UNASKED = "unmask-without-upload", "it has uploaded nothing for what is to be unmasked"
    OTHER = "other-survivors-than-answered", "it has handed over shares for other survivors already"
    FEW = ("too-few-survivors", "fewer are left than sum-threshold, sum-min or its site's "
        "min-sum allow")  # fmt: skip
    UNSIGNED = "survivors-not-signed", "too few members have signed the survivors that it was told"
    LEFT_OUT = "not-a-survivor", "it is not among the survivors"
    OUTSIDE = "survivors-not-the-cohort", "somebody among the survivors was not in the cohort"
    BOXES = "boxes-malformed", "the boxes are not of their size, or not as many as the survivors"


def refusal(word: Word) -> Refused:
    """Return the refusal whose text is an error code and its meaning."""
    return Refused(f"{word}: {word.meaning}", word)


@contextlib.contextmanager
def telling(word: Word) -> Iterator[None]:
    """Within this block a mistake that has no word of its own is told by this one."""
    try:
        yield
    except UserError as error:
        error.code = error.code or word
        raise


def new_number() -> int:
    """Return the number of an entry in a node's log."""
    return 1 + secrets.randbelow(MOST)


def told(error: object, number: object) -> str:
    """Return what the server shows of a failure: its code, where to look, what the code means.

    Without a number it is a simulated client's text, and shown as it is, on one line.
    """
    if number is None:
        return one_line(error) or "failed without a reason"
    place = number if type(number) is int and 1 <= number <= MOST else "unknown"
    word = next((one for one in Word if one == str(error)), None)
    if word is None:
        return f"no word that is known (its log: no. {place})"
    return f"{word} (its log: no. {place}): {word.meaning}"


def distinct(reasons: Iterable[str]) -> str:
    """Return reasons side by side, each once whatever its number."""
    return "; ".join(sorted({re.sub(r" \(its log: no\. \w+\)", "", text) for text in reasons}))
