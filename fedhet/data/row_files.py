"""The files of a data set: one, or a folder of one for each site; rows of whatever format."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedhet.errors import UserError
from fedhet.reading.columns import Piece, RowFile
from fedhet.reading.csv_file import CsvFile
from fedhet.reading.parquet import ParquetFile, is_parquet

ROW_SUFFIXES = (".csv", ".tsv", ".parquet")
NPZ_SUFFIXES = (".npz",)
MAX_FILES = 10_000


def find_files(dataset: str, data_path: str, suffixes: Sequence[str]) -> tuple[Path, ...]:
    """The regular file at ``data_path``, or those of a folder, sorted, one for each site.

    Raises UserError that names what is missing.
    """
    if not data_path:
        raise UserError(f"data-path is empty: dataset {dataset} needs its file")
    path = Path(data_path).expanduser().absolute()
    if not path.exists():
        raise UserError(f"data-path {data_path}: no such file")
    if path.is_file():
        return (path,)
    if not path.is_dir():  # a device or a pipe may never end
        raise UserError(
            f"data-path {data_path}: no file; dataset {dataset} is a file, or a folder of one for "
            "each site"
        )
    try:
        found = sorted(
            one for one in path.iterdir()
            if one.suffix.lower() in suffixes and not one.name.startswith(".") and one.is_file()
        )  # fmt: skip
    except OSError as error:
        raise UserError(f"data-path {data_path}: {error.strerror}") from error
    if not 1 <= len(found) <= MAX_FILES:
        raise UserError(
            f"data-path {data_path}: a folder must hold 1 to {MAX_FILES:,} files "
            f"{' '.join(suffixes)}, one for each site, and has {len(found):,}"
        )
    return tuple(found)


def holds(path: Path, suffixes: Sequence[str]) -> bool:
    """Whether a path is such a file, or a folder with some."""
    if path.is_dir():
        return any(one.suffix.lower() in suffixes for one in path.iterdir())
    return path.is_file() and path.suffix.lower() in suffixes


def open_rows(paths: Sequence[Path]) -> RowFile:
    """A file of rows, by what it begins with; several are one after the other."""
    if len(paths) > 1:
        return _Several(paths)
    path = paths[0]
    try:
        return ParquetFile(path) if is_parquet(path) else CsvFile(path)
    except OSError as error:
        raise UserError(f"data-path {path}: {error.strerror}") from error


class _Several:
    """Files of the same columns, in whatever order each has them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        first = open_rows(paths[:1])
        self.columns, self.where = first.columns, first.where

    def pieces(self, texts: Sequence[str], numbers: Sequence[str] = ()) -> Iterator[Piece]:
        """The rows of all, each with its file, which is its site."""
        for path in self.paths:
            file = open_rows([path])
            if other := sorted(set(file.columns) ^ set(self.columns)):
                raise UserError(
                    f"{file.where}: column {other[0]!r} is not in all files of the folder"
                )
            for piece in file.pieces(texts, numbers):
                yield replace(piece, file=path)
