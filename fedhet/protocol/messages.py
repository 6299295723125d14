"""Messages and back: the one place that knows the names of records and keys on the wire.

A request holds ``arrays`` (the payload) and ``config`` (an :class:`Instruction`); a reply holds
``arrays``, ``metrics`` (numbers only: Flower's MetricRecord takes no text) and ``info`` (texts).
"""

import io
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedhet.errors import brief, one_line
from fedhet.protocol.flower import ENDED, OTHER_CODE
from fedhet.protocol.payload import Array
from fedhet.protocol.reasons import told

PACKED = "packed"  # the one array of a payload's record
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
CONFUSION = "evaluate.confusion"  # after the last round
# Of a sum: keys, the unit of weights, owners of classes, who is left, and the masks.
INTRODUCE, UNIT, OWNERS = "query.introduce", "train.unit", "train.owners"
AGREE, UNMASK = "train.agree", "train.unmask"
QUERY_BYTES = 1 << 20  # largest reply that carries no arrays
MAX_TEXT = 4096  # characters of a text in an instruction; a path is the longest
MAX_ARRAYS = 10_000  # of one payload: each costs its reader some 20 microseconds
_TYPES: dict[str, type] = {
    "experiment": str, "round": int, "generation": int, "state": str, "evaluate": bool,
    "state-dir": str, "classes": list,
}  # fmt: skip
_SHOWN = {str: "text of a sane length", int: "whole number", bool: "true or false", list: "list"}


@dataclass(frozen=True)
class Instruction:
    """What the server tells a client beside the payload."""

    experiment: str
    round: int = 0
    generation: int = 0
    state: str = ""  # digest of that generation; empty for generation 0
    evaluate: bool = True
    state_dir: str = ""  # used by simulated clients only
    classes: tuple[str, ...] = ()
    refused: str = ""  # why the run does without this node; nothing is asked then

    def fit_config(self) -> dict[str, bool | bytes | float | int | str]:
        """Return what a client's ``fit`` is told of a round."""
        return {
            "round": self.round,
            "generation": self.generation,
            "state": self.state,
            "evaluate": self.evaluate,
        }


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

    @property
    def lost(self) -> bool:
        """Whether the client says that the state which the server means is gone."""
        return self.info.get("state-lost") is True

    @property
    def state(self) -> str:
        """Digest of the state that the client has saved."""
        return str(self.info.get("state", ""))


def request(
    kind: str, node: int, what: Instruction, ttl: float, arrays: ArrayRecord | None = None
) -> Message:
    """A message to ``node``: query, train or evaluate.

    After ``ttl`` seconds nobody waits for the reply any more, and a node that was away is not
    bothered with the message. Flower makes replies expire together with their message.
    """
    config = ConfigRecord(
        {
            "experiment": what.experiment,
            "round": what.round,
            "generation": what.generation,
            "state": what.state,
            "evaluate": what.evaluate,
            "state-dir": what.state_dir,
            "classes": list(what.classes),
            # Makes the message's id a secret of its addressee: see fedhet.protocol.handshake.
            "nonce": secrets.token_hex(16),
        }
    )
    if what.refused:
        config["refused"] = what.refused
    content = RecordDict({"config": config})
    if arrays is not None:
        content["arrays"] = arrays
    return Message(content, node, kind, ttl=ttl)


def instruction(message: Message) -> Instruction:
    """The instruction of a request: all of its keys and no others, each of its type.

    Raises ValueError, in one line; whether the values are plausible is for ``downloads`` to say.
    """
    content = message.content
    if not {"config"} <= set(content) <= {"config", "arrays", "sum"}:
        raise ValueError(
            "an instruction has the record 'config', and 'arrays' and 'sum' at most beside it"
        )
    config = content.config_records.get("config")
    if config is None or set(config) - {"refused"} != {*_TYPES, "nonce"}:
        raise ValueError(f"an instruction has the keys {', '.join(_TYPES)}, nonce and no others")
    for key, kind in _TYPES.items():
        value = config[key]
        if type(value) is not kind or (kind is str and len(value) > MAX_TEXT):  # type: ignore[arg-type]
            raise ValueError(f"{key}: no {_SHOWN[kind]} came")
    classes: Any = config["classes"]
    if not all(type(name) is str for name in classes):
        raise ValueError("classes: no list of texts came")
    refused = config.get("refused", "")
    if type(refused) is not str or len(refused) > MAX_TEXT:
        raise ValueError(f"refused: no {_SHOWN[str]} came")
    values: dict[str, Any] = {key.replace("-", "_"): config[key] for key in _TYPES}
    return Instruction(**values | {"classes": tuple(classes), "refused": refused})


def arrays_of(message: Message) -> list[Array]:
    """The payload arrays of a request or reply, in order; none if it carries none.

    Raises ValueError for anything but plain numbers in NumPy's own format.
    """
    record = message.content.array_records.get("arrays")
    if not record:
        return []
    if set(record) != {PACKED}:
        raise ValueError(f"payload has other records than '{PACKED}'")
    outer = io.BytesIO(record[PACKED].data)
    content = _read(outer)
    if content.dtype != np.uint8 or content.ndim != 1 or outer.read(1):
        raise ValueError("payload is not one array of bytes")
    stream, arrays = io.BytesIO(content.data), []
    while stream.tell() < content.size:
        arrays.append(_read(stream))
        if len(arrays) > MAX_ARRAYS:
            raise ValueError(f"payload has more than {MAX_ARRAYS} arrays")
    return arrays


def _read(stream: io.BytesIO) -> Array:
    """The next array, without what numpy.load would do for a stranger.

    That function opens zips, too, and allocates whatever size the header claims.
    """
    start = stream.tell()
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("array is not in NumPy's format 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in "biuf" or any(size < 0 for size in shape):
        raise ValueError(f"array holds {dtype} of shape {shape}, not numbers")
    left = len(stream.getbuffer()) - stream.tell()
    if math.prod(shape) * dtype.itemsize > left:
        raise ValueError(f"array claims shape {shape} of {dtype}, but has {left} bytes")
    stream.seek(start)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


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


def read_reply(message: Message, limit: int = QUERY_BYTES) -> Reply:
    """Unpack a reply; one that is not of this form becomes a Reply with an error.

    One of more than ``limit`` bytes is refused before anything in it is decoded. What could be
    measured of a refused reply (its bytes) is told as well: it has crossed the wire.
    """
    size = 0
    if message.has_error():
        reason = one_line(message.error.reason)
        own = message.error.code in {OTHER_CODE, ENDED}  # a node's own words
        return Reply({"error": reason if own else f"Flower error {message.error.code}: {reason}"})
    try:
        size = message_bytes(message)
        if size > limit:
            reason = f"reply of {size} bytes, more than the {limit} allowed"
            return Reply({"error": reason}, message_bytes=size)
        content = message.content
        said = size - sum(record.count_bytes() for record in content.array_records.values())
        if said > QUERY_BYTES:
            reason = f"{said} bytes of texts and numbers, more than the {QUERY_BYTES} allowed"
            return Reply({"error": reason}, message_bytes=size)
        info = dict(content.config_records["info"].items())
        if "error" in info:
            reason = told(info["error"], info.get("log"))
            lost = info.get("state-lost") is True
            return Reply({"error": reason, "state-lost": lost}, message_bytes=size)
        metrics = {
            key: float(value)  # type: ignore[arg-type]
            for record in content.metric_records.values()
            for key, value in record.items()
        }
        return Reply(info, metrics, arrays_of(message), size)
    except Exception as error:  # what a stranger sends may fail in any way
        reason = f"reply cannot be read: {brief(error)}"
        return Reply({"error": reason}, message_bytes=size)


def message_bytes(message: Message) -> int:
    """Bytes of the records of a message as they are sent."""
    return sum(
        # count_bytes() of a ConfigRecord fails on empty texts and lists
        len(record.deflate()) if isinstance(record, ConfigRecord) else record.count_bytes()
        for record in message.content.values()
    )


def to_record(arrays: Sequence[Array]) -> ArrayRecord:
    """Arrays as a Flower record of one array, which holds them in NumPy's format, one by one.

    Flower sends each array of a record as two objects, each in requests of its own, which cost the
    SuperLink more than the arrays do.
    """
    stream = io.BytesIO()
    for array in arrays:
        plain = np.asarray(array, order="C")
        np.lib.format.write_array(stream, plain, version=(1, 0), allow_pickle=False)
    packed = np.frombuffer(stream.getbuffer(), np.uint8)
    return ArrayRecord({PACKED: FlowerArray(packed)} if arrays else {})
