"""Requests of the server and replies of clients: what they hold, and how they are read.

A request holds ``arrays`` (the payload) and ``config`` (an :class:`Instruction`); a reply holds
``arrays``, ``metrics`` (numbers only: Flower's MetricRecord takes no text) and ``info`` (texts).
A client that takes no part says why by an error code (:mod:`fedhet.protocol.codes`).
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from pydantic import StrictBool, StrictInt, StrictStr
from pydantic.dataclasses import dataclass as wired

from fedhet.errors import Rejected, brief, one_line
from fedhet.protocol.codes import failure_text
from fedhet.protocol.flower import NO_REPLY
from fedhet.protocol.payload import Array
from fedhet.protocol.wire import (
    WIRE,
    Id,
    Text,
    arrays_of,
    from_wire,
    message_bytes,
    to_record,
    to_wire,
)

SUM = "sum"  # the record of what a sum needs: see fedhet.sums.messages
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
CONFUSION = "evaluate.confusion"  # after the last round
# Of a sum: keys, owners of classes, who is left, and the masks.
INTRODUCE, OWNERS = "query.introduce", "train.owners"
AGREE, UNMASK = "train.agree", "train.unmask"
QUERY_BYTES = 1 << 20  # largest reply that carries no arrays


class SumRecord:
    """Base of what a request says of a sum: dataclasses of :mod:`fedhet.sums.messages`."""


@wired(frozen=True, config=WIRE)
class Instruction:
    """What the server tells a client beside the payload."""

    experiment: Id
    round: StrictInt = 0
    generation: StrictInt = 0
    digest: Text = ""  # of that generation's state; empty for generation 0
    evaluate: StrictBool = True
    state_dir: Text = ""  # used by simulated clients only
    classes: tuple[StrictStr, ...] = ()
    refused: Text = ""  # why the run does without this node; nothing is asked then
    nonce: Text = ""  # makes the message's id a secret of its addressee: see handshake

    def fit_config(self) -> dict[str, bool | bytes | float | int | str]:
        """Return what a client's ``fit`` is told of a round."""
        names = ("round", "generation", "digest", "evaluate")
        return {name: getattr(self, name) for name in names}

    def reply(
        self,
        client: str,
        metrics: Mapping[str, float] | None = None,
        arrays: Sequence[Array] = (),
        **info: Any,
    ) -> "Reply":
        """Return a client's reply to this instruction, with these texts beside its id and round."""
        return Reply({"client": client, "round": self.round, **info}, metrics or {}, arrays)


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
    def undelivered(self) -> bool:
        """Whether no reply came: ``error`` is Flower's."""
        return self.info.get("undelivered") is True

    @property
    def lost(self) -> bool:
        """Whether the client says that the state which the server means is gone."""
        return self.info.get("state-lost") is True

    @property
    def digest(self) -> str:
        """Digest of the state that the client has saved."""
        return str(self.info.get("digest", ""))


def request(  # noqa: PLR0913
    kind: str,
    node: int,
    what: Instruction,
    ttl: float,
    arrays: ArrayRecord | None = None,
    *,
    about: SumRecord | None = None,
) -> Message:
    """Return a message to ``node``: query, train or evaluate; ``about`` is what a sum needs.

    After ``ttl`` seconds nobody waits for the reply any more, and a node that was away is not
    bothered with the message. Flower makes replies expire together with their message.
    """
    config = to_wire(replace(what, nonce=secrets.token_hex(16)))
    content = RecordDict({"config": ConfigRecord(config)})
    if arrays is not None:
        content["arrays"] = arrays
    if about is not None:
        content[SUM] = ConfigRecord(to_wire(about))
    return Message(content, node, kind, ttl=ttl)


def instruction(message: Message) -> Instruction:
    """Return the instruction of a request, which has all of its keys and no others.

    Raises ValueError, in one line. Whether the values are plausible is for
    :func:`fedhet.protocol.checks.read_instruction` to say.
    """
    content = message.content
    if not {"config"} <= set(content) <= {"config", "arrays", SUM}:
        raise ValueError(
            "an instruction has the record 'config', and 'arrays' and 'sum' at most beside it"
        )
    config = content.config_records.get("config")
    keys = [one.name.replace("_", "-") for one in fields(Instruction)]
    if config is None or set(config) != set(keys):
        raise ValueError(f"an instruction has the keys {', '.join(keys)} and no others")
    return from_wire(Instruction, config)


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

    One of more than ``limit`` bytes is refused before anything in it is decoded. What could be
    measured of a refused reply (its bytes) is told as well: it has crossed the wire.
    """
    size, lost = 0, False
    if message.has_error():
        reason = one_line(message.error.reason)
        own = message.error.code >= NO_REPLY  # words of fedhet's, not Flower's
        text = reason if own else f"Flower error {message.error.code}: {reason}"
        return Reply({"error": text, "undelivered": True})
    try:
        size = message_bytes(message)
        content = message.content
        said = size - sum(record.count_bytes() for record in content.array_records.values())
        if size > limit:
            raise Rejected(f"reply of {size} bytes, more than the {limit} allowed")
        if said > QUERY_BYTES:
            raise Rejected(
                f"{said} bytes of texts and numbers, more than the {QUERY_BYTES} allowed"
            )
        info = dict(content.config_records["info"].items())
        if "error" in info:
            lost = info.get("state-lost") is True
            raise Rejected(failure_text(info["error"], info.get("log"), info.get("about")))
        metrics = {
            key: float(value)  # type: ignore[arg-type]
            for record in content.metric_records.values()
            for key, value in record.items()
        }
        return Reply(info, metrics, arrays_of(message), size)
    except Exception as error:  # bytes of the other side can raise any error
        ours = isinstance(error, Rejected)
        reason = str(error) if ours else f"reply cannot be read: {brief(error)}"
        return Reply({"error": reason, "state-lost": lost}, message_bytes=size)
