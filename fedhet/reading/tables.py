"""CSV: fields of a bounded length, rows of one width, UTF-8, and numbers that are numbers.

Spreadsheets run a cell that begins with = + - or @ as a formula. In what we write such a text has
an apostrophe before it (:func:`fedhet.files.csv_text`), which the reader of our own tables takes
away again.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedhet.errors import ReadError
from fedhet.files import unquoted
from fedhet.reading.bounds import LARGEST, MEBI, read_bytes

MOST_CSV = 512 * MEBI
LINE = 32 * MEBI  # characters: a table of ten thousand columns has three million
FIELD = 131_072  # characters; Python's own bound is that of the process, and may be another


def rows(
    text: Iterable[str], source: str, width: int = 0, before: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every row; those of another ``width`` than that (0: any) refused.

    Empty lines are left out. ``text`` are lines as they are read, after ``before`` others.
    """
    reader = csv.reader(_bounded(text, source), strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            place = f"line {before + reader.line_num}"
            raise ReadError(source, place, f"not CSV: {error}") from error
        except UnicodeDecodeError as error:
            place = f"line {before + reader.line_num + 1}"
            raise ReadError(source, place, "not UTF-8") from error
        if row is None:
            return
        line = before + reader.line_num
        if width and row and len(row) != width:
            what = f"has {len(row)} fields, and {width} are needed"
            raise ReadError(source, f"line {line}", what)
        if max(map(len, row), default=0) > FIELD:
            raise ReadError(
                source, f"line {line}", f"not CSV: a field of more than {FIELD} characters"
            )
        if row:
            yield line, row


def _bounded(text: Iterable[str], source: str) -> Iterator[str]:
    """The lines; ReadError for one that has no end, before it is taken apart."""
    for number, line in enumerate(text, 1):
        if len(line) > LINE:
            raise ReadError(source, f"line {number}", f"longer than {LINE} characters")
        yield line


def _lines(data: bytes) -> Iterator[str]:
    """The lines of bytes, decoded one by one: a text of all would take four times as much."""
    file = io.BytesIO(data)
    while line := file.readline(LINE + 1):
        yield from io.StringIO(line.decode(), newline="")  # a line may end with a CR alone


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file that somebody wrote; OSError if there is none."""
    source = f"'{path}'"
    data = read_bytes(path, MOST_CSV).removeprefix(b"\xef\xbb\xbf")
    yield from rows(_lines(data), source)


def parse_table(data: bytes, source: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Columns and numbered rows of a table of ours; ReadError where there is not even a head."""
    text = _lines(data)
    line, head = next(rows(text, source), (1, []))
    if not head:
        raise ReadError(source, "line 1", "no head of a table")
    found = rows(text, source, len(head), line)
    own = ((number, [unquoted(one) for one in row]) for number, row in found)
    return [unquoted(one) for one in head], own


def whole(text: str, source: str, place: str) -> int:
    """A whole number of bounded size."""
    if re.fullmatch(r"-?[0-9]{1,20}", text) is None or abs(int(text)) >= LARGEST:
        raise ReadError(source, place, f"'{text:.40}' is no whole number")
    return int(text)


def number(text: str, source: str, place: str) -> float | None:
    """A finite number; None for an empty field."""
    if not text:
        return None
    if re.fullmatch(r"[-+]?[0-9.]{1,40}(e[-+]?[0-9]{1,4})?", text):
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if math.isfinite(found):
            return found
    raise ReadError(source, place, f"'{text:.40}' is no number")
