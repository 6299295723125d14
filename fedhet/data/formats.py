"""Files of other programs: read by the library that knows the format, or named with what to do."""
# ruff: noqa: PLC0415  (SciPy's and scikit-learn's readers: half a second, for few files)

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedhet.data.inputs import existing
from fedhet.errors import UserError, brief

ROW_SUFFIXES = (
    *(f".{one}{packed}" for one in ("csv", "tsv", "data") for packed in ("", ".gz")),
    ".parquet", ".xlsx", ".xlsm", ".dta", ".sav", ".sas7bdat", ".arff", ".svm", ".libsvm",
    ".jsonl", ".ndjson", ".feather",
)  # fmt: skip
NPZ_SUFFIXES = (".npz",)
_HEAD = 1024  # bytes by which a format is known
_SAVE = "save its rows as CSV or Parquet"
_IMAGES = "convert the images to PNG (16 bits keep the values), in a folder for each class"
_SIGNALS = "save windows as an NPZ with x (n, channels, time) and y (n,)"
# Formats that no library of ours reads: suffixes, first bytes, name, and what to do.
_OTHERS: tuple[tuple[str, bytes, str, str], ...] = (
    (".xls", rb"\xd0\xcf\x11\xe0", "an Excel workbook before 2007", "save it as .xlsx or CSV"),
    (".ods", rb"PK.*opendocument\.spreadsheet", "an OpenDocument sheet", "save it as .xlsx or CSV"),
    (".rds .rda .rdata", rb"RDX|RDA", "a file of R", "write.csv(data, FILE, row.names=FALSE)"),
    (".pkl .pickle .joblib .pt .pth", rb"\x80[\x02-\x05]", "a pickle, which may run code", _SAVE),
    (".h5 .hdf5 .hdf", rb"\x89HDF\r\n", "HDF5", f"{_SAVE}, or {_SIGNALS}"),
    (".mat", rb"MATLAB", "a file of MATLAB", f"scipy.io.loadmat reads it: {_SAVE}, or {_SIGNALS}"),
    (".dcm .dicom", rb".{128}DICM", "DICOM", f"{_IMAGES}, such as with pydicom"),
    (".nii .nii.gz", rb".{344}n[+i]1\0", "NIfTI", f"{_IMAGES}, such as slices with nibabel"),
    (".wav", rb"RIFF.{4}WAVE", "a WAV recording", f"{_SIGNALS}: scipy.io.wavfile reads it"),
    (".edf .bdf .hea", b"", "a recording of biosignals", f"{_SIGNALS}, such as with mne"),
    (".sqlite .db .sqlite3", rb"SQLite format 3", "an SQLite database", _SAVE),
    (".zip .bz2 .xz .zst .7z .rar .tar .tar.gz .tgz",
     rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf|Rar!", "an archive", "unpack it"),
    (".ts", rb"(#[^\n]*\n)*@problem[nN]ame", "a file of sktime", _SIGNALS),
    ("", rb"(?i).*@attribute\s+\S+\s+relational", "a relational ARFF", _SIGNALS),
    (".npy", rb"\x93NUMPY", "one NumPy array without labels", _SIGNALS),
)  # fmt: skip


def find_files(dataset: str, data_path: str, suffixes: Sequence[str]) -> tuple[Path, ...]:
    """Return the file at ``data_path``, or those of a folder, sorted, one for each site."""
    path = existing(dataset, data_path)
    try:
        inside = [path] if path.is_file() else sorted(path.iterdir())
    except OSError as error:
        raise UserError(f"data-path {data_path}: {error.strerror}") from error
    if files := tuple(p for p in inside if p == path or p.is_file() and holds(p, suffixes)):
        return files
    what = f"the folder has no file {' '.join(suffixes)}; it must have one for each site"
    raise UserError(f"data-path {data_path}: {what}")


def holds(path: Path, suffixes: Sequence[str]) -> bool:
    """Return whether a path is such a file, or a folder with some."""
    if path.is_dir():
        return any(holds(one, suffixes) for one in path.iterdir() if not one.is_dir())
    return path.name.lower().endswith(tuple(suffixes)) and not path.name.startswith(".")


def refuse_other(path: Path) -> None:
    """Raise UserError for a file of a format that is named but not read, with what to do."""
    head = _head(path) if path.is_file() else b""
    for suffixes, mark, what, advice in _OTHERS:
        marked = mark and re.match(mark, head, re.DOTALL)
        if marked or path.name.lower().endswith(tuple(suffixes.split())):
            raise UserError(f"data-path {path}: this is {what}: {advice}")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def read_frame(path: Path, sheet: str = "") -> tuple[pd.DataFrame | bytes | None, list[str]]:
    """Return the rows of another program's file and lines about it; None for CSV and Parquet.

    A sheet of a workbook is the bytes of a CSV. Raise UserError for what no library can read.
    """
    refuse_other(path)
    name, head, lines = path.name.lower(), _head(path), list[str]()
    for what, known, read in _READERS:
        if not (re.match(known, head) if isinstance(known, bytes) else name.endswith(known)):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                frame = _excel(path, sheet, lines) if what == "Excel" else read(path)
                return frame, [f"a file of {what}", *lines]
        except UserError:
            raise
        except Exception as error:  # parsers raise nearly every kind; ImportError: an extra
            why = f"not readable as a file of {what} ({brief(error)}): {_SAVE}"
            raise UserError(f"data-path {path}: {why}") from error
    return None, []


def _excel(path: Path, sheet: str, lines: list[str]) -> bytes:
    sheets = pd.read_excel(path, sheet_name=None, header=None, dtype=object)
    sheets = {name: one.dropna(how="all").dropna(how="all", axis=1) for name, one in sheets.items()}
    filled = [name for name, frame in sheets.items() if len(frame) > 1]
    if sheet and sheet not in sheets:
        raise UserError(f"sheet: '{sheet}' is not in {path}; it has {', '.join(sheets)}")
    if not sheet and len(filled) != 1:
        sizes = (f"{name} ({len(sheets[name]) - 1:,} rows)" for name in filled)
        what = f"several sheets, {', '.join(sizes)}: give sheet=NAME" if filled else "no rows"
        raise UserError(f"data-path {path}: the workbook has {what}")
    name = sheet or filled[0]
    if others := [one for one in sheets if one != name]:
        lines.append(f"sheet '{name}' is read, and not: {', '.join(others)}")
    text: str = sheets[name].to_csv(index=False, header=False)
    return text.encode()


def _arff(path: Path) -> pd.DataFrame:
    from scipy.io import arff

    with path.open(encoding="utf-8", errors="replace") as file:
        frame = pd.DataFrame(arff.loadarff(file)[0])
    texts = [name for name in frame if frame[name].dtype == object]
    return frame.assign(**{name: frame[name].str.decode("utf-8", "replace") for name in texts})


def _libsvm(path: Path) -> pd.DataFrame:
    from sklearn.datasets import load_svmlight_file

    x, y = load_svmlight_file(str(path))
    frame = pd.DataFrame(x.toarray(), columns=[f"x{k}" for k in range(1, x.shape[1] + 1)])
    return frame.assign(label=y)


def _json(path: Path) -> pd.DataFrame:
    lines = _head(path).lstrip()[:1] == b"{"
    frame = pd.read_json(path, lines=lines, dtype=False, convert_dates=False)
    if not isinstance(frame.index, pd.RangeIndex):
        raise UserError(f"data-path {path}: this is JSON, but no list of rows: {_SAVE}")
    return frame


# Formats that a library reads: name, suffixes or first bytes, and what reads them.
_READERS: tuple[tuple[str, tuple[str, ...] | bytes, Callable[[Path], Any]], ...] = (
    ("Excel", (".xlsx", ".xlsm"), pd.read_excel), ("Stata", (".dta",), pd.read_stata),
    ("SPSS", (".sav", ".zsav", ".por"), pd.read_spss),
    ("SAS", (".sas7bdat", ".xpt"), lambda path: pd.read_sas(path, encoding="utf-8")),
    ("Feather", (".feather", ".arrow"), pd.read_feather), ("ARFF", (".arff",), _arff),
    ("LIBSVM", rb"\s*[-+\w.]+(\s+\d+:[-+\d.eE]+)+\s*(#.*)?\r?\n?", _libsvm),
    ("JSON", rb"\s*[{\[]", _json),
)  # fmt: skip
