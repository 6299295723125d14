"""The command line in this process: every mistake is one line and a code; nothing is launched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

import fedhet
from fedhet.cli.app import execute
from fedhet.cli.display import show_table
from fedhet.config import build_config
from fedhet.errors import RunFailedError, UserError
from fedhet.protocol.flower import read_run_config
from fedhet.records.run_folder import RunFolder
from fedhet.runtime import session
from fedhet.runtime.launch import Launch
from fedhet.runtime.ray_session import federation_config
from fedhet.runtime.signals import Interrupted
from fedhet.runtime.superlink import SuperLink, script, write_run_config

SMALL = ("models=cnn-5", "clients=2", "rounds=1")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to work in, and no way to start a process by accident."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "engine", lambda _: _never)
    monkeypatch.setattr(session, "submit_remote", _never)
    return tmp_path


def test_a_module_without_its_name_is_told_from_a_typo(capsys, here, monkeypatch):
    (here / "fedmine.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(here))
    for key, name in (("method", "METHOD"), ("models", "make"), ("dataset", "load")):
        line = refused(capsys, "run", "quickstart", f"{key}=fedmine")
        assert f"'fedmine' is a module: write fedmine:NAME, such as fedmine:{name}" in line
        assert "did you mean" not in line


def _never(*_: object) -> None:
    raise AssertionError("a process would have been started")


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The one line that a mistake gets."""
    assert execute(list(words)) == code
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("fedhet: error: ")
    return line.removeprefix("fedhet: error: ")


@pytest.fixture
def pretend(monkeypatch):
    """Replaces the simulation by one that reports a round and ends as it is told."""
    launches: list[Launch] = []

    def install(ending: BaseException | None = None) -> list[Launch]:
        def simulate(launch, on_rounds):
            launches.append(launch)
            on_rounds([{"round": 1, "seconds": 1.0, "test_accuracy_mean": 50.0}])
            status = "failed" if ending else "completed"
            launch.folder.write_summary(launch.config, status, 2, str(ending or ""))
            if ending:
                raise ending

        monkeypatch.setattr(session, "engine", lambda _: simulate)
        return launches

    return install


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["method=fedsa"], ["method", "'fedsa'", "did you mean 'fedssa'", "lg_fedavg"]),
        (["dataset=digit"], ["'digit'", "digits"]),
        (["models=cnn-9"], ["'cnn-9'", "cnn-5"]),
        (
            ["models=nowhere:make"],
            ["'nowhere:make'", "folder where the command is given or be installed"],
        ),
        (["dataset=image-folder"], ["data-path"]),
        (["dataset=image-folder", "data-path=/no/such"], ["data-path", "/no/such"]),
        (["classes-per-client=11"], ["classes-per-client", "11", "10 classes"]),
        (["fraction=0"], ["fraction", "'0'", "greater than 0"]),
        (["fraction=1.5"], ["fraction", "'1.5'", "less than or equal to 1"]),
        (["state-dir=/dev/null/states"], ["state-dir", "/dev/null/states", "cannot be written"]),
        (["out=/dev/null/runs"], ["run folder", "/dev/null/runs", "cannot be made"]),
        (["device=cuda:99"], ["device", "'cuda:99'"]),
        (["clients=2", "min-replies=3"], ["min-replies", "3", "2 clients"]),
        (["clients=0", "min-replies=11"], ["min-replies", "11", "10 clients"]),
        (["partition=file", "partition-file=/no/such.csv"], ["partition-file", "/no/such.csv"]),
        (["rounds"], ["'rounds'", "key=value"]),
        (["round=1"], ["round: unknown key", "did you mean 'rounds'"]),
        (["method=FedSAA"], ["'FedSAA'", "did you mean 'fedssa'"]),
        (["split=8:1"], ["split", "'8:1'", "8:1:1"]),
        (["device=gpu"], ["device", "'gpu'", "cuda:N"]),
        (["name=my run"], ["name", "'my run'", "no spaces"]),
        (["rounds=x"], ["rounds", "'x'", "a whole number"]),
        (["evaluate-all=maybe"], ["evaluate-all", "'maybe'", "true or false"]),
        (["alpha=0.5"], ["alpha", "changes nothing", "dirichlet"]),
        (["partition=dirichlet", "classes-per-client=3"], ["classes-per-client", "nothing"]),
        (["--rounds", "3"], ["No such option '--rounds'", "rounds=3"]),
        (["--local-epochs=3"], ["'--local-epochs'", "local-epochs=3"]),
        (["method=standalone", "mu0=0.5"], ["mu0", "only method fedssa"]),
    ],
)
def test_a_wrong_run_is_one_line_and_leaves_nothing(capsys, here, words, parts):
    line = refused(capsys, "run", "quickstart", *words)
    for part in parts:
        assert part in line
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["rum"], ["No such command 'rum'", "'run'"]),
        (["run", "quickstart", "--nam", "x"], ["No such option '--nam'", "'--name'"]),
        (["run"], ["Missing argument 'CONFIG'"]),
        (["run", "quikstart"], ["'quikstart'", "did you mean 'quickstart'", "fedssa"]),
        (["run", "none.yaml"], ["'none.yaml'", "cannot be read"]),
        (["resume", "none"], ["none' is not a run folder"]),
        (["runs", "none"], ["none' is not a folder"]),
        (["methods", "FedSAA"], ["did you mean 'fedssa'"]),
        (["keys", "roundz"], ["no key speaks of 'roundz'", "did you mean 'rounds'"]),
        (["partition", "quickstart", "--plot", "x.gif"], ["--plot", "'x.gif'", ".png"]),
        (["models", "--classes", "0"], ["--classes", "0"]),
        (["partition", "quickstart", "clients=x"], ["clients", "'x'"]),
    ],
)
def test_a_wrong_command_is_one_line(capsys, here, words, parts):
    line = refused(capsys, *words)
    for part in parts:
        assert part in line
    assert list(here.iterdir()) == []


def test_a_class_folder_with_too_few_images(capsys, here):
    for name in ("cat", "dog"):
        (here / "data" / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.full((8, 8, 3), 40 * i, dtype=np.uint8)
            Image.fromarray(pixels).save(here / "data" / name / f"{i}.png")
    words = ["dataset=image-folder", "data-path=data", "clients=5", "classes-per-client=2"]
    line = refused(capsys, "run", "quickstart", *words, "models=cnn-5")
    assert "cat" in line
    assert "4" in line
    assert not (here / "runs").exists()


def test_a_missing_model_module_in_the_working_folder_is_found(capsys, here, pretend):
    launches = pretend()
    (here / "fedhet_own_model.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, d, classes):\n"
        "        super().__init__()\n"
        "        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3072, d))\n"
        "        self.head = nn.Linear(d, classes)\n"
        "    def features(self, x):\n"
        "        return self.body(x)\n"
        "def make(classes, d, image_size):\n"
        "    return Net(d, classes)\n",
        encoding="utf-8",
    )
    assert execute(["run", "quickstart", "models=fedhet_own_model:make", "clients=2"]) == 0
    assert launches[0].python_path == (str(here),)


def test_the_run_folder_is_the_last_line(capsys, here, pretend):
    launches = pretend()
    out = ["--out", "results", "--name", "first"]
    assert execute(["run", "quickstart", *SMALL, "clients=0", *out]) == 0
    folder = here / "results" / "first"
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    (launch,) = launches
    assert (launch.config.clients, launch.config.out) == (10, str(here / "results"))
    assert RunFolder(folder).started_config()["clients"] == 10
    assert launch.envelope(7).endswith(
        f'"experiment":"{launch.folder.experiment}","owner":7,"resume":false}}}}'
    )


def test_names_are_made_from_the_preset_and_the_time(capsys, here, pretend):
    pretend()
    (here / "mine.yaml").write_text("rounds: 1\nclients: 2\nmodels: [cnn-5]\n", encoding="utf-8")
    assert execute(["run", "mine.yaml"]) == 0
    assert Path(capsys.readouterr().out.splitlines()[-1]).name.startswith("mine-2")


def test_json_is_the_summary_and_nothing_else(capsys, here, pretend):
    pretend()
    assert execute(["run", "quickstart", *SMALL, "--name", "first", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["status"], summary["folder"]) == ("completed", str(here / "runs" / "first"))


def test_a_run_folder_is_never_used_twice(capsys, pretend):
    pretend()
    assert execute(["run", "quickstart", *SMALL, "--name", "first"]) == 0
    capsys.readouterr()
    line = refused(capsys, "run", "quickstart", *SMALL, "--name", "first")
    assert "already exists" in line
    assert "fedhet resume" in line


def test_a_failed_run_is_3_and_an_interrupted_one_130(capsys, here, pretend):
    pretend(RunFailedError("run failed: too few replies (log: log.txt)"))
    assert execute(["run", "quickstart", *SMALL, "--name", "bad"]) == 3
    assert capsys.readouterr().err.endswith("run failed: too few replies (log: log.txt)\n")
    assert (here / "runs" / "bad" / "summary.json").exists()
    pretend(Interrupted(2))
    assert execute(["run", "quickstart", *SMALL, "--name", "cut"]) == 130
    assert f"fedhet resume {here / 'runs' / 'cut'}" in capsys.readouterr().err


def test_a_run_that_had_begun_says_how_to_go_on_without_a_checkpoint(capsys, here, monkeypatch):
    """Killed between a round's line and its checkpoint, the run can be resumed all the same."""

    def killed(launch, _on_rounds):
        launch.folder.append_round({"round": 1})
        raise RunFailedError("killed")

    monkeypatch.setattr(session, "engine", lambda _: killed)
    assert execute(["run", "quickstart", *SMALL, "--name", "cut"]) == 3
    assert f"fedhet resume {here / 'runs' / 'cut'}" in capsys.readouterr().err


def test_a_user_without_a_home_is_told_to_set_one(capsys, here, monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("FEDHET_CACHE")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as `docker run --user 1234`
    assert refused(capsys, "run", "quickstart", *SMALL) == (
        "this user has no home directory: set HOME"
    )


FIRST_LINE = """
import sys

class Stop:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"torch", "ray", "flwr"}:
            raise SystemExit(7)

sys.meta_path.insert(0, Stop())
from fedhet.cli import main
main(sys.argv[1:])
"""


def first_line(words: str, **where) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FIRST_LINE, *words.split()]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **where)


@pytest.mark.parametrize(
    ("words", "said"),
    [("run quickstart", True), ("run quickstart --json", False), ("resume x", True),
     ("keys", False)],
)  # fmt: skip
def test_a_terminal_sees_a_line_before_the_imports_that_take_seconds(here, words, said):
    screen, terminal = os.openpty()
    done = first_line(words, stderr=terminal)
    os.write(terminal, b"end")
    assert (done.returncode, done.stdout) == (7, "")
    seen = b""
    while not seen.endswith(b"end"):
        seen += os.read(screen, 1000)
    assert seen == (b"fedhet: loading torch and Flower ...\r\nend" if said else b"end")
    os.close(terminal)
    os.close(screen)


def test_a_pipe_sees_no_such_line(here):
    assert first_line("run quickstart", stderr=subprocess.PIPE).stderr == ""


@pytest.fixture
def stopped(capsys, here, pretend) -> Path:
    """A run folder of a run that did not complete."""
    pretend(RunFailedError("run failed"))
    assert execute(["run", "quickstart", *SMALL, "--name", "first"]) == 3
    capsys.readouterr()
    return here / "runs" / "first"


def test_resume_takes_the_same_configuration(capsys, stopped, pretend, monkeypatch, tmp_path):
    launches = pretend()
    experiment = RunFolder(stopped).experiment
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert execute(["resume", str(stopped)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(stopped)
    assert launches[-1].resume
    assert json.loads(launches[-1].envelope(1))["run"]["experiment"] == experiment
    assert "completed" in refused(capsys, "resume", str(stopped))


def test_resume_names_the_key_that_was_edited(capsys, stopped):
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.01", "lr: 0.02"), encoding="utf-8")
    line = refused(capsys, "resume", str(stopped))
    assert line.startswith("lr: config.yaml says '0.02'")


def test_resume_needs_states_in_files(capsys, here, pretend):
    pretend(RunFailedError("run failed"))
    words = [*SMALL, "state-backend=context", "--name", "first"]
    assert execute(["run", "quickstart", *words]) == 3
    capsys.readouterr()
    assert "state-backend=context" in refused(capsys, "resume", "runs/first")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["lr=0.1"], ["lr", "a resumed run keeps its own", "engine, rounds"]),
        (["rounds=0"], ["rounds", "'0'", "greater than or equal to 1"]),
        (["engine=rey"], ["engine", "'rey'"]),
    ],
)
def test_resume_changes_only_what_leaves_the_rounds_alone(capsys, stopped, words, parts):
    line = refused(capsys, "resume", str(stopped), *words)
    for part in parts:
        assert part in line
    assert RunFolder(stopped).started_config()["lr"] == 0.01


@pytest.mark.parametrize("lock", [".owner", ".lock"])
def test_one_command_at_a_time_in_a_run_folder(capsys, stopped, monkeypatch, lock):
    monkeypatch.setattr("fedhet.runtime.launch.TAKE_OVER", 0.3)
    with FileLock(stopped / lock):
        assert "in use by another process" in refused(capsys, "resume", str(stopped))
    assert stopped.exists()


def test_resume_ends_what_a_killed_command_left_behind(stopped, pretend):
    pretend()
    program = "import os, time; os.environ.clear(); time.sleep(60)"
    left = subprocess.Popen(
        [sys.executable, "-c", program], env={"FEDHET_RUN_FOLDER": str(stopped)}
    )
    other = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert execute(["resume", str(stopped)]) == 0
        assert left.wait(timeout=5) < 0
        assert other.poll() is None
    finally:
        left.kill()
        other.kill()
        other.wait()


def test_methods_and_models_for_people_and_programs(capsys):
    assert execute(["methods"]) == 0
    assert "mu0=0.5" in capsys.readouterr().out
    assert execute(["methods", "--json"]) == 0
    table = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert table["fedssa"]["keys"]["t-stable"]["default"] == 5
    assert execute(["models", "--json", "--classes", "100"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["parameters"] == 2_666_648
    assert execute(["models"]) == 0
    assert "2,621,558" in capsys.readouterr().out


def test_partition_as_a_table_and_a_picture_if_asked_for(capsys, here):
    assert execute(["partition", "quickstart", "clients=3"]) == 0
    assert list(here.iterdir()) == []
    capsys.readouterr()
    words = ["partition", "quickstart", "clients=3", "--plot"]
    assert execute([*words, "pictures/deal.png"]) == 0
    output = capsys.readouterr()
    assert "4 classes have no owner" in output.err
    assert output.out.splitlines()[-1] == str(here / "pictures" / "deal.png")
    with Image.open(here / "pictures" / "deal.png") as picture:
        assert picture.format == "PNG"
    assert execute([*words, "deal.svg"]) == 0
    assert "<svg" in (here / "deal.svg").read_text()
    capsys.readouterr()
    assert execute(["partition", "quickstart", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [sum(n > 0 for n in row) for row in shown["clients"].values()] == [2] * 10
    assert sum(map(sum, shown["clients"].values())) == 1797


def test_names_of_classes_are_text_whatever_they_look_like(capsys, here):
    """Neither markup of the table nor a formula of the picture."""
    names = ("[red]", "[bold]cat", r"$\bad$")
    for name in names:
        (here / "data" / name).mkdir(parents=True)
        for i in range(10):
            pixels = np.full((8, 8, 3), 20 * i, dtype=np.uint8)
            Image.fromarray(pixels).save(here / "data" / name / f"{i}.png")
    words = ["dataset=image-folder", "data-path=data", "clients=2", "classes-per-client=2"]
    assert execute(["partition", "quickstart", *words]) == 0
    header = capsys.readouterr().out.splitlines()[2]
    assert all(f" {name} " in header for name in names)


def test_a_table_shows_brackets_that_others_put_there(capsys):
    """Folders are titles; rich would end at a closing tag that nothing opened."""
    show_table("/data/[/runs]", ("name",), [("[/ward]",)])
    assert capsys.readouterr().out.count("[/") == 2


def test_help_does_not_wait_for_torch(capsys):
    program = "import sys, fedhet.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert execute(["--help"]) == 0
    assert "resume" in capsys.readouterr().out
    assert execute([]) == 0


def test_the_run_configuration_survives_flowers_parser(tmp_path):
    text = json.dumps({"a": "quote \" slash \\ tab \t 'x' ü €", "b": [1, None]})
    write_run_config(tmp_path / "flwr" / "run-config.toml", text)
    assert read_run_config([str(tmp_path / "flwr" / "run-config.toml")]) == {"config": text}


@pytest.mark.parametrize(
    ("actors", "gpus", "share"),
    [(1, 1, 1.0), (3, 1, 0.3333), (4, 2, 0.5), (3, 2, 0.5), (2, 4, 1.0)],
)
def test_actors_share_gpus_without_a_rest(monkeypatch, actors, gpus, share):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = build_config({"clients": 100, "fraction": 0.1, "actors": actors})
    assert read_run_config([federation_config(config)]) == {
        "num-supernodes": 100,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": actors,
        "init-args-log-to-driver": True,
        "init-args-num-gpus": gpus,
        "client-resources-num-gpus": share,
    }


def test_no_more_actors_than_clients_in_a_round(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert build_config({"fraction": 0.1}).processes(100) == 10
    assert build_config({}).processes(2) == 2
    assert build_config({"actors": 1}).processes(2) == 1


def test_the_reason_of_a_failure_is_its_root(tmp_path):
    link = SuperLink(build_config({"clients": 2}), tmp_path, [])
    link.log.write_text(
        "httpx.HTTPStatusError: 401, of an earlier start\n"
        "ERROR : Simulation raised an exception\nTraceback (most recent call last):\n  ...\n"
        "ValueError: the root\n\nThe above exception was the direct cause of ...\n"
        "RuntimeError: An error was encountered. Ending simulation.\n",
        encoding="utf-8",
    )
    assert link._cause() == "ValueError: the root"


def test_programs_are_found_where_a_system_python_keeps_them(tmp_path, monkeypatch):
    """Debian's /usr/bin/python3 with pip's /usr/local/bin, as in a container."""
    program = tmp_path / "local" / "flwr"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python3"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(program.parent))
    assert script("flwr") == str(program)
    with pytest.raises(UserError, match="'flower-superlink' is missing in"):
        script("flower-superlink")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty", "fedhet keys"]),
        ("# nothing yet\n", ["is empty"]),
        ("rounds: 1\nlr: 0.1\nrounds: 2\n", ["rounds: given twice", "line 3"]),
        ("method: fedssa\nparams:\n  mu0: 0.5\n", ["params", "beside the others", "mu0"]),
        ("- rounds\n", ["must be a mapping"]),
        ("alpha: 1.0\n", ["alpha", "changes nothing", "dirichlet"]),
    ],
)
def test_a_wrong_file_is_one_line(capsys, here, text, parts):
    (here / "mine.yaml").write_text(text, encoding="utf-8")
    line = refused(capsys, "run", "mine.yaml")
    for part in parts:
        assert part in line
    assert [path.name for path in here.iterdir()] == ["mine.yaml"]


def test_a_runs_own_configuration_is_a_preset(capsys, here, pretend):
    pretend()
    assert execute(["run", "FedSSA", "dataset=digits", *SMALL, "--name", "first"]) == 0
    assert execute(["run", "runs/first/config.yaml", "name=second"]) == 0
    assert (here / "runs" / "second").is_dir()


def test_help_says_what_arguments_mean(capsys):
    assert execute(["run", "-h"]) == 0
    text = capsys.readouterr().out
    assert "shipped preset" in text and "keys that replace" in text
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"fedhet {fedhet.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "fedhet", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("fedhet ")


def test_keys_and_methods_say_all_that_the_schema_knows(capsys):
    assert execute(["keys", "FedSSA", "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)
    assert keys["rounds"]["default"] == 100 and keys["rounds"]["allowed"].startswith(">= 1")
    assert keys["engine"]["allowed"] == "ray | inline" and keys["mu0"]["default"] == 0.5
    assert execute(["keys"]) == 0
    assert "alpha=0.3  concentration" in capsys.readouterr().out
    assert execute(["methods", "LG-FedAvg"]) == 0
    assert "arXiv 2001.01523" in capsys.readouterr().out


def test_runs_are_listed_with_status_method_and_accuracy(capsys, here, stopped):
    (here / "runs" / "odd" / "checkpoint").mkdir(parents=True)
    (here / "runs" / "odd" / "checkpoint" / "run.json").write_text("{")
    assert execute(["runs", "--json"]) == 0
    rows = {Path(row["folder"]).name: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["first"]["status"], rows["first"]["method"]) == ("failed", "fedssa")
    assert rows["odd"]["status"] == "damaged"
    assert execute(["runs"]) == 0
    assert "failed" in capsys.readouterr().out
