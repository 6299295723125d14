"""What every reader holds to: how long a file may be, how deep its values, how large its numbers.

The bounds are far above what a run writes and far below what hurts who opens somebody else's. What
does not keep them is a :class:`~fedhet.errors.ReadError` with file and place, never a traceback.
"""

import math
import os
import stat
from pathlib import Path
from typing import Any

from fedhet.errors import ReadError

MEBI = 2**20
DEPTH = 32  # of lists and mappings in each other
LARGEST = 2**64  # whole numbers are smaller, without their sign; more than any count
_NUMBERS = {float, int, bool, type(None)}
LONGEST = 16 * MEBI  # characters of one text
PLAIN = (str, bool, int, float, type(None))


def read_bytes(path: Path, limit: int, most: int = -1, start: int = 0) -> bytes:
    """A whole regular file of at most ``limit`` bytes, or ``most`` of it, from ``start`` on.

    FileNotFoundError where there is none; ReadError for one that cannot be read or is too long.
    """
    try:
        return _read(path, limit, most, start)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ReadError(f"'{path}'", "", f"cannot be read: {error.strerror}") from error


def _read(path: Path, limit: int, most: int, start: int) -> bytes:
    # A pipe would be waited for, for ever, and a device has no end.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ReadError(f"'{path}'", "", "no regular file")
        # By its length: a file that is long may take no room, and would be read all the same.
        data = b""
        if found.st_size <= limit:
            rest = max(found.st_size - start, 0)
            wanted = rest + 1 if most < 0 else most  # the room is taken at once
            with os.fdopen(os.dup(handle), "rb") as file:
                file.seek(start)
                data = file.read(wanted)
    finally:
        os.close(handle)
    if max(found.st_size, start + len(data)) > limit:
        raise ReadError(f"'{path}'", "", f"longer than the {limit} bytes that are read of it")
    return data


def decoded(data: bytes, source: str) -> str:
    """UTF-8 as text; ReadError with the line of the first byte that is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ReadError(source, f"line {line}", "not UTF-8") from error


def check_values(value: Any, source: str, place: str = "") -> None:
    """ReadError for what is nested too deep, too large a number, not finite, or no plain value.

    Plain are texts, numbers, truth values, null, and lists and mappings (with texts as keys) of
    them.
    """
    ahead = [(value, place, 0)]
    while ahead:
        one, where, depth = ahead.pop()
        if depth > DEPTH:
            raise ReadError(source, where, f"nested deeper than {DEPTH}")
        if isinstance(one, dict):
            for key, inner in one.items():
                if not isinstance(key, str):
                    raise ReadError(source, where, f"'{key!s:.40}' is no key: keys are texts")
                ahead.append((inner, f"{where}.{key:.80}".lstrip("."), depth + 1))
        elif isinstance(one, list):
            if depth < DEPTH and _sound_numbers(one):
                continue
            ahead += [(inner, where, depth + 1) for inner in one]
        elif problem := _problem(one):
            raise ReadError(source, where, problem)


def _sound_numbers(values: list[Any]) -> bool:
    """Whether all are small finite numbers, or nothing: the columns of records, seen at once."""
    if not set(map(type, values)) <= _NUMBERS:
        return False
    known = list(filter(None, values))  # not a number stays, and makes the sum none
    return max(map(abs, known), default=0) < LARGEST and math.isfinite(sum(known))


def _problem(one: Any) -> str:
    """What is wrong with a single value; empty: nothing."""
    if not isinstance(one, PLAIN):
        return f"a {type(one).__name__}: write it as a text, in quotes"
    if isinstance(one, int) and abs(one) >= LARGEST:
        return "a whole number too large for anything here"
    if isinstance(one, float) and not math.isfinite(one):
        return f"{one} is not a finite number"
    if isinstance(one, str) and len(one) > LONGEST:
        return f"a text of more than {LONGEST} characters"
    if isinstance(one, str) and not one.isascii() and any("\ud800" <= c <= "\udfff" for c in one):
        return "a text with half a character"
    return ""
