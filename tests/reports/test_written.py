"""What a report writes: the same twice, all or nothing, and what the command says."""

import errno
import json
import re
import shutil
from pathlib import Path

import pytest
from written_runs import edit, make_run

from fedhet import load_sweep
from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.reports.names import file_name
from fedhet.reports.page import PAGE_LIMIT, to_page
from fedhet.reports.reading import read_runs
from fedhet.reports.report import BEGIN, END, _place, report
from fedhet.reports.runs import numbered
from fedhet.reports.sections import build


def test_the_same_runs_give_the_same_bytes(sweep, tmp_path):
    for name in ("one", "two"):
        report([sweep], tmp_path / name, models=False)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    assert len(files) > 15
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), (
            file
        )
    page = (tmp_path / "one" / "report.html").read_text()
    assert len(page.encode()) < PAGE_LIMIT
    assert str(tmp_path) not in page and "/somewhere" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)


def test_packed_records_give_the_same_report(sweep, tmp_path):
    report([sweep], tmp_path / "one", records=tmp_path / "records", models=False)
    assert "/somewhere" not in (tmp_path / "records" / "fedssa-s0.run").read_text()
    report([tmp_path / "records"], tmp_path / "two", models=False)
    for file in ("report.html", "tables.md"):
        assert (tmp_path / "one" / file).read_text() == (tmp_path / "two" / file).read_text()


def test_trimmed_folders_are_enough(sweep, tmp_path):
    for path in sweep.rglob("*"):
        if path.name in {"partition.csv", "environment.json"}:
            path.unlink()
    made = build([sweep], models=False)
    missing = {figure.title: figure.absent for figure in made.figures() if figure.absent}
    assert "partition.csv" in missing["Who holds what"]


def test_a_marked_part_of_a_file_is_replaced_and_nothing_else(sweep, tmp_path):
    page = tmp_path / "results.md"
    page.write_text(f"# Ours\n\n{BEGIN}\nold\n{END}\n\nkept\n")
    report([sweep], tmp_path / "out", into=page, models=False)
    text = page.read_text()
    assert text.startswith(f"# Ours\n\n{BEGIN}") and text.endswith(f"{END}\n\nkept\n")
    assert "\nold\n" not in text and "| FedSSA | 5 | 28.50 [" in text
    page.write_text("no marks\n")
    with pytest.raises(UserError, match="has no part between"):
        report([sweep], tmp_path / "other", into=page, models=False)
    assert not (tmp_path / "other").exists()


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


def full(*_args):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_formats_are_those_asked_for(sweep, tmp_path):
    report([sweep], tmp_path / "out", formats=["csv"], models=False)
    kinds = {path.suffix for path in (tmp_path / "out").rglob("*.*")}
    assert kinds == {".html", ".csv"}
    with pytest.raises(UserError, match="--format: 'xls' is not allowed: md, csv"):
        report([sweep], tmp_path / "out", formats=["xls"])
    for taken in (sweep, next(sweep.glob("*/config.yaml")).parent):
        with pytest.raises(UserError, match="is a folder of runs"):
            report([sweep], taken)
    with pytest.raises(UserError, match="--out: give the folder"):
        report([sweep])


def test_what_would_make_the_page_too_big_is_linked(sweep, tmp_path, monkeypatch):
    whole, none = to_page(build([sweep], models=False))
    assert not none
    monkeypatch.setattr("fedhet.reports.page.PAGE_LIMIT", len(whole) - 1)
    report([sweep], tmp_path / "out", formats=[], models=False)
    page = (tmp_path / "out" / "report.html").read_text()
    linked = re.findall(r'href="(figures/[^"]+)"', page)
    assert linked and all((tmp_path / "out" / name).read_text()[:4] == "<svg" for name in linked)
    assert 'id="differences"' in page and "figures/differences.svg" not in page  # that opens it


def test_a_strangers_record_names_no_file_of_ours(tmp_path):
    """Columns that end in norm, and own keys that differ, are in the names of figures."""
    for key in (1, 2):
        path = make_run(tmp_path / "runs", "fedssa", 0, [[1.0] * 4], name=f"r{key}")
        edit(path / "config.yaml", "method: fedssa", f"method: fedssa\na/b: {key}")
        new = "".join(f'"{name}_norm": 1.0, ' for name in ("../../../elsewhere/evil", "x/y", "x_y"))
        edit(path / "rounds.jsonl", '"train_flops"', f'{new}"train_flops"')
    report([tmp_path / "runs"], tmp_path / "out", models=False)
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}
    drawn = [path.name for path in (tmp_path / "out" / "figures").iterdir()]
    assert sum("norm" in name for name in drawn) == 3 and any("a_b" in name for name in drawn)


@pytest.mark.parametrize("name", ["../evil.svg", "figures/../../evil.svg", "/evil.svg", "a/b.svg"])
def test_nothing_is_written_beside_the_folder_of_the_report(tmp_path, name):
    with pytest.raises(UserError, match="is not allowed as a file of a report"):
        _place({"report.html": "", name: ""}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_runs_of_one_name_are_as_many_records(tmp_path):
    for seed, place in ((0, "p0"), (1, "p1"), (0, "p2")):  # the last repeats the first
        for method in ("fedssa", "standalone"):
            make_run(tmp_path / place, method, seed, [[1.0 + seed] * 4], name=method)
    places = [tmp_path / name for name in ("p0", "p1", "p2")]
    made = report(places, tmp_path / "one", records=tmp_path / "records", models=False)
    assert len(made.runs) == 4 and "<4 runs" in repr(load_sweep(*places))
    names = {path.name for path in (tmp_path / "records").iterdir()}
    assert names == {"fedssa.run", "fedssa-2.run", "standalone.run", "standalone-2.run"}
    again = build([tmp_path / "records"], models=False)
    assert again.verdict == made.verdict and not again.left_out


def test_a_number_is_no_other_runs_name(tmp_path):
    for place, name in (("a", "x"), ("b", "x"), ("c", "x-2")):
        make_run(tmp_path / place, "fd", ord(place), [[1.0] * 4], name=name)
    runs, _ = read_runs([tmp_path / place for place in "abc"])
    assert [run.name for run in numbered(runs)] == ["x", "x-3", "x-2"]


def test_a_report_in_other_formats_leaves_no_older_tables_behind(sweep, tmp_path):
    out = tmp_path / "out"
    report([sweep], out, formats=["md", "csv", "parquet"], models=False)
    assert (out / "tables.md").exists() and (out / "runs.parquet").exists()
    (out / "notes.md").write_text("mine")
    report([sweep], out, formats=["csv"], models=False)
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        "report.html", "runs.csv", "notes.md",
    }  # fmt: skip


def test_a_file_name_is_short_stays_and_is_no_others():
    texts = ["curve-lr-x", "a/b", "a_b", "../a", "", "x" * 5000, "x" * 4999, "ä", "a\nb"]
    names = [file_name(text) for text in texts]
    assert names[0] == texts[0] and len(set(names)) == len(texts)
    assert max(map(len, names)) <= 200 and names == [file_name(name) for name in names]
