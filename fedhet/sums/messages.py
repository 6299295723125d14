"""What crosses the wire for a sum beside payloads: keys, cohorts, survivors, opened shares.

The fields of each class are the keys of the record ``sum`` of a request, or of texts in a reply.
A value of another type or size is refused in one line.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import astuple
from typing import Annotated

from flwr.app import Message
from pydantic import Field, StrictBytes, StrictInt
from pydantic.dataclasses import dataclass

from fedhet.errors import Code, refusing
from fedhet.protocol.messages import (
    PACKED,
    SUM,
    UNMASK,
    WIRE,
    Id,
    Instruction,
    SumRecord,
    Wired,
    from_wire,
)
from fedhet.sums.masks import Blob, Part, SumKey, encode

Ids = Annotated[tuple[Id, ...], Field(max_length=100_000)]
Number = Annotated[StrictInt, Field(ge=1, lt=2**32)]  # what is encoded in 4 bytes


@dataclass(frozen=True, config=WIRE)
class Introduction(SumRecord):
    """Clients, and key, certificate and signature of each, for one that is to know them."""

    members: Ids
    keys: tuple[StrictBytes, ...]

    @classmethod
    def of(cls, keys: Mapping[str, SumKey]) -> "Introduction":
        """Return the introduction of clients with these keys."""
        return cls(tuple(keys), tuple(part for key in keys.values() for part in astuple(key)))

    def by_client(self) -> dict[str, SumKey]:
        """Return the keys; raise ValueError if they are none, or if a client has two."""
        if not len(self.keys) == 3 * len(self.members) == 3 * len(set(self.members)):
            raise ValueError("members: one is named twice, or keys and proofs are not as many")
        parts = [self.keys[place : place + 3] for place in range(0, len(self.keys), 3)]
        return dict(zip(self.members, map(SumKey.of_fields, parts), strict=True))


@dataclass(frozen=True, config=WIRE)
class Cohort(SumRecord):
    """What a train message says of its sum: who is in it, which attempt it is.

    ``size`` is the number of clients in a whole round of the run; it decides the words' unit.
    ``shared`` are the classes that have owners enough for their rows to be summed; None: nobody has
    counted.
    """

    members: Ids
    attempt: Number
    size: Number
    shared: tuple[Annotated[StrictInt, Field(ge=0)], ...] | None = None

    def __post_init__(self) -> None:
        if self.size < len(self.members):
            raise ValueError(f"size: {self.size} is less than the {len(self.members)} members")


@dataclass(frozen=True, config=WIRE)
class Survivors(SumRecord):
    """Who is summed; where masks are taken off, what each sealed for the reader.

    ``boxes`` are |V| x 82 bytes, in the order of ``members``. ``signatures`` are the members' of
    this list, empty for one who has not signed; there are none where nobody has to.
    """

    members: Ids
    attempt: Number
    boxes: StrictBytes | None = None
    signatures: tuple[Blob, ...] = ()


@dataclass(frozen=True, config=WIRE)
class Opened:
    """A client's answer: |V| shares of 66 bytes, |D| pair seeds of 32, whose boxes did not open."""

    client: Id
    round: StrictInt
    shares: StrictBytes
    seeds: StrictBytes
    closed: Ids = ()


def digest_of_sent(message: Message, what: Instruction, cohort: Cohort, config: str) -> bytes:
    """Return SHA-256 of all that must be the same for everybody whose vectors are summed.

    The payload's bytes as they came, and what else decides the vectors: the kind of message, the
    classes in their order, those that may be told, whether there are accuracies, the units of
    words, the run's configuration.
    """
    record = message.content.array_records.get("arrays")
    sent = bytes(record[PACKED].data) if record else b""
    shared = cohort.shared
    may = "all" if shared is None else ",".join(map(str, shared))
    kind = message.metadata.message_type
    parts: list[Part] = [kind, sent, config, cohort.size, int(what.evaluate), may, *what.classes]
    return hashlib.sha256(encode(parts)).digest()


def read_sum(kind: type[Wired], message: Message) -> Wired:
    """Return what the record ``sum`` of a request says; raise Refused if it is no ``kind``."""
    with refusing(Code.INSTRUCTION):
        found = from_wire(kind, message.content.config_records.get(SUM) or {})
        opens = message.metadata.message_type == UNMASK
        if isinstance(found, Survivors) and (found.boxes is not None) != opens:
            raise ValueError("boxes: only messages that unmask have them")
    return found
