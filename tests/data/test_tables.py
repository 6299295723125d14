"""Tables and texts out of CSV files: what is read, and what is refused with file, line, column."""

import subprocess
import sys

import numpy as np
import pytest

from fedhet.config.load import build_config, load_config
from fedhet.data import data_file
from fedhet.data.cache import open_dataset
from fedhet.data.data_file import Reading
from fedhet.data.inputs import Inputs
from fedhet.data.texts import token_ids
from fedhet.errors import UserError
from fedhet.protocol.reasons import Refused
from fedhet.reading import csv_file
from fedhet.site.local_data import load_partition, open_private

TABLE = """hospital,age,sex,note,num
a,63,m,x,0
a,?,f,y,2.0
b,41.5,,z,1
b,37,m,w,0
"""
READING = Reading(
    target="num", labels=(("ill", ("1", "2")), ("healthy", ("0",))), site=("hospital",),
    categories=(("sex", ("f", "m")),), ignore=("note",),
)  # fmt: skip

READ_W = Reading(target="y", site=("w",))


@pytest.fixture
def opened(tmp_path):
    def open_(text, reading_=READING, dataset="table", **keywords):
        path = tmp_path / "data.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return open_dataset(
            dataset, data_path=str(path), reading=reading_, cache_dir=tmp_path / "cache", **keywords
        )

    return open_


def test_a_table_is_read_by_its_declaration(opened):
    data = opened(TABLE)
    nan = np.nan
    expected = [[63, 1], [nan, 0], [41.5, nan], [37, 1]]
    assert np.array_equal(data.examples, np.array(expected, np.float32), equal_nan=True)
    assert data.classes == ("ill", "healthy") and data.labels.tolist() == [1, 0, 0, 1]
    assert data.inputs == Inputs.table(("age", "sex"), (("sex", ("f", "m")),))
    assert data.inputs.shape == (4,)
    assert data.site_names == ("a", "b") and data.sites.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_separators_and_a_byte_order_mark(opened, mark):
    data = opened(b"\xef\xbb\xbf" + TABLE.replace(",", mark).encode())
    assert data.examples.shape == (4, 2)


def test_classes_without_labels_are_the_values_in_their_order(opened):
    data = opened("x,y\n1,10\n2,9\n3,10.0\n", Reading(target="y"))
    assert data.classes == ("9", "10") and data.labels.tolist() == [1, 0, 1]


def test_numbers_are_what_people_write_as_numbers(opened):
    """Python takes 1_2 for twelve; a file means a name."""
    small = opened("x,y\n1,0.00001\n2,0.50\n3,-2.\n", Reading(target="y"))
    assert small.classes == ("-2", "0.00001", "0.5")
    data = opened("w,x,y\n1_2,1,1_0\n12,2,10\n012,3,10.0\n1e1,4,1e1\n", READ_W)
    assert data.site_names == ("1_2", "12", "1e1") and data.sites.tolist() == [0, 1, 1, 2]
    assert data.classes == ("10", "1_0", "1e1") and data.labels.tolist() == [1, 0, 0, 2]
    for value, reading in (("1_000", Reading(target="y")), (" 1_0 ", Reading(target="y"))):
        with pytest.raises(UserError, match=r"line 3 column 'x': '.*' is no number"):
            opened(f"x,y\n1,0\n{value},1\n", reading)


def test_files_of_a_folder_are_clients_by_their_names(tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    for name in ("north", "01", "1", "2_3"):
        (folder / f"{name}.csv").write_text("x,y\n1,0\n2,1\n")
    reading = Reading(target="y")
    data = open_dataset("table", data_path=str(folder), reading=reading, cache_dir=tmp_path / "c")
    assert data.site_names == ("01", "1", "2_3", "north")
    assert data.sites.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    (folder / "north.tsv").write_text("x\ty\n1\t0\n")
    with pytest.raises(UserError, match=r"north\.tsv: client 'north' has another file, north\.csv"):
        open_dataset("table", data_path=str(folder), reading=reading, cache_dir=tmp_path / "c")


def test_a_text_may_be_as_long_as_a_row(opened):
    text = "word " * 40_000
    data = opened(f"t,y\n{text},0\nb,1\n", Reading(target="y", text="t", length=3), "texts")
    assert data.examples.shape == (2, 3)


BROKEN = {
    "no number": (TABLE.replace("41.5", "old"), "line 4 column 'age': 'old' is no number"),
    "infinite": (TABLE.replace("41.5", "1e39"), "line 4 column 'age': '1e39' is no finite"),
    "category": (TABLE.replace(",f,", ",other,"), "line 3 column 'sex': 'other' is none of its"),
    "class": (TABLE.replace("2.0", "7"), "line 3 column 'num': '7' is in none of the labels"),
    "no class": (TABLE.replace("2.0", ""), "line 3 column 'num': no class"),
    "short": (TABLE + "b,1\n", "line 6: 2 fields, and the header has 5"),
    "quote": (TABLE + '"b,1,m,x,0\n', "line 6: no CSV"),
    "client": (TABLE.replace("b,41.5", "St. Ann,41.5"), "line 4 column 'hospital': 'St. Ann' can"),
    "twice": (TABLE.replace("note", "age"), "line 1: two columns are called 'age'"),
    "nameless": (TABLE.replace("hospital", ""), "line 1: column 1 has no name"),
    "no rows": ("hospital,age,sex,note,num\n", "no row below the header"),
    "empty": ("", "the file is empty"),
    "no target": (TABLE.replace("num", "nun"), "target: .*has no column 'num'; did you mean 'nun'"),
    "not text": (TABLE.encode() + b"\xff\xfe\n", "there is no UTF-8 text"),
    "binary": (b"\x00" * 2000, "column 1 has no name"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_every_mistake_is_one_line_that_says_where(opened, case):
    text, message = BROKEN[case]
    with pytest.raises(UserError, match=message) as found:
        opened(text)
    assert "\n" not in str(found.value) and ("data.csv" in str(found.value))


def test_a_row_without_end_takes_no_memory(opened, monkeypatch):
    """One line, or one open quote over many lines: both are refused at the limit."""
    monkeypatch.setattr(csv_file, "MAX_LINE", 1000)
    for text in ("a,b\n" + "1" * 5000, 'a,b\n1,"' + "2\n" * 5000, "a,b\n" + '"x\n",' * 900):
        with pytest.raises(UserError, match=r"line \d+: (a row of more than|no CSV)"):
            opened(text, Reading(target="b"))


def test_too_many_of_anything(opened, monkeypatch):
    wide = ",".join(f"c{number}" for number in range(5000)) + "\n"
    with pytest.raises(UserError, match="5,000 columns, at most 4,096"):
        opened(wide, Reading(target="c0"))
    monkeypatch.setattr(csv_file, "MAX_ROWS", 3)
    with pytest.raises(UserError, match="more than 3 rows"):
        opened(TABLE)
    monkeypatch.setattr(csv_file, "MAX_ROWS", 1000)
    monkeypatch.setattr(data_file, "MAX_DIFFERENT", 5)
    with pytest.raises(UserError, match="line 7 column 'y': more than 5 different values"):
        opened("x,y\n" + "".join(f"1,{n}\n" for n in range(9)), Reading(target="y"))
    monkeypatch.setattr(data_file, "MAX_SITES", 5)
    with pytest.raises(UserError, match="line 7 column 'w': more than 5 different clients"):
        opened("w,x,y\n" + "".join(f"{n},1,0\n" for n in range(9)), READ_W)


@pytest.mark.parametrize(
    ("reading", "classes", "message"),
    [
        (Reading(target="num", categories=(("sex", ("f", "m", "f")),)), (), "categories 'sex': va"),
        (Reading(target="num", categories=(("sex", ("01", "1")),)), (), r"'1' is given twice \(01"),
        (Reading(target="num", ignore=("sex", "note", "hospital")), ("0", "00"), "classes: value"),
    ],
)
def test_a_value_that_is_listed_twice_is_refused(opened, reading, classes, message):
    with pytest.raises(UserError, match=message):
        opened(TABLE, reading, classes=classes)


def test_what_is_no_file_is_not_read(tmp_path):
    for path, why in (("/dev/zero", "no file; dataset table is a file, or a folder of one for"),
                      (str(tmp_path), "a folder must hold 1 to 10,000 files .csv")):  # fmt: skip
        with pytest.raises(UserError, match=f"data-path {path}: {why}"):
            open_dataset("table", data_path=path, reading=Reading(target="y"))


def test_memory_does_not_grow_with_the_file(tmp_path):
    """50 MB of CSV, in a process of its own: the chunks go to the cache as they come."""
    row = ",".join(["1.25"] * 20) + ",0\n"
    header = ",".join(f"c{number}" for number in range(20)) + ",y\n"
    for name, chunks in (("short", 1), ("long", 120)):
        (tmp_path / f"{name}.csv").write_text(header + row * 4096 * chunks)
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from fedhet.data.cache import open_dataset\n"
        "from fedhet.data.data_file import Reading\n"
        "for name in ('short', 'long'):\n"
        "    data = open_dataset('table', data_path=f'{sys.argv[1]}/{name}.csv',\n"
        "        reading=Reading(target='y'), cache_dir=Path(sys.argv[1]))\n"
        "    print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "print(len(data.labels))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    short, long, count = map(int, done.stdout.split())
    assert count == 120 * 4096
    # Labels, 6 MiB at a time or two; 39 MiB of examples would be too much, and so would the texts.
    assert long - short < 36 * 1024, f"{(long - short) >> 10} MiB more for the long file"


# --- texts -------------------------------------------------------------------------------------

NEWS = 'text,label\n"Oil, again: up!",business\nOIL AGAIN,sports\n,sports\n'


def test_words_are_hashed_alike_everywhere(opened):
    found = Reading(target="label", text="text", length=4, vocabulary=50)
    data = opened(NEWS, found, "texts")
    assert data.examples.dtype == np.int32 and data.examples.shape == (3, 4)
    first, second, third = data.examples.tolist()
    assert first[0] == second[0] and first[2] == second[1] and second[2:] == [0, 0]
    assert third == [0, 0, 0, 0] and data.warnings == ("1 texts have no word",)
    assert data.examples.max() < 50
    assert first[0] == 1 + 0x4CF1A892 % 49  # the CRC-32 of "oil"
    assert token_ids(["OIL"], data.inputs)[0].tolist() == [first[0], 0, 0, 0]
    assert data.inputs.vocabulary == 50 and data.inputs.columns == ("text",)


# --- configuration, partition and nodes --------------------------------------------------------


def config(tmp_path, **changes):
    rows = "".join(f"{'abc'[k % 3]},{k},{k % 2}\n" for k in range(60)) + "d,1,0\n"
    (tmp_path / "t.csv").write_text("h,x,y\n" + rows)
    values = {"dataset": "table", "target": "y", "site": "h", "partition": "natural",
              "data-path": str(tmp_path / "t.csv")}  # fmt: skip
    return build_config(values | changes)


def test_natural_clients_are_the_datas_and_who_has_too_little_is_named(tmp_path):
    data, partition = load_partition(config(tmp_path), 0)
    assert partition.ids == ("a", "b", "c")
    assert (
        "1 clients are left out, with too few examples to train and to test: d (1)"
        in (partition.warnings[0])
    )
    for client, split in zip(partition.ids, partition.clients, strict=True):
        own = np.concatenate([split.train, split.val, split.test])
        assert {data.site_names[k] for k in data.sites[own]} == {client} and len(own) == 20


def test_another_number_of_natural_clients_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"clients 7 is not allowed: the data names 3 clients"):
        load_partition(config(tmp_path), 7)


def test_by_chance_and_by_size(tmp_path):
    _, even = load_partition(config(tmp_path, partition="iid"), 4)
    sizes = [len(c.train) + len(c.val) + len(c.test) for c in even.clients]
    assert sorted(sizes) == [15, 15, 15, 16]
    _, uneven = load_partition(config(tmp_path, partition="quantity", alpha=1.0), 3)
    sizes = [len(c.train) + len(c.val) + len(c.test) for c in uneven.clients]
    assert sum(sizes) == 61 and min(sizes) >= 10 and len(set(sizes)) > 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "table"}, "target: '' is not allowed: dataset=table needs that column"),
        ({"dataset": "texts", "target": "y"}, "text: '' is not allowed: dataset=texts needs"),
        ({"target": "y"}, "target: 'y' changes nothing with dataset=digits; it belongs to"),
        ({"dataset": "signals", "ignore": "x"}, "ignore: 'x' changes nothing with dataset=sig"),
        ({"partition": "natural"}, "partition: 'natural' is not allowed with dataset=digits"),
        ({"models": ["@table-9"]}, "models: group '@table-9' is unknown; did you mean"),
        ({"dataset": "table", "target": "y", "models": ["cnn-1"]}, "model 'cnn-1' is for images"),
        ({"models": ["mlp-1"]}, "model 'mlp-1' is for rows of a table"),
        ({"dataset": "texts", "text": "txt", "models": ["cnn-1"]}, "target: '' is not allowed"),
    ],
)
def test_keys_that_make_no_sense(values, message):
    with pytest.raises(UserError, match=message):
        build_config(values)


def test_keys_of_a_command_line_are_those_of_a_file():
    values = {"dataset": "table", "target": "y"}
    typed = build_config(values | {"labels": "{ill: [1, 2], well: [0]}", "categories": "sex,cp"})
    written = build_config(
        values | {"labels": {"ill": [1, 2], "well": [0]}, "categories": ["sex", "cp"]}
    )
    assert typed == written == build_config(written.flat())
    assert typed.flat()["labels"] == {"ill": ["1", "2"], "well": ["0"]}
    assert typed.models[0] == "mlp-1"


def test_yes_and_no_of_a_file_are_texts_and_switches_take_them(tmp_path):
    text = "dataset: table\ntarget: y\ncategories: {smoker: [yes, no, off, true]}\n"
    (tmp_path / "c.yaml").write_text(text + "keep-state: no\nevaluate-all: True\n")
    config = load_config(tmp_path / "c.yaml", ["labels={ill: on, well: off}"])
    assert config.categories == (("smoker", ("yes", "no", "off", "True")),)
    assert config.labels == (("ill", ("on",)), ("well", ("off",)))
    assert (config.keep_state, config.evaluate_all) == (False, True)


def test_images_keep_their_configuration():
    """A sweep's cells are named by their keys."""
    assert not {"target", "labels", "small-model", "representation"} & set(build_config({}).flat())


def test_a_node_needs_the_values_of_its_categories(tmp_path):
    rows = "x,sex,y\n" + "1,m,0\n2,f,1\n" * 10
    (tmp_path / "own.csv").write_text(rows)
    values = {"dataset": "table", "target": "y", "classes": ["0", "1"]}
    with pytest.raises(UserError, match="categories: 'sex' needs its values on a node"):
        open_private(build_config(values | {"categories": ["sex"]}), str(tmp_path / "own.csv"))
    declared = build_config(values | {"categories": {"sex": ["f", "m"]}})
    data = open_private(declared, str(tmp_path / "own.csv"))
    assert data.inputs.shape == (4,) and data.examples[:2, 1].tolist() == [1, 0]


@pytest.mark.parametrize("dataset", ["table", "texts", "signals"])
def test_a_node_does_not_tell_what_stands_in_a_column_that_a_run_calls_the_target(
    tmp_path, dataset
):
    (tmp_path / "own.csv").write_text("x,text,name\n" + "1,some words,Ann\n2,others,Bob\n" * 10)
    values = {"dataset": dataset, "text": "text", "target": "name"}
    if dataset != "texts":
        values.pop("text")
    if dataset == "signals":
        values.pop("target")
    with pytest.raises(Refused, match="must name the classes"):
        open_private(build_config(values), str(tmp_path / "own.csv"))
