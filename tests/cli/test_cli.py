"""The command line in this process: every mistake is one line and a code; nothing is launched."""

import json

import pytest
from cli.refusals import SMALL, refused
from filelock import FileLock
from watch.folders import line

from fedhet.cli.app import execute
from fedhet.engines import session
from fedhet.engines.system import Interrupted, free_ports
from fedhet.errors import RunFailed
from fedhet.records.ledger import load_checkpoint, save_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.testing import simulate, small

pytestmark = pytest.mark.usefixtures("here")


RUNS = (  # what tests/config/test_config.py cannot know: data, devices, folders, options
    (["dataset=image-folder", "data-path=/no/such"], ["data-path", "/no/such"]),
    (["state-dir=/dev/null/states"], ["state-dir", "/dev/null/states", "cannot be written"]),
    (["out=runs\udcff"], ["is not UTF-8"]),
    (["device=cuda:99"], ["device", "'cuda:99'"]),
    (["clients=0", "min-replies=11"], ["min-replies", "11", "10 clients"]),
    (["--rounds", "3"], ["No such option '--rounds'", "rounds=VALUE"]),
)
COMMANDS = (
    (["rum"], ["No such command 'rum'", "'run'"]),
    (["run", "quikstart"], ["'quikstart'", "did you mean 'quickstart'", "fedssa"]),
    (["resume", "none"], ["none' is not a run folder"]),
    (["report", ".", "--out="], ["--out: '' is not allowed: give it a value"]),
    (["run", "quickstart", "--superlink", " "], ["--superlink: '' is not allowed"]),
    (["report", ".", "--out", "."], ["--out: '.' is a folder of runs"]),
    (["new", "method", "My-Method"], ["'My-Method' is not allowed"]),
    (["new", "method", "fedssa"], ["already has a method 'fedssa'"]),
)


@pytest.mark.parametrize(
    ("words", "parts"),
    [*((["run", "quickstart", *words], parts) for words, parts in RUNS), *COMMANDS],
)
def test_a_mistake_is_one_line_and_leaves_nothing(capsys, here, words, parts):
    line = refused(capsys, *words)
    assert all(part in line for part in parts), line
    assert list(here.iterdir()) == []


def test_the_run_folder_is_the_last_line(capsys, here, pretend):
    launches = pretend()
    out = ["--out", "results", "--name", "first"]
    assert execute(["run", "quickstart", *SMALL, "clients=0", *out]) == 0
    folder = here / "results" / "first"
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    (launch,) = launches
    assert (launch.config.clients, launch.config.out) == (10, str(here / "results"))
    assert RunFolder(folder).started_config()["clients"] == 10
    line = refused(capsys, "run", "quickstart", *SMALL, *out)  # is never used twice
    assert "already exists" in line and "fedhet resume" in line
    assert execute(["run", f"{folder}/config.yaml", "name=second"]) == 0  # a preset as others
    assert (here / "results" / "second").is_dir()


def test_a_failed_run_is_3_an_interrupted_one_130_and_both_can_go_on(
    capsys, here, pretend, monkeypatch
):
    pretend(RunFailed("run failed: too few replies (log: log.txt)"))
    assert execute(["run", "quickstart", *SMALL, "--name", "bad"]) == 3
    assert capsys.readouterr().err.endswith("run failed: too few replies (log: log.txt)\n")
    assert (here / "runs" / "bad" / "summary.json").exists()
    pretend(Interrupted(2))
    assert execute(["run", "quickstart", *SMALL, "--name", "cut"]) == 130
    assert f"fedhet resume {here / 'runs' / 'cut'}" in capsys.readouterr().err

    def killed(launch, _on_rounds):  # between a round's line and its checkpoint
        launch.folder.append_round(json.loads(line(1)))
        raise RunFailed("killed")

    monkeypatch.setattr(session, "simulate", killed)
    assert execute(["run", "quickstart", *SMALL, "--name", "begun"]) == 3
    assert f"fedhet resume {here / 'runs' / 'begun'}" in capsys.readouterr().err


def test_a_ray_that_nobody_answers_for_is_named_at_once(capsys, here, monkeypatch):
    """A run that does not say `engine` takes the cluster of RAY_ADDRESS."""
    (port,) = free_ports(1)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    line = refused(capsys, "run", "quickstart", *SMALL)
    assert f"RAY_ADDRESS: nothing answers at '127.0.0.1:{port}'" in line
    assert list(here.iterdir()) == []


def test_resume_takes_the_same_configuration(capsys, stopped, pretend, monkeypatch, tmp_path):
    line = refused(capsys, "resume", str(stopped), "lr=0.1")
    assert "lr: cannot be changed in a resumed run" in line and "engine, rounds" in line
    launches = pretend()
    experiment = RunFolder(stopped).experiment
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert execute(["resume", str(stopped)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(stopped)
    assert launches[-1].resume and launches[-1].config.lr == 0.01
    assert json.loads(launches[-1].envelope())["run"]["experiment"] == experiment
    assert "completed" in refused(capsys, "resume", str(stopped))


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
