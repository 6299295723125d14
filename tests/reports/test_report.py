"""The report: what it says of runs whose answer is known, and that it says it twice the same."""

import csv
import errno
import json
import re
import shutil
from pathlib import Path

import pytest
from written_runs import CLIENTS, make_run

from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.reports.markup import Cell, Column, Table, text, to_markdown
from fedhet.reports.reading import read_runs
from fedhet.reports.report import BEGIN, END, PAGE_LIMIT, report
from fedhet.reports.runs import pack
from fedhet.reports.sections import build
from fedhet.reports.settings import Arm, arrange, method_name
from fedhet.testing import simulate, small


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two methods, five blocks: FedSSA is better by 1, 2, 3, 4, 5 points for every client."""
    for seed in range(5):
        base = [[0.0] * CLIENTS, [10.0, 20.0, 30.0, 40.0 + seed]]
        better = [[value + 1 + seed for value in row] for row in base]
        make_run(tmp_path / "sweep", "standalone", seed, base)
        make_run(tmp_path / "sweep", "fedssa", seed, better, flops=2e12)
    return tmp_path / "sweep"


def rows_of(out: Path, kind: str) -> dict[str, dict[str, str]]:
    (path,) = (out / "tables").glob(f"{kind}-*.csv")
    with path.open() as file:
        return {row["method"]: row for row in csv.DictReader(file)}


@pytest.mark.usefixtures("undrawn")
def test_the_tables_say_what_the_runs_say(sweep, tmp_path):
    report([sweep], tmp_path / "out", models=False)
    accuracy = rows_of(tmp_path / "out", "accuracy")["Standalone"]
    # means 25, 25.25, ..., 26: mean 25.5, s = 0.3953, half = 2.7764 * 0.3953 / sqrt(5) = 0.4908
    assert accuracy["accuracy [95 %], as shown"] == "25.50 [25.01, 25.99]"
    # client 0 was never sampled: (20 + 30 + 42) / 3
    assert float(accuracy["ever sampled"]) == pytest.approx(92 / 3)
    assert float(accuracy["never sampled"]) == 1
    assert float(accuracy["worst"]) == 10
    assert float(accuracy["10th pct."]) == pytest.approx(13.0)
    paired = rows_of(tmp_path / "out", "paired")["FedSSA"]
    assert float(paired["difference [95 %]"]) == 3
    assert (paired["clients better, %"], paired["clients worse, %"]) == ("100.0", "0.0")
    assert paired["p"] == paired["p, Holm"] == "0.0625"
    cost = rows_of(tmp_path / "out", "cost")["FedSSA"]
    assert (cost["floats up"], cost["floats down"], cost["x Standalone"]) == ("50.0", "30.0", "2.0")
    # Standalone spends 2e12: that is FedSSA's first round
    assert (cost["accuracy at equal compute"], cost["after round"]) == ("3.0", "1.0")
    target = rows_of(tmp_path / "out", "target")["FedSSA"]
    assert float(target["rounds to 25 %"]) == 2
    assert float(target["Mfloats to 25 %"]) == pytest.approx(320e-6)
    assert float(target["TFLOPs to 25 %"]) == 4


@pytest.mark.usefixtures("undrawn")
def test_fewer_than_five_blocks_are_described(sweep, tmp_path):
    shutil.rmtree(sweep / "fedssa-s4")
    report([sweep], tmp_path / "out", models=False)
    paired = rows_of(tmp_path / "out", "paired")["FedSSA"]
    assert paired["p, as shown"] == paired["p, Holm, as shown"] == "descriptive"
    assert paired["p"] == ""


def test_the_same_runs_give_the_same_bytes(sweep, tmp_path):
    for name in ("one", "two"):
        report([sweep], tmp_path / name, models=False)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    assert len(files) > 20
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), (
            file
        )
    page = (tmp_path / "one" / "report.html").read_text()
    assert len(page.encode()) < PAGE_LIMIT
    assert str(tmp_path) not in page and "/somewhere" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)


@pytest.mark.usefixtures("undrawn")
def test_packed_records_give_the_same_report(sweep, tmp_path):
    report([sweep], tmp_path / "one", records=tmp_path / "records", models=False)
    assert "/somewhere" not in (tmp_path / "records" / "fedssa-s0.run").read_text()
    report([tmp_path / "records"], tmp_path / "two", models=False)
    for file in ("report.html", "tables.md"):
        assert (tmp_path / "one" / file).read_text() == (tmp_path / "two" / file).read_text()


@pytest.mark.usefixtures("undrawn")
def test_trimmed_folders_are_enough(sweep, tmp_path):
    for path in sweep.rglob("*"):
        if path.name in {"partition.csv", "environment.json"}:
            path.unlink()
    made = build([sweep], models=False)
    missing = {figure.title: figure.absent for figure in made.figures() if figure.absent}
    assert "partition.csv" in missing["Who holds what"]


@pytest.mark.usefixtures("undrawn")
def test_what_is_left_out_is_named(sweep, tmp_path):
    make_run(sweep, "fd", 0, [[1.0] * 4], status="failed", rounds=2)
    make_run(sweep, "fd", 1, [[1.0] * 4], loss=None, rounds=2)
    (make_run(sweep, "fml", 0, [[1.0] * 4]) / "summary.json").unlink()
    (make_run(sweep, "fedkd", 0, [[1.0] * 4]) / "summary.json").write_text("{")
    (make_run(sweep, "fedapen", 0, [[1.0] * 4]) / "rounds.jsonl").write_text("x{}\n")
    (make_run(sweep, "fedapen", 1, [[1.0] * 4]) / "partition.csv").write_text('{"x": ')
    shutil.copytree(sweep / "fedssa-s0", sweep / "fedssa-again")
    made = build([sweep], models=False)
    reasons = {one.name: one.reason for one in made.left_out}
    assert reasons.pop("fedkd-s0").startswith("cannot be read: 'summary.json' is damaged")
    assert reasons.pop("fedapen-s0").startswith("cannot be read: 'rounds.jsonl': line 1 is damaged")
    assert reasons.pop("fedapen-s1").startswith(
        "cannot be read: 'partition.csv': line 1 is damaged"
    )
    again = reasons.pop("fedssa-s0" if "fedssa-s0" in reasons else "fedssa-again")
    assert again.startswith("a second run of one cell, with the same result")
    assert reasons == {
        "fd-s0": "failed: not finite",
        "fd-s1": "failed: it diverged, in the last round no reply counted",
        "fml-s0": "not finished: round 1 of 1",
    }
    (accuracy,) = (table for table in made.tables() if table.name.startswith("accuracy"))
    shown = {row[0].text: row[1].text for row in accuracy.rows}
    assert shown == {"Standalone": "5", "FedSSA": "5", "FD": "0 (2 failed)"}


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("config.yaml", "evaluate-every: 1", "evaluate-every: 0", "greater than or equal to 1"),
        ("config.yaml", "lr: 0.01", "lr: x", "config.lr: "),
        ("config.yaml", "fraction: 0.5", "fraction: [1]", "config.fraction: "),
        ("rounds.jsonl", '"train_flops"', '"x"', "rounds.0.train_flops: "),
        ("rounds.jsonl", '_mean": 2.5', '_mean": "x"', "rounds.1.test_accuracy_mean: "),
        ("environment.json", "{}", '{"versions": "x"}', "environment.versions: "),
        ("environment.json", "{}", '{"cuda": 5}', "environment.cuda: "),
        ("summary.json", '"failures": []', '"failures": 5', "summary.failures: "),
        ("summary.json", '"rounds": 2', '"rounds": 3', "rounds.jsonl has 2 of 3 rounds"),
        ("summary.json", "fedssa0", "fedssa1", "not the round that summary.json is of"),
        ("clients.csv", "round,", '"' + 2**17 * "x" + "round,", "field larger than"),
        ("rounds.jsonl", '"round": 2', '"evaluated_clients": 9, "round": 2', "4 of 9 clients"),
        ("clients.csv", "2,3,cnn-1,2,4.0,1.0,\n", "", "clients.csv ends with 1.75 %"),
    ],
)  # fmt: skip
def test_damage_of_any_kind_leaves_a_run_out(tmp_path, name, old, new, said):
    path = make_run(tmp_path, "fedssa", 0, [[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    (path / "environment.json").write_text("{}")
    make_run(tmp_path, "standalone", 0, [[1.0] * 4])
    edit(path / name, old, new)
    runs, (left,) = read_runs([tmp_path])
    assert [run.name for run in runs] == ["standalone-s0"]
    assert left.name == "fedssa-s0" and said in left.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"config": {', b'"config": "x", "y": {'),
        (b'"rounds": {', b'"rounds": [1], "y": {'),
        (b'"rounds": {', b'"rounds": {}, "y": {'),
        (b'"name": "', b'"name": "\xff'),
        (b'"train_flops"', b'"x"'),
        (b'"test_accuracy_mean":[2.5]', b'"test_accuracy_mean":[null]'),
        (b'"test":[1.0,', b'"test":["1.0",'),
        (b'"test":[1.0,', b'"test":[NaN,'),
        (b'"test":[1.0,', b'"test":[101.0,'),
        (b'"client":["0","1"', b'"client":["0","0"'),
        (b'"model":["cnn-1"', b'"model":[1'),
        (b'"round":[1]', b'"round":[2]'),
        (b'"clients":4', b'"clients":' + b"9" * 400),
        (b'"classes":["a","b"]', b'"classes":[1,2]'),
        (b'"classes":["a","b"]', b'"classes":[]'),
        (b"0:3", b"7:3"),
        (b"0:3", b"0:" + b"9" * 40),
        (b'"config": {', b'"config": ' + b"[" * 200_000),
    ],
)
def test_damaged_packed_records_are_left_out(tmp_path, old, new):
    make_run(tmp_path / "runs", "fedssa", 0, [[1.0, 2.0, 3.0, 4.0]])
    ((run,), _) = read_runs([tmp_path / "runs"])
    path = pack(run, tmp_path / "packed")
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    runs, left = read_runs([tmp_path / "packed"])
    assert not runs and left[0].reason.startswith("cannot be read: ")


@pytest.mark.usefixtures("undrawn")
def test_without_the_usual_baseline_there_are_no_differences(tmp_path):
    for seed in range(2):
        make_run(tmp_path, "fedssa", seed, [[1.0, 2.0, 3.0, 4.0]])
    made = build([tmp_path], models=False)
    assert not any(table.name.startswith("paired") for table in made.tables())
    facts = dict(fact for section in made.sections for fact in section.facts)
    assert facts["baseline"] == "none: standalone was not run"
    with pytest.raises(UserError, match="baseline: no run has method 'standalone'"):
        build([tmp_path], baseline="standalone", models=False)


@pytest.mark.usefixtures("undrawn")
def test_without_the_usual_baseline_nothing_is_said_of_it(tmp_path):
    keys = {"dataset": "image-folder", "data_path": "/x/cifar10.zip", "clients": 10}
    for lr in (0.01, 0.1):
        make_run(tmp_path, "fedssa", 0, [[1.0, 2.0]], name=f"lr-{lr}", lr=lr, **keys)
    made = build([tmp_path], models=False)
    assert all(table.rows for table in made.tables())
    assert not any(table.name == "across" for table in made.tables())
    notes = [table.note for table in made.tables() if table.name.startswith("target")]
    assert notes and not any("baseline" in note or "worst block" in note for note in notes)


def test_settings_arms_and_blocks(tmp_path):
    tests = [[1.0, 2.0, 3.0, 4.0]]
    make_run(tmp_path, "fedssa", 0, tests, name="a", device="cpu", tracker="none")
    make_run(tmp_path, "fedssa", 1, tests, name="b", actors=2)
    make_run(tmp_path, "fedssa", 1, tests, name="c", partition_seed=0)
    make_run(tmp_path, "fedssa", 0, tests, name="d", mu0=0.3)
    make_run(tmp_path, "fedssa", 0, tests, name="e", lr=0.1)
    runs, left_out = read_runs([tmp_path])
    one, two = arrange(runs, left_out)
    assert not left_out and "lr = 0.01" in one.title and "lr = 0.1" in two.title
    assert {arm.name: arm.blocks for arm in one.arms} == {
        "FedSSA": [(0, 0), (0, 1), (1, 1)], "FedSSA (mu0=0.3)": [(0, 0)],
    }  # fmt: skip
    assert one.slug != two.slug
    assert "each with its own partition and its own seed" in one.variability()


@pytest.mark.usefixtures("undrawn")
def test_curves_over_a_key_of_the_setting_and_of_the_method(tmp_path):
    tests = [[1.0, 2.0, 3.0, 4.0]]
    for alpha in (0.1, 0.5):
        for method in ("standalone", "fedmrl"):
            make_run(
                tmp_path, method, 0, tests, name=f"{method}-{alpha}", alpha=alpha,
                partition="dirichlet",
            )  # fmt: skip
    make_run(tmp_path, "fedmrl", 0, tests, name="x", alpha=0.1, partition="dirichlet", d1=300)
    drawn = [figure.title for figure in build([tmp_path], models=False).figures() if figure.svg]
    assert "Accuracy against alpha" in drawn and "Accuracy against d1" in drawn


@pytest.mark.usefixtures("undrawn")
def test_the_papers_numbers_stand_beside_ours(tmp_path):
    own = {"clients": 100, "fraction": 0.1, "classes_per_client": 10}
    for seed in range(2):
        make_run(tmp_path, "fedssa", seed, [[57.0 + seed, 57.0, 58.0, 57.0]], **own)
        make_run(tmp_path, "fd", seed, [[1.0, 2.0, 3.0, 4.0]], **own)
        make_run(tmp_path, "fedssa", seed, [[1.0] * 4], **own, stabilise=False, name=f"b{seed}")
    report([tmp_path], tmp_path / "out", baseline="fd", models=False)
    rows = rows_of(tmp_path / "out", "papers")
    assert rows["FedSSA"]["paper"] == "57.29" and rows["FedSSA"]["in our interval"] == "yes"
    assert rows["FedSSA"]["source"] == "FedSSA, arXiv 2312.09006, Table 2"
    assert rows["FD"]["paper"] == "" and rows["FD"]["in our interval"] == "-"
    ablation = rows["FedSSA (stabilise=false): seen classes replaced"]
    assert (ablation["paper"], ablation["in our interval"]) == ("49.95", "no")
    assert (rows["FedSSA"]["our order"], rows["FedSSA"]["paper's order"]) == ("1.0", "1.0")
    assert (ablation["our order"], ablation["paper's order"]) == ("", "")


@pytest.mark.usefixtures("undrawn")
def test_a_marked_part_of_a_file_is_replaced_and_nothing_else(sweep, tmp_path):
    page = tmp_path / "results.md"
    page.write_text(f"# Ours\n\n{BEGIN}\nold\n{END}\n\nkept\n")
    report([sweep], tmp_path / "out", into=page, models=False)
    text = page.read_text()
    assert text.startswith(f"# Ours\n\n{BEGIN}") and text.endswith(f"{END}\n\nkept\n")
    assert "old" not in text and "| FedSSA | 5 | 28.50 [" in text
    page.write_text("no marks\n")
    with pytest.raises(UserError, match="has no part between"):
        report([sweep], tmp_path / "other", into=page, models=False)
    assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("undrawn")
def test_latex_is_booktabs_and_escaped(sweep, tmp_path):
    report([sweep], tmp_path / "out", models=False)
    for path in (tmp_path / "out" / "tables").glob("*.tex"):
        text = path.read_text()
        assert r"\toprule" in text and r"\bottomrule" in text
        assert not re.search(r"(?<!\\)%(?! needs)", text) and not re.search(r"(?<!\\)_", text)


@pytest.mark.usefixtures("undrawn")
def test_a_second_report_removes_what_the_first_drew_and_nothing_else(sweep, tmp_path):
    out = tmp_path / "out"
    make_run(sweep, "fd", 0, [[1.0] * 4], lr=0.5)
    report([sweep], out, models=False)
    (out / "tables" / "notes.txt").write_text("mine")
    shutil.rmtree(sweep / "fd-s0")
    made = report([sweep], out, models=False)
    names = {path.stem for path in (out / "tables").glob("*.csv")}
    assert names == {table.name for table in made.tables()}
    assert (out / "tables" / "notes.txt").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_report_that_cannot_be_written_changes_nothing(sweep, tmp_path, monkeypatch):
    out, file = tmp_path / "report", tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match=r"file/records' cannot be written: Not a directory"):
        report([sweep], out, models=False, records=file / "records")
    assert not any(path.is_file() for path in out.rglob("*"))
    report([sweep], out, models=False)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    shutil.rmtree(next(path for path in sweep.iterdir() if path.name.startswith("fedssa")))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(UserError, match="No space left on device"):
            report([sweep], out, models=False)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "figures").write_text("")
    with pytest.raises(UserError, match=r"other/figures' cannot be written: File exists"):
        report([sweep], tmp_path / "other", models=False)


def full(*_args):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.usefixtures("undrawn")
def test_the_command(sweep, tmp_path, capsys):
    out = tmp_path / "out"
    assert execute(["report", str(sweep), "--out", str(out), "--no-models", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == str(out / "report.html") and said["runs"] == 10
    assert said["absent"]["t-sne"] == "left out by --no-models"
    for words, complaint in (
        ([str(tmp_path / "nothing")], "no such file"),
        ([str(out)], "no run folder, sweep or packed record"),
        ([str(sweep), "--baseline", "fedavgg"], "baseline: no run has method 'fedavgg'"),
    ):
        assert execute(["report", *words, "--out", str(tmp_path / "no")]) == 2
        error = capsys.readouterr().err
        assert complaint in error and error.count("\n") == 1
        assert not (tmp_path / "no").exists()


def test_a_packed_record_is_the_run(sweep, tmp_path):
    runs, _ = read_runs([sweep])
    path = pack(runs[0], tmp_path / "records")
    (again,), _ = read_runs([path])
    for name in ("name", "config", "summary", "environment", "rounds", "clients", "counts"):
        assert getattr(again, name) == getattr(runs[0], name)


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_says_of_itself_that_it_was_short(sweep):
    index = sweep / "sweeps" / "p" / "sweep.json"
    index.parent.mkdir(parents=True)
    index.write_text(json.dumps({"format": 1, "sweep": "p", "note": "quick profile", "cells": []}))
    assert "p: quick profile." in build([sweep], models=False).lead


@pytest.mark.usefixtures("undrawn")
def test_accuracy_stands_against_what_was_spent_on_privacy(tmp_path):
    noise = {"dp_clip": 1, "dp_delta": 1e-5}
    for epsilon in (1.0, 10.0):
        path = make_run(
            tmp_path, "fedssa", 0, [[epsilon] * 4], dp_epsilon=epsilon, name=f"e{epsilon}", **noise
        )
        summary = json.loads((path / "summary.json").read_text())
        summary["privacy"] = {"epsilon_spent_max": epsilon / 2}
        (path / "summary.json").write_text(json.dumps(summary))
    make_run(tmp_path, "standalone", 0, [[5.0] * 4])
    figures = {figure.name: figure for figure in build([tmp_path], models=False).figures()}
    assert not figures["privacy"].absent and "hollow" not in figures["privacy"].caption
    assert figures["curves"].absent  # the budget is not a key like any other


@pytest.mark.usefixtures("undrawn")
def test_noise_of_each_upload_and_of_the_sum_are_two_curves(tmp_path, monkeypatch):
    noise, drawn = {"dp_clip": 1, "dp_delta": 1e-5}, []
    for mode in ("off", "masked"):
        for epsilon in (1.0, 10.0):
            path = make_run(
                tmp_path, "fedssa", 0, [[epsilon] * 4], dp_epsilon=epsilon, secure_sum=mode,
                sum_min=2, name=f"{mode}{epsilon}", **noise,
            )  # fmt: skip
            summary = json.loads((path / "summary.json").read_text())
            own = {} if mode == "off" else {"noise_of": "sum"}
            summary["privacy"] = {"epsilon_spent_max": epsilon, **own}
            (path / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr("fedhet.reports.curves._errors", lambda _axes, points, label, _index, **how:
                        drawn.append((label, [x for x, _ in points], how)))  # fmt: skip
    monkeypatch.setattr("fedhet.reports.curves.legend_below", lambda *_: None)
    figures = {figure.name: figure for figure in build([tmp_path], models=False).figures()}
    assert drawn == [
        ("FedSSA", [1.0, 10.0], {"filled": True}),
        ("FedSSA, noise for the sum", [1.0, 10.0], {"filled": False}),
    ]
    assert "hollow" in figures["privacy"].caption


def test_methods_are_spelt_as_their_authors_do():
    spelt = {"pfedes": "pFedES", "pfedafm": "pFedAFM", "fedgh": "FedGH", "lg_fedavg": "LG-FedAvg"}
    assert {name: method_name(name) for name in spelt} == spelt


def test_no_two_arms_share_a_name(monkeypatch, tmp_path):
    """Rows, colours and tests are by name."""
    (tmp_path / "elsewhere.py").write_text(
        "from fedhet.registry import METHODS as ours, Method\n"
        "METHOD = Method(ours['fedavg'].strategy, ours['fedavg'].client, 'another')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert method_name("fedavg") == "FedAvg"
    assert method_name("elsewhere:METHOD") == "FedAvg (elsewhere:METHOD)"
    close = [Arm("fedssa", {"mu0": value}).name for value in (0.5, 0.50000001)]
    assert close == ["FedSSA (mu0=0.5)", "FedSSA (mu0=0.50000001)"]
    alike = [0.7, "0.7", True, "true", ["a", "b"], "a,b", None, "None", "1, b=2", {"x": 1}, "", []]
    assert len({Arm("fedssa", {"a": value}).name for value in alike}) == len(alike)
    assert Arm("fedssa", {"a": "x"}).name == "FedSSA (a=x)"
    assert method_name("_nowhere:METHOD") == "'_nowhere:METHOD'"  # else in no legend
    both = [Arm("fedssa", keys).name for keys in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    assert both == ["FedSSA (a=1, b=2)"] * 2


def test_a_record_is_called_like_its_file(tmp_path):
    """What it calls itself may be a path."""
    make_run(tmp_path / "runs", "fedssa", 0, [[1.0, 2.0, 3.0, 4.0]])
    ((run,), _) = read_runs([tmp_path / "runs"])
    path = pack(run, tmp_path / "packed")
    edit(path, f'"name": "{run.name}"', '"name": "../../elsewhere"')
    ((again,), _) = read_runs([path])
    assert again.name == run.name


def test_odd_runs_are_drawn(tmp_path):
    """A norm that only some have, a name that could be a formula, no FLOPs."""
    for seed in range(2):
        path = make_run(tmp_path, "fedssa", seed, [[1.0] * 4] * 2, flops=0.0)
        edit(path / "config.yaml", "method: fedssa", "method: fedssa\nodd-key: $\\b$")
        lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        text = "".join(
            json.dumps(line | {"header_norm": 1.0 if seed else None}) + "\n" for line in lines
        )
        (path / "rounds.jsonl").write_text(text)
    drawn = {one.name.split("-")[0] for one in build([tmp_path], models=False).figures() if one.svg}
    assert {"rounds", "trade", "norms", "partition"} <= drawn


def test_names_are_no_markup():
    cells = [text(name) for name in ("a|b", "<b>x", "*x*", "[x](y)", "a_b", "__a_", "p\nq")]
    cells += [text("~~x~~"), text("&lt;"), text("a & b")]
    cells += [Cell("1.00 [0.50, 1.50]", 1.0), Cell("< 0.001", 0.0)]
    table = Table("t", "T", "", [Column("x", "")] * len(cells), [cells])
    assert to_markdown(table).splitlines()[-1] == (
        r"| a\|b | &lt;b>x | \*x\* | [x]\(y) | a_b | \_\_a\_ | p q | \~\~x\~\~ | &amp;lt; | a & b "
        "| 1.00 [0.50, 1.50] | < 0.001 |"
    )


def test_rounds_between_evaluations_are_no_points_of_a_curve(tmp_path):
    """rounds.jsonl repeats the last figures there."""
    folder, _ = simulate(small(tmp_path, rounds=5, evaluate_every=2))
    (run,), _ = read_runs([folder.path])
    assert [r["round"] for r in run.evaluated] == [2, 4, 5]
