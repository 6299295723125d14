"""Checks of what comes from the other side; nothing that fails here is aggregated or trained on.

The server raises Rejected for a reply, a client raises Refused for what comes down. A message is
measured before it is decoded, an instruction has exactly the keys that there are, and a payload is
held against what the method says must come.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fedhet.config.schema import BESIDE, RunConfig
from fedhet.errors import Refused, Rejected
from fedhet.files import is_id
from fedhet.protocol.handshake import EXACT, MAX_TEXT, ClientInfo
from fedhet.protocol.messages import (
    AGREE,
    CONFUSION,
    INTRODUCE,
    OWNERS,
    QUERY_BYTES,
    TRAIN,
    UNIT,
    UNMASK,
    Instruction,
    Reply,
    arrays_of,
    instruction,
)
from fedhet.protocol.payload import Array, Payload
from fedhet.protocol.reasons import Word

MANY_BYTES = 256 << 20
MAX_METRICS = 100
FLOAT32 = float(np.finfo(np.float32).max)
# Ranges of metrics by the beginning of their names; the last holds for all others. Nothing in them
# can make a sum over any number of rounds and clients infinite.
RANGES = {
    "num-examples": (0.0, 2.0**53),
    "train_flops": (0.0, 1e24),
    "seconds": (0.0, 1e7),
    "train_loss": (-FLOAT32, FLOAT32),  # a term over a vanishing loss grows as far as that
    "test_log_loss": (0.0, FLOAT32),
    "val_log_loss": (0.0, FLOAT32),
    "": (-1e12, 1e12),
}


# Names of metrics that the base itself sends; a method's own are those of its `metric_ranges`.
OURS = re.compile(
    r"num-examples|seconds|train_flops|epsilon_spent|train_loss(_[A-Za-z0-9_.-]+)?"
    r"|(test|val)_accuracy(_[A-Za-z0-9_.-]+)?"
)


def check_reply(info: ClientInfo, reply: Reply, round_: int) -> None:
    """The reply is this client's, for this round, with the images it declared.

    Raises Rejected with the reason.
    """
    check_origin(info, reply, round_)
    images = reply.metrics.get("num-examples")
    if images != info.train_images:
        raise Rejected(f"num-examples {images}, but it declared {info.train_images}")
    if not re.fullmatch(r"[0-9a-f]{64}", reply.state):
        raise Rejected("reply without a digest of the client's state")


def check_origin(info: ClientInfo, reply: Reply, round_: int) -> None:
    """The reply is this client's and for this round; Rejected otherwise."""
    if reply.error:
        raise Rejected(reply.error)
    if reply.info.get("client") != info.client or reply.info.get("round") != round_:
        raise Rejected(
            f"reply of client '{reply.info.get('client')}' for round {reply.info.get('round')}, "
            f"expected round {round_}"
        )


def reply_limit(expected: Payload | None) -> int:
    """Bytes above which a reply is refused unread; ``expected`` None: of unknown shapes."""
    return MANY_BYTES if expected is None else 4 * expected.bytes + QUERY_BYTES


def check_metrics(reply: Reply, own: Mapping[str, tuple[float, float]] | None = None) -> None:
    """Metrics have declared names, are finite and in range; accuracies are percentages.

    ``own`` are a method's ranges, by the whole name: no other names are its own. Raises Rejected
    with the reason.
    """
    if len(reply.metrics) > MAX_METRICS:
        raise Rejected(f"{len(reply.metrics)} metrics, at most {MAX_METRICS} are allowed")
    for name, value in reply.metrics.items():
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", name):
            raise Rejected("a metric has a name that is not allowed")
        if not OURS.fullmatch(name) and name not in BESIDE and name not in (own or {}):
            raise Rejected(f"metric '{name}' is not declared in the strategy's `metric_ranges`")
        percent = name in BESIDE and not name.endswith("log_loss")
        if ("accuracy" in name or percent) and not 0 <= value <= 100:
            raise Rejected(f"metric '{name}' is {value}, not a percentage")
        low, high = (own or {}).get(name) or _range(name)
        if not low <= value <= high:
            raise Rejected(f"metric '{name}' is {value:g}, not within {low:g} and {high:g}")


def check_evaluation(info: ClientInfo, reply: Reply, round_: int) -> None:
    """An evaluation of this client says how good it is, unless it has no test images.

    Of a client that tells no numbers of images nobody knows whether it has some.

    Raises Rejected with the reason.
    """
    check_origin(info, reply, round_)
    check_metrics(reply)
    images = reply.metrics.get("num-examples", None if info.train_images else 0)
    if images is None or (images > 0 and "test_accuracy" not in reply.metrics):
        raise Rejected("an evaluation without test_accuracy")


def _range(name: str) -> tuple[float, float]:
    return next(bounds for start, bounds in RANGES.items() if name.startswith(start))


def read_confusion(reply: Reply, classes: int) -> NDArray[np.int64]:
    """The matrix (C, C) in a reply, sent as true class, answer, number and so on.

    Rejected if it is something else.
    """
    sent = reply.info.get("confusion", [])
    try:
        cells = np.array(sent, dtype=np.int64).reshape(-1, 3)
    except (TypeError, ValueError, OverflowError) as error:
        raise Rejected("a confusion matrix that is no list of whole numbers") from error
    if len(cells) > classes**2 or (cells < 0).any() or (cells[:, :2] >= classes).any():
        raise Rejected("a confusion matrix of other classes")
    if (cells[:, 2] > EXACT // max(1, len(cells))).any():
        raise Rejected("a confusion matrix of more examples than there can be")
    found = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(found, (cells[:, 0], cells[:, 1]), cells[:, 2])
    return found


def check_epsilon(reply: Reply, config: RunConfig) -> None:
    """With noise a client says what it has spent, within its budget; Rejected otherwise."""
    spent = reply.metrics.get("epsilon_spent")
    if config.dp_clip and spent is None:
        raise Rejected("says nothing of epsilon_spent, and this run has noise (dp-clip)")
    if spent is not None and not 0 <= spent <= config.dp_epsilon * (1 + 1e-9):
        raise Rejected(f"epsilon_spent {spent:g} is above dp-epsilon={config.dp_epsilon:g}")


def check_arrays(payload: Payload, expected: Payload | None, max_norm: float) -> float:
    """Shapes and dtypes as expected (unless None), finite, and an L2 norm within bounds.

    Returns the length of the step from ``expected``, or of the payload where that is None or not
    finite: see :mod:`fedhet.protocol.checks`. Raises Rejected with the reason.
    """
    arrays = payload.flat
    began: Sequence[Array] = ()
    if expected is not None:
        check_shapes(arrays, expected.flat)
        began = expected.flat
    square = moved = 0.0
    for i, array in enumerate(arrays):
        if np.issubdtype(array.dtype, np.floating):
            norm = float(np.linalg.norm(array.ravel().astype(np.float64)))
            if not math.isfinite(norm):
                raise Rejected(f"array {i} holds NaN or infinity")
            square += norm * norm
            if began:
                moved += _square(array, began[i])
    if math.sqrt(square) > max_norm:
        raise Rejected(f"norm {math.sqrt(square):.4g} is above max-update-norm={max_norm:g}")
    total = moved if began and math.isfinite(moved) else square
    return math.sqrt(total / max(1, payload.floats))


def _square(array: Array, start: Array) -> float:
    """Squared distance in the arrays' own precision: of steps no more than the magnitude counts."""
    with np.errstate(over="ignore", invalid="ignore"):
        away = (array - start).ravel()
        return float(away @ away)


def check_shapes(arrays: Sequence[Array], expected: Sequence[Array]) -> None:
    """As many arrays as expected, each of its shape and dtype; Rejected otherwise."""
    if len(arrays) != len(expected):
        raise Rejected(f"{len(arrays)} arrays, expected {len(expected)}")
    for i, (array, model) in enumerate(zip(arrays, expected, strict=True)):
        if array.shape != model.shape or array.dtype != model.dtype:
            raise Rejected(f"array {i} is {form(array)}, expected {form(model)}")


def form(array: Array) -> str:
    """Dtype and shape, for people."""
    return f"{array.dtype}{list(array.shape)}"


# --- what comes down to a client --------------------------------------------------------------


BLOCK = 1 << 16  # floats that are float64 at a time: they stay in the cache
DIGEST = r"[0-9a-f]{64}"
NUMBERS = {np.dtype(code) for code in "?bhilBHILefd"}


def read_instruction(message: Message, config: RunConfig) -> Instruction:
    """The instruction of a request; Refused, in one line, if any part of it is not plausible."""
    kind = message.metadata.message_type
    try:
        what = instruction(message)
        if kind != TRAIN and message.content.array_records:
            raise ValueError(f"arrays came with a message of kind '{kind}'")
        masked = config.secure_sum == "masked"
        sums = dict.fromkeys((TRAIN, UNIT, OWNERS, CONFUSION), config.summed)
        sums |= dict.fromkeys((INTRODUCE, AGREE, UNMASK), masked)
        summed = sums.get(kind, False)
        if ("sum" in message.content) != summed:
            raise ValueError(f"a message of kind '{kind}' with{'out' * summed} a sum")
        _check_numbers(what, kind, config)
        _check_names(what, config)
    except ValueError as error:
        raise Refused(str(error), Word.INSTRUCTION) from error
    return what


def _check_numbers(what: Instruction, kind: str, config: RunConfig) -> None:
    """A round of this run, and a generation that it may start from, named by its digest."""
    if what.refused and kind != "query":
        raise ValueError(f"a refusal came with a message of kind '{kind}'")
    if kind in {"query", INTRODUCE, AGREE, UNMASK} and (what.generation or what.state):
        raise ValueError(f"generation {what.generation} in a message of kind '{kind}'")
    if kind in {"query", INTRODUCE}:
        if what.round:
            raise ValueError(f"round {what.round} in a query")
        return
    if not 1 <= what.round <= config.rounds:
        raise ValueError(f"round {what.round} is none from 1 to {config.rounds}")
    if kind in {AGREE, UNMASK}:
        return
    if not what.classes:
        raise ValueError("no classes are named")
    most = what.round - (kind == TRAIN)  # the others come after a round as well
    if not 0 <= what.generation <= most:
        raise ValueError(f"generation {what.generation} in round {what.round}: 0 to {most} may be")
    if not re.fullmatch(DIGEST if what.generation else "", what.state):
        raise ValueError(
            f"generation {what.generation} comes "
            + ("without its digest" if what.generation else "with a digest, and has none")
        )


def _check_names(what: Instruction, config: RunConfig) -> None:
    """An experiment's id, and distinct classes: those of the configuration, if it has any."""
    if not is_id(what.experiment):
        raise ValueError("the experiment's id is not allowed")
    if len(what.classes) > max(config.max_classes, len(config.classes)):
        raise ValueError(f"{len(what.classes)} classes, max-classes is {config.max_classes}")
    if len(set(what.classes)) < len(what.classes):
        raise ValueError(f"{len(what.classes)} classes, {len(set(what.classes))} different ones")
    if any(not 1 <= len(name) <= MAX_TEXT or not name.isprintable() for name in what.classes):
        raise ValueError("a class has a name that is not allowed")
    if config.classes and what.classes and what.classes != config.classes:
        raise ValueError("the classes are not those of the run's configuration")


def read_arrays(message: Message) -> list[Array]:
    """The payload's arrays, all plain numbers; Refused for anything else.

    NumPy's reader fails in many ways on what a stranger wrote.
    """
    try:
        arrays = arrays_of(message)
    except Exception as error:
        raise Refused(f"the payload cannot be read: {type(error).__name__}: {error}") from error
    for i, array in enumerate(arrays):
        if array.dtype not in NUMBERS:
            raise Refused(f"array {i} is {array.dtype}: no plain numbers")
    return arrays


def check_dtypes(payload: Payload) -> None:
    """Every array has the dtype that the payload's class names, if it does; Refused otherwise."""
    for i, (array, dtype) in enumerate(zip(payload.flat, payload.dtypes(), strict=True)):
        if dtype is not None and array.dtype != dtype:
            raise Refused(f"array {i} is {array.dtype}, expected {dtype}")


def check_forms(payload: Payload, expected: Payload | None) -> None:
    """Shapes and dtypes are those that are expected, if any are; Refused otherwise.

    An expectation of another class is none: what it says is not about this payload.
    """
    if expected is not None and isinstance(payload, type(expected)):
        try:
            check_shapes(payload.flat, expected.flat)
        except Rejected as error:
            raise Refused(str(error)) from error


def finite_norm(arrays: Sequence[Array]) -> float:
    """L2 norm of all floats; Refused if one is NaN or infinite.

    One pass in float64, block by block: no array is copied whole.
    """
    total = 0.0
    for i, array in enumerate(arrays):
        if array.dtype.kind != "f":
            continue
        flat = array.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK].astype(np.float64)
            total += float(block @ block)
        if not math.isfinite(total):
            raise Refused(f"array {i} holds NaN, infinity or numbers near it")
    return math.sqrt(total)


def check_ids(ids: Array, allowed: Array) -> None:
    """Class ids, ascending, each once and each of those that may come; Refused otherwise."""
    if (np.diff(ids) <= 0).any() or not np.isin(ids, allowed).all():
        raise Refused(f"classes {ids[:20].tolist()}: not ascending ones of {allowed[:20].tolist()}")


# --- how far uploads go -----------------------------------------------------------------------


SPREAD = 10.0  # honest representations were seen at 12 times the median: FedGH, synthetic:800x20
REMEMBERED = 1000  # rounds; the first ones, so that no slow drift carries the median along


def size(arrays: Sequence[Array]) -> float:
    """Root mean square of all floating point values; 0 if there are none."""
    floats = [a.ravel() for a in arrays if np.issubdtype(a.dtype, np.floating)]
    count = sum(a.size for a in floats)
    total = sum(float(np.square(a, dtype=np.float64).sum()) for a in floats)
    return math.sqrt(total / count) if count else 0.0


class Steps:
    """What the steps of a run usually are."""

    def __init__(self, ratio: float, noise: float = 0.0) -> None:
        self.ratio = ratio  # 0: no step is too long
        self.noise = noise  # standard deviation of what clients add to every float (dp-clip)
        self.start: float | None = None  # size of what the first round's steps started from
        self.medians: list[float] = []  # of the accepted steps of earlier rounds

    def usual(self, lengths: Sequence[float] = ()) -> float:
        """Lower median of these lengths, of earlier rounds' medians and of the start; or 0."""
        known = sorted(x for x in (*lengths, *self.medians, self.start or 0.0) if x > 0)
        return known[(len(known) - 1) // 2] if known else 0.0

    def limit(self, lengths: Sequence[float]) -> float:
        """The longest step that counts in a round of these; 0 where nothing is known."""
        times = self.ratio if self.start else self.ratio * SPREAD
        return max(times * self.usual(lengths), self.start or 0.0, self.ratio * self.noise)

    def odd(self, lengths: Mapping[str, float]) -> dict[str, str]:
        """Reasons by client, for steps that are too long."""
        usual, limit = self.usual(list(lengths.values())), self.limit(list(lengths.values()))
        if not limit or not self.ratio:
            return {}
        free = "" if self.start else f" x {SPREAD:g} for representations"
        return {
            client: f"its update is {length / usual:.4g} times the median of this round's and "
            f"earlier ones, above max-update-ratio={self.ratio:g}{free}"
            for client, length in lengths.items()
            if length > limit
        }

    def accept(self, lengths: Sequence[float]) -> None:
        """Remember a round by the lower median of its accepted steps."""
        moved = sorted(x for x in lengths if x > 0)
        if moved and len(self.medians) < REMEMBERED:
            self.medians.append(moved[(len(moved) - 1) // 2])

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"start": self.start, "medians": self.medians}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Inverse of :meth:`dump`; a checkpoint from before there was any of this has nothing."""
        start = kept.get("start")
        self.start = None if start is None else float(start)
        self.medians = [float(length) for length in kept.get("medians", ())]
