"""Why a client takes no part, in words: all that a deployed node tells of its failures.

Up go a word of this list and a number; the node's own log has the rest under that number. What a
node's disk looks like, how its classes are called and what an exception says is nobody else's
business. The number is drawn: one that counts would tell how often a site has failed in all.

A simulation is one owner's on one machine: there the whole text goes up.
"""

import contextlib
import re
import secrets
from collections.abc import Iterable, Iterator
from enum import StrEnum

from fedhet.errors import UserError, one_line
from fedhet.sums.member import Refusal

MOST = 999_999  # the largest number of an entry


class Word(StrEnum):
    """What a deployed node says when it fails."""

    INSTRUCTION = "instruction"
    PAYLOAD = "payload"
    GENERATION = "generation"
    STATE = "state"
    STATE_LOST = "state-lost"
    NOT_FINITE = "not-finite"
    BUDGET = "budget"
    MEMORY = "out-of-memory"
    CONFIGURATION = "configuration"
    CLASSES = "classes"
    DATA = "data"
    PUBLIC = "public-data"
    MODEL = "model"
    DEVICE = "device"
    METHOD = "method"
    UNEXPECTED = "unexpected"
    LIMITS_FILE = "limits-file"
    MAX_EPOCHS = "limit-max-epochs"
    MAX_ROUNDS = "limit-max-rounds"
    METHODS = "limit-methods"
    SHARED_MODELS = "limit-shared-models"
    MIN_NOISE = "limit-min-noise"
    MAX_UPLOAD_BYTES = "limit-max-upload-bytes"
    CLASS_COUNTS = "limit-class-counts"
    MAX_DOWNLOAD_BYTES = "limit-max-download-bytes"
    MAX_DOWNLOAD_NORM = "limit-max-download-norm"
    MIN_SUM = "limit-min-sum"
    MIN_SUM_NOISE = "limit-min-sum-noise"
    SECURE_SUM = "limit-secure-sum"
    RANGE = "sum-range"
    PROOF = "sum-proof"
    # The rules of a member of a sum: see fedhet.sums.member.
    SMALL = Refusal.SMALL.value
    ABSENT = Refusal.ABSENT.value
    STRANGER = Refusal.STRANGER.value
    TWICE = Refusal.TWICE.value
    OLD = Refusal.OLD.value
    THRESHOLD = Refusal.THRESHOLD.value
    UNASKED = Refusal.UNASKED.value
    OTHER = Refusal.OTHER.value
    FEW = Refusal.FEW.value
    LEFT_OUT = Refusal.LEFT_OUT.value
    OUTSIDE = Refusal.OUTSIDE.value
    BOXES = Refusal.BOXES.value


MEANING = {
    Word.INSTRUCTION: "it was sent an instruction that makes no sense",
    Word.PAYLOAD: "what it was sent is not what the method sends: do server and node run the same "
    "version of it?",
    Word.GENERATION: "it was to go back to its start, although it has trained on since",
    Word.STATE: "its private state cannot be written or read",
    Word.STATE_LOST: "the private state that the server means is gone or damaged",
    Word.NOT_FINITE: "training ended in NaN or infinity: a smaller lr, or grad-clip",
    Word.BUDGET: "its privacy budget does not allow this upload",
    Word.MEMORY: "it has too little memory: a smaller batch-size, or fewer processes",
    Word.CONFIGURATION: "the run's configuration cannot work there",
    Word.CLASSES: "what its classes are called it does not tell: the run must name them (classes, "
    "or labels of a file)",
    Word.DATA: "its data cannot be used: gone, damaged, or of a class that the run does not have",
    Word.PUBLIC: "its own copy of the public data set is not there or cannot be opened "
    "(fedhet node --public)",
    Word.MODEL: "the model that it is to train cannot be built there",
    Word.DEVICE: "the device that it is to train on is not there",
    Word.METHOD: "the method, model or data set that it has does not fit this version of fedhet",
    Word.UNEXPECTED: "an error that nobody has foreseen",
    Word.LIMITS_FILE: "its site's file of limits cannot be read, and then nothing is allowed",
    Word.MAX_EPOCHS: "its site allows fewer epochs a round",
    Word.MAX_ROUNDS: "its site allows fewer rounds",
    Word.METHODS: "its site does not allow this method",
    Word.SHARED_MODELS: "its site allows no method that shares a model",
    Word.MIN_NOISE: "its site wants more noise (dp-clip, dp-epsilon)",
    Word.MAX_UPLOAD_BYTES: "its site allows smaller uploads only",
    Word.CLASS_COUNTS: "its site does not tell images per class",
    Word.MAX_DOWNLOAD_BYTES: "its site takes smaller messages only",
    Word.MAX_DOWNLOAD_NORM: "its site takes payloads of a smaller norm only",
    Word.MIN_SUM: "its site wants sums of more clients",
    Word.SECURE_SUM: "its site wants secure-sum=masked",
    Word.MIN_SUM_NOISE: "its site wants more noise in every sum (dp-clip, dp-epsilon)",
    Word.RANGE: "its vector has an entry that is not finite, or beyond sum-range",
    Word.PROOF: "its certificate does not prove that its key for the sums is its own",
    Word.SMALL: "the cohort is smaller than sum-min, or than its site's min-sum",
    Word.ABSENT: "it is not in the cohort of its own round",
    Word.STRANGER: "somebody in the cohort was not introduced to it, or not accepted",
    Word.TWICE: "somebody, or somebody's key, is in the cohort twice",
    Word.OLD: "the attempt is not newer than the last one that it answered",
    Word.THRESHOLD: "the threshold would allow two answers for one attempt",
    Word.UNASKED: "it has uploaded nothing for what is to be unmasked",
    Word.OTHER: "it has handed over shares for other survivors already",
    Word.FEW: "fewer are left than sum-threshold, sum-min or its site's min-sum allow",
    Word.LEFT_OUT: "it is not among the survivors",
    Word.OUTSIDE: "somebody among the survivors was not in the cohort",
    Word.BOXES: "the boxes are not of their size, or not as many as the survivors",
}


class Refused(Exception):
    """What came down is not taken; one line for the node's own log, and the word for the server."""

    def __init__(self, text: str, word: Word = Word.PAYLOAD) -> None:
        super().__init__(text)
        self.word = word


@contextlib.contextmanager
def telling(word: Word) -> Iterator[None]:
    """Within this block a mistake that has no word of its own is told by this one."""
    try:
        yield
    except UserError as error:
        error.word = error.word or word
        raise


def new_number() -> int:
    """The number of an entry in a node's log."""
    return 1 + secrets.randbelow(MOST)


def told(error: object, number: object) -> str:
    """What the server shows of a failure: its word, where to look, and what the word means.

    Without a number it is a simulated client's text, and shown as it is, on one line.
    """
    if number is None:
        return one_line(error) or "failed without a reason"
    place = number if type(number) is int and 1 <= number <= MOST else "unknown"
    try:
        word = Word(str(error))
    except ValueError:
        return f"no word that is known (its log: no. {place})"
    return f"{word} (its log: no. {place}): {MEANING[word]}"


def distinct(reasons: Iterable[str]) -> str:
    """Reasons side by side, each once whatever its number."""
    return "; ".join(sorted({re.sub(r" \(its log: no\. \w+\)", "", text) for text in reasons}))
