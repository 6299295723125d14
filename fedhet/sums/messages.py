"""What crosses the wire for a sum beside payloads: keys, cohorts, boxes, shares.

All of it lies in one record, ``sum``, of a request, and among the texts of a reply.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message
from numpy.typing import NDArray

from fedhet.files import is_id
from fedhet.protocol.messages import PACKED, UNMASK, Instruction, Reply
from fedhet.protocol.payload import Array
from fedhet.sums.masks import (
    BOX_BYTES,
    KEY_BYTES,
    LONGEST,
    SECRET_BYTES,
    SHARE_BYTES,
    Bytes,
    Part,
    Proof,
    encode,
)

SUM = "sum"
MOST_MEMBERS = 100_000
NUMBERS = 2**32  # attempts and sizes are encoded in 4 bytes


@dataclass(frozen=True)
class SumKey:
    """A client's public key of this run, and the proof that it is its own, where there is one."""

    public: bytes
    proof: Proof | None = None

    def dump(self) -> list[str]:
        """As texts, for a checkpoint or a note: key, certificate, signature."""
        proof = self.proof or Proof(b"", b"")
        return [self.public.hex(), proof.certificate.hex(), proof.signature.hex()]

    @classmethod
    def load(cls, kept: Sequence[str]) -> "SumKey":
        """Inverse of :meth:`dump`; ValueError if it is none."""
        if len(kept) != 3:
            raise ValueError("a key is told with its certificate and its signature")
        return read_key(*(bytes.fromhex(text) for text in kept))


@dataclass(frozen=True)
class Cohort:
    """What a train message says of its sum: who is in it, which attempt it is.

    ``size`` is the number of clients in a whole round of the run; it decides the words' unit.
    ``told`` are the classes that have owners enough for their rows to be summed; None: nobody has
    counted. ``unit`` is the unit of weights, in images.
    """

    members: tuple[str, ...]
    attempt: int
    size: int
    told: tuple[int, ...] | None = None
    unit: int = 1


@dataclass(frozen=True)
class Survivors:
    """What a message about survivors says: who is summed, and what each sealed for the reader.

    ``boxes`` (|V|, 82) and the signatures of V by name come where masks are taken off.
    """

    members: tuple[str, ...]
    attempt: int
    boxes: Bytes | None = None
    signatures: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """The answer: shares (|V|, 66), pair seeds (|D|, 32), and whose boxes did not open."""

    shares: Bytes
    seeds: Bytes
    closed: tuple[str, ...]


def digest_of_sent(message: Message, what: Instruction, cohort: Cohort, config: str) -> bytes:
    """SHA-256 of all that must be the same for everybody whose vectors are summed.

    The payload's bytes as they came, and what else decides the vectors: the kind of message, the
    classes in their order, those that may be told, whether there are accuracies, the units of
    words and of weights, the run's configuration.
    """
    record = message.content.array_records.get("arrays")
    sent = bytes(record[PACKED].data) if record else b""
    told = cohort.told
    may = "all" if told is None else ",".join(map(str, told))
    kind = message.metadata.message_type
    units = (cohort.size, cohort.unit)
    parts: list[Part] = [kind, sent, config, *units, int(what.evaluate), may, *what.classes]
    return hashlib.sha256(encode(parts)).digest()


# --- the server's requests, read by a client; ValueError for what makes no sense -------------


def introduction_record(keys: Mapping[str, SumKey]) -> ConfigRecord:
    """Names, keys and proofs of clients, for one who is to know them."""
    names = sorted(keys)
    proofs = [keys[name].proof for name in names]
    return ConfigRecord(
        {
            "members": names,
            "keys": [keys[name].public for name in names],
            "certificates": [b"" if one is None else one.certificate for one in proofs],
            "signatures": [b"" if one is None else one.signature for one in proofs],
        }
    )


def read_introduction(message: Message) -> dict[str, SumKey]:
    """Keys by client."""
    record = _record(message, {"members", "keys", "certificates", "signatures"})
    names = _members(record, distinct=True)
    columns = [_blobs(record, key) for key in ("keys", "certificates", "signatures")]
    if any(len(column) != len(names) for column in columns):
        raise ValueError("members and keys are not as many")
    return {
        name: read_key(public, certificate, signature)
        for name, public, certificate, signature in zip(names, *columns, strict=True)
    }


def cohort_record(cohort: Cohort) -> ConfigRecord:
    """Of a train message."""
    return ConfigRecord(
        {
            "members": list(cohort.members),
            "attempt": cohort.attempt,
            "size": cohort.size,
            "counted": cohort.told is not None,
            "told": list(cohort.told or ()),
            "unit": cohort.unit,
        }
    )


def read_cohort(message: Message) -> Cohort:
    """Inverse of :func:`cohort_record`; who may be a member is for the client's rules to say."""
    record = _record(message, {"members", "attempt", "size", "counted", "told", "unit"})
    members = _members(record)
    attempt, size = _number(record, "attempt"), _number(record, "size")
    if not len(members) <= size:
        raise ValueError(f"size: {size} is less than the {len(members)} members")
    told: Any = record["told"]
    if not isinstance(told, list) or not all(type(one) is int and one >= 0 for one in told):
        raise ValueError("told: no list of classes came")
    known = tuple(told) if record["counted"] is True else None
    return Cohort(members, attempt, size, known, _number(record, "unit"))


def survivors_record(survivors: Survivors) -> ConfigRecord:
    """Of a message that asks for a signature, or for shares."""
    record = ConfigRecord({"members": list(survivors.members), "attempt": survivors.attempt})
    if survivors.boxes is not None:
        record["boxes"] = survivors.boxes.tobytes()
        record["signers"] = list(survivors.signatures)
        record["signatures"] = list(survivors.signatures.values())
    return record


def read_survivors(message: Message) -> Survivors:
    """Inverse of :func:`survivors_record`."""
    opens = message.metadata.message_type == UNMASK
    more = {"boxes", "signers", "signatures"} if opens else set()
    record = _record(message, {"members", "attempt"} | more)
    members, attempt = _members(record), _number(record, "attempt")
    if not opens:
        return Survivors(members, attempt)
    signers, signatures = _members(record, "signers", distinct=True), _blobs(record, "signatures")
    if len(signers) != len(signatures) or any(len(one) > LONGEST for one in signatures):
        raise ValueError("signatures: too long, or not as many as signers")
    boxes = _rows(record["boxes"], BOX_BYTES, len(members))
    return Survivors(members, attempt, boxes, dict(zip(signers, signatures, strict=True)))


# --- the clients' replies, read by the server; ValueError for what makes no sense ------------


def key_info(key: SumKey) -> dict[str, Any]:
    """What a client adds to its answer in the handshake."""
    proof = key.proof
    more = {} if proof is None else {"sum-certificate": proof.certificate,
                                     "sum-signature": proof.signature}  # fmt: skip
    return {"sum-key": key.public, **more}


def key_of(info: Mapping[str, Any]) -> SumKey:
    """Inverse of :func:`key_info`."""
    found = [info.get(f"sum-{part}", b"") for part in ("key", "certificate", "signature")]
    return read_key(*found)


def opened_info(opened: Opened) -> dict[str, Any]:
    """What a client adds to its answer to an unmask message."""
    return {
        "shares": opened.shares.tobytes(),
        "seeds": opened.seeds.tobytes(),
        "closed": list(opened.closed),
    }


def opened_of(reply: Reply, survivors: int, gone: int) -> Opened:
    """Inverse of :func:`opened_info`."""
    info, closed = reply.info, reply.info.get("closed")
    if not isinstance(closed, list | tuple) or not all(isinstance(one, str) for one in closed):
        raise ValueError("closed: no list of clients came")
    shares = _rows(info.get("shares"), SHARE_BYTES, survivors)
    return Opened(shares, _rows(info.get("seeds"), SECRET_BYTES, gone), tuple(closed))


def upload_of(arrays: Sequence[Array]) -> tuple[NDArray[np.uint32], Bytes]:
    """Masked words and boxes of a reply; their shapes are for the collector to check."""
    if len(arrays) != 2:
        raise ValueError(f"{len(arrays)} arrays, expected words and boxes")
    return arrays[0], arrays[1]


def read_key(public: object, certificate: object = b"", signature: object = b"") -> SumKey:
    """A key with its proof; none if certificate and signature are empty."""
    if not isinstance(public, bytes) or len(public) != KEY_BYTES:
        raise ValueError(f"sum-key: no key of {KEY_BYTES} bytes came")
    if not isinstance(certificate, bytes) or not isinstance(signature, bytes):
        raise ValueError("sum-certificate: no bytes came")
    if max(len(certificate), len(signature)) > LONGEST:
        raise ValueError(f"sum-certificate: longer than {LONGEST} bytes")
    if not certificate and not signature:
        return SumKey(public)
    return SumKey(public, Proof(certificate, signature))


def _record(message: Message, keys: set[str]) -> ConfigRecord:
    record = message.content.config_records.get(SUM)
    if record is None or set(record) != keys:
        raise ValueError(f"a record '{SUM}' with the keys {', '.join(sorted(keys))} is needed")
    return record


def _members(
    record: ConfigRecord, key: str = "members", *, distinct: bool = False
) -> tuple[str, ...]:
    names: Any = record[key]
    if not isinstance(names, list) or not all(isinstance(one, str) and is_id(one) for one in names):
        raise ValueError(f"{key}: no list of clients came")
    if len(names) > MOST_MEMBERS or (distinct and len(set(names)) < len(names)):
        raise ValueError(f"{key}: too many, or one of them twice")
    return tuple(names)


def _blobs(record: ConfigRecord, key: str) -> list[bytes]:
    values: Any = record[key]
    if not isinstance(values, list) or not all(isinstance(one, bytes) for one in values):
        raise ValueError(f"{key}: no list of bytes came")
    return values


def _number(record: ConfigRecord, key: str) -> int:
    value = record[key]
    if type(value) is not int or not 1 <= value < NUMBERS:
        raise ValueError(f"{key}: no number from 1 to {NUMBERS - 1} came")
    return value


def _rows(value: object, width: int, rows: int) -> Bytes:
    if not isinstance(value, bytes) or len(value) != rows * width:
        raise ValueError(f"no {rows} x {width} bytes came")
    return np.frombuffer(value, np.uint8).reshape(rows, width)
