"""Requests of the server and replies of clients: what they hold, and how they are read.

A request holds ``arrays`` (the payload) and ``config`` (an :class:`Instruction`); a reply holds
``arrays``, ``metrics`` (numbers) and ``info`` (texts, or an error code). Arrays travel in
safetensors' format, so that nothing of the other side is ever executed.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar

import numpy as np
import pydantic
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from pydantic import Field, StrictBool, StrictInt, StrictStr
from pydantic.dataclasses import dataclass as wired
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedhet.errors import MOST, Code, Rejected, brief, one_line
from fedhet.files import valid_id
from fedhet.protocol.flower import NO_REPLY
from fedhet.protocol.payload import Array

SUM = "sum"  # the record of what a sum needs: see fedhet.sums.masks
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
CONFUSION = "evaluate.confusion"  # after the last round
# Of a sum: keys, owners of classes, who is left, and the masks.
INTRODUCE, OWNERS = "query.introduce", "train.owners"
AGREE, UNMASK = "train.agree", "train.unmask"
QUERY_BYTES = 1 << 20  # largest reply that carries no arrays
PACKED = "packed"  # the one array of a payload's record
MAX_HEADER = 1 << 20  # bytes of a payload's header, enough for 10,000 arrays
LONGEST_TEXT = 4096  # characters of a text in an instruction; a path is the longest
MAX_TEXT = 255  # characters of a class's name, as of a file's on most systems

Id = Annotated[StrictStr, pydantic.AfterValidator(valid_id)]  # of a client or an experiment
Name = Annotated[StrictStr, Field(max_length=MAX_TEXT, pattern=r"^(?: |[^\p{C}\p{Z}])+$")]
Text = Annotated[StrictStr, Field(max_length=LONGEST_TEXT)]
WIRE = pydantic.ConfigDict(extra="forbid")  # of a class that is read from the other side
Wired = TypeVar("Wired")


def to_wire(values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as Flower's records take them, without None."""
    pairs = ((one.name.replace("_", "-"), getattr(values, one.name)) for one in fields(values))
    return {k: list(v) if isinstance(v, tuple) else v for k, v in pairs if v is not None}


def from_wire(kind: type[Wired], record: Mapping[str, Any]) -> Wired:
    """Return the ``kind`` whose fields a record holds; a one-line ValueError if one is wrong."""
    values = {key.replace("-", "_"): value for key, value in record.items()}
    try:
        return pydantic.TypeAdapter(kind).validate_python(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        why = one_line(first["msg"]).removeprefix("Value error, ")
        named = place and first["type"] != "missing"
        value = f"{shown(first['input'])} is not allowed: " if named else ""
        raise ValueError(f"{place or kind.__name__}: {value}{why}") from error


def shown(value: object) -> str:
    """Return a stranger's value for a message."""
    return f"'{one_line(str(value)[:80] if isinstance(value, str) else repr(value)[:80])}'"


def pack(arrays: Sequence[Array]) -> bytes:
    """Return arrays in safetensors' format, named by their places."""
    return save({f"{i:05d}": np.asarray(array, order="C") for i, array in enumerate(arrays)})


def unpack(data: bytes) -> list[Array]:
    """Return the arrays that :func:`pack` wrote; raise ValueError for anything but numbers."""
    if int.from_bytes(data[:8], "little") > MAX_HEADER:
        raise ValueError(f"payload has a header of more than {MAX_HEADER} bytes")
    try:
        arrays = dict(sorted(load(data).items()))
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"payload is not in safetensors' format: {error}") from error
    if any(array.dtype.kind not in "biuf" for array in arrays.values()):
        raise ValueError("payload has arrays that are not numbers")
    return list(arrays.values())


def to_record(arrays: Sequence[Array]) -> ArrayRecord:
    """Return arrays as a Flower record of one array, whose bytes are those of :func:`pack`.

    Flower sends each array of a record in requests of its own, which cost more than the arrays.
    """
    data = pack(arrays)
    packed = FlowerArray("uint8", (len(data),), "safetensors", data)
    return ArrayRecord({PACKED: packed} if arrays else {})


def arrays_of(message: Message) -> list[Array]:
    """Return the arrays of a request or reply; ValueError: not numbers in safetensors' format."""
    record = message.content.array_records.get("arrays")
    if not record:
        return []
    if set(record) != {PACKED}:
        raise ValueError(f"payload has other records than '{PACKED}'")
    return unpack(record[PACKED].data)


def message_bytes(message: Message) -> int:
    """Return the bytes of the records of a message as they are sent."""
    return sum(
        # count_bytes() of a ConfigRecord fails on empty texts and lists
        len(record.deflate()) if isinstance(record, ConfigRecord) else record.count_bytes()
        for record in message.content.values()
    )


@wired(frozen=True, config=WIRE)
class Instruction:
    """What the server tells a client beside the payload."""

    experiment: Id
    round: StrictInt = 0
    generation: StrictInt = 0
    digest: Text = ""  # of that generation's state; empty for generation 0
    evaluate: StrictBool = True
    state_dir: Text = ""  # used by simulated clients only
    classes: tuple[Name, ...] = ()
    refused: Text = ""  # why the run does without this node; nothing is asked then
    nonce: Text = ""  # makes the message's id a secret of its addressee: see handshake

    def reply(
        self, client: str, metrics: Mapping[str, float] | None = None,
        arrays: Sequence[Array] = (), **info: Any,
    ) -> "Reply":  # fmt: skip
        """Return a client's reply to this instruction, with these texts beside its id and round."""
        return Reply({"client": client, "round": self.round, **info}, metrics or {}, arrays)


def request(  # noqa: PLR0913, PLR0917
    kind: str, node: int, what: Instruction, ttl: float, arrays: ArrayRecord | None = None,
    about: Any = None,
) -> Message:  # fmt: skip
    """Return a message to ``node``: query, train or evaluate; ``about`` is what a sum needs.

    After ``ttl`` seconds Flower drops it and its reply.
    """
    config = to_wire(replace(what, nonce=secrets.token_hex(16)))
    content = RecordDict({"config": ConfigRecord(config)})
    if arrays is not None:
        content["arrays"] = arrays
    if about is not None:
        content[SUM] = ConfigRecord(to_wire(about))
    return Message(content, node, kind, ttl=ttl)


def instruction(message: Message) -> Instruction:
    """Return the instruction of a request; ValueError unless it has all of its keys, no others."""
    content = message.content
    if not {"config"} <= set(content) <= {"config", "arrays", SUM}:
        raise ValueError("an instruction has the record 'config'; beside it 'arrays' and 'sum'")
    config = content.config_records.get("config")
    if config is None or len(config) < len(fields(Instruction)):
        raise ValueError("an instruction has all of its keys")
    return from_wire(Instruction, config)


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
    def digest(self) -> str:
        """Digest of the state that the client has saved."""
        return str(self.info.get("digest", ""))

    def says(self, word: str) -> bool:
        """Whether ``undelivered`` (no reply came), or ``state-lost``, is true of it."""
        return self.info.get(word) is True


def answer(to: Message, reply: Reply) -> Message:
    """Return the message that answers ``to`` with ``reply``."""
    content = RecordDict({"info": ConfigRecord(dict(reply.info))})
    if reply.metrics:
        content["metrics"] = MetricRecord(dict(reply.metrics))
    if reply.arrays:
        content["arrays"] = to_record(reply.arrays)
    return Message(content, reply_to=to)


def read_reply(message: Message, limit: int = QUERY_BYTES) -> Reply:
    """Unpack a reply; one that is not of this form becomes a Reply with an error.

    One of more than ``limit`` bytes is refused before anything in it is decoded. The bytes of a
    refused reply are told as well, if they could be measured: it has crossed the wire.
    """
    if message.has_error():
        code, reason = message.error.code, one_line(message.error.reason)
        text = reason if code >= NO_REPLY else f"Flower error {code}: {reason}"  # or our own words
        return Reply({"error": text, "undelivered": True})
    size, lost = 0, False
    try:
        size, content = message_bytes(message), message.content
        if size > limit:
            raise Rejected(f"reply of {size} bytes, more than the {limit} allowed")
        beside = size - sum(record.count_bytes() for record in content.array_records.values())
        if beside > QUERY_BYTES:
            raise Rejected(f"{beside} bytes of texts and numbers: {QUERY_BYTES} are allowed")
        info = dict(content.config_records["info"].items())
        if "error" in info:
            lost = info.get("state-lost") is True
            raise Rejected(failure_text(info["error"], info.get("log"), info.get("about")))
        metrics: dict[str, float] = {}
        for record in content.metric_records.values():
            metrics |= {key: float(value) for key, value in record.items()}  # type: ignore[arg-type]
        return Reply(info, metrics, arrays_of(message), size)
    except Rejected as error:
        reason = str(error)
    except Exception as error:  # bytes of the other side can raise any error
        reason = f"reply cannot be read: {brief(error)}"
    return Reply({"error": reason, "state-lost": lost}, message_bytes=size)


def failure_text(error: object, number: object, about: object = "") -> str:
    """Return what the server shows of a failure: its code, where to look, what the code means.

    ``about`` is the limit or the name that the code is about. A simulated client has no number, and
    its text is shown.
    """
    if number is None:
        return one_line(error) or "failed without a reason"
    place = number if type(number) is int and 1 <= number <= MOST else "unknown"
    if (code := next((one for one in Code if one == str(error)), None)) is None:
        return f"an unknown error code (its log: no. {place})"
    more = f" ({one_line(about, 80)})" if about else ""
    return f"{code} (its log: no. {place}): {code.meaning}{more}"
