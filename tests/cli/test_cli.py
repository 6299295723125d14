"""The command line in this process: every mistake is one line and a code; nothing is launched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli.refusals import refused
from PIL import Image

from fedhet.cli.app import execute
from fedhet.engines import session
from fedhet.engines.system import Interrupted, script
from fedhet.errors import RunFailedError, UserError
from fedhet.records.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("here")
SMALL = ("models=cnn-5", "clients=2", "rounds=1")


def test_a_module_without_its_name_is_told_from_a_typo(capsys, here, monkeypatch):
    (here / "fedmine.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(here))
    for key, name in (("method", "METHOD"), ("models", "make"), ("dataset", "load")):
        line = refused(capsys, "run", "quickstart", f"{key}=fedmine")
        assert f"'fedmine' is a module: write fedmine:NAME, such as fedmine:{name}" in line
        assert "did you mean" not in line


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
        (["models", "--classes", "0"], ["--classes: '0'", "at least 1"]),
        (["sweep", "compare/digits", "--workers", "no"], ["--workers: 'no'", "a whole number"]),
        (["report", ".", "--out", "."], ["--out: '.' is a folder of runs"]),
        (
            ["tune", "compare/cifar100-n100-ablation", "lr=0.1,0.2"],
            ["tune takes the methods of a grid", "report-all-inference, stabilise, upload-rows"],
        ),
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
    pretend()
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


def test_the_run_folder_is_the_last_line(capsys, here, pretend):
    launches = pretend()
    out = ["--out", "results", "--name", "first"]
    assert execute(["run", "quickstart", *SMALL, "clients=0", *out]) == 0
    folder = here / "results" / "first"
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    (launch,) = launches
    assert (launch.config.clients, launch.config.out) == (10, str(here / "results"))
    assert RunFolder(folder).started_config()["clients"] == 10
    assert launch.envelope().endswith(
        f'"experiment":"{launch.folder.experiment}","resume":false}}}}'
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

    monkeypatch.setattr(session, "simulate", killed)
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
