"""Changes of honest replies, and a comparison with the run in which the liars are silent."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedhet.protocol.messages import arrays_of, to_record
from fedhet.protocol.payload import Array
from fedhet.testing import Tamper, simulate, small

Change = Callable[[RecordDict, Message], None]  # of a reply's content, given the request
TINY = {"image_size": 16, "representation": 32, "models": ["cnn-5"], "batch_size": 8}


def floating(array: Array) -> bool:
    return array.dtype.kind == "f" and array.size > 0


def of_norm(arrays: Sequence[Array], norm: float) -> list[Array]:
    """Replace all floating arrays by random numbers; their L2 norm together is ``norm``."""
    random = np.random.default_rng(0)
    new = [random.normal(size=a.shape) if floating(a) else a for a in arrays]
    times = norm / np.sqrt(sum(np.square(a).sum() for a in new if floating(a)) or 1.0)
    return [(times * a).astype(np.float32) if floating(a) else a for a in new]


def farther(arrays: Sequence[Array], sent: Sequence[Array], times: float) -> list[Array]:
    """Multiply the step from what was sent; the step is from zero where shapes differ."""
    own, start = ([a for a in given if floating(a)] for given in (arrays, sent))
    same = [a.shape for a in own] == [b.shape for b in start[: len(own)]]
    began = iter(start if same else [np.zeros_like(a) for a in own])
    new = []
    for a in arrays:
        b = next(began) if floating(a) else None
        new.append(a if b is None else b + np.float32(times) * (a - b))
    return new


def sends(edit: Callable[[list[Array], list[Array]], Sequence[Array]]) -> Change:
    """Upload ``edit(honest arrays, arrays that were sent)``."""

    def change(content: RecordDict, message: Message) -> None:
        honest = arrays_of(Message(content, 1, "train"))
        content["arrays"] = to_record(edit(honest, arrays_of(message)))

    return change


def says(**texts: object) -> Change:
    """Change texts of a reply; None removes one."""

    def change(content: RecordDict, _: Message) -> None:
        new = dict(content["info"].items()) | {k.replace("_", "-"): v for k, v in texts.items()}
        content["info"] = ConfigRecord({k: v for k, v in new.items() if v is not None})

    return change


def counts(**numbers: object) -> Change:

    def change(content: RecordDict, _: Message) -> None:
        new = dict(content["metrics"].items())
        content["metrics"] = MetricRecord(
            new | {k.replace("_", "-") if "num" in k else k: v for k, v in numbers.items()}
        )

    return change


def liars(changes: Mapping[int, Change], kind: str = "train") -> Tamper:
    """Return a tamper by which each of these clients changes its replies of this kind."""

    def tamper(node: int, message: Message, reply: Message) -> Message:
        if node in changes and message.metadata.message_type == kind and not reply.has_error():
            content = reply.content
            changes[node](content, message)
            return Message(content, reply_to=message)
        return reply

    return tamper


def silent(nodes: Sequence[int], kind: str = "train") -> Tamper:

    def tamper(node: int, message: Message, reply: Message) -> Message:
        if node in nodes and message.metadata.message_type == kind:
            return Message(Error(code=1, reason="silent"), reply_to=message)
        return reply

    return tamper


def refused(
    tmp_path: Path, changes: Mapping[int, Change], kind: str = "train", **keys: object
) -> dict[str, str]:
    """Run a federation with these liars; return the reasons of round 1 by client.

    AssertionError unless the round is, to the bit, the one in which the clients that were refused
    never answered, and unless each reason is one line.
    """
    values = TINY | {"rounds": 1, "start_timeout": 1.0} | keys
    lied, _ = simulate(small(tmp_path, **values, name="lied"), tamper=liars(changes, kind))
    record = lied.read_rounds()[0]
    reasons = {failure["client"]: failure["reason"] for failure in record["failures"]}
    for who, reason in reasons.items():
        assert reason.isprintable() and 0 < len(reason) <= 500, (who, reason)
    out = [int(client) for client in reasons if client.isdigit()]
    without, _ = simulate(small(tmp_path, **values, name="without"), tamper=silent(out, kind))
    assert record["sha256"] == without.read_rounds()[0]["sha256"]
    return reasons
