"""Dataset ``table``: the rows of CSV or Parquet files, numbers and categories with gaps."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedhet.data.data_file import (
    MAX_BYTES,
    MAX_DIFFERENT,
    MISSING,
    Chunk,
    Classes,
    Content,
    DataFile,
    Reading,
    Sites,
    Stream,
    canonical,
    need,
    places_of,
)
from fedhet.data.image_source import Shape
from fedhet.data.inputs import Inputs
from fedhet.data.row_files import ROW_SUFFIXES, find_files, open_rows
from fedhet.errors import UserError
from fedhet.reading.columns import MAX_ROWS, Numbers, Piece, RowFile, Texts, Where, shown

_GAPS = dict.fromkeys(MISSING, "nan")  # the commonest spellings: others are seen one by one


class Coder:
    """Numbers for the values of a categorical column: their place in the list, NaN for a gap.

    Without a list of values they are numbered as they appear.
    """

    def __init__(self, name: str, values: Sequence[str]) -> None:
        self.code = places_of(values, f"categories '{name}'")
        self._open = not values

    def numbers(self, column: Texts, where: Where) -> npt.NDArray[np.float32]:
        """(k,) float32; UserError for a value that is not in the list."""
        return np.array(
            [self._one(value, where, index) for index, value in enumerate(column)],
            dtype=np.float32,
        )

    def _one(self, value: str, where: Where, index: int) -> float:
        plain = canonical(value)
        found = self.code.get(plain)
        if found is not None:
            return found
        if plain.lower() in MISSING:
            return np.nan
        if not self._open:
            raise UserError(f"{where(index)}: {shown(value)} is none of its categories")
        if len(self.code) >= MAX_DIFFERENT:
            raise UserError(f"{where(index)}: more than {MAX_DIFFERENT:,} categories")
        self.code[plain] = len(self.code)
        return self.code[plain]


def plain_numbers(column: Texts | Numbers, where: Where) -> npt.NDArray[np.float32]:
    """(k,) float32 of texts or numbers, NaN for a gap; UserError for what is no finite number."""
    found = column if isinstance(column, np.ndarray) else _parsed(column, where)
    with np.errstate(over="ignore"):
        small = found.astype(np.float32)
    if np.isinf(small).any():
        index = int(np.flatnonzero(np.isinf(small))[0])
        raise UserError(f"{where(index)}: {shown(str(column[index]))} is no finite number")
    return small


def _parsed(column: Texts, where: Where) -> Numbers:
    gap = _GAPS.get
    if "_" not in "".join(column):  # float takes 1_000
        with suppress(ValueError):
            return np.array([float(gap(value, value)) for value in column])
    return np.array([_number(value, where, index) for index, value in enumerate(column)])


def _number(value: str, where: Where, index: int) -> float:
    if value.strip().lower() in MISSING:
        return np.nan
    if "_" not in value:
        with suppress(ValueError):
            return float(value)
    raise UserError(
        f"{where(index)}: {shown(value)} is no number: name the column in categories or in ignore"
    )


@dataclass(frozen=True)
class Columns:
    """How the columns of a table become numbers."""

    features: tuple[str, ...]
    coders: dict[str, Coder]

    @staticmethod
    def of(features: Sequence[str], reading: Reading) -> "Columns":
        """Those features, of which some are categories."""
        coders = {name: Coder(name, values) for name, values in reading.categories}
        return Columns(tuple(features), coders)

    @property
    def plain(self) -> list[str]:
        """Those that are numbers."""
        return [name for name in self.features if name not in self.coders]

    def numbers(self, piece: Piece) -> Chunk:
        """(k, f) float32."""
        found = np.empty((len(piece), len(self.features)), dtype=np.float32)
        for place, name in enumerate(self.features):
            coder = self.coders.get(name)
            found[:, place] = (
                plain_numbers(piece.columns[name], piece.at(name))
                if coder is None
                else coder.numbers(piece.texts(name), piece.at(name))
            )
        return found

    def inputs(self) -> Inputs:
        """What the rows are; categories in the order of the features."""
        categories = tuple(
            (name, tuple(self.coders[name].code)) for name in self.features if name in self.coders
        )
        return Inputs.table(self.features, categories)


@dataclass(frozen=True)
class Table(DataFile):
    """Rows: the target, the sites, and everything else that is not ignored."""

    dataset = "table"

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Stream:
        """The rows in the file's order."""
        del shape
        return self.rows(open_rows(self.paths), classes)

    def rows(self, file: RowFile, classes: tuple[str, ...]) -> Stream:
        """The rows of a file, in its order."""
        reading = self.reading
        need(file.columns, [reading.target], "target", file.where)
        need(file.columns, reading.site, "site", file.where)
        need(file.columns, reading.ignore, "ignore", file.where)
        need(file.columns, [name for name, _ in reading.categories], "categories", file.where)
        self._check_categories()
        others = {reading.target, *reading.site, *reading.ignore}
        features = [name for name in file.columns if name not in others]
        if not features:
            raise UserError(f"{file.where}: no column is left for the models to see")
        columns = Columns.of(features, reading)
        targets, sites = Classes(reading, classes), Sites()

        def content() -> Content:
            labels, names = targets.done()
            return Content(columns.inputs(), labels, names, *sites.done())

        texts = [name for name in features if name in columns.coders]
        pieces = file.pieces(keys(reading, texts), columns.plain)
        chunks = stored_chunks(pieces, reading, targets, sites, columns.numbers)
        return Stream(chunks, content)

    def _check_categories(self) -> None:
        taken = {self.reading.target, *self.reading.site, *self.reading.ignore}
        for name, values in self.reading.categories:
            if name in taken:
                raise UserError(f"categories: column '{name}' is already target, site or ignored")
            if self.reading.declared and not values:
                raise UserError(
                    f"categories: '{name}' needs its values on a node, such as "
                    f"categories={{{name}: [a, b]}}: nodes must not learn them from each other"
                )


def keys(reading: Reading, others: Sequence[str]) -> list[str]:
    """The columns that are asked for as texts: target, sites and ``others``, each once."""
    return list(dict.fromkeys((reading.target, *reading.site, *others)))


def stored_chunks(
    pieces: Iterator[Piece],
    reading: Reading,
    targets: Classes,
    sites: Sites,
    convert: Callable[[Piece], Chunk],
) -> Iterator[Chunk]:
    """What ``convert`` makes of every piece of a file, whose targets and sites are noted with it.

    Raises UserError once all of it takes more than the bound of any data set, or is too many rows.
    """
    stored = rows = 0
    for piece in pieces:
        found = convert(piece)
        _add_keys(piece, reading, targets, sites)
        stored, rows = stored + found.nbytes, rows + len(piece)
        if stored > MAX_BYTES:
            raise UserError(f"{piece.where}: more than {MAX_BYTES >> 30} GiB of examples")
        if rows > MAX_ROWS:
            raise UserError(f"{piece.where}: more than {MAX_ROWS:,} rows")
        yield found


def _add_keys(piece: Piece, reading: Reading, targets: Classes, sites: Sites) -> None:
    """Note the targets and the sites of some rows; a file of several is a site itself."""
    targets.add(piece.texts(reading.target), piece.at(reading.target))
    if reading.site:
        columns = [piece.texts(name) for name in reading.site]
        sites.add(list(zip(*columns, strict=True)), piece.at(", ".join(reading.site)))
    elif piece.file is not None:
        sites.add_file(piece.file, len(piece))


def open_table(data_path: str, reading: Reading) -> Table:
    """The source at ``data_path``; UserError for no file."""
    return Table(find_files("table", data_path, ROW_SUFFIXES), reading)
