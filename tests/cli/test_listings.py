"""What is listed and explained (methods, models, keys, partitions, runs), and `new method`."""

import runpy
import sys
from pathlib import Path

import pytest
from helpers.programs import python
from helpers.seeded import seeded

import fedhet
from fedhet.cli.app import execute
from fedhet.models.names import MODELS

pytestmark = pytest.mark.usefixtures("here")
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
    config = ["--config", str(ROOT / "pyproject.toml")]
    written = sorted(tmp_path.glob("*.py"))
    commands = [["ruff", "check", *config], ["ruff", "format", "--check", *config]]
    if types:  # mypy imports nothing: it is shown what a wheel holds
        wheel = tmp_path / "wheel" / "fedhet"
        wheel.mkdir(parents=True)
        for path in (*(ROOT / "fedhet").iterdir(), ROOT / "strategies", ROOT / "clients"):
            (wheel / path.name).symlink_to(path)
        monkeypatch.setenv("MYPYPATH", str(wheel.parent))
        cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
        commands.append(["mypy", "--config-file", config[1], *cache])
    for words in commands:
        python("-m", *words, *written)
    tests = runpy.run_path("test_my_method.py")
    names = [name for name in tests if name.startswith("test_")]
    assert len(names) == 3
    for name in names:
        (tmp_path / name).mkdir()
        tests[name](tmp_path / name)
    del sys.modules["my_method"]
