"""One way to turn texts, numbers and bytes into bytes, such that no two lists give the same."""

from collections.abc import Iterable

Part = str | int | bytes


def encode(parts: Iterable[Part]) -> bytes:
    """Each part as its length in 4 bytes, big endian, then its bytes.

    A text is UTF-8, a number (0 <= n < 2^32) 4 bytes, big endian. Raises OverflowError for another
    number.
    """
    found = bytearray()
    for part in parts:
        if isinstance(part, str):
            part = part.encode()  # noqa: PLW2901
        elif isinstance(part, int):
            part = part.to_bytes(4, "big")  # noqa: PLW2901
        found += len(part).to_bytes(4, "big") + part
    return bytes(found)
