"""CSV files of strangers: read row by row in bounded memory, every mistake with file and line."""

import csv
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO

from fedhet.errors import UserError
from fedhet.reading.columns import CHUNK, MAX_LINE, MAX_ROWS, Piece, check_names

Rows = tuple[list[int], list[list[str]]]  # line numbers, and fields
_DELIMITERS = (",", ";", "\t")


class _Lines:
    """The lines of a file; one row cannot take more than ``MAX_LINE`` characters of them."""

    def __init__(self, file: IO[str], where: str) -> None:
        self.file, self.where = file, where
        self.number = self.taken = 0

    def __iter__(self) -> Iterator[str]:
        while line := self.file.readline(MAX_LINE + 1):
            self.number += 1
            self.taken += len(line)
            if self.taken > MAX_LINE:
                raise UserError(
                    f"{self.where} line {self.number}: a row of more than {MAX_LINE:,} characters; "
                    "is a quote not closed, or is this no CSV file?"
                )
            yield line


class CsvFile:
    """A CSV with a header: ``columns``, and the rows below it in pieces.

    UTF-8, separated by commas, semicolons or tabs, whichever the header has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = f"data-path {path}"
        chunks = self._read(1)
        self.columns: list[str] = next(chunks)[1][0]
        chunks.close()
        check_names(self.columns, f"{self.where} line 1", "the first line must name the columns")

    def pieces(self, texts: Sequence[str], numbers: Sequence[str] = ()) -> Iterator[Piece]:
        """Those columns of the rows, all as texts; each row is as long as the header.

        Raises UserError for another length, for no row at all, and for too many.
        """
        places = {name: self.columns.index(name) for name in (*texts, *numbers)}
        count = 0
        for lines, rows in self._read(CHUNK, skip=1):
            for line, row in zip(lines, rows, strict=True):
                if len(row) != len(self.columns):
                    raise UserError(
                        f"{self.where} line {line}: {len(row)} fields, and the header has "
                        f"{len(self.columns)}"
                    )
            count += len(rows)
            if count > MAX_ROWS:
                raise UserError(f"{self.where}: more than {MAX_ROWS:,} rows")
            columns = {name: [row[place] for row in rows] for name, place in places.items()}
            yield Piece(columns, lines, self.where, "line")
        if not count:
            raise UserError(f"{self.where}: no row below the header")

    def _read(self, size: int, skip: int = 0) -> Generator[Rows, None, None]:
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                lines = _Lines(file, self.where)
                first = file.readline(MAX_LINE + 1)
                file.seek(0)
                csv.field_size_limit(MAX_LINE)  # of the process; a row is bounded by _Lines
                reader = csv.reader(lines, delimiter=_delimiter(first), strict=True)
                yield from self._chunked(reader, lines, size, skip)
        except OSError as error:
            raise UserError(f"{self.where}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.where}: after line {lines.number} there is no UTF-8 text ({error.reason})"
            ) from error
        except csv.Error as error:
            raise UserError(f"{self.where} line {lines.number}: no CSV: {error}") from error

    def _chunked(
        self, reader: Iterator[list[str]], lines: _Lines, size: int, skip: int
    ) -> Iterator[Rows]:
        numbers: list[int] = []
        rows: list[list[str]] = []
        for row in reader:
            lines.taken = 0
            if not row:  # an empty line
                continue
            if skip:
                skip -= 1
                continue
            numbers.append(lines.number)
            rows.append(row)
            if len(rows) == size:
                yield numbers, rows
                numbers, rows = [], []
        if rows or size == 1:
            if not rows:
                raise UserError(f"{self.where}: the file is empty")
            yield numbers, rows


def _delimiter(header: str) -> str:
    counts: Sequence[int] = [header.count(mark) for mark in _DELIMITERS]
    return _DELIMITERS[counts.index(max(counts))]
