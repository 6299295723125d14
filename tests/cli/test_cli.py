"""The command line in this process: every mistake is one line and a code; what else is said."""

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli.refusals import SMALL, refused
from filelock import FileLock
from helpers.programs import python
from helpers.seeded import seeded
from helpers.tiny import tiny
from helpers.written_runs import failure, line

import fedhet
from fedhet.cli import deploy
from fedhet.cli.app import execute, main
from fedhet.cli.common import RunProgress, tell
from fedhet.engines import session
from fedhet.engines.launch import Launch
from fedhet.engines.system import Interrupted, free_ports
from fedhet.errors import RunFailed
from fedhet.models.names import MODELS
from fedhet.records.ledger import load_checkpoint, save_checkpoint
from fedhet.records.run_folder import RunFolder
from fedhet.testing import simulate, small

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pretend(monkeypatch):
    """Replaces the simulation by one that reports a round and ends as it is told."""
    launches: list[Launch] = []

    def install(ending: BaseException | None = None) -> list[Launch]:
        def simulate(launch, on_rounds):
            launches.append(launch)
            on_rounds([json.loads(line(1))])
            status = "failed" if ending else "completed"
            launch.folder.write_summary(launch.config, status, 2, str(ending or ""))
            if ending:
                raise ending

        monkeypatch.setattr(session, "simulate", simulate)
        return launches

    return install


@pytest.fixture
def stopped(capsys, here, pretend) -> Path:
    """A run folder of a run that did not complete."""
    pretend(RunFailed("run failed"))
    assert execute(["run", "quickstart", *SMALL, "--name", "first"]) == 3
    capsys.readouterr()
    return here / "runs" / "first"


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
    launches, out = pretend(), ["--out", "results", "--name", "first"]
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


# --- keys in vain, wrong names and strangers' ones; streams that are gone ----------------------

ROUNDS = [json.loads(line(1))]
EVIL = "n\x1b]0;owned\x07\x9b31m[red]"
TINY = ("run", "quickstart", "engine=inline", "models=cnn-5", "rounds=1", "local-epochs=1",
        "image-size=16", "dataset=synthetic:120x4")  # fmt: skip


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


# --- what is listed and explained, and `new method` ---------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def listed(capsys, *words) -> list[list[str]]:
    """Return the cells of the rows of `fedhet models`."""
    assert execute(["models", *words]) == 0, capsys.readouterr().err
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line[:1] == "│"]


def test_models_of_a_kind_a_group_and_of_ones_own_for_given_examples(capsys, monkeypatch):
    table, signal = f"dataset={seeded('table', 60)}", f"dataset={seeded('signal', 60)}"
    assert [row[0] for row in listed(capsys, table)] == list(MODELS["table"])
    assert [row[0] for row in listed(capsys, "lstm")] == ["lstm"] * 2  # of signals and of texts
    assert [row[0] for row in listed(capsys, "@table-5")] == [f"mlp-{n}" for n in range(1, 6)]
    assert [row[0] for row in listed(capsys, "gru", signal)] == ["gru"]
    assert listed(capsys, "--classes", "100")[0][1] == "2,666,648"
    assert listed(capsys, "classes=a,b") == listed(capsys, "--classes", "2")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    keys = (f"dataset={seeded('table', 60, shape=(7,))}", "representation=16")
    assert [row[0] for row in listed(capsys, "own_rows:deep", *keys)] == ["own_rows:deep"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--version"], f"fedhet {fedhet.__version__}"),
        ([], " Usage: fedhet"),
        (["methods"], "fedssa: per-class mean"),
        (["methods", "LG-FedAvg"], "fedhet run lg_fedavg"),
        (["methods", "fedgh:METHOD"], "    server-lr="),
        (["keys"], "rounds=100  T, communication rounds [>= 1"),
        (["keys", "FedSSA"], "mu0=0.5  "),
        (["partition", "quickstart", "clients=3"], "│ 0      │     │"),
    ],
)
def test_methods_and_keys_are_listed_with_what_they_mean(capsys, monkeypatch, words, line):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert execute(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert any(one.startswith(line) for one in printed)


def test_runs_are_listed_with_status_method_and_accuracy(capsys, here, stopped):
    (here / "runs" / "odd" / "checkpoint").mkdir(parents=True)
    (here / "runs" / "odd" / "checkpoint" / "run.json").write_text("{")
    assert execute(["runs"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [[word for word in line if word != "│"][:3] for line in printed]
    assert ["first", "failed", "fedssa"] in shown and ["odd", "damaged", "-"] in shown


@pytest.mark.parametrize("types", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_the_skeleton_passes_lint_types_and_its_tests(tmp_path, monkeypatch, capsys, types):
    monkeypatch.syspath_prepend(tmp_path)
    assert execute(["new", "method", "my_method"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("method=my_method:METHOD")
    assert "from fedhet." not in Path("my_method.py").read_text()  # one place gives all
    config, written = ["--config", str(ROOT / "pyproject.toml")], sorted(tmp_path.glob("*.py"))
    for words in (["check", *config], ["format", "--check", *config]):
        python("-m", "ruff", *words, *written)
    if types:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(
            [ROOT / ".ci" / "types", *written], env=os.environ | {"PATH": path}, check=True
        )
    tests = runpy.run_path("test_my_method.py")
    names = [name for name in tests if name.startswith("test_")]
    assert len(names) == 3
    for name in names:
        (tmp_path / name).mkdir()
        tests[name](tmp_path / name)
    del sys.modules["my_method"]
