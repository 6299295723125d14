"""`fedhet resume` in this process: what it takes up, what it refuses to change."""

import json

import pytest
from cli.refusals import SMALL, refused
from filelock import FileLock

from fedhet.cli.app import execute
from fedhet.records.ledger import load_checkpoint, save_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.testing import simulate, small

pytestmark = pytest.mark.usefixtures("here")


def test_resume_takes_the_same_configuration(capsys, stopped, pretend, monkeypatch, tmp_path):
    launches = pretend()
    experiment = RunFolder(stopped).experiment
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert execute(["resume", str(stopped)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(stopped)
    assert launches[-1].resume
    assert json.loads(launches[-1].envelope())["run"]["experiment"] == experiment
    assert "completed" in refused(capsys, "resume", str(stopped))


def test_resume_changes_only_what_leaves_the_rounds_alone(capsys, stopped):
    line = refused(capsys, "resume", str(stopped), "lr=0.1")
    assert "lr: cannot be changed in a resumed run" in line and "engine, rounds" in line
    assert RunFolder(stopped).started_config()["lr"] == 0.01


def test_a_run_on_nodes_is_not_simulated_to_its_end(capsys, here, tmp_path):
    folder, _ = simulate(small(tmp_path))
    kept = load_checkpoint(folder.checkpoint)
    kept.meta["simulated"] = False
    save_checkpoint(folder.checkpoint, kept)
    said = refused(capsys, "resume", str(folder.path), "rounds=3")
    assert "was made on nodes, which have its clients' states: give --superlink NAME" in said


@pytest.mark.parametrize("lock", [".owner", ".lock"])
def test_one_command_at_a_time_in_a_run_folder(capsys, stopped, lock):
    with FileLock(stopped / lock):
        assert "in use by another process" in refused(capsys, "resume", str(stopped))
    assert stopped.exists()


@pytest.mark.parametrize(("first", "second"), [("false", "true"), ("true", "false")])
def test_whether_states_are_there_is_what_the_run_before_did(capsys, pretend, first, second):
    """And not what this command asks of its own end."""
    pretend()
    assert execute(["run", "quickstart", *SMALL, f"keep-state={first}", "--name", "kept"]) == 0
    capsys.readouterr()
    assert execute(["resume", "runs/kept", "rounds=2", f"keep-state={second}"])
    deleted = "keep-state=false deleted" in capsys.readouterr().err
    assert deleted == (first == "false")
