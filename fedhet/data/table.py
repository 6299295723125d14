"""Dataset ``table``: the rows of a CSV (or Parquet) file, numbers and categories with gaps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedhet.data.csv_file import CsvFile
from fedhet.data.inputs import Inputs
from fedhet.data.reading import (
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
    find_file,
    need,
    shown,
)
from fedhet.errors import UserError

Where = Callable[[int], str]
Lines = Sequence[int]
Rows = Sequence[Sequence[str]]


class Coder:
    """Numbers for the values of a categorical column: their place in the list, NaN for a gap.

    Without a list of values they are numbered as they appear.
    """

    def __init__(self, values: Sequence[str]) -> None:
        self.code = {canonical(value): number for number, value in enumerate(values)}
        self._open = not values

    def numbers(self, column: Sequence[str], where: Where) -> npt.NDArray[np.float32]:
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


def plain_numbers(column: Sequence[str], where: Where) -> npt.NDArray[np.float32]:
    """(k,) float32 of texts, NaN for a gap; UserError for what is no finite number."""
    try:
        found = np.array(list(map(float, column)))
    except ValueError:
        found = np.array([_number(value, where, index) for index, value in enumerate(column)])
    with np.errstate(over="ignore"):
        small = found.astype(np.float32)
    if np.isinf(small).any():
        index = int(np.flatnonzero(np.isinf(small))[0])
        raise UserError(f"{where(index)}: {shown(column[index])} is no finite number")
    return small


def _number(value: str, where: Where, index: int) -> float:
    try:
        return float(value)
    except ValueError:
        if value.strip().lower() in MISSING:
            return np.nan
        raise UserError(
            f"{where(index)}: {shown(value)} is no number: name the column in categories or in "
            "ignore"
        ) from None


@dataclass(frozen=True)
class Columns:
    """How the columns of a table become numbers."""

    features: tuple[str, ...]
    places: tuple[int, ...]
    coders: dict[str, Coder]

    @staticmethod
    def of(columns: Sequence[str], features: Sequence[str], reading: Reading) -> "Columns":
        """The features of a file whose columns are ``columns``."""
        coders = {name: Coder(values) for name, values in reading.categories}
        return Columns(tuple(features), tuple(columns.index(name) for name in features), coders)

    def numbers(self, file: CsvFile, lines: Lines, rows: Rows) -> Chunk:
        """(k, f) float32."""
        found = np.empty((len(rows), len(self.features)), dtype=np.float32)
        for place, (name, index) in enumerate(zip(self.features, self.places, strict=True)):
            column = [row[index] for row in rows]
            where = _where(file, lines, name)
            coder = self.coders.get(name)
            found[:, place] = (
                plain_numbers(column, where) if coder is None else coder.numbers(column, where)
            )
        return found

    def inputs(self) -> Inputs:
        """What the rows are; categories in the order of the features."""
        categories = tuple(
            (name, tuple(self.coders[name].code)) for name in self.features if name in self.coders
        )
        return Inputs.table(self.features, categories)


def _where(file: CsvFile, lines: Lines, column: str) -> Where:
    return lambda index: file.at(lines[index], column)


@dataclass(frozen=True)
class Table(DataFile):
    """Rows of a CSV: the target, the sites, and everything else that is not ignored."""

    dataset = "table"

    def listing(self, image_size: int, classes: tuple[str, ...]) -> Stream:
        """The rows in the file's order."""
        del image_size
        reading, file = self.reading, CsvFile(self.path)
        need(file.columns, [reading.target], "target", file.where)
        need(file.columns, reading.site, "site", file.where)
        need(file.columns, reading.ignore, "ignore", file.where)
        need(file.columns, [name for name, _ in reading.categories], "categories", file.where)
        self._check_categories()
        others = {reading.target, *reading.site, *reading.ignore}
        features = [name for name in file.columns if name not in others]
        if not features:
            raise UserError(f"{file.where}: no column is left for the models to see")
        columns = Columns.of(file.columns, features, reading)
        targets, sites = Classes(reading, classes), Sites()

        def content() -> Content:
            labels, names = targets.done()
            return Content(columns.inputs(), labels, names, *sites.done())

        def numbers(lines: Lines, rows: Rows) -> Chunk:
            return columns.numbers(file, lines, rows)

        return Stream(stored_chunks(file, reading, targets, sites, numbers), content)

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


def stored_chunks(
    file: CsvFile,
    reading: Reading,
    targets: Classes,
    sites: Sites,
    convert: Callable[[Lines, Rows], Chunk],
) -> Iterator[Chunk]:
    """What ``convert`` makes of every piece of a file, whose targets and sites are noted with it.

    Raises UserError once all of it takes more than the bound of any data set.
    """
    stored = 0
    for lines, rows in file.chunks():
        found = convert(lines, rows)
        _add_keys(file, lines, rows, reading, targets, sites)
        stored += found.nbytes
        if stored > MAX_BYTES:
            raise UserError(f"{file.where}: more than {MAX_BYTES >> 30} GiB of examples")
        yield found


def _add_keys(
    file: CsvFile, lines: Lines, rows: Rows, reading: Reading,
    targets: Classes, sites: Sites,
) -> None:  # fmt: skip
    """Note the targets and the sites of some rows."""
    place = file.columns.index(reading.target)
    targets.add([row[place] for row in rows], _where(file, lines, reading.target))
    if reading.site:
        places = [file.columns.index(name) for name in reading.site]
        where = _where(file, lines, ", ".join(reading.site))
        sites.add([tuple(row[place] for place in places) for row in rows], where)


def open_table(data_path: str, reading: Reading) -> Table:
    """The source at ``data_path``; UserError for no file."""
    return Table(find_file("table", data_path), reading)
