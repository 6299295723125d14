"""What is said to somebody who sets a key in vain, names a thing wrongly, or has to wait."""

import shutil

import pytest
import yaml
from cli.refusals import refused
from helpers.tiny import tiny

from fedhet.cli.app import execute
from fedhet.testing import simulate

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
        (["init", "patients.cvs"], "(did you mean 'patients.csv'?)"),
        (["init", "patients.csv"], "delete it, or give --out"),
    ):
        assert says in refused(capsys, *words)


def test_a_diverged_run_is_not_told_to_resume(capsys, here):
    assert execute([*TINY, "clients=2", "lr=1e30", "method=standalone", "rounds=3"]) == 3
    said = capsys.readouterr().err
    assert "fedhet resume" not in said and "diverged" in said


def test_every_clients_model_is_exported_and_who_has_none_is_named(capsys, here):
    folder, _ = simulate(tiny(here, fraction=0.67, rounds=1, evaluate_all=False))
    first, *rest = sorted(folder.path.glob("state/*/*"))
    shutil.copytree(first, first.with_name("9"), ignore=shutil.ignore_patterns("*.safetensors"))
    assert execute(["export", str(folder.path), "--all", "--out", "models"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == ["2 of 3 clients", str(here / "models")]
    assert "left out: client 9: " in output.err and "has not trained" in output.err
    exported = {path.parent.name for path in (here / "models").glob("*/card.yaml")}
    assert exported == {path.name for path in (first, *rest)}
    for words, says in (
        ([folder.path, "--out", "models"], "already exists"),
        ([first.parent, "--out", "m"], "--all and --predictions are for a whole run"),
    ):
        assert says in refused(capsys, "export", "--all", *map(str, words))
