"""Parquet files: read as a CSV of the same rows is; damaged and hostile ones cost one line."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedhet.data.cache import open_dataset
from fedhet.data.data_file import Reading
from fedhet.errors import UserError
from fedhet.reading import parquet, parquet_child

ROOT = Path(__file__).resolve().parents[2]
pa = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
pq = pytest.importorskip("pyarrow.parquet")
READING = Reading(
    target="num", labels=(("ill", ("1", "2")), ("healthy", ("0",))), site=("hospital",),
    categories=(("sex", ("f", "m")),), ignore=("note",),
)  # fmt: skip
ROWS = {
    "hospital": ["a", "a", "b", "b"],
    "age": [63, None, 41.5, 37],
    "old": [True, False, None, True],
    "sex": ["m", "f", None, "m"],
    "note": [[1], [2], [3], [4]],
    "num": [0, 2, 1, 0],
}
CSV = """hospital,age,old,sex,note,num
a,63,1,m,x,0
a,?,0,f,y,2.0
b,41.5,,,z,1
b,37,1,m,w,0
"""


@pytest.fixture
def opened(tmp_path):
    def open_(columns=None, reading=READING, dataset="table", name="data.parquet", **writing):
        path = tmp_path / name
        if columns is not None:
            pq.write_table(pa.table(columns), path, **writing)
        return open_dataset(
            dataset, data_path=str(path), reading=reading, cache_dir=tmp_path / "cache"
        )

    return open_


@pytest.mark.parametrize("writing", [{}, {"compression": "zstd", "row_group_size": 1},
                                     {"use_dictionary": False, "version": "1.0"}])  # fmt: skip
def test_it_is_read_as_the_csv_of_the_same_rows(opened, tmp_path, writing):
    found = opened(ROWS, **writing)
    (tmp_path / "same.csv").write_text(CSV)
    same = opened(name="same.csv")
    assert np.array_equal(found.examples, same.examples, equal_nan=True)
    assert found.labels.tolist() == same.labels.tolist() and found.inputs == same.inputs
    assert found.site_names == same.site_names and found.sites.tolist() == same.sites.tolist()


def test_columns_of_any_plain_type(opened):
    from decimal import Decimal

    columns = {
        "a": pa.array([1, 2], pa.uint8()), "b": pa.array([1, None], pa.int64()),
        "c": pa.array(["x", "y"]).dictionary_encode(), "d": pa.array([1.5, 2.5], pa.float32()),
        "e": pa.array([Decimal("1.25"), None]), "f": pa.array(["3", "NA"]),
        "g": pa.array([None, None]), "y": pa.array([2**60, 2**60 + 1]),
    }  # fmt: skip
    data = opened(columns, Reading(target="y", categories=(("c", ()),)))
    nan = np.nan
    expected = [[1, 1, 0, 1.5, 1.25, 3, nan], [2, nan, 1, 2.5, nan, nan, nan]]
    assert np.array_equal(data.examples, np.array(expected, np.float32), equal_nan=True)
    assert data.classes == (str(2**60), str(2**60 + 1))  # as texts: a float has them the same


def test_texts(opened):
    texts = {"text": ["Oil again", None, "oil!"], "label": ["b", "s", "b"]}
    data = opened(texts, Reading(target="label", text="text", length=3, vocabulary=50), "texts")
    first, second, third = data.examples.tolist()
    assert first[0] == third[0] > 0 and second == [0, 0, 0]
    assert data.warnings == ("1 texts have no word",)


def test_a_large_file_is_the_same_in_pieces(opened):
    rng = np.random.default_rng(0)
    x = rng.normal(size=10_000).astype(np.float32)
    data = opened({"x": x, "y": np.arange(10_000) % 3}, Reading(target="y"), row_group_size=3000)
    assert np.array_equal(data.examples[:, 0], x)
    assert data.labels.tolist() == (np.arange(10_000) % 3).tolist()


# --- what is wrong with a file is one line ------------------------------------------------------

MISTAKES = {
    "list": ({**ROWS, "sex": [[1]] * 4}, r"column 'sex': list<.*is neither numbers nor texts"),
    "category": ({**ROWS, "sex": list("mfxm")}, "row 2 column 'sex': 'x' is none of its"),
    "class": ({**ROWS, "num": [0, 2, 7, 0]}, "row 2 column 'num': '7' is in none of the labels"),
    "no class": ({**ROWS, "num": [0, None, 1, 0]}, "row 1 column 'num': no class"),
    "word": ({**ROWS, "age": list("12x4")}, "row 2 column 'age': 'x' is no number"),
    "infinite": ({**ROWS, "age": [1, 1, 1, np.inf]}, "row 3 column 'age': 'inf' is no finite"),
    "client": ({**ROWS, "hospital": ["St. A"] * 4}, "row 0 column 'hospital': 'St. A' cannot be"),
    "no column": ({"x": [1]}, "target: .* has no column 'num'"),
    "nameless": ({**ROWS, "": [1] * 4}, "column 7 has no name"),
    "no row": ({name: pa.array([], pa.int64()) for name in ROWS}, "no row in it"),
    "long": ({**ROWS, "sex": ["m" * (5 << 20)] * 4}, "column 'sex': a text of more than 4,194,304"),
    "wide": ({f"c{k}": [1] for k in range(5000)}, "5,000 columns, at most 4,096"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_every_mistake_is_one_line_that_says_where(opened, case):
    columns, message = MISTAKES[case]
    with pytest.raises(UserError, match=message) as found:
        opened(columns)
    assert "\n" not in str(found.value) and "data.parquet" in str(found.value)


def test_two_columns_of_one_name(tmp_path, opened):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(UserError, match="two columns are called 'x'"):
        opened()


def test_without_pyarrow_it_says_what_to_install(opened, monkeypatch):
    monkeypatch.setattr(parquet.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"needs pyarrow: pip install 'fedhet\[parquet\]'"):
        opened(ROWS)


def test_damage(tmp_path, opened):
    """Every file that is cut or changed gives data or one line; none takes the process along."""
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({k: v for k, v in ROWS.items() if k != "note"}), path)
    whole, lines = path.read_bytes(), []
    rng = np.random.default_rng(0)
    for at in [*rng.integers(4, len(whole) - 8, 5), len(whole) - 9]:
        broken = bytearray(whole)
        broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            opened(reading=Reading(target="num", site=("hospital",), categories=(("sex", ()),)))
        except UserError as error:
            lines.append(str(error))
    assert lines and all("\n" not in line for line in lines)
    for cut in (whole[:-1], whole[: len(whole) // 2], whole[:5]):
        path.write_bytes(cut)
        with pytest.raises(UserError, match="no sound Parquet file: its end is missing or encryp"):
            opened()
    path.write_bytes(b"PAR1" + (17 << 20) * b"\0" + (17 << 20).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(UserError, match="its footer has 17,825,792 bytes, at most 16,777,216"):
        opened()


# --- files that were made to burst the memory of who reads them ---------------------------------


def repeated(path):
    """One text of 512 KiB, 200,000 times, in a dictionary: 100 GiB out of some kilobytes."""
    text = pa.array(["m" * (1 << 19)])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200_000, np.int32)), text)
    pq.write_table(pa.table({"sex": column}), path, compression="zstd")


def rows(path):
    """25 million rows in some hundred bytes a column."""
    column = pa.array(np.zeros(25_000_000, np.int8))
    pq.write_table(pa.table({"age": column, "num": column}), path)


def page(path):
    """One page of 300 MB, which packs to almost nothing."""
    table = pa.table({"x": ["m" * (300 << 20)]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


PROGRAM = """
import re, resource, sys
from pathlib import Path
from fedhet.errors import UserError
from fedhet.reading import parquet
parquet.MEMORY = 256 << 20

status = Path("/proc/self/status")
rows = 0
try:
    file = parquet.ParquetFile(Path(sys.argv[1]))
    for piece in file.pieces(file.columns):
        rows += len(piece)
        if rows > 50:
            raise UserError("more than fifty rows came")
except UserError as error:
    print(error)
else:
    print("read")
print(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            repeated,
            "more than fifty rows came",
        ),  # half a MiB each, and no more in memory than a few
        (rows, "more than 20,000,000 rows"),
        (page, "takes more than 256 MiB to unpack"),
    ],
)
def test_bombs_are_one_line_in_bounded_memory(tmp_path, make, expected):
    """In processes of their own, whose peaks are measured."""
    make(tmp_path / "in.parquet")
    assert (tmp_path / "in.parquet").stat().st_size < 4 << 20
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "in.parquet")], cwd=ROOT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    line, own, childs = done.stdout.splitlines()
    assert expected in line
    assert int(own) < 150 * 1024 and int(childs) < 350 * 1024


def test_texts_without_end_are_refused(tmp_path, monkeypatch):
    """A file of kilobytes must not keep anybody busy for days."""
    repeated(tmp_path / "in.parquet")
    monkeypatch.setattr(parquet_child, "MAX_TEXTS", 20 << 20)
    monkeypatch.setattr("sys.stdin", io.StringIO('[["sex"], []]\n'))
    with pytest.raises(parquet_child._Refused, match="more than 0 GiB of texts"):
        list(parquet_child._read(pq, str(tmp_path / "in.parquet")))


def test_texts_that_share_their_beginnings_are_read(opened):
    """As some writers store all of them."""
    words = [f"the same beginning {k % 9}" for k in range(5000)]
    data = opened(
        {"text": words, "y": [0, 1] * 2500}, Reading(target="y", text="text", length=4), "texts",
        use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY", "y": "PLAIN"},
    )  # fmt: skip
    assert len({tuple(row) for row in data.examples.tolist()}) == 9
