"""Records: how dataclasses and arrays travel inside Flower's messages, and how they are read.

Arrays travel in safetensors' format, so that nothing of the other side is ever executed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message
from pydantic import AfterValidator, ConfigDict, Field, StrictStr, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedhet.errors import one_line
from fedhet.files import is_id
from fedhet.protocol.payload import Array

PACKED = "packed"  # the one array of a payload's record
LONGEST_TEXT = 4096  # characters of a text in an instruction; a path is the longest
MAX_HEADER = 1 << 20  # bytes of a payload's header, enough for 10,000 arrays
WIRE = ConfigDict(extra="forbid")  # of a class that is read from the other side
Wired = TypeVar("Wired")


def _id(name: str) -> str:
    if not is_id(name):
        raise ValueError("not an id of up to 64 characters of A-Z a-z 0-9 . _ -")
    return name


Id = Annotated[StrictStr, AfterValidator(_id)]  # of a client or an experiment
PRINTABLE = r"^(?: |[^\p{C}\p{Z}])+$"
MAX_TEXT = 255  # characters of a class's name, as of a file's on most systems
Name = Annotated[StrictStr, Field(max_length=MAX_TEXT, pattern=PRINTABLE)]
Text = Annotated[StrictStr, Field(max_length=LONGEST_TEXT)]


def to_wire(values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as Flower's records take them, without None."""
    pairs = ((one.name.replace("_", "-"), getattr(values, one.name)) for one in fields(values))
    return {k: list(v) if isinstance(v, tuple) else v for k, v in pairs if v is not None}


def from_wire(kind: type[Wired], record: Mapping[str, Any]) -> Wired:
    """Return the ``kind`` whose fields a record holds, as :func:`to_wire` wrote them.

    Raise ValueError, in one line, for a field that is missing, unknown or not as ``kind`` says.
    """
    values = {key.replace("-", "_"): value for key, value in record.items()}
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        why = one_line(first["msg"]).removeprefix("Value error, ")
        named = place and first["type"] != "missing"
        value = f"{shown(first['input'])} is not allowed: " if named else ""
        raise ValueError(f"{place or kind.__name__}: {value}{why}") from error


def shown(value: object) -> str:
    """Return a stranger's value for a message."""
    return f"'{one_line(str(value)[:80] if isinstance(value, str) else repr(value)[:80])}'"


def arrays_of(message: Message) -> list[Array]:
    """Return the payload arrays of a request or reply, in order; none if it carries none.

    Raises ValueError for anything but plain numbers in safetensors' format.
    """
    record = message.content.array_records.get("arrays")
    if not record:
        return []
    if set(record) != {PACKED}:
        raise ValueError(f"payload has other records than '{PACKED}'")
    return unpack(record[PACKED].data)


def unpack(data: bytes) -> list[Array]:
    """Return the arrays that :func:`pack` wrote; raise ValueError for anything else."""
    if int.from_bytes(data[:8], "little") > MAX_HEADER:
        raise ValueError(f"payload has a header of more than {MAX_HEADER} bytes")
    try:
        found = load(data)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"payload is not in safetensors' format: {error}") from error
    if any(array.dtype.kind not in "biuf" for array in found.values()):
        raise ValueError("payload has arrays that are not numbers")
    return [found[name] for name in sorted(found)]


def message_bytes(message: Message) -> int:
    """Return the bytes of the records of a message as they are sent."""
    return sum(
        # count_bytes() of a ConfigRecord fails on empty texts and lists
        len(record.deflate()) if isinstance(record, ConfigRecord) else record.count_bytes()
        for record in message.content.values()
    )


def pack(arrays: Sequence[Array]) -> bytes:
    """Return arrays in safetensors' format, named by their places."""
    return save({f"{i:05d}": np.asarray(array, order="C") for i, array in enumerate(arrays)})


def to_record(arrays: Sequence[Array]) -> ArrayRecord:
    """Return arrays as a Flower record of one array, whose bytes are those of :func:`pack`.

    Flower sends each array of a record as two objects, each in requests of its own, which cost the
    SuperLink more than the arrays do.
    """
    data = pack(arrays)
    packed = FlowerArray("uint8", (len(data),), "safetensors", data)
    return ArrayRecord({PACKED: packed} if arrays else {})
