"""Checks of what clients send. Nothing that fails here reaches an aggregate."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from fedhet.config.schema import RunConfig
from fedhet.protocol.identity import ClientInfo
from fedhet.protocol.messages import QUERY_BYTES, Reply
from fedhet.protocol.payload import Array, Payload

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
    "": (-1e12, 1e12),
}


# Names of metrics that the base itself sends; a method's own are those of its `metric_ranges`.
OURS = re.compile(
    r"num-examples|seconds|train_flops|epsilon_spent|train_loss(_[A-Za-z0-9_.-]+)?"
    r"|(test|val)_accuracy(_[A-Za-z0-9_.-]+)?"
)


class Rejected(Exception):
    """A reply that must not be aggregated; the text is the reason, one line."""


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
        if not OURS.fullmatch(name) and name not in (own or {}):
            raise Rejected(f"metric '{name}' is not declared in the strategy's `metric_ranges`")
        if "accuracy" in name and not 0 <= value <= 100:
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
    finite: see :mod:`fedhet.protocol.steps`. Raises Rejected with the reason.
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
