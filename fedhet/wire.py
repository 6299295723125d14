"""Messages and back: the one place that knows the names of records and keys on the wire.

A request holds ``arrays`` (the payload) and ``config`` (an :class:`Instruction`); a reply holds
``arrays``, ``metrics`` (numbers only: Flower's MetricRecord takes no text) and ``info`` (texts).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedhet.payload import Array, Payload

QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"


@dataclass(frozen=True)
class Instruction:
    """What the server tells a client beside the payload."""

    experiment: str
    round: int = 0
    generation: int = 0
    evaluate: bool = True
    state_dir: str = ""  # used by simulated clients only
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """What a client said: texts, numbers, arrays. ``error`` is empty unless it failed."""

    info: Mapping[str, Any]
    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: Sequence[Array] = ()
    message_bytes: int = 0

    @property
    def error(self) -> str:
        """Reason of a failure, one line, or empty."""
        return str(self.info.get("error", ""))


def request(kind: str, node: int, what: Instruction, payload: Payload | None = None) -> Message:
    """A message to ``node``: query, train or evaluate."""
    content = RecordDict(
        {
            "config": ConfigRecord(
                {
                    "experiment": what.experiment,
                    "round": what.round,
                    "generation": what.generation,
                    "evaluate": what.evaluate,
                    "state-dir": what.state_dir,
                    "classes": list(what.classes),
                }
            )
        }
    )
    if payload is not None:
        content["arrays"] = to_record(payload.to_ndarrays())
    return Message(content, node, kind)


def instruction(message: Message) -> Instruction:
    """The instruction of a request."""
    config = message.content.config_records["config"]
    classes = config["classes"]
    assert isinstance(classes, list)
    return Instruction(
        experiment=str(config["experiment"]),
        round=int(config["round"]),  # type: ignore[arg-type]
        generation=int(config["generation"]),  # type: ignore[arg-type]
        evaluate=bool(config["evaluate"]),
        state_dir=str(config["state-dir"]),
        classes=tuple(str(name) for name in classes),
    )


def arrays_of(message: Message) -> list[Array]:
    """The payload arrays of a request or reply, in order; none if it carries none."""
    record = message.content.array_records.get("arrays")
    return [] if record is None else record.to_numpy_ndarrays()


def answer(
    to: Message,
    info: Mapping[str, Any],
    metrics: Mapping[str, float] | None = None,
    arrays: Sequence[Array] | None = None,
) -> Message:
    """The reply to ``to``."""
    content = RecordDict({"info": ConfigRecord(dict(info))})
    if metrics is not None:
        content["metrics"] = MetricRecord(dict(metrics))
    if arrays is not None:
        content["arrays"] = to_record(arrays)
    return Message(content, reply_to=to)


def read_reply(message: Message) -> Reply:
    """Unpack a reply; one that is not of this form becomes a Reply with an error."""
    if message.has_error():
        text = " ".join(str(message.error.reason).split())
        return Reply({"error": f"Flower error {message.error.code}: {text}"})
    try:
        content = message.content
        metrics = {
            key: float(value)  # type: ignore[arg-type]
            for record in content.metric_records.values()
            for key, value in record.items()
        }
        info = dict(content.config_records["info"].items())
        return Reply(info, metrics, arrays_of(message), message_bytes(message))
    except (KeyError, TypeError, ValueError, EOFError) as error:
        return Reply({"error": f"reply cannot be read: {type(error).__name__}: {error}"})


def message_bytes(message: Message) -> int:
    """Bytes of the records of a message as they are sent."""
    return sum(
        # count_bytes() of a ConfigRecord fails on empty texts and lists
        len(record.deflate()) if isinstance(record, ConfigRecord) else record.count_bytes()
        for record in message.content.values()
    )


def to_record(arrays: Sequence[Array]) -> ArrayRecord:
    """Arrays as a Flower record whose keys keep their order."""
    return ArrayRecord(
        {f"{i:05d}": FlowerArray(np.ascontiguousarray(array)) for i, array in enumerate(arrays)}
    )
