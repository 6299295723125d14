"""Tables and texts out of CSV files: what is read, and what is refused with file, line, column."""

import numpy as np
import pytest

from fedhet.config.load import build_config, load_config
from fedhet.data.cache import open_dataset
from fedhet.data.inputs import Inputs, Reading, safe_ids
from fedhet.data.table import token_ids
from fedhet.errors import Refused, UserError
from fedhet.files import is_id
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


def patients(count=60, **columns):
    """Rows with columns made of their number; ``y`` is 0 or 1."""
    made = {"age": lambda k: 30 + k * 7 % 41, **columns, "y": columns.get("y", lambda k: k % 2)}
    rows = "".join(",".join(str(f(k)) for f in made.values()) + "\n" for k in range(count))
    return ",".join(made) + "\n" + rows


def test_a_table_is_read_by_its_declaration(opened):
    data, nan = opened(TABLE, READING), np.nan
    expected = [[63, 1], [nan, 0], [41.5, nan], [37, 1]]
    assert np.array_equal(data.examples, np.array(expected, np.float32), equal_nan=True)
    assert data.classes == ("ill", "healthy") and data.labels.tolist() == [1, 0, 0, 1]
    assert data.inputs == Inputs.table(("age", "sex"), (("sex", ("f", "m")),))
    assert data.inputs.shape == (4,)
    assert data.site_names == ("a", "b") and data.sites.tolist() == [0, 0, 1, 1]


def test_classes_are_the_values_in_their_order_and_numbers_what_people_write(opened):
    """Python takes 1_2 for twelve; a file means a name."""
    small = opened("x,y\n1,0.00001\n2,0.50\n3,-2.\n", Reading(target="y"))
    assert small.classes == ("-2", "0.00001", "0.5")
    data = opened("w,x,y\n1_2,1,1_0\n12,2,10\n012,3,10.0\n1e1,4,1e1\n", READ_W)
    assert data.site_names == ("1_2", "12", "012", "1e1") and data.sites.tolist() == [0, 1, 2, 3]
    assert data.classes == ("10", "1_0", "1e1") and data.labels.tolist() == [1, 0, 0, 2]


SPELLINGS = ["", "?", "NA", "n/a", "null", "None", "NaN", "-", ".", "#N/A", "N.A."]


@pytest.mark.parametrize("gap", SPELLINGS)
def test_a_gap_is_one_in_every_column(opened, gap):
    rows = [("1", "m", "a", "0"), (gap, gap, "a", "1"), ("3", "f", gap, "0"), ("4", "f", "b", gap)]
    text = "x,sex,w,y\n" + "".join(",".join(row) + "\n" for row in [*rows, ("5", "m", "b", "1")])
    data = opened(text, READ_W)
    expected = [[1, 0], [np.nan, np.nan], [5, 0]]
    assert np.array_equal(data.examples, expected, equal_nan=True)
    assert data.classes == ("0", "1") and data.labels.tolist() == [0, 1, 1]
    assert data.site_names == ("a", "b")
    note = "3 of 5 rows; 1 rows without target are left out (gaps); 1 rows without site"
    assert note in data.notes[0]
    named = Reading(target="y", labels=(("none", (gap or "none",)), ("some", ("some",))))
    assert opened(f"x,y\n1,{gap or 'none'}\n2,some\n", named).labels.tolist() == [0, 1]


def test_words_become_categories_and_truth_becomes_numbers(opened):
    text = patients(
        sex=lambda k: "fm"[k * k % 2], smoker=lambda k: ["TRUE", "false", ""][k % 3],
        grade=lambda k: ["1", "2", "3+"][k % 3],
    )  # fmt: skip
    data = opened(text, Reading(target="y"))
    assert data.inputs == Inputs.table(
        ("age", "sex", "smoker", "grade"), (("sex", ("f", "m")), ("grade", ("1", "2", "3+")))
    )
    assert np.array_equal(data.examples[:3, 2], [1, 0, np.nan], equal_nan=True)
    assert "2 column(s) of categories: sex: f m, grade: 1 2 3+" in data.notes[1]


def test_all_columns_that_cannot_be_read_are_named_at_once(opened):
    text = patients(
        200, town=lambda k: f"town {k % 80}", street=lambda k: f"street {k % 90}",
        born=lambda k: f"19{10 + k % 80}-01-{1 + k % 28:02}",
        height=lambda k: "tall" if k == 7 else 150 + k % 40,
    )  # fmt: skip
    with pytest.raises(UserError) as found:
        opened(text, Reading(target="y"))
    said = str(found.value)
    assert "ignore=town,street" in said and "categories=town,street" in said
    assert "dates are no numbers: born (" in said and "line 9 column 'height'" in said
    assert "gaps=WORD" in said
    ready = Reading(target="y", ignore=("town", "street", "born"), gaps=("tall",))
    assert opened(text, ready).inputs.columns == ("age", "height")


def test_what_only_tells_rows_apart_is_no_feature_and_a_measurement_always_one(opened):
    ids = dict.fromkeys(("patient_id", "pidnum", "PatientID"), lambda k: 480_000 + k * k * 7)
    ids |= {"fall": lambda k: (k * 7) % 60 + 1, "who": lambda k: f"Ann {k}"}
    measured = {
        "pressure": lambda k: 100 + k * 1.37, "id": lambda k: 0.5 + k * k,
        "income": lambda k: 20_000 + k * k * 37, "visits": lambda k: k % 50,
    }  # fmt: skip
    data = opened(patients(**ids, **measured), Reading(target="y"))
    assert data.inputs.columns == ("age", *measured)
    assert f"keeps one): {', '.join(ids)}" in data.notes[1]


@pytest.mark.parametrize("value", [lambda k: 20 + k * 0.37, lambda k: 100 + k * 3])
def test_a_target_that_is_a_measurement_can_be_cut(opened, value):
    text = patients(y=value)
    said = r"'y' is a measurement: 60 .*labels=\"\{low: \.\.[\d.]+,"
    with pytest.raises(UserError, match=said):
        opened(text, Reading(target="y"))
    cut = Reading(target="y", labels=(("low", ("..30",)), ("high", ("30..",))))
    low = sum(value(k) < 30 for k in range(60))
    assert np.bincount(opened(text, cut).labels, minlength=2).tolist() == [low, 60 - low]


def test_many_numbers_with_examples_are_classes_with_a_warning(opened):
    data = opened(patients(300, y=lambda k: k % 30), Reading(target="y"))
    (warning,) = data.warnings
    assert len(data.classes) == 30 and 'labels="{low: ..15, high: 15..}"' in warning
    assert not opened(patients(300, y=lambda k: k % 20), Reading(target="y")).warnings


NAMES = ["St Mary Clinic", "K\u00f6ln", "north", "St-Mary-Clinic", "\u6771\u4eac", "a/b", ".."]


def test_sites_are_free_text(opened):
    text = patients(70, w=lambda k: NAMES[k % 7])
    data = opened(text, READ_W)
    assert data.site_names == (
        "St-Mary-Clinic-2", "K-ln-2", "north", "St-Mary-Clinic", "site-7", "a-b", "site"
    )  # fmt: skip
    assert all(is_id(name) for name in data.site_names)
    assert "'St Mary Clinic' is St-Mary-Clinic-2, 'K\u00f6ln' is K-ln-2, " in data.notes[-1]
    assert safe_ids(["C", "K\u00f6ln", "St Mary Clinic"]) == ("C", "K-ln-2", "St-Mary-Clinic")


LEAVES = Reading(target="num", ignore=("sex", "note", "hospital"))
BROKEN = [  # text, reading, classes
    (TABLE.replace(",f,", ",other,"), READING, (), r"'sex': 'other' .* \(f, m\): add"),
    (TABLE.replace("2.0", "7"), READING, (), r"line 3 .*'num': '7' .* \(1, 2, 0\): add"),
    (TABLE, LEAVES.changed(ignore=("age", *LEAVES.ignore)), (), "no column is left"),
    (TABLE, READING.changed(categories=(("sex", ("1.0", "1")),)), (), r"'1' is given twice \(1.0"),
    (TABLE, LEAVES, ("0", "0.0"), "classes: value"),
]


@pytest.mark.parametrize(("text", "reading", "classes", "message"), BROKEN)
def test_every_mistake_is_one_line_that_says_where(opened, text, reading, classes, message):
    with pytest.raises(UserError, match=message):
        opened(text, reading, classes=classes)


def test_what_is_no_file_is_not_read(tmp_path):
    for path in ("/dev/zero", str(tmp_path)):
        with pytest.raises(UserError, match=f"data-path {path}"):
            open_dataset("table", data_path=path, reading=Reading(target="y"))


NEWS = 'text,label\n"Oil, again: up!",business\nOIL AGAIN,sports\n,sports\n'


def test_words_are_hashed_alike_everywhere(opened):
    found = Reading(target="label", text="text", length=4, vocabulary=50)
    data = opened(NEWS, found, dataset="texts")
    assert data.examples.dtype == np.int32 and data.examples.shape == (3, 4)
    first, second, third = data.examples.tolist()
    assert first[0] == second[0] and first[2] == second[1] and second[2:] == [0, 0]
    assert third == [0, 0, 0, 0] and data.warnings == ("1 texts have no word",)
    assert data.examples.max() < 50
    assert first[0] == 1 + 0x4CF1A892 % 49  # the CRC-32 of "oil"
    assert token_ids(["OIL"], data.inputs)[0].tolist() == [first[0], 0, 0, 0]
    assert data.inputs.vocabulary == 50 and data.inputs.columns == ("text",)


def config(tmp_path, **changes):
    rows = "".join(f"{'abc'[k % 3]},{k},{k % 2}\n" for k in range(60)) + "d,1,0\n"
    (tmp_path / "t.csv").write_text("h,x,y\n" + rows)
    values = {"dataset": "table", "target": "y", "site": "h", "partition": "natural",
              "data-path": str(tmp_path / "t.csv")}  # fmt: skip
    return build_config(values | changes)


def test_natural_clients_are_the_datas_and_who_has_too_little_is_named(tmp_path):
    data, partition = load_partition(config(tmp_path), 0)
    assert partition.ids == ("a", "b", "c")
    said = "1 clients are left out, with too few examples to train and to test: d (1)"
    assert said in partition.warnings[0]
    for client, split in zip(partition.ids, partition.clients, strict=True):
        own = np.concatenate([split.train, split.val, split.test])
        assert {data.site_names[k] for k in data.sites[own]} == {client} and len(own) == 20
    with pytest.raises(UserError, match=r"clients 7 is not allowed: the data names 3 clients"):
        load_partition(config(tmp_path), 7)


def test_yes_and_no_of_a_file_are_texts_and_switches_take_them(tmp_path):
    text = "dataset: table\ntarget: y\ncategories: {smoker: [yes, no, off, true]}\n"
    (tmp_path / "c.yaml").write_text(text + "keep-state: no\nevaluate-all: True\n")
    config = load_config(tmp_path / "c.yaml", ["labels={ill: on, well: off}"])
    assert config.categories == (("smoker", ("yes", "no", "off", "True")),)
    assert config.labels == (("ill", ("on",)), ("well", ("off",)))
    assert (config.keep_state, config.evaluate_all) == (False, True)


def test_a_node_needs_the_values_of_its_categories(tmp_path):
    rows = "x,sex,y\n" + "1,m,0\n2,f,1\n" * 10
    (tmp_path / "own.csv").write_text(rows)
    values = {"dataset": "table", "target": "y", "classes": ["0", "1"], "categories": ["sex"]}
    with pytest.raises(UserError, match="categories: 'sex' needs its values on a node"):
        open_private(build_config(values), str(tmp_path / "own.csv"))


@pytest.mark.parametrize(
    "keys",
    [{"dataset": "table", "target": "name"}, {"dataset": "signals"},
     {"dataset": "texts", "text": "text", "target": "name"}],
)  # fmt: skip
def test_a_node_does_not_tell_what_stands_in_the_target_of_a_run(tmp_path, keys):
    (tmp_path / "own.csv").write_text("x,text,name\n" + "1,some words,Ann\n2,others,Bob\n" * 10)
    with pytest.raises(Refused, match="must name the classes"):
        open_private(build_config(keys), str(tmp_path / "own.csv"))
