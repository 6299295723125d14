"""Files of rows (CSV, Parquet) read by pandas in chunks, and what is found out about a CSV file.

Nothing here knows a target or a site. A file has columns; some are asked for as texts, the others
as numbers where they are numbers.
"""

import codecs
import csv
import gzip
import importlib.util
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pandas as pd

from fedhet.data.labels import Form
from fedhet.errors import UserError, one_line

ROW_SUFFIXES = (".csv", ".tsv", ".parquet", ".data", ".csv.gz", ".tsv.gz")
NPZ_SUFFIXES = (".npz",)
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": r"\s+"}
TRUTH = {"true": 1.0, "false": 0.0}
MAX_COLUMNS = 16_384
SAMPLE = 256 << 10  # bytes from which the form of a file is found out
SAMPLE_ROWS = 200
CELLS = 2_000_000  # of a chunk
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),  # noqa: E501
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+(e[+-]?\d+)?", re.IGNORECASE)
_THOUSANDS = {",": re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?"),
              ".": re.compile(r"[+-]?\d{1,3}(\.\d{3}){2,}|[+-]?\d{1,3}(\.\d{3})+,\d+"),
              " ": re.compile("[+-]?\\d{1,3}( \\d{3})+([.,]\\d+)?"),
              "\xa0": re.compile("[+-]?\\d{1,3}(\xa0\\d{3})+([.,]\\d+)?"),
              "'": re.compile(r"[+-]?\d{1,3}('\d{3})+(\.\d+)?")}  # fmt: skip


@dataclass(frozen=True)
class Chunk:
    """Some rows. Texts are stripped ``str``; a column of numbers only is float64.

    ``first`` is the number of the first row in its file, from 0; ``site`` the file, if there are
    several.
    """

    frame: pd.DataFrame
    first: int
    file: "RowFile"
    site: Path | None = None

    def __len__(self) -> int:
        return len(self.frame)

    def at(self, index: int, column: str) -> str:
        """Return the place of a value in the ``index``-th of these rows, for messages."""
        return f"{self.file.where} {self.file.place(self.first + index)} column '{column}'"


class RowFile(Protocol):
    """A file of rows: its columns in order, what it is called in messages, what was found out.

    ``index`` are columns that number the rows and are left out unless a key names them.
    """

    where: str
    form: Form
    columns: list[str]
    index: tuple[str, ...]
    found: tuple[str, ...]

    def chunks(self, texts: Collection[str], numbers: Collection[str]) -> Iterator[Chunk]:
        """The rows with these columns; UserError for what cannot be read."""

    def place(self, row: int) -> str:
        """Where the row of that number is, such as ``line 7``."""


def find_files(dataset: str, data_path: str, suffixes: Sequence[str]) -> tuple[Path, ...]:
    """The file at ``data_path``, or those of a folder, sorted, one for each site."""
    if not data_path:
        raise UserError(f"data-path is empty: dataset {dataset} needs its file")
    path = Path(data_path).expanduser().absolute()
    try:
        if path.is_file():
            return (path,)
        if not path.is_dir():
            what = "no file" if path.exists() else "no such file"
            raise UserError(f"data-path {data_path}: {what}; give a file, or a folder of them")
        found = sorted(one for one in path.iterdir() if holds(one, suffixes) and one.is_file())
    except OSError as error:
        raise UserError(f"data-path {data_path}: {error.strerror}") from error
    if not found:
        raise UserError(
            f"data-path {data_path}: the folder has no file {' '.join(suffixes)}; it must have one "
            "for each site"
        )
    return tuple(found)


def holds(path: Path, suffixes: Sequence[str]) -> bool:
    """Whether a path is such a file, or a folder with some."""
    if path.is_dir():
        return any(holds(one, suffixes) for one in path.iterdir() if not one.is_dir())
    return path.name.lower().endswith(tuple(suffixes)) and not path.name.startswith(".")


def open_rows(paths: Sequence[Path], form: Form = Form()) -> RowFile:  # noqa: B008  (frozen)
    """Open a CSV or Parquet file, told apart by its first bytes, or several files in turn."""
    if len(paths) > 1:
        return _Several([open_rows([path], form) for path in paths], paths)
    try:
        with paths[0].open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        return ParquetFile(paths[0], form) if parquet else CsvFile(paths[0], form)
    except OSError as error:
        raise UserError(f"data-path {paths[0]}: {error.strerror}") from error


# --- values ----------------------------------------------------------------


def plain_texts(series: pd.Series, missing: Collection[str]) -> pd.Series:
    """Stripped texts, NaN for a gap."""
    texts = series.astype("str").str.strip()
    return texts.mask(series.isna() | texts.str.lower().isin(list(missing)))


def as_numbers(series: pd.Series, form: Form) -> pd.Series:
    """Float64 with NaN for gaps, if all values are numbers or TRUE and FALSE; else texts."""
    if series.dtype.kind in "iufb":
        return series.astype(np.float64)
    texts = plain_texts(series, form.missing)
    known = texts.dropna()
    numbers = to_numbers(known, form)
    if numbers.isna().any():
        return texts
    return numbers.reindex(texts.index).astype(np.float64)


def to_numbers(texts: pd.Series, form: Form) -> pd.Series:
    """Float64 of texts without gaps; NaN for one that is no number."""
    codes, unique = pd.factorize(texts)  # a category's few values are looked at once
    known = pd.Series(unique, dtype="str")
    plain = known
    if form.thousands:
        plain = plain.str.replace(form.thousands, "", regex=False)
    if form.decimal == ",":
        plain = plain.str.replace(",", ".", regex=False)
    good = plain.str.fullmatch(_NUMBER.pattern, case=False) | plain.str.lower().isin(
        ["inf", "-inf", "+inf", "infinity", "-infinity"]
    )
    numbers = pd.to_numeric(plain.where(good), errors="coerce").astype(np.float64)
    numbers = numbers.fillna(known.str.lower().map(TRUTH))
    return pd.Series(numbers.to_numpy(np.float64)[codes], index=texts.index, dtype=np.float64)


def is_number(text: str) -> bool:
    """Whether a text is a number as people write it."""
    return _NUMBER.fullmatch(text) is not None


# --- CSV ----------------------------------------------------------------


@dataclass(frozen=True)
class _Sniffed:
    """The form of a CSV file, all found out. ``skip`` lines come before the first row."""

    form: Form
    names: tuple[str, ...]
    kept: tuple[int, ...]  # positions of the columns that are none of the left out
    index: tuple[str, ...]
    skip: int
    comment: str | None
    found: tuple[str, ...]


class CsvFile:
    """A CSV file: its columns, and the rows below the header in chunks."""

    def __init__(self, path: Path, form: Form) -> None:
        self.path, self.where = path, f"data-path {path}"
        self._sniffed = _Sniffer(path, self.where, form).run()
        self.form = self._sniffed.form
        self.columns = [self._sniffed.names[place] for place in self._sniffed.kept]
        self.index, self.found = self._sniffed.index, self._sniffed.found
        self._checked = False

    def chunks(self, texts: Collection[str], numbers: Collection[str]) -> Iterator[Chunk]:
        """See :class:`RowFile`."""
        sniffed, wanted = self._sniffed, list(dict.fromkeys((*texts, *numbers)))
        places = {name: sniffed.names.index(name) for name in wanted}
        as_text = [places[name] for name in texts]
        first = 0
        try:
            with _opened(self.path, self.form.encoding) as file:
                reader = pd.read_csv(
                    file,
                    header=None,
                    names=range(len(sniffed.names)),
                    index_col=False,
                    skiprows=sniffed.skip,
                    dtype=dict.fromkeys(as_text, "str"),
                    na_values={place: _spellings(self.form) for place in places.values()
                               if place not in as_text},
                    keep_default_na=False,
                    chunksize=max(256, min(65_536, CELLS // len(sniffed.names))),
                    **_format(self.form, sniffed.comment),
                )  # fmt: skip
                for frame in reader:
                    chunk = self._chunk(frame, places, texts, first)
                    first += len(frame)
                    yield chunk
        except UnicodeDecodeError as error:
            raise _bad_byte(self.path, self.where, self.form.encoding) or UserError(
                f"{self.where}: no {self.form.encoding} text ({error.reason}): encoding=latin-1?"
            ) from error
        except (pd.errors.ParserError, ValueError, csv.Error) as error:
            raise UserError(self._damage(error)) from error
        except pd.errors.EmptyDataError:
            pass
        except OSError as error:
            raise UserError(f"{self.where}: {error.strerror or error}") from error
        if not first:
            raise UserError(f"{self.where}: no row below the header")

    def _chunk(
        self, frame: pd.DataFrame, places: dict[str, int], texts: Collection[str], first: int
    ) -> Chunk:
        last = len(self._sniffed.names) - 1
        if not self._checked and (frame[last].isna() | (frame[last] == "")).any():
            self._check_widths()
        frame = self._without_headers(frame)
        made = {}
        for name, place in places.items():
            column = frame[place]
            made[name] = (
                column.fillna("").str.strip() if name in texts else as_numbers(column, self.form)
            )
        return Chunk(pd.DataFrame(made), first, self)

    def _without_headers(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows that do not repeat the header, as joined files do."""
        again = pd.Series(True, index=frame.index)
        for place, name in enumerate(self._sniffed.names):
            if not again.any():
                return frame.reset_index(drop=True)
            column = frame[place]
            again &= column.astype("str").str.strip() == name if column.dtype.kind == "O" or (
                pd.api.types.is_string_dtype(column)) else False  # fmt: skip
        return frame[~again].reset_index(drop=True)

    def place(self, row: int) -> str:
        """The line of a row, counted again: rows may have several lines."""
        for number, (line, _) in enumerate(self._records()):
            if number == row:
                return f"line {line}"
        return f"row {row + 1}"

    def lines(self) -> Iterator[int]:
        """The line of every row."""
        return (line for line, _ in self._records())

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        with _opened(self.path, self.form.encoding) as file:
            for _ in range(self._sniffed.skip):
                file.readline()
            reader = _reader(file, self.form)
            for row in reader:
                if row and not (self._sniffed.comment and row[0].startswith("#")):
                    yield self._sniffed.skip + reader.line_num, row

    def _check_widths(self) -> None:
        """UserError for a row that is shorter than the others: pandas would fill it with gaps."""
        self._checked = True
        width, least = len(self._sniffed.names), max(self._sniffed.kept) + 1
        for line, row in self._records():
            if len(row) < least:
                raise UserError(f"{self.where} line {line}: {len(row)} fields, and others {width}")

    def _damage(self, error: Exception) -> str:
        text = one_line(error)
        if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", text):
            line = int(found[2])
            return f"{self.where} line {line}: {found[3]} fields, and the others have {found[1]}"
        if found := re.search(r"EOF inside string starting at row (\d+)", text):
            row = self._sniffed.skip + int(found[1]) + 1
            return f"{self.where} line {row}: a quote is not closed; quote=none reads it as a sign"
        return f"{self.where}: no CSV: {text}"


def _spellings(form: Form) -> list[str]:
    """Return the spellings of gaps for pandas, which distinguishes upper and lower case."""
    styles = (str.lower, str.upper, str.title)
    found = {style(one) for one in form.missing for style in styles}
    return sorted(found | ({"NaN"} if "nan" in form.missing else set()))


def _format(form: Form, comment: str | None) -> dict[str, Any]:
    return {
        "sep": form.separator, "decimal": form.decimal or ".", "thousands": form.thousands or None,
        "quotechar": form.quote if form.quote != "none" else '"',
        "quoting": csv.QUOTE_NONE if form.quote == "none" else csv.QUOTE_MINIMAL,
        "skipinitialspace": True, "comment": comment, "low_memory": False,
    }  # fmt: skip


def _opened(path: Path, encoding: str) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _reader(lines: Any, form: Form) -> Any:
    """Python's reader of the same form: for samples, and for the lines of rows."""
    space = form.separator == SEPARATORS["space"]
    csv.field_size_limit(1 << 27)
    if space:
        lines = (re.sub(r"[ \t]+", " ", line.strip(" \t")) for line in lines)
    return csv.reader(
        lines, delimiter=" " if space else form.separator, skipinitialspace=True,
        quoting=csv.QUOTE_NONE if form.quote == "none" else csv.QUOTE_MINIMAL,
        quotechar=form.quote if form.quote not in ("", "none") else '"',
    )  # fmt: skip


def _bad_byte(path: Path, where: str, encoding: str) -> UserError | None:
    """Return an error that names the first invalid byte and its line, or None."""
    decoder, lines, done = codecs.getincrementaldecoder(encoding)(), 1, 0
    with _opened(path, "latin-1") as text:
        file = text.buffer  # type: ignore[attr-defined]
        while True:
            block = file.read(1 << 20)
            try:
                lines += decoder.decode(block, final=not block).count("\n")
            except UnicodeDecodeError as error:
                bad = error.object[error.start]
                line = lines + error.object[: error.start].count(b"\n")
                return UserError(
                    f"{where} line {line}: byte 0x{bad:02x} is not "
                    f"{encoding.removesuffix('-sig')}: set the file's encoding, such as "
                    "encoding=latin-1 or encoding=cp1252"
                )
            done += len(block)
            if not block:
                return None


class _Sniffer:
    """Detects the form of a CSV file from its first lines; ``found`` has it in words."""

    def __init__(self, path: Path, where: str, form: Form) -> None:
        self.path, self.where, self.form = path, where, form
        self.found: list[str] = []

    def run(self) -> _Sniffed:
        """Return the form; raise UserError if the file is not a text table or has no header."""
        text = self._text()
        text, skip = self._without_comments(text)
        records = self._separated(text)
        comment = self._comment(text)
        if comment:
            records = [(line, row) for line, row in records if not row[0].startswith("#")]
        if not records:
            raise UserError(f"{self.where}: the file is empty")
        if counts := self._counts(records):
            records = records[1:]
        width, start = self._width(records)
        rows = [row for _, row in records[start:]]
        head, body = rows[0], rows[1:]
        header, trail = self._header(head, body, width)
        data = body if header else rows
        before = records[start][0] if header else (records[start - 1][0] if start else counts)
        names = self._names(head if header else [], width)
        if len(names) > MAX_COLUMNS:
            raise UserError(f"{self.where}: {len(names):,} columns, at most {MAX_COLUMNS:,}")
        kept = list(range(len(names) - trail))
        index = self._index(names[: len(kept)], data)
        self._numbers([[row[place] for row in data if place < len(row)] for place in kept])
        return _Sniffed(
            self.form, tuple(names), tuple(kept), index, skip + before, comment, tuple(self.found)
        )

    def _text(self) -> str:
        """The first lines, whole ones, decoded."""
        with self.path.open("rb") as file:
            head = file.read(8)
        if head.startswith(b"PK\x03\x04"):
            raise UserError(f"{self.where}: this is a workbook or zip: save its sheet as CSV")
        with _opened(self.path, "latin-1") as plain:
            data = plain.buffer.read(SAMPLE)  # type: ignore[attr-defined]
        if data.lstrip()[:1] in (b"{", b"[") and not self.form.separator:
            raise UserError(f"{self.where}: this is JSON, not a table: save its rows as CSV")
        marked = next((name for mark, name in _MARKS if data.startswith(mark)), "")
        encoding = self.form.encoding or marked or "utf-8"
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise UserError(f"encoding: '{encoding}' is unknown; such as latin-1, cp1252") from None
        if marked and not self.form.encoding and marked != "utf-8-sig":
            self.found.append(f"{marked} by its mark (encoding)")
        self.form = replace(self.form, encoding=encoding)
        wide = encoding.lower().startswith(("utf-16", "utf-32"))
        if b"\0" in data and not wide:
            raise UserError(f"{self.where}: no text; of UTF-16 without a mark: encoding=utf-16-le")
        if not wide and len(data) == SAMPLE and b"\n" in data:
            data = data[: data.rindex(b"\n") + 1]
        try:
            return codecs.getincrementaldecoder(encoding)().decode(data, final=False)
        except UnicodeDecodeError as error:
            raise _bad_byte(self.path, self.where, encoding) or UserError(str(error)) from error

    def _without_comments(self, text: str) -> tuple[str, int]:
        """The text after empty lines, comments and ``sep=``, and how many lines those are."""
        lines, skip, comments = text.splitlines(keepends=True), 0, 0
        for line in lines:
            plain = line.strip().lstrip("\ufeff").strip('"')
            if match := re.fullmatch(r"sep=(.)", plain):
                self.form = replace(self.form, separator=self.form.separator or match[1])
            elif plain.startswith("#") and not self.form.columns:
                comments += 1
            elif plain:
                break
            skip += 1
        if comments:
            self.found.append(f"{comments} lines of comments before the header are left out")
        return "".join(lines[skip:]), skip

    def _comment(self, text: str) -> str | None:
        """A sign that begins comments between the rows."""
        lines = text.splitlines()
        between = sum(line.startswith("#") for line in lines)
        return "#" if between and sum(line.count("#") for line in lines) == between else None

    def _separated(self, text: str) -> list[tuple[int, list[str]]]:
        """Line and fields of the first rows, by the separator that cuts them most evenly."""
        given = SEPARATORS.get(self.form.separator, self.form.separator)
        if given and len(given) > 1 and given != SEPARATORS["space"]:
            raise UserError(
                f"separator: '{given}' is not allowed: one sign, or {', '.join(SEPARATORS)}"
            )
        best: tuple[float, int, str, list[tuple[int, list[str]]]] = (-1.0, 0, "", [])
        quote = self.form.quote or self._quote(text)
        for separator in [given] if given else list(SEPARATORS.values()):
            if separator == SEPARATORS["space"] and not given and best[1] > 1 and best[0] > 0.5:
                continue
            form = replace(self.form, separator=separator, quote=quote)
            reader, rows = _reader(io.StringIO(text, newline=""), form), []
            for row in reader:
                if row and any(map(str.strip, row)):
                    rows.append((reader.line_num, row))
                if len(rows) > SAMPLE_ROWS:
                    break
            # Names of rows have no name in a file that R wrote with spaces.
            body = rows[1:] if separator == SEPARATORS["space"] and len(rows) > 1 else rows
            widths = Counter(len(row) for _, row in body)
            width, count = max(widths.items(), key=lambda one: (one[1], one[0]), default=(0, 0))
            even = count / max(1, len(body)) if width > 1 or given else 0.0
            if separator == SEPARATORS["space"] and even < 0.95 and not given:
                continue
            if (round(even, 1), width) > (round(best[0], 1), best[1]):
                best = (even, width, separator, rows)
        self.form = replace(self.form, separator=best[2] or ",", quote=quote)
        said = {v: k for k, v in SEPARATORS.items()}.get(self.form.separator, self.form.separator)
        if self.form.separator != "," and not given:
            self.found.append(f"separated by {said} (separator)")
        return best[3]

    def _quote(self, text: str) -> str:
        """The sign around texts: a single quote where fields begin and end with it."""
        single = len(re.findall(r"(?:^|[,;\t| ])\s*'[^'\n]*'\s*(?=[,;\t| ]|$)", text, re.MULTILINE))
        double = text.count('"')
        if single > 3 and not double:
            self.found.append("quoted by ' (quote)")
            return "'"
        return '"'

    def _counts(self, records: Sequence[tuple[int, list[str]]]) -> int:
        """The line that only counts rows and columns, as scikit-learn's files begin; 0: none."""
        line, first = records[0]
        width = len(records[1][1]) if len(records) > 1 else 0
        rows, columns, *classes = [*map(str.strip, first), "", ""]
        counts = rows.isdecimal() and columns in (str(width - 1), str(width))
        if not counts or int(rows) < min(len(records) - 1, SAMPLE_ROWS) or width < 3:
            return 0
        if len(records) <= SAMPLE_ROWS and int(rows) != len(records) - 1:
            return 0
        if any(is_number(one) for one in classes):
            return 0
        self.found.append(
            f"the first line counts rows and columns ({rows}, {columns}) and is left out"
        )
        return line

    def _width(self, records: Sequence[tuple[int, list[str]]]) -> tuple[int, int]:
        """The fields of most rows, and which record is the first of the table."""
        later = records[1:] or records
        width = Counter(len(row) for _, row in later).most_common(1)[0][0]
        least = width if width < 3 else width - 1
        for start, (_, row) in enumerate(records):  # noqa: B007
            if len(row) >= least:
                break
        if start:
            self.found.append(f"{start} lines before the header are left out")
        return width, start

    def _header(self, head: list[str], body: Sequence[list[str]], width: int) -> tuple[bool, bool]:
        """Return whether the first row is a header, and whether the last column is empty."""
        empty = bool(body) and all(len(row) < width or not row[-1].strip() for row in body)
        trail = (
            len(head) in (width, width - 1) and empty and not (head[width - 1 :] or [""])[0].strip()
        )
        if len(head) == width + 1 and not head[-1].strip():  # a delimiter after the header alone
            del head[-1]
            self.found.append("the empty last column of the header is left out")
        if trail:
            self.found.append("the empty last column is left out")
        if len(head) < width and not trail:
            head.insert(0, "")  # R writes no name above the names of rows
        cells = [cell.strip() for cell in head]
        given = list(self.form.columns)
        if given:
            if len(given) not in (width, width - trail):
                raise UserError(
                    f"columns: {len(given)} names, and {self.where} has {width - trail} columns"
                )
            same = cells[: len(given)] == given
            return same or not self._is_data(cells, body), trail
        if self._is_data(cells, body):
            names = ",".join(f"c{k}" for k in range(1, width - trail + 1))
            shown = ", ".join(cells[:4]) + (", ..." if len(cells) > 4 else "")
            raise NoHeader(
                f"{self.where}: the first line looks like data ({one_line(shown, 60)}): is there "
                f"no header? name the columns: columns={one_line(names, 60)}", width - trail
            )  # fmt: skip
        return True, trail

    def _is_data(self, cells: list[str], body: Sequence[list[str]]) -> bool:
        """Whether the first row is one like the others and no header."""
        missing = self.form.missing
        plain = [cell.replace(",", ".") for cell in cells]
        counted = [str(k) for k in range(len(cells))], [str(k + 1) for k in range(len(cells))]
        if cells in counted or [cell for cell in cells if cell] in counted or not body:
            return False
        numbers = [is_number(cell) for cell in plain]
        if all(n or cell.lower() in missing for n, cell in zip(numbers, cells, strict=True)):
            return any(numbers)
        others = [row for row in body if [one.strip() for one in row] != cells]
        known = [
            place for place, cell in enumerate(cells)
            if cell and not numbers[place] and cell.lower() not in missing
        ]  # fmt: skip
        again = [p for p in known if any(p < len(r) and r[p].strip() == cells[p] for r in others)]
        # A header's name may also be a value, such as y. Two such names, or numbers, mean data.
        return len(others) > 1 and (len(again) > 1 or (bool(again) and any(numbers)))

    def _names(self, head: Sequence[str], width: int) -> list[str]:
        """The names of the columns, each once, none empty."""
        given = list(self.form.columns)
        cells = given or [cell.strip().strip("\ufeff") for cell in head]
        cells += [""] * (width - len(cells))
        if not given and any(cell != cell.strip() for cell in head):
            self.found.append("spaces around names are left out")
        return unique_names(cells, self.found)

    def _index(self, names: Sequence[str], data: Sequence[list[str]]) -> tuple[str, ...]:
        """Columns without a name that number the rows, or hold nothing."""
        found = []
        for place, name in enumerate(names):
            if not re.fullmatch(r"column-\d+|Unnamed: \d+", name):
                continue
            values = [row[place].strip() for row in data if place < len(row)]
            if place == 0 or not any(values):
                found.append(name)
        if found and not self.form.columns:
            self.found.append(f"without a name and left out: {', '.join(found)}")
        return tuple(found) if not self.form.columns else ()

    def _numbers(self, columns: Sequence[Sequence[str]]) -> None:
        """Detect a decimal comma and a thousands separator that turn texts into numbers."""
        decimal, thousands = self.form.decimal, self.form.thousands
        known = [[v for v in map(str.strip, column) if v.lower() not in self.form.missing]
                 for column in columns]  # fmt: skip
        odd = [values for values in known if values and not all(map(is_number, values))]
        if not decimal:
            comma = [v for v in odd if all(is_number(x) or _DECIMAL_COMMA.fullmatch(x) for x in v)]
            point = any("." in x for v in known for x in v if all(map(is_number, v)))
            grouped = all(_THOUSANDS[","].fullmatch(x) or is_number(x) for v in comma for x in v)
            if comma and not (grouped and (self.form.separator == "," or point)):
                decimal = ","
                self.found.append("decimal comma (decimal)")
        if not thousands:
            for sign, pattern in _THOUSANDS.items():
                if sign != (decimal or ".") and any(
                    any(map(pattern.fullmatch, v))
                    and all(
                        pattern.fullmatch(x) or is_number(x.replace(decimal or ".", ".")) for x in v
                    )
                    for v in (odd if sign != "." or decimal == "," else [])
                ):
                    thousands = sign
                    self.found.append(f"thousands by {sign!r} (thousands)")
                    break
        self.form = replace(self.form, decimal=decimal or ".", thousands=thousands)


class NoHeader(UserError):
    """A file whose first line looks like data; ``width`` is its number of columns."""

    def __init__(self, text: str, width: int) -> None:
        super().__init__(text)
        self.width = width


def unique_names(cells: Sequence[str], found: list[str]) -> list[str]:
    """Names of columns: ``column-3`` for one without, ``age.2`` for the second of a name."""
    names: list[str] = []
    for place, cell in enumerate(cells, start=1):
        name = cell or f"column-{place}"
        if name in names:
            number = 2
            while f"{name}.{number}" in names:
                number += 1
            found.append(f"the second column '{name}' is called '{name}.{number}'")
            name = f"{name}.{number}"
        names.append(name)
    return names


# --- Parquet, and several files ----------------------------------------------------------------


class ParquetFile:
    """A Parquet file by pyarrow, some rows at a time."""

    def __init__(self, path: Path, form: Form) -> None:
        self.path, self.form, self.where = path, form, f"data-path {path}"
        if importlib.util.find_spec("pyarrow") is None:
            raise UserError(f"{self.where}: Parquet needs pyarrow: pip install 'fedhet[parquet]'")
        import pyarrow as pa  # noqa: PLC0415  (an extra)
        import pyarrow.parquet as pq  # noqa: PLC0415

        self._errors: tuple[type[Exception], ...] = (pa.ArrowException, OSError, ValueError)
        try:
            self._file = pq.ParquetFile(path)
            schema = self._file.schema_arrow
            index = (schema.pandas_metadata or {}).get("index_columns", [])
        except self._errors as error:
            raise UserError(f"{self.where}: no sound Parquet file: {one_line(error)}") from error
        found: list[str] = []
        self._stored = list(schema.names)
        self.columns = unique_names([str(name).strip() for name in self._stored], found)
        self.index = tuple(
            self.columns[self._stored.index(name)] for name in index
            if isinstance(name, str) and name in self._stored
        )  # fmt: skip
        if self.index:
            found.append(f"the index of pandas is left out: {', '.join(self.index)}")
        self.found = tuple(found)

    def chunks(self, texts: Collection[str], numbers: Collection[str]) -> Iterator[Chunk]:
        """See :class:`RowFile`."""
        wanted = list(dict.fromkeys((*texts, *numbers)))
        places = [self.columns.index(name) for name in wanted]
        size, first = max(256, min(65_536, CELLS // max(1, len(wanted)))), 0
        try:
            stored = [self._stored[place] for place in places]
            for batch in self._file.iter_batches(batch_size=size, columns=stored):
                made = {
                    name: arrow_column(batch.column(batch.schema.names.index(old)), name in texts, self.form)  # noqa: E501
                    for name, old in zip(wanted, stored, strict=True)
                }  # fmt: skip
                yield Chunk(pd.DataFrame(made), first, self)
                first += batch.num_rows
        except self._errors as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self.where}: damaged: {one_line(error)}") from error
        if not first:
            raise UserError(f"{self.where}: no row in it")

    def place(self, row: int) -> str:
        """Rows are numbered from 0."""
        return f"row {row}"


def arrow_column(column: Any, as_text: bool, form: Form) -> pd.Series:  # noqa: FBT001
    """A column of Arrow as texts, or as numbers where it holds some."""
    import pyarrow as pa  # noqa: PLC0415  (an extra)
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return pd.Series([str(value) for value in column.to_pylist()], dtype="str")
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not as_text and (number or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        plain = column.cast(pa.uint8()) if pa.types.is_boolean(kind) else column
        found = plain.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return pd.Series(np.asarray(found, dtype=np.float64))
    texts = pc.fill_null(column.cast(pa.string()), "").to_pandas().astype("str").str.strip()
    return texts if as_text else as_numbers(texts, form)


class _Several:
    """Files of the same columns, in whatever order each has them; each is a site."""

    def __init__(self, files: Sequence[RowFile], paths: Sequence[Path]) -> None:
        first = files[0]
        self.files, self.paths, self.where, self.form = files, paths, first.where, first.form
        self.columns, self.index = first.columns, first.index
        self.found = tuple(dict.fromkeys(line for file in files for line in file.found))
        own = set(self.columns) - set(self.index)
        for file in files:
            if other := sorted((set(file.columns) - set(file.index)) ^ own):
                raise UserError(
                    f"{file.where}: column '{other[0]}' is not in all files of the folder"
                )

    def chunks(self, texts: Collection[str], numbers: Collection[str]) -> Iterator[Chunk]:
        """The rows of all, each with its file."""
        for path, file in zip(self.paths, self.files, strict=True):
            with closing(file.chunks(texts, numbers)) as chunks:  # type: ignore[type-var]
                for chunk in chunks:
                    yield replace(chunk, site=path)

    def place(self, row: int) -> str:
        """Never asked: a chunk knows its own file."""
        return f"row {row}"
