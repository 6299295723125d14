"""What is said of keys in vain, wrong names and strangers' ones; streams that are gone."""

import json
import math
import os
import sys

import pytest
import yaml
from cli.refusals import refused
from helpers.tiny import tiny
from watch.folders import failure, line

from fedhet.cli import deploy
from fedhet.cli.app import execute, main
from fedhet.cli.common import RunProgress, tell
from fedhet.testing import simulate

ROUNDS = [json.loads(line(1))]
EVIL = "n\x1b]0;owned\x07\x9b31m[red]"
TINY = ("run", "quickstart", "engine=inline", "models=cnn-5", "rounds=1", "local-epochs=1",
        "image-size=16", "dataset=synthetic:120x4")  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_says_its_notes_once_nothing_is_wrong(capsys, here):
    words = [*TINY, "data-path=/x", "clients=4"]
    assert "'x' is not allowed" in refused(capsys, *words, "lr=x")
    assert execute([*words, "--name", "r"]) == 0
    assert capsys.readouterr().err.count("note: data-path=/x has no effect") == 1
    assert execute(["resume", "runs/r", "rounds=2", "actors=3"]) == 0
    assert "note: actors=3 has no effect" in capsys.readouterr().err


def test_a_sweep_names_what_changes_nothing_in_any_cell(capsys, here):
    grid = {"partition": ["dirichlet", "classes-per-client"]}
    (here / "p.yaml").write_text(yaml.safe_dump({"clients": 4, "grid": grid}))
    words = ["sweep", "p.yaml", "--dry-run", "actors=2", "alpha=1", "data-path=/x"]
    assert execute(words) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[2].partition("=")[0] for line in said] == ["actors", "data-path"]


def test_a_file_that_is_missing_or_is_no_preset_is_told_what_to_do(capsys, here):
    (here / "patients.csv").write_text("age,ill\n1,0\n")
    (here / "patients.yaml").write_text("rounds: 3\n")
    table = ["run", "quickstart", "dataset=table", "target=ill", "models=@table-5"]
    for words, says in (
        (["run", "patients.csv"], "`fedhet init patients.csv` writes a preset for data"),
        ([*table, "data-path=patents.csv"], "(did you mean 'patients.csv'?)"),
        (["init", "patients.csv"], "delete it, or give --out"),
    ):
        assert says in refused(capsys, *words)


def test_a_diverged_run_is_not_told_to_resume(capsys, here):
    assert execute([*TINY, "clients=2", "lr=1e30", "method=standalone", "rounds=3"]) == 3
    said = capsys.readouterr().err
    assert "fedhet resume" not in said and "diverged" in said


@pytest.fixture(params=["closed", "full"])
def unwritable(request):
    """A stream that takes no text."""
    if request.param == "full":
        stream = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
    else:
        read, write = os.pipe()
        os.close(read)
        stream = os.fdopen(write, "w")
    with stream:
        yield stream


def test_a_run_goes_on_where_nobody_reads_its_progress(unwritable, monkeypatch):
    monkeypatch.setattr(sys, "stdout", unwritable)
    monkeypatch.setattr(sys, "stderr", unwritable)
    with RunProgress("fedssa", 1) as progress:
        for _ in range(2):
            progress.note("starting")
            progress.update(ROUNDS)
            tell("note")
            deploy._say("a node goes on as well")
    print("the result")
    unwritable.flush()  # and what is left over is not tried again


def test_a_full_disk_is_one_line_and_a_reader_that_had_enough_is_none(
    unwritable, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdout", unwritable)
    with pytest.raises(SystemExit) as end:
        main(["unit", "server"])
    error = capsys.readouterr().err
    if unwritable.name == "/dev/full":
        assert end.value.code == 2 and error == "fedhet: error: No space left on device\n"
    else:
        assert end.value.code == 0 and not error


def test_a_working_folder_that_is_gone_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    (tmp_path / "gone").rmdir()
    assert "the working folder no longer exists" in refused(capsys, "runs", ".")


def test_a_round_names_whom_it_did_without_when_that_changes(capsys):
    away = {"failures": [failure("west", "offline")], "replied": 1}
    lines = [json.loads(line(k, **changes)) for k, changes in enumerate(({}, away, away, {}), 1)]
    progress = RunProgress("fedssa", 10)
    progress._printed = math.inf  # no line is due
    for count in range(len(lines) + 1):
        progress.update(lines[:count])
    second, fourth = capsys.readouterr().out.splitlines()
    assert "round 2/10, " in second and "1 of 2 replied (client west: offline)" in second
    assert "round 4/10, " in fourth and "2 of 2" in fourth


def test_names_of_folders_and_reasons(tmp_path, capfd):
    run = simulate(tiny(tmp_path, engine="inline", name="own", rounds=1))[0].path
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"status": EVIL, "clients_lost": [{"client": EVIL, "round": 1, "reason": EVIL}]}
    (run / "summary.json").write_text(json.dumps(summary))
    moved = run.rename(run.with_name(EVIL))
    execute(["runs", str(moved.parent)])
    execute(["verify", str(moved)])
    execute(["resume", str(moved)])
    execute(["report", str(moved), "--no-models", "--out", str(run.parent / "out")])
    said = "".join(capfd.readouterr())
    assert not {"\x1b", "\x07", "\x9b"} & {*said} and "n?]0;owned??31m[red]" in said
