"""Checks of what comes from the other side; nothing that fails here is aggregated or trained on.

The server raises Rejected for a reply, a client raises Refused for what comes down. A message is
measured before it is decoded; a payload is held against what the method says must come.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fedhet.config.schema import BESIDE_ACCURACY, RunConfig
from fedhet.errors import Code, Refused, Rejected, brief, refusing
from fedhet.protocol import messages
from fedhet.protocol.handshake import EXACT, ClientInfo, check_names
from fedhet.protocol.messages import SUM, TRAIN, Instruction, Reply, arrays_of, instruction
from fedhet.protocol.payload import Array, Payload

Floats = NDArray[np.float64]
Ranges = Mapping[str, tuple[float, float]]
MAX_METRICS = 100
DIGEST = r"[0-9a-f]{64}"
FLOAT32 = float(np.finfo(np.float32).max)
_MORE = "(_[A-Za-z0-9_.-]+)?"
# Of the metrics that the base sends; a method's own are its `metric_ranges`. No sum is infinite.
RANGES = {
    "num-examples": (0.0, 2.0**53),
    "train_flops": (0.0, 1e24),
    "seconds": (0.0, 1e7),
    "epsilon_spent": (-1e12, 1e12),
    f"train_loss{_MORE}": (-FLOAT32, FLOAT32),  # a term over a vanishing loss grows as far as that
    f"(test|val)_accuracy{_MORE}": (0.0, 100.0),
    **{name: (metric.low, min(metric.high, FLOAT32)) for name, metric in BESIDE_ACCURACY.items()},
}


@dataclass(frozen=True)
class Valid:
    """A valid reply to round ``trained``'s message; ``step``: its length, None if unbounded."""

    info: ClientInfo
    payload: Payload
    reply: Reply
    step: float | None = None
    trained: int = 0


@dataclass(frozen=True)
class Checked:
    """The replies of a round that count, in client order; with sums their flat ``total`` (L,)."""

    round: int
    accepted: Sequence[Valid]
    total: Floats | None = None


def check_trained(
    info: ClientInfo, reply: Reply, round_: int, config: RunConfig, ranges: Ranges
) -> None:
    """Raise Rejected unless this is the client's answer to a train message of this round.

    ``ranges`` are those of its method's metrics, by name.
    """
    check_origin(info, reply, round_)
    if not re.fullmatch(DIGEST, reply.digest):
        raise Rejected("reply without a digest of the client's state")
    check_metrics(reply, ranges)
    spent = reply.metrics.get("epsilon_spent")
    if config.dp_clip and spent is None:
        raise Rejected("reply without epsilon_spent, in a run with noise (dp-clip)")
    if spent is not None and not 0 <= spent <= config.dp_epsilon * (1 + 1e-9):
        raise Rejected(f"epsilon_spent {spent:g} is above dp-epsilon={config.dp_epsilon:g}")


def check_origin(info: ClientInfo, reply: Reply, round_: int) -> None:
    """Raise Rejected unless the reply is this client's and for this round."""
    if reply.error:
        raise Rejected(reply.error)
    client, number = reply.info.get("client"), reply.info.get("round")
    if (client, number) != (info.client, round_):
        raise Rejected(f"reply of client '{client}' for round {number}, expected round {round_}")


def check_metrics(reply: Reply, ranges: Ranges | None = None) -> None:
    """Raise Rejected unless metrics have declared names and are within their ranges.

    ``ranges`` are those of a method's own metrics, by name. Accuracies are percentages.
    """
    if len(reply.metrics) > MAX_METRICS:
        raise Rejected(f"{len(reply.metrics)} metrics, at most {MAX_METRICS} are allowed")
    for name, value in reply.metrics.items():
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", name):
            raise Rejected("a metric has a name that is not allowed")
        # A method's range replaces no range of a metric that every method has.
        mine = None if name in BESIDE_ACCURACY else (ranges or {}).get(name)
        ours = (bounds for known, bounds in RANGES.items() if re.fullmatch(known, name))
        if (bounds := mine or next(ours, None)) is None:
            raise Rejected(f"metric '{name}' is not declared in the strategy's `metric_ranges`")
        low, high = bounds
        if "accuracy" in name:
            low, high = max(low, 0.0), min(high, 100.0)
        if not low <= value <= high:
            raise Rejected(f"metric '{name}' is {value:g}, not within {low:g} and {high:g}")


def check_evaluation(info: ClientInfo, reply: Reply, round_: int) -> None:
    """Raise Rejected for an evaluation without an accuracy, unless the client has no images."""
    check_origin(info, reply, round_)
    check_metrics(reply)
    # A client that tells no numbers of images may have none to test.
    images = reply.metrics.get("num-examples", None if info.train_images else 0)
    if images is None or (images > 0 and "test_accuracy" not in reply.metrics):
        raise Rejected("an evaluation without test_accuracy")


def read_confusion(reply: Reply, classes: int) -> NDArray[np.int64]:
    """Return the matrix (C, C) in a reply, sent as true class, answer, number; or Rejected."""
    sent = reply.info.get("confusion", [])
    try:
        cells = np.array(sent, dtype=np.int64).reshape(-1, 3)
    except (TypeError, ValueError, OverflowError) as error:
        raise Rejected("a confusion matrix that is not a list of whole numbers") from error
    if len(cells) > classes**2 or (cells < 0).any() or (cells[:, :2] >= classes).any():
        raise Rejected("a confusion matrix of other classes")
    if (cells[:, 2] > EXACT // max(1, len(cells))).any():
        raise Rejected("a confusion matrix with impossible counts")
    matrix = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(matrix, (cells[:, 0], cells[:, 1]), cells[:, 2])
    return matrix


def check_arrays(payload: Payload, expected: Payload | None, max_norm: float) -> float:
    """Raise Rejected unless shapes and dtypes are as expected, values finite, the norm in bounds.

    Returns the length of the step from ``expected``, if that is finite, or else from zero.
    """
    arrays, began = payload.flat, [] if expected is None else expected.flat
    if expected is not None:
        check_shapes(arrays, began)
    if (norm := finite_norm(arrays)) > max_norm:
        raise Rejected(f"norm {norm:.4g} is above max-update-norm={max_norm:g}")
    moved = 0.0
    for array, start in zip(arrays, began, strict=False):
        if array.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                away = (array - start).ravel()  # in the arrays' own precision: magnitude counts
                moved += float(away @ away)
    total = moved if began and math.isfinite(moved) else norm * norm
    return math.sqrt(total / max(1, payload.floats))


def finite_norm(arrays: Sequence[Array]) -> float:
    """Return the L2 norm of all floats; raise Rejected if one is NaN or infinite."""
    total = 0.0
    for i, array in enumerate(arrays):
        total += squares(array)
        if not math.isfinite(total):
            raise Rejected(f"array {i} holds NaN, infinity or numbers near it")
    return math.sqrt(total)


def squares(array: Array) -> float:
    """Return the sum of squares of floats, in float64; 0 for integers."""
    flat = array.reshape(-1)
    return float(np.einsum("i,i", flat, flat, dtype=np.float64)) if flat.dtype.kind == "f" else 0.0


def size(arrays: Sequence[Array]) -> float:
    """Return the root mean square of all floats; 0 if there are none."""
    count = sum(array.size for array in arrays if array.dtype.kind == "f")
    return math.sqrt(sum(map(squares, arrays)) / count) if count else 0.0


def check_shapes(arrays: Sequence[Array], expected: Sequence[Array]) -> None:
    """Raise Rejected unless there are as many arrays, each of its shape and dtype."""
    if len(arrays) != len(expected):
        raise Rejected(f"{len(arrays)} arrays, expected {len(expected)}")
    for i, (array, model) in enumerate(zip(arrays, expected, strict=True)):
        if array.shape != model.shape or array.dtype != model.dtype:
            raise Rejected(f"array {i} is {form(array)}, expected {form(model)}")


def form(array: Array) -> str:
    """Return dtype and shape, for people."""
    return f"{array.dtype}{list(array.shape)}"


FIRST = {messages.QUERY, messages.INTRODUCE}  # before any round
STATELESS = FIRST | {messages.AGREE, messages.UNMASK}
OF_SUMS = {TRAIN, messages.OWNERS, messages.CONFUSION, *STATELESS} - {messages.QUERY}


def read_instruction(message: Message, config: RunConfig) -> Instruction:
    """Return the instruction of a request; raise Refused if any part of it is not plausible."""
    kind = message.metadata.message_type
    with refusing(Code.INSTRUCTION):
        what = instruction(message)
        if kind != TRAIN and message.content.array_records:
            raise ValueError(f"arrays came with a message of kind '{kind}'")
        summed = config.summed and kind in OF_SUMS
        if (SUM in message.content) != summed:
            raise ValueError(f"a message of kind '{kind}' with{'out' * summed} a sum")
        if what.refused and kind != messages.QUERY:
            raise ValueError(f"a refusal came with a message of kind '{kind}'")
        _check_numbers(what, kind, config.rounds)
        check_names("classes", what.classes, max(config.max_classes, len(config.classes)))
        if config.classes and what.classes and what.classes != config.classes:
            raise ValueError("the classes are not those of the run's configuration")
        if kind not in STATELESS and not what.classes:
            raise ValueError("no classes are named")
    return what


def _check_numbers(what: Instruction, kind: str, rounds: int) -> None:
    """Raise ValueError unless a round of this run starts from a generation that it may."""
    least, last = (0, 0) if kind in FIRST else (1, rounds)
    if not least <= what.round <= last:
        raise ValueError(f"round {what.round} is none from {least} to {last}")
    # Messages that need a state come after a round as well: an evaluation, the confusion matrix,
    # and the count of owners before that matrix. Only training comes before its round's state.
    most = 0 if kind in STATELESS else what.round - (kind == TRAIN)
    if not 0 <= what.generation <= most:
        raise ValueError(f"generation {what.generation} in round {what.round}: 0 to {most} may be")
    if not re.fullmatch(DIGEST if what.generation else "", what.digest):
        raise ValueError(f"generation {what.generation} with digest {messages.shown(what.digest)}")


def read_arrays(message: Message) -> list[Array]:
    """Return the payload's arrays; raise Refused for anything but plain numbers."""
    try:
        return arrays_of(message)
    except Exception as error:  # bytes of the other side can raise any error
        raise Refused(f"the payload cannot be read: {brief(error)}") from error


def check_dtypes(payload: Payload) -> None:
    """Raise Rejected for an array of another dtype than the payload's class names, if it does."""
    for i, (array, dtype) in enumerate(zip(payload.flat, payload.dtypes(), strict=True)):
        if dtype is not None and array.dtype != dtype:
            raise Rejected(f"array {i} is {array.dtype}, expected {dtype}")


def check_declared(what: str, ids: Array, declared: Array) -> None:
    """Raise Rejected unless these class ids (or numbers of images) are what a client declared."""
    if not np.array_equal(ids, declared):
        raise Rejected(f"{what} {ids.tolist()}, but it declared {declared.tolist()}")


def check_ids(ids: Array, allowed: Array) -> None:
    """Raise Refused unless class ids ascend, each once and each of those that may come."""
    if (np.diff(ids) <= 0).any() or not np.isin(ids, allowed).all():
        raise Refused(f"classes {ids[:20].tolist()} do not ascend within {allowed[:20].tolist()}")


SPREAD = 10.0  # honest representations were seen at 12 times the median: FedGH, synthetic:800x20


def long_steps(
    lengths: Mapping[str, float], start: float, ratio: float, noise: float
) -> dict[str, str]:
    """Return reasons by client, for steps of a round that are too long; a ``ratio`` of 0: none is.

    The usual length is the lower median of those above 0 and of ``start``, the size of what clients
    started from. ``noise`` is the standard deviation that each adds to every float (``dp-clip``).
    """
    known = [length for length in (*lengths.values(), start) if length > 0]
    usual = median_low(known) if known else 0.0
    limit = max(ratio * usual * (1.0 if start else SPREAD), start, ratio * noise)
    if not limit or not ratio:
        return {}
    free = "" if start else f" x {SPREAD:g} for representations"
    text = (
        "its update is {:.4g} times the median of this round's, above "
        f"max-update-ratio={ratio:g}{free}: use a smaller lr, or a larger ratio if such steps are "
        "meant"
    )
    return {c: text.format(length / usual) for c, length in lengths.items() if length > limit}
