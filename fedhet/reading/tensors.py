"""safetensors: the header is bounded and plain before the library, which checks the rest, opens it.

The library holds every tensor's place against the file's length, so that what is read is never
more than the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from fedhet.errors import ReadError, one_line
from fedhet.reading.bounds import MEBI, open_regular, read_bytes
from fedhet.reading.structured import MOST_JSON, parse_object

MOST_TENSORS = 100_000
MOST_WEIGHTS = 8192 * MEBI  # bytes of a file
_LENGTH = 8  # bytes of the header's length, which come first
# What the library raises for a header that it takes and cannot serve, besides its own.
_TROUBLE = (SafetensorError, ValueError, TypeError, RuntimeError, LookupError, AttributeError)


def read_tensors(path: Path, framework: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors by name (``numpy`` arrays or torch's, ``pt``) and metadata; memory-mapped.

    ReadError if the file is none of safetensors, OSError if there is none.
    """
    source = f"'{path}'"
    with open_regular(path) as (file, size):
        if size > MOST_WEIGHTS:
            raise ReadError(source, "", f"longer than the {MOST_WEIGHTS} bytes that are read of it")
        _check_header(file.read(_LENGTH), file.read, size, source)
    try:
        with safe_open(path, framework=framework) as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return found, dict(file.metadata() or {})
    except _TROUBLE as error:
        raise ReadError(source, "", f"cannot be read: {one_line(error)}") from error


def read_weights(path: Path) -> bytes:
    """The bytes of a model's weights, for a digest before :func:`parse_weights`.

    Not before its header fits its length: a file that is long may take no room.
    """
    size = path.stat().st_size
    head = read_bytes(path, MOST_WEIGHTS, most=_LENGTH)
    length = min(int.from_bytes(head, "little"), MOST_JSON)
    text = read_bytes(path, MOST_WEIGHTS, most=_LENGTH + length)[_LENGTH:]
    _check_header(head, lambda n: text[:n], size, f"'{path}'")
    return read_bytes(path, MOST_WEIGHTS)


def parse_weights(data: bytes, path: Path) -> Mapping[str, Any]:
    """Tensors (torch) by name of what :func:`read_weights` read."""
    source = f"'{path}'"
    _check_header(data[:_LENGTH], lambda n: data[_LENGTH : _LENGTH + n], len(data), source)
    try:
        return load(data)
    except _TROUBLE as error:
        raise ReadError(source, "", f"cannot be read: {one_line(error)}") from error


def _check_header(head: bytes, read: Any, size: int, source: str) -> None:
    """ReadError for a header that is longer than the file, or no plain JSON object."""
    length = int.from_bytes(head, "little")
    if len(head) < _LENGTH or length > min(size - _LENGTH, MOST_JSON):
        raise ReadError(source, "header", "longer than the file, or not there")
    header = parse_object(read(length), source, "header")
    ends = [_end(one, source) for name, one in header.items() if name != "__metadata__"]
    if _LENGTH + length + max(ends, default=0) != size:
        raise ReadError(source, "", "longer or shorter than its header says")
    if len(header) > MOST_TENSORS:
        raise ReadError(source, "header", f"names more than {MOST_TENSORS} tensors")


def _end(described: Any, source: str) -> int:
    """Where a tensor ends, after the header."""
    place = described.get("data_offsets") if isinstance(described, dict) else None
    if not isinstance(place, list) or not place or not isinstance(place[-1], int):
        raise ReadError(source, "header", "a tensor without a place")
    return place[-1]
