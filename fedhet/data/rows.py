"""Files of rows read by pandas in chunks, and what is found out about the form of a CSV file.

Nothing here knows a target or a site. A file has columns; some are asked for as texts, the others
as numbers where they are numbers.
"""

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from charset_normalizer import from_bytes
from clevercsv import Detector

from fedhet.data import formats
from fedhet.data.inputs import MAX_COLUMNS, Reading, listed
from fedhet.errors import UserError, one_line

DATA_FRAME = "the DataFrame"  # where its rows are, in messages
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
SAMPLE = 256 << 10  # bytes from which the form of a file is found out
SAMPLE_ROWS = 200
DIALECT = 24 << 10  # characters of them that are enough for separator and quotes
EXACT_DIGITS = 15  # more than a float keeps
SENTENCE = 5  # words of a text that is no name of a column
CELLS = 2_000_000  # of a chunk
_MARKS = {"\ufeff".encode(f"utf-{n}-{e}"): f"utf-{n}" for n in (32, 16) for e in ("le", "be")}
# Encodings that are proposed where a file is not UTF-8.
_ENCODINGS = (
    "latin_1", "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "koi8_r", "shift_jis", "gb18030",
    "big5", "euc_kr", "euc_jp",
)  # fmt: skip
# Comments, empty lines and Excel's line of the separator, above the header.
_TOP = re.compile(r'\ufeff?([ \t]*(#[^\r\n]*|"?sep=."?)?[ \t]*(\r\n|\r|\n))*')
_PARTS = {"train", "training", "test", "testing", "val", "valid", "validation"}
_UNREADABLE = (OSError, EOFError, zlib.error)  # the last two of a gzip that ends early
_Record = tuple[int, list[str]]  # the line that a row ends in, and its fields
Rows = tuple["RowFile", pd.DataFrame]


class Unclear(UserError):
    """A key that a person must give: its name, and the columns that it may be."""

    def __init__(self, key: str, text: str, choices: Sequence[str]) -> None:
        super().__init__(f"{key}: {text}")
        self.key, self.choices = key, choices


class RowFile:
    """A file of rows: its columns in order, what it is called in messages, what was found out.

    ``index`` are columns that number the rows and are left out unless a key names them; ``files``
    are those of a folder, in turn, else this one; ``site`` is the path of one that is a site.
    """

    def __init__(self, where: str, form: Reading) -> None:
        self.where, self.form, self.files, self.row = where, form, [self], "row"
        self.site: Path | None = None
        self.columns: list[str] = []
        self.index: Collection[str] = ()
        self.written: Collection[str] = ()  # whose numbers are more than numbers: 007, 19 digits
        self.found: list[str] = []

    def chunks(self, texts: Collection[str], numbers: Collection[str]) -> Iterator[Rows]:
        """Yield the file and these columns of some rows, whose index are their numbers from 0.

        Texts are stripped ``str``; numbers only are float64. Raise UserError for damage.
        """
        for file in self.files:
            rows = 0
            frames = file._frames(list(dict.fromkeys((*texts, *numbers))), texts)
            for frame in filter(len, frames):
                columns = frame.set_axis(range(rows, rows + len(frame))).items()
                rows += len(frame)
                yield file, pd.DataFrame({
                    name: _texts(column).where(column.notna(), "") if name in texts
                    else as_numbers(column, file.form)
                    for name, column in columns
                })  # fmt: skip
            if not rows:
                raise UserError(f"{file.where}: there is no row")

    def raw(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Yield these columns of some rows as they are stored, such as bytes."""
        return (frame for file in self.files for frame in file._frames(list(columns), ()))

    def _frames(self, columns: list[str], texts: Collection[str]) -> Iterator[pd.DataFrame]:
        raise NotImplementedError

    def lines(self) -> Iterator[int]:
        """Yield the line, else the number, of every row."""
        return count()

    def at(self, row: int, column: str) -> str:
        """Return the place of a value for messages; rows may have several lines."""
        place = next(islice(self.lines(), row, None), row)
        return f"{self.where} {self.row} {place} column '{column}'"

    def _name(self, cells: Sequence[str]) -> None:
        """Set names of columns: ``column-3`` for one without, ``age.2`` for a second ``age``."""
        for place, cell in enumerate(cells, start=1):
            first = cell or f"column-{place}"
            names = chain([first], (f"{first}.{number}" for number in count(2)))
            self.columns.append(next(name for name in names if name not in self.columns))
            if self.columns[-1] != first:
                self.found.append(f"the second column '{first}' is called '{self.columns[-1]}'")


def open_rows(paths: Sequence[Path], form: Reading = Reading()) -> RowFile:
    """Open a file of rows, told apart by its first bytes, or several files in turn."""
    if len(paths) > 1:
        return _several(paths, form)
    (path,), where = paths, f"data-path {paths[0]}"
    try:
        with path.open("rb") as file:
            head = file.read(4)
        if head == b"PAR1":
            return _open_parquet(path, form)
        frame, lines = formats.read_frame(path, form.sheet)
        if isinstance(frame, pd.DataFrame):
            opened: RowFile = of_frame(frame, form, where)
        elif frame is not None:
            form = form.changed(separator="comma", encoding="")
            opened = CsvFile(where, form, partial(io.BytesIO, frame))
        else:
            unpack: Any = gzip.open if head[:2] == b"\x1f\x8b" else open
            opened = CsvFile(where, form, partial(unpack, path, "rb"))
    except _UNREADABLE as error:
        raise UserError(f"{where}: {one_line(error)}") from error
    opened.found[:0] = lines
    return opened


def _size(columns: int) -> int:
    return max(256, min(65_536, CELLS // max(1, columns)))


def _texts(series: pd.Series) -> pd.Series:
    """Return values as texts, stripped; bytes and lists as Python writes them."""
    return (series.map(str) if series.dtype == object else series).astype("str").str.strip()


def as_numbers(series: pd.Series, form: Reading) -> pd.Series:
    """Return numbers, if all values are numbers or TRUE and FALSE; else texts, NaN for gaps."""
    if series.dtype.kind in "iufb":  # a float would make one of two long whole numbers
        return series.astype(np.float64) if series.dtype.kind == "b" else series
    texts = _texts(series)
    texts = texts.mask(series.isna() | texts.str.lower().isin(list(form.missing)))
    numbers = to_numbers(texts.dropna(), form)
    return texts if numbers.isna().any() else numbers.reindex(texts.index).astype(np.float64)


def to_numbers(texts: pd.Series, form: Reading) -> pd.Series:
    """Return float64 of texts without gaps, NaN for one that is no number; numbers as they are."""
    if texts.dtype.kind in "iuf":
        return texts
    codes, unique = pd.factorize(texts)  # a category's few values are looked at once
    known = pd.Series(unique, dtype="str")
    plain = known.str.replace(form.thousands, "", regex=False) if form.thousands else known
    if form.decimal == ",":
        plain = plain.str.replace(",", ".", regex=False)
    numbers = pd.to_numeric(plain, errors="coerce").astype(np.float64)
    numbers = numbers.fillna(known.str.lower().map({"true": 1.0, "false": 0.0}))
    return pd.Series(numbers.to_numpy(np.float64)[codes], index=texts.index, dtype=np.float64)


def _number(point: str, group: str) -> re.Pattern[str]:
    """Return what numbers look like that have this decimal sign and thousands separator."""
    point, whole = re.escape(point), rf"\d{{1,3}}({re.escape(group)}\d{{3}})+|\d+"
    return re.compile(rf"[+-]?(({whole})({point}\d*)?|{point}\d+)(e[+-]?\d+)?", re.ASCII | re.I)


_PLAIN = _number(".", "")
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_CODE = re.compile(rf"0\d+|\d{{{EXACT_DIGITS + 1},}}", re.ASCII)


# --- CSV ----------------------------------------------------------------


class CsvFile(RowFile):
    """A CSV file: its form, found out from its first lines, and the rows below the header."""

    def __init__(self, where: str, form: Reading, bytes_: Callable[[], IO[bytes]]) -> None:
        super().__init__(where, form)
        self.row, self._bytes, self._checked, self._skip = "line", bytes_, False, 0
        records = self._separated(self._text())
        if not records:
            raise UserError(f"{self.where}: the file is empty")
        self._choose_numbers(self._name_columns(records))

    def _text(self) -> str:
        """Return the first lines, whole ones, decoded; raise UserError for what is no table."""
        with self._bytes() as file:
            head = file.read(SAMPLE)
        marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "")
        encoding = self.form.encoding or marked or "utf-8-sig"
        if marked and not self.form.encoding:
            self.found.append(f"{marked} by its mark (encoding)")
        self.form = self.form.changed(encoding=encoding)
        if b"\0" in head and not encoding.lower().startswith(("utf-16", "utf-32")):
            raise UserError(f"{self.where}: a file of an unknown format: save it as CSV or Parquet")
        try:
            with self._open() as file:
                text = file.read(SAMPLE)
        except LookupError:
            raise UserError(f"encoding: '{encoding}' is unknown; known: latin-1, ...") from None
        except UnicodeDecodeError as error:
            raise self._bad_byte() from error
        if len(text) == SAMPLE:
            text = text[: text.rfind("\n") + 1] or text
        above = top[0].splitlines() if (top := _TOP.match(text)) else []
        self._skip = len(above)
        if match := re.search(r"sep=(.)", "".join(above)):
            self.form = self.form.changed(separator=self.form.separator or match[1])
        if comments := sum("#" in line for line in above):
            self.found.append(f"{comments} lines of comments before the header are left out")
        return text[top.end() if top else 0 :]

    def _open(self) -> IO[str]:
        """Open the file at its first row; pandas would count a name of two lines as one."""
        file = io.TextIOWrapper(self._bytes(), self.form.encoding, newline="")
        for _ in range(self._skip):
            file.readline()
        return file

    def _bad_byte(self) -> UserError:
        """Return an error that names the first byte that is not of the encoding, and its line."""
        encoding = self.form.encoding.removesuffix("-sig")
        with self._bytes() as file:
            for number, line in enumerate(file if encoding == "utf-8" else (), start=1):
                try:
                    line.decode(encoding)
                except UnicodeDecodeError as error:
                    text = line + b"".join(islice(file, SAMPLE_ROWS))
                    best = from_bytes(text, cp_isolation=[*_ENCODINGS]).best()
                    likely = best.could_be_from_charset if best else _ENCODINGS
                    usual = [f"encoding={one}" for one in _ENCODINGS if one in likely][:2]
                    names = " or ".join(usual).replace("_", "-")
                    byte = f"line {number}: byte 0x{line[error.start]:02x} is not utf-8"
                    return UserError(f"{self.where} {byte}: give its encoding, such as {names}")
        return UserError(f"{self.where}: not {encoding}: give the encoding, as encoding=latin-1")

    def _separated(self, text: str) -> list[_Record]:
        """Return the first rows, cut as clevercsv finds it: by form and kinds of the cells."""
        chosen = SEPARATORS.get(self.form.separator, self.form.separator)
        if len(chosen) > 1:
            raise UserError(f"separator: '{chosen}' must be one sign, or {', '.join(SEPARATORS)}")
        dialect = Detector().detect(text[:DIALECT], delimiters=[*SEPARATORS.values()])
        single = dialect is not None and dialect.quotechar == "'" and '"' not in text
        if single and not self.form.quote:
            self.found.append("quoted by ' (quote)")
        quote = self.form.quote or ("'" if single else '"')  # with "none" its sign has no effect
        self._quoting: Any = {"quotechar": quote[0], "quoting": csv.QUOTE_NONE * (quote == "none")}
        for sign in (chosen or (dialect and dialect.delimiter) or ",", chosen or ","):
            self.form = self.form.changed(quote=quote, separator=sign)
            filled = (one for one in self._read(io.StringIO(text, newline="")) if any(one[1]))
            records = list(islice(filled, SAMPLE_ROWS + 1))
            if sign != " " or len({len(row) for _, row in records[1:]}) < 2:
                break  # else words of a text
        if sign != "," and not chosen:
            word = next(name for name, one in SEPARATORS.items() if one == sign)
            self.found.append(f"separated by {word} (separator)")
        return records

    def _name_columns(self, records: Sequence[_Record]) -> list[list[str]]:
        """Find the header and the names; return the columns of the values below."""
        width = Counter(len(row) for _, row in records[1:] or records).most_common(1)[0][0]
        if width > MAX_COLUMNS:
            raise UserError(f"{self.where}: {width:,} columns, at most {MAX_COLUMNS:,}")
        # A title may stand before the record that is the header, or the first row without one.
        least = width if width < 3 else width - 1
        wide = (k for k, (_, row) in enumerate(records) if sum(map(bool, row)) >= least)
        first = next(wide, 0)
        head, *body = [row for _, row in records[first:]]
        if first:
            above = " / ".join(" ".join(filter(None, row)) for _, row in records[:first])
            self.found.append(f"{first} rows above the header are left out: {one_line(above, 60)}")
        if len(head) == width + 1 and not head[-1]:  # a delimiter after the header alone
            del head[-1]
            self.found.append("the empty last column of the header is left out")
        empty = not any("".join(row[width - 1 : width]) for row in (head, *body))
        if len(head) < width and not empty:
            head.insert(0, "")  # R writes no name above the names of rows
        self._least = width - empty
        header = self._is_header(head, body, title=bool(first))
        if header or first:
            self._skip += records[first if header else first - 1][0]
        cells = [*self.form.columns] or (head if header else [])
        self._name([cell.strip("\ufeff ") for cell in (*cells, *[""] * (width - len(cells)))])
        rows = body if header else [head, *body]
        values = [[row[k] for row in rows if k < len(row)] for k in range(width)]
        self.index = [
            name for place, name in enumerate(self.columns)
            if re.fullmatch(r"column-\d+|Unnamed: \d+", name)
            and (place == 0 or not any(values[place]))
        ]  # fmt: skip
        if self.index:
            self.found.append(f"without a name and left out: {', '.join(self.index)}")
        self.written = {
            name for name, cells in zip(self.columns, values, strict=True)
            if any(map(_CODE.fullmatch, cells))
        }  # fmt: skip
        return values

    def _is_header(self, head: list[str], body: Sequence[list[str]], *, title: bool) -> bool:
        """Return whether a row holds names; below a ``title`` only different ones are names."""
        wanted, width, known = list(self.form.columns), self._least, [*filter(None, head)]
        named = len({*known}) == len(known) and not any(map(_PLAIN.fullmatch, known))
        data = self._is_data(head, body) or (title and not named)
        if wanted and len(wanted) not in (width, len(head)):
            raise UserError(f"columns: {len(wanted)} names, but {self.where} has {width} columns")
        if data and not wanted:
            which = "row below the title" if title else "first line"
            looks = f"the {which} looks like data ({one_line(', '.join(head), 60)})"
            names = [f"c{k}" for k in range(1, width + 1)]
            how = f"without a header, name the columns: columns={one_line(','.join(names), 60)}"
            raise Unclear("columns", f"{self.where}: {looks}: {how}", names)
        return not data or head[: len(wanted)] == wanted

    def _is_data(self, cells: list[str], body: Sequence[list[str]]) -> bool:
        """Return whether the first row is one like the others and no header."""
        filled = [cell for cell in cells if cell]
        if not body or filled in ([*map(str, range(k, len(filled) + k))] for k in (0, 1)):
            return False
        numbers = [p for p, one in enumerate(cells) if _PLAIN.fullmatch(one.replace(",", "."))]
        known = [p for p, one in enumerate(cells) if one.lower() not in self.form.missing]
        words = [p for p in known if p not in numbers]
        if not words:
            return bool(numbers)
        others = [row for row in body if row != cells]
        again = [p for p in words if any(p < len(r) and r[p] == cells[p] for r in others)]
        # A name may also be a value, such as y. Two such names, numbers or a sentence mean data.
        other = bool(numbers) or any(len(cell.split()) >= SENTENCE for cell in cells)
        return len(others) > 1 and (len(again) > 1 or (bool(again) and other))

    def _choose_numbers(self, columns: Sequence[Sequence[str]]) -> None:
        """Choose the decimal sign and the thousands separator that make most columns numbers."""
        form = self.form
        known = [[one for one in column if one.lower() not in form.missing] for column in columns]
        signs = [(point, group) for group in ("", *".,", *" \xa0'") for point in ".,"]
        if form.separator == ",":  # a quoted 1,234 is one of thousands there
            signs.sort(key=lambda pair: pair[0] == ",")
        allowed = [(form.decimal or point, form.thousands or group) for point, group in signs]

        def fits(pair: tuple[str, str]) -> int:
            match = _number(*pair).fullmatch
            return sum(bool(texts) and all(map(match, texts)) for texts in known)

        decimal, thousands = max((one for one in allowed if one[0] != one[1]), key=fits)
        if decimal == "," and not form.decimal:
            self.found.append("decimal comma (decimal)")
        if thousands and not form.thousands:
            self.found.append(f"thousands by {thousands!r} (thousands)")
        self.form = form.changed(decimal=decimal, thousands=thousands)
        dotted = [[one for one in column if "." in one] for column in known]
        grouped = [one[0] for one in dotted if one and all(map(_GROUPED.fullmatch, one))]
        if grouped and form.separator == ";" and decimal == "." and not form.decimal:
            self.found.append(f"{grouped[0]} has a decimal point (thousands=. reads it as whole)")

    def _frames(self, columns: list[str], texts: Collection[str]) -> Iterator[pd.DataFrame]:
        gaps = {style(one) for one in self.form.missing for style in (str.lower, str.upper)}
        try:
            with self._open() as file:
                reader = pd.read_csv(
                    file,
                    sep=self.form.separator.replace(" ", r"\s+"), decimal=self.form.decimal,
                    thousands=self.form.thousands or None, **self._quoting,
                    skipinitialspace=True, low_memory=False, index_col=False,
                    header=None, names=self.columns, dtype=dict.fromkeys(texts, "str"),
                    na_values={name: sorted(gaps) for name in columns if name not in texts},
                    keep_default_na=False, chunksize=_size(len(self.columns)),
                )  # fmt: skip
                for frame in reader:
                    self._check_short(frame[self.columns[-1]])
                    again = frame[self.columns[0]] == self.columns[0]
                    if again.any() and (again := (frame == self.columns).all(axis=1)).any():
                        note = "lines that repeat the header are left out"
                        self.found += [] if note in self.found else [note]
                    yield frame.loc[~again, columns]
        except UnicodeDecodeError as error:
            raise self._bad_byte() from error
        except pd.errors.EmptyDataError:
            pass
        except (ValueError, csv.Error) as error:
            start = {"line": self._skip, "row": self._skip + 1}
            place = re.compile(r"(line|row) (\d+)")
            text = place.sub(lambda one: f"line {start[one[1]] + int(one[2])}", one_line(error))
            more = "; quote=none reads a quote as a sign" if "inside string" in text else ""
            raise UserError(f"{self.where}: no CSV: {text}{more}") from error
        except _UNREADABLE as error:
            raise UserError(f"{self.where}: {one_line(error)}") from error

    def _check_short(self, last: pd.Series) -> None:
        """Raise UserError for a row shorter than others, if the ``last`` column has a gap."""
        if not self._checked and (last.isna() | (last == "")).any():
            self._checked = True
            for line, row in self._records():
                if len(row) < self._least:
                    fields = f"{len(row)} fields, but others {len(self.columns)}"
                    raise UserError(f"{self.where} line {line}: {fields}")

    def lines(self) -> Iterator[int]:
        """Yield the line of every row that does not repeat the header."""
        return (line for line, row in self._records() if row != self.columns)

    def _records(self) -> Iterator[_Record]:
        with self._open() as file:
            for line, row in self._read(file):
                yield self._skip + line, row

    def _read(self, lines: Any) -> Iterator[_Record]:
        """Read rows as Python does, cells stripped: for samples, and for the lines of rows."""
        sign = self.form.separator
        csv.field_size_limit(1 << 27)
        if sign == " ":
            lines = (re.sub(r"[ \t]+", " ", line.strip(" \t")) for line in lines)
        reader = csv.reader(lines, delimiter=sign, skipinitialspace=True, **self._quoting)
        return ((reader.line_num, [*map(str.strip, row)]) for row in reader if row)


# --- frames, Parquet, and several files ---------------------------------------------------------


class FrameFile(RowFile):
    """Rows that are in DataFrames: somebody's own, of a Parquet file, of a data set of the hub.

    ``batches`` gives these columns of the rows, by their ``stored`` names, some rows at a time.
    """

    def __init__(
        self, where: str, form: Reading, stored: Sequence[Any], index: Collection[str],
        batches: Callable[[list[Any], int], Iterator[pd.DataFrame]],
    ) -> None:  # fmt: skip
        super().__init__(where, form)
        self._batches = batches
        self._name([str(name).strip() for name in stored])
        self._stored = dict(zip(self.columns, stored, strict=True))
        self.index = [name for name, old in self._stored.items() if old in index]
        if self.index:
            self.found.append(f"the index of pandas is left out: {', '.join(self.index)}")
        keys = ("separator", "quote", "encoding", "columns", "sheet")
        if where != DATA_FRAME and (idle := [key for key in keys if getattr(form, key)]):
            self.found.append(f"keys without effect on this file: {listed(idle)}")

    def _frames(self, columns: list[str], texts: Collection[str]) -> Iterator[pd.DataFrame]:
        stored = [self._stored[name] for name in columns]
        try:
            for frame in self._batches(stored, _size(len(columns))):
                yield frame[stored].set_axis(columns, axis=1)
        except (OSError, ValueError) as error:  # Arrow's own are of these
            raise UserError(f"{self.where}: damaged: {one_line(error)}") from error


def of_frame(frame: pd.DataFrame, form: Reading, where: str = DATA_FRAME) -> RowFile:
    """Return a DataFrame as a file of rows."""
    return FrameFile(where, form, list(frame.columns), (), lambda names, _: iter([frame[names]]))


def _open_parquet(path: Path, form: Reading) -> RowFile:
    where = f"data-path {path}"
    try:
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path)
    except ImportError as error:
        raise UserError(f"{where}: Parquet needs pyarrow: pip install 'fedhet[parquet]'") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: not a valid Parquet file: {one_line(error)}") from error
    schema = file.schema_arrow

    def batches(names: list[str], size: int) -> Iterator[pd.DataFrame]:
        for batch in file.iter_batches(batch_size=size, columns=names):
            yield batch.to_pandas(integer_object_nulls=True, ignore_metadata=True)

    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return FrameFile(where, form, schema.names, index, batches)


def _several(paths: Sequence[Path], form: Reading) -> RowFile:
    """Return files of the same columns, in any order; each is a site, but for parts of one set."""
    files = [open_rows([path], form) for path in paths]
    first, whole = files[0], copy(files[0])
    whole.files = files
    whole.written = {name for file in files for name in file.written}
    whole.found = list(dict.fromkeys(line for file in files for line in file.found))
    stems = [re.sub(r"[-_]?\d+(-of-\d+)?$", "", p.name.split(".")[0].lower()) for p in paths]
    numbered = all(re.search(r"-of-\d+\.", p.name) for p in paths)
    parts = {*stems} <= _PARTS or (numbered and len(paths) > len({*stems}))
    if parts:
        whole.found.append(f"parts of one data set, pooled: {listed([p.name for p in paths])}")
    whole.site = None if parts else paths[0].parent
    names = {*first.columns} - {*first.index}
    for file, path in zip(files, paths, strict=True):
        file.site = None if parts else path
        if other := sorted(({*file.columns} - {*file.index}) ^ names):
            raise UserError(f"{file.where}: column '{other[0]}' is not in all files of the folder")
    return whole
