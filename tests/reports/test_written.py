"""What a report writes: the same twice, all or nothing, and what the command says."""

import errno
import json
import re
import shutil
from pathlib import Path

import pytest
from written_runs import make_run

from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.reports.page import PAGE_LIMIT, to_page
from fedhet.reports.report import BEGIN, END, report
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
