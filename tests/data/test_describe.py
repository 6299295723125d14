"""What a file's columns are for: written on strong evidence, else asked for; leaks are named."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedhet.cli.app import execute
from fedhet.config.load import build_config
from fedhet.data.cache import open_dataset
from fedhet.data.describe import describe
from fedhet.data.inputs import Reading
from fedhet.data.rows import open_rows
from fedhet.errors import UserError
from fedhet.site.local_data import load_dataset, load_partition

PATIENTS = "patient id,age,sex,seen,clinic,outcome\n" + "".join(
    f"{k * 977},{20 + k * 7 % 50},{'fm'[k % 2]},2020-01-{1 + k % 28:02},c{k % 3},{k * 7 // 5 % 2}\n"
    for k in range(90)
)


def frame_of(path, formulas, rows=120):
    """Write a CSV whose columns are formulas of the row's number k."""
    columns = dict(one.split("=", 1) for one in formulas.split())
    frame = pd.DataFrame({n: [eval(f, {"k": k}) for k in range(rows)] for n, f in columns.items()})
    frame.to_csv(path, index=False)
    return path


def warnings_of(printed):
    return [line for line in printed.splitlines() if line.startswith("warning: ")]


def test_a_table_is_described_and_its_preset_runs(init, capsys):
    config, printed = init("p.csv", text=PATIENTS)
    rows = [[cell.strip() for cell in line.split("│")] for line in printed.splitlines()]
    assert {cells[1]: cells[6] for cells in rows if cells[1:]} == {
        "patient id": "identifier", "age": "number", "sex": "category", "seen": "date",
        "clinic": "site", "outcome": "class",
    }  # fmt: skip
    assert printed.splitlines()[-1] == "fedhet run p.yaml"
    assert config.ignore == ("patient id", "seen") and config.classes == ("0", "1")
    assert config.numbers == ("age",) and config.categories == (("sex", ("f", "m")),)
    data, partition = load_partition(config, config.clients)
    assert partition.ids == ("c0", "c1", "c2") and data.inputs.columns == ("age", "sex")
    assert execute(["init", "p.csv"]) == 2
    assert "'p.yaml' already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "site"), [("site=clinic", ("clinic",)), ("site=", ()), ("categories=[clinic]", ())]
)
def test_a_key_that_is_given_is_written_as_it_is(init, word, site):
    config, _ = init("p.csv", "target=sex", word, text=PATIENTS)
    assert config.target == "sex" and config.site == site


def test_a_file_without_header_and_a_file_of_texts(tmp_path, init, capsys):
    (tmp_path / "a.data").write_text("".join(f"{k % 9},{k * 7 % 31},{k % 3}\n" for k in range(60)))
    assert execute(["init", "a.data"]) == 2  # nothing says that c3 is the class
    assert "fedhet init a.data target=c3" in capsys.readouterr().err
    assert init("a.data", "target=c3")[0].columns == ("c1", "c2", "c3")
    notes = "".join(f'"the {k} quick brown fox jumps over the dog",{k % 2}\n' for k in range(80))
    config, _ = init("t.csv", text="review,sentiment\n" + notes)
    assert (config.dataset, config.text, config.target) == ("texts", "review", "sentiment")


def test_the_axes_of_windows_are_told_and_written(tmp_path, init):
    arrays = {"x": np.zeros((60, 32, 2)), "y": np.arange(60) % 2, "scale": np.ones(3)}
    np.savez(tmp_path / "w.npz", **arrays, subject=np.arange(60) % 3, persons=np.arange(60) % 9)
    config, printed = init("w.npz")
    assert "is taken as 2 channels of 32 steps" in printed
    assert "arrays that are not read: scale" in printed
    assert config.axes == "time-channels" and config.site == ("subject",)
    assert config.group == ("persons",)


def test_the_classes_of_a_folder_of_images_are_told_and_written(tmp_path, init):
    for name in ("ill", "well", "empty"):
        (tmp_path / "eyes" / name).mkdir(parents=True)
    for number in range(30):
        place = tmp_path / "eyes" / ("ill" if number < 10 else "well")
        Image.new("RGB", (8, 8), (number, 0, 0)).save(place / f"{number}.png")
    config, printed = init("eyes")
    assert "30 images; 2 classes: ill (10), well (20)" in printed
    assert config.classes == load_partition(config, config.clients)[0].classes == ("ill", "well")


@pytest.mark.parametrize(
    ("ill", "metric"), [("k%2", "accuracy"), ("[3,k%3][k>9]", "balanced_accuracy")]
)
def test_the_headline_sees_rare_classes(tmp_path, init, ill, metric):
    frame_of(tmp_path / "p.csv", f"age=30+k*7%41 ill={ill}", rows=200)
    config, _ = init("p.csv")
    assert config.metric == metric
    preset, rare = (tmp_path / "p.yaml").read_text(), metric != "accuracy"
    assert ("\n# class-weights: balanced  # " in preset) == rare == (config.lr == 0.01)
    found = load_partition(config, config.clients)[1].warnings
    assert any("few test examples of a class: client 0 has" in one for one in found) == rare


TARGETS = {  # columns by a formula of the row's number; the class, or what is asked
    "outcome": ("treat='ab'[k%2] outcome=k%3//2 los=k*k%90", "outcome"),
    "one exact name": ("pclass=1+k%3 age=k*7%50 survived=k%2", "survived"),
    "part of a name": ("age=k*7%50 PatientStatus='ab'[k%2]", "such as PatientStatus"),
    "two names": ("class='xyz'[k%3] age=k*7%50 survived=k%2", "such as survived .*, class"),
    "a machine": ("machine='ab'[k%2] acc=k*0.37 state='xy'[k%2]", "such as state .*, machine"),
    "a count": ("num_visits=k%7 age=18+k%31 readmitted=['>30','<30','NO'][k%3]",
                "such as readmitted .*, num_visits"),
    "a measurement of that name": ("age=k*7%50 y=k*0.37", "no column looks like a class"),
    "measurements": ("a=k*0.37 b=k*1.7", r"one of a, b; divide a .* target=b labels=.{low: ..101"),
    "transposed": ("gene='g'+str(k) p1=k*0.3 p2=k*k*0.7", "transpose the file"),
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_the_class_is_an_exact_name_that_fits_or_asked_for(tmp_path, name):
    formulas, wanted = TARGETS[name]
    description = describe(open_rows([frame_of(tmp_path / "p.csv", formulas)]), Reading())
    if found := description.reading.target:
        assert found == wanted
        return
    with pytest.raises(UserError, match=f"target: .*{wanted}"):
        description.need_target()


SITES = {  # columns beside the class: those that become site and group
    "hospital='abc'[k%3]": ("hospital", ""),
    "inst=1+k%6": ("inst", ""),
    "time_in_hospital=1+k%14 hospital_expire_flag=k%2": ("", ""),
    "hospital_beds=100+k*k%977": ("", ""),
    "ward='abc'[k%3]": ("", ""),  # likely: a person is asked
    "patient_id=k//4": ("", "patient_id"),
    "subject='S%03d'%(k//3)": ("", "subject"),
    "code='ab-%03d'%(k//3)": ("", "code"),  # by its values
    "record=100+k": ("", ""),  # no value repeats
    "n_visits=k%9 admission_type_id=1+k%8": ("", ""),
    "patient_id=k//4 visit_id=k//2": ("", "patient_id"),
    "centre='AB'[k//60] nr=k%8": ("centre", "centre nr"),  # of each centre
    "length_of_stay=k*k%29": ("", ""), "kind=k%6 tier=k%7": ("", ""),
    "patientennummer=k%20": ("", "patientennummer"), "paciente=k%20": ("", "paciente"),
    "fallnummer=k%20+1001": ("", "fallnummer"), "VersichertenNr=k%20": ("", "VersichertenNr"),
    "name=f'Meier-{chr(97+k%20)}'": ("", "name"), "patient_number=k%20": ("", "patient_number"),
    "subject=k//20": ("", "subject"), "persons=k//20": ("", ""),
    "group=k//3": ("", "group"), "stratum=k*7%40": ("", "stratum"),
}  # fmt: skip


@pytest.mark.parametrize("columns", SITES)
def test_sites_and_groups_are_proposed_by_names_and_values(tmp_path, columns):
    path = frame_of(tmp_path / "p.csv", f"{columns} bp=k*k%83*1.1 outcome=k*7//5%2")
    description = describe(open_rows([path]), Reading(), {"site", "group"})
    site, group = SITES[columns]
    assert description.reading.site == ((site,) if site else ())
    assert description.reading.group == (*group.split(),)
    assert "bp" in description.features and not {site, *group.split()} & {*description.features}
    assert not any("id" in name.split("_") and "type" not in name for name in description.features)


def test_what_is_not_clear_is_asked_for_on_a_terminal(tmp_path, init, monkeypatch, capsys):
    frame_of(tmp_path / "p.csv", "num_visits=k%7 ward='abc'[k%3] readmitted=['no','yes'][k%2]")
    assert execute(["init", "p.csv"]) == 2
    captured = capsys.readouterr()
    assert "num_visits" in captured.out and "fedhet init p.csv target=readmitted" in captured.err
    assert not (tmp_path / "p.yaml").exists()
    answers = iter([1, 1])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    config, _ = init("p.csv")
    assert config.target == "readmitted" and config.site == ("ward",)


@pytest.mark.parametrize(
    ("columns", "likely"),
    [("ward='abc'[k%3] dose=k*0.37", "ward"), ("device=1+k%5", "device"), ("ward=k*0.1", "")],
)
def test_no_run_is_silent_about_a_column_that_may_be_the_site(tmp_path, init, columns, likely):
    frame_of(tmp_path / "p.csv", f"{columns} age=k*7%50 status=k*7//5%2")
    line = f"no site: site={likely} would make each value of '{likely}' a client"
    config, printed = init("p.csv")
    written = load_partition(config, config.clients)[0].notes
    bare = open_dataset("table", data_path="p.csv", reading=Reading(target="status")).notes
    assert [line in lines for lines in (printed, written, bare)] == [bool(likely)] * 3
    none = build_config({"dataset": "table", "data-path": "p.csv", "target": "status", "site": ""})
    assert line not in load_dataset(none).notes


LEAKS = {  # a column beside the class ``ill``; what is said of it
    "ct=k%2*50+k%45": "column 'ct' alone gives 'ill' in 100.0%",  # by a threshold
    "boat=k%20 ": "column 'boat' alone gives 'ill' in 100.0%",  # by its values
    "alive='ny'[k%2]": "column 'alive' alone gives 'ill' in 100.0%",
    "nv=int(k%4==0) bcc=int(k%4==2)": "columns nv, bcc and 'ill' are one class in several columns",
    "bp=k*k*7%83": "",
    "discharge_type='abc'[k%3]": "known only after 'ill': discharge_type: ignore=discharge_type",
}


@pytest.mark.parametrize("column", LEAKS)
def test_a_column_that_gives_the_class_is_named_with_the_key_to_type(tmp_path, init, column):
    frame_of(tmp_path / "p.csv", f"age=k*k%61 {column} ill=k%2", rows=400)
    lines = warnings_of(init("p.csv")[1])
    assert len(lines) == bool(LEAKS[column]) and LEAKS[column] in "".join(lines)
    if LEAKS[column]:
        assert f"ignore={column.split('=')[0]}" in lines[0]


@pytest.mark.parametrize(
    ("time", "event"),
    [
        ("time", "status"), ("T", "E"), ("t2e", "event"), ("tage_bis_ereignis", "ereignis"),
        ("duree_suivi", "deces"), ("tiempo", "muerte"), ("PFS", "progression"), ("time_d", "cens"),
        ("diff_days", "observed"), ("cgvhtime", "cgvh"), ("rectime", "censdead"), ("t2", "d2"),
        ("pgtime", "pgstat"), ("time1", "infect1"),
    ],
)  # fmt: skip
def test_time_to_an_event_is_known(tmp_path, time, event):
    path = frame_of(tmp_path / "p.csv", f"{time}=k*k%997 age=k*k%61 {event}=k*7//5%2")
    assert describe(open_rows([path]), Reading(target=event)).later() == [time]


def test_what_may_be_wrong_is_said_at_once(tmp_path, init, capsys):
    names, classes = ("Mercy", "mercy", "Hope"), ("ill", "Ill", "well", "well")
    rows = "".join(
        f"{'n.d.' if k == 7 else k / 8},{'so on until then '[k % 9 :]} a b c {k % 45},"
        f"{names[k % 3]},{classes[k % 4]}\n" for k in range(90)
    )  # fmt: skip
    printed = init("p.csv", text="bp,remarks,hospital,outcome\n" + rows)[1]
    assert all(line in printed for line in (
        "missing values (gaps): n.d.", "dataset=texts text=remarks reads", "'Mercy' and 'mercy'",
        "sites that differ only in case", "warning: classes 'Ill', 'ill' differ only in case",
    ))  # fmt: skip
    (tmp_path / "one.csv").write_text("age,outcome\n" + "5,1\n" * 90)
    assert execute(["init", "one.csv", "target=outcome"]) == 2
    assert "have the same class" in capsys.readouterr().err and not (tmp_path / "one.yaml").exists()


@pytest.mark.parametrize(
    ("here", "there", "line"),
    [
        ("0,1", "no,yes", "no class of a, b occurs at another site"), ("0,1", "0,1", ""),
        ("0,1", "0,-9", "classes -9 may stand for a missing value: gaps=-9"),
        ("0,1", "0,unknown", "gaps=unknown"), ("0,1", "1", ""),
        ("0,1", "1,2", "sites do not have the same classes (a has 0, 1; b has 1, 2): labels={NAME"),
    ],
)  # fmt: skip
def test_words_for_one_class_and_for_a_gap_are_named(tmp_path, init, here, there, line):
    for name, words in (("a", here.split(",")), ("b", there.split(","))):
        rows = "".join(f"{k * k % 61},{words[k % len(words)]}\n" for k in range(60))
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / f"{name}.csv").write_text("age,outcome\n" + rows)
    warnings = warnings_of(init("sites")[1])
    assert len(warnings) == bool(line) and line in "".join(warnings)


@pytest.mark.parametrize("sign", ["|", ";", "+", "/", " & ", " and "])
def test_several_classes_in_one_cell_are_refused(opened, sign):
    with pytest.raises(UserError, match="several classes in one cell"):
        opened("age,label\n" + f"5,a{sign}b\n6,a\n7,b\n" * 30, Reading(target="label"))


@pytest.mark.parametrize("name", ["p.parquet", "p.npz"])
def test_a_file_without_rows_is_one_line(tmp_path, capsys, name):
    np.savez(tmp_path / "p.npz", x=np.zeros((0, 2, 8)), y=np.zeros(0))
    if name == "p.parquet":
        pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
        pd.DataFrame({"age": [1.0], "y": ["a"]}).head(0).to_parquet(tmp_path / name)
    assert execute(["init", str(tmp_path / name)]) == 2
    assert "there is no row" in capsys.readouterr().err
