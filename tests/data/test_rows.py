"""Files of rows as people have them: what is found out of their form, and what is said of it."""

import gzip

import numpy as np
import pandas as pd
import pytest

from fedhet.data.inputs import Reading
from fedhet.data.rows import open_rows
from fedhet.errors import UserError

ROWS = [("63", "1.5", "m", "a", "0"), ("41", "2.25", "f", "b", "1"), ("37", "", "m", "b", "0"),
        ("52", "3", "f", "a", "1")]  # fmt: skip
NAMES = ("age", "bp", "sex", "site", "ill")
READING = Reading(target="ill", site=("site",))
EXPECTED = np.array([[63, 1.5, 0], [41, 2.25, 1], [37, np.nan, 0], [52, 3, 1]], np.float32)


def text(separator=",", rows=ROWS, names=NAMES, end="\n"):
    return "".join(separator.join(row) + end for row in [names, *rows])


def rows_as(separator=",", **changes):
    """The same table, with values written in another way."""
    return text(separator, [tuple(changes.get(v, v) for v in row) for row in ROWS])


FORMS = {
    "semicolons": (text(";"), "separated by semicolon"),
    "tabs": (text("\t"), "separated by tab"),
    "sep=": ("sep=;\n" + text(";"), ""),
    "decimal comma": (rows_as(";", **{"1.5": "1,5", "2.25": "2,25"}), "decimal comma"),
    "quoted decimals": (rows_as(**{"1.5": '"1,5"', "2.25": '"2,25"'}), "decimal comma"),
    "utf-8 mark": (b"\xef\xbb\xbf" + text().encode(), ""),
    "utf-16": (text("\t").encode("utf-16"), "utf-16 by its mark"),
    "utf-16 big": (b"\xfe\xff" + text().encode("utf-16-be"), "utf-16 by its mark"),
    "mac lines": (text(end="\r"), ""),
    "comments": ("# of 2024\n#\n\n" + text(), "2 lines of comments"),
    "a name of two lines": (text().replace("bp", '"bp\n"'), ""),
    "an empty column": (text(rows=[("", *row) for row in ROWS], names=("gone", *NAMES)),
                        "left out, without a value: gone"),
    "a title": ("Report of 2024\n\n" + text(), "1 rows above the header are left out: Report"),
    "the header again": (text() + text().splitlines()[0] + "\n", "that repeat the header"),
    "index": (text(rows=[(str(k), *row) for k, row in enumerate(ROWS)], names=("", *NAMES)),
              "without a name and left out: column-1"),
    "names of rows": (text(rows=[(f"r{k}", *row) for k, row in enumerate(ROWS)]), "column-1"),
    "a saved index twice": (
        text(rows=[(str(k), *row) for k, row in enumerate(ROWS)], names=("Unnamed: 0", *NAMES)),
        "Unnamed: 0"),
    "trailing": (text(end=",\n"), "without a name and left out: column-6"),
    "trailing in the header": (text(names=(*NAMES, "")), "the empty last column of the header"),
    "single quotes": (rows_as(m="'m'", f="'f'", a="'a'", b="'b'"), "quoted by '"),
    "packed": (gzip.compress(text().encode()), ""),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_file_is_found_out_and_said(opened, form):
    content, said = FORMS[form]
    data = opened(content, READING)
    assert np.array_equal(data.examples, EXPECTED, equal_nan=True)
    assert data.classes == ("0", "1") and data.labels.tolist() == [0, 1, 0, 1]
    assert data.site_names == ("a", "b") and data.inputs.columns == ("age", "bp", "sex")
    assert said in " ".join(data.notes)


MEASURES = "a;y\n1.000;0\n22.500;1\n17;0\n"
READ = [  # text, keys, what the first column has, what is said
    ("  a   b y\n 1.0  2 0\n 3   4.5 1\n10 2 1\n", {}, [1, 3, 10], "separated by space"),
    ("a;y\n1.234,5;0\n2.000,25;1\n17,5;0\n", {}, [1234.5, 2000.25, 17.5],
     "decimal comma (decimal); thousands by '.' (thousands)"),
    ('a,y\n"1,063",0\n"2,041",1\n52,0\n', {}, [1063, 2041, 52], "thousands by ','"),
    (MEASURES, {}, [1, 22.5, 17], "1.000 has a decimal point"),
    # a key overrules each of the findings
    (MEASURES, dict(thousands="."), [1000, 22500, 17], ""),
    ("a,b|y\n1,5|0\n2,5|1\n", dict(separator="|"), [1.5, 2.5], ""),
    ("a;y\n1,500;0\n2,250;1\n", dict(decimal=".", thousands=","), [1500, 2250], ""),
    ("\u00e4;y\n1.5;0\n2;1\n".encode("latin-1"), dict(encoding="latin-1"), [1.5, 2], ""),
    ("a;y\n-9;0\n2;1\n", dict(gaps=("-9",)), [np.nan, 2], ""),
    ("1.5;0\n2;1\n", dict(columns=("a", "y")), [1.5, 2], ""),
    ("a;y\n1.5;0\n2;1\n", dict(columns=("a", "y")), [1.5, 2], ""),
    ("a,a,y\n1,2,0\n3,4,1\n", {}, [1, 3], "the second column 'a' is called 'a.2'"),
    # what a key names as categories stays so; infinite numbers are gaps
    ("0,1,y\n5,6,1\n7,8,0\n", {}, [5, 7], ""),
    ("1990,1991,y\n5,6,1\n7,8,0\n", {}, [5, 7], ""),
    ("a1,a2,y\n5,6,1\n7,8,0\n", {}, [5, 7], ""),
    (",x,y\nr0,0,0\nr1,7,1\nr2,14,0\n", dict(categories=(("column-1", ()),)), [0, 1, 2], ""),
    ("a;y\n0,5;0\n1,5;1\n2,5;0\n", dict(categories=(("a", ()),)), [0, 1, 2], "a: 0.5 1.5 2.5"),
    ("a,y\n1,0\ninf,1\n1e39,0\n-Infinity,1\n", {}, [1, np.nan, np.nan, np.nan],
     "infinite numbers count as gaps: a (3)"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "form", "first", "said"), READ)
def test_numbers_are_read_as_found_or_as_a_key_says(opened, content, form, first, said):
    data = opened(content, Reading(target="y", **form))
    assert np.array_equal(data.examples[:, 0], np.float32(first), equal_nan=True)
    assert said in " ".join(data.notes + data.warnings)


HEADLESS = {
    "numbers": "61,131.5,10,3\n74,96.3,11,3\n52,86.6,12,2\n",
    "numbers and words": "5.1,3.5,setosa\n4.9,3.0,setosa\n6.1,2.9,virginica\n",
    "words": "vhigh,small,low\nvhigh,big,low\nlow,small,high\n",
}


@pytest.mark.parametrize("case", HEADLESS)
def test_a_first_line_of_data_is_no_header(opened, case):
    width = HEADLESS[case].split("\n")[0].count(",") + 1
    with pytest.raises(UserError, match=r"first line looks like data \(.*columns=c1,c2,c3"):
        opened(HEADLESS[case], Reading(target="3"))
    names = tuple(f"c{k}" for k in range(1, width + 1))
    assert len(opened(HEADLESS[case], Reading(target=names[-1], columns=names)).labels) == 3


BROKEN = {
    "latin": (b"age,y\n" + b"1,0\n" * 30_000 + b"2,\xe9\n", "line 30002: byte 0xe9 .*encoding="),
    "half": (b"\xff\xfe" + "x,y\n1,0\n".encode("utf-16-le")[:-1], "not utf-16: give the encoding"),
    "few": ("x,z,y\n1,2,0\n1,2\n", "line 3: 2 fields, but others 3"),
    "many": ("x,y\n1,0\n1,0,0\n", "Expected 2 fields in line 3, saw 3"),
    "quote": ('x,y\n1,0\n"2,1\n', "EOF inside string starting at line 3; quote=none"),
    "empty": ("", "the file is empty"),
    "title": ("Report\n\n1,a,0\n2,b,1\n", "row below the title looks like data .*columns=c1,c2,c3"),
    "cut": (gzip.compress(text().encode())[:-9], "Compressed file ended before"),
    "workbook": (b"PK\x03\x04\0\0", "a file of an unknown format"),
    "no such column": (text(names=(*NAMES[:-1], "yy")), "has no column 'y' .did you mean 'yy'"),
    "a comma": ("a;b;y\n" + "".join(f"{20 + k},5;{k % 7};{k % 2}\n" for k in range(30)),
                r"numbers with a comma: a \(30 values\): ignore=a .*decimal=, "),
    "no rows": ("a,y\n", "there is no row", "signals"),
    "no columns": ("y\n0\n1\n", "no column is left", "signals"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_known_is_one_line_that_says_where(opened, case):
    content, message, *dataset = BROKEN[case]
    with pytest.raises(UserError, match=f"p.csv.*{message}"):
        opened(content, Reading(target="y", decimal="."), "p.csv", *dataset)


def test_lines_of_rows_are_counted_as_an_editor_does(tmp_path):
    (tmp_path / "t.csv").write_text('# a\nx,y\n"two\nlines",1\n\n3,1\n')
    assert list(open_rows([tmp_path / "t.csv"]).lines()) == [4, 6]


def test_memory_does_not_grow_with_the_file(tmp_path):
    (tmp_path / "p.csv").write_text("a,b,y\n" + "1.5,2,0\n" * 70_000)
    file = open_rows([tmp_path / "p.csv"])
    sizes = [len(frame) for _, frame in file.chunks(["y"], ["a", "b"])]
    assert sum(sizes) == 70_000 and max(sizes) <= 65_536


def test_columns_of_any_plain_type_of_parquet(tmp_path, opened):
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    frame = pd.DataFrame({
        "a": np.uint8([1, 2]), "b": pd.array([True, None], "boolean"), "g": [None, None],
        "c": pd.Categorical(["x", "y"]), "y": [2**60, 2**60 + 1],
    })  # fmt: skip
    frame.to_parquet(tmp_path / "p.parquet", row_group_size=1)
    data = opened(None, Reading(target="y"), "p.parquet")
    assert np.array_equal(data.examples, [[1, 1, 0], [2, np.nan, 1]], equal_nan=True)
    assert "without a value: g" in data.notes[1]
    assert data.classes == (str(2**60), str(2**60 + 1))  # as texts: a float has them the same
