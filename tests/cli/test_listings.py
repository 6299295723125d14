"""What is listed and explained: methods, models, keys, partitions, runs, help."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.seeded import seeded
from PIL import Image

import fedhet
from fedhet.cli.app import execute
from fedhet.models import MODELS

pytestmark = pytest.mark.usefixtures("here")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def listed(capsys, *words):
    assert execute(["models", "--json", *words]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_models_of_a_kind_a_group_and_of_ones_own_for_given_examples(capsys, monkeypatch):
    rows = listed(capsys, f"dataset={seeded('table', 60)}")
    assert [row["name"] for row in rows] == list(MODELS["table"])
    assert [row["kind"] for row in listed(capsys, "lstm")] == ["signal", "tokens"]
    assert [row["name"] for row in listed(capsys, "@table-5")] == [f"mlp-{n}" for n in range(1, 6)]
    (row,) = listed(capsys, "models=gru", f"dataset={seeded('signal', 60)}")
    assert row["kind"] == "signal"
    monkeypatch.syspath_prepend(str(EXAMPLES))
    keys = (f"dataset={seeded('table', 60, shape=(7,))}", "representation=16")
    (row,) = listed(capsys, "own_rows:deep", *keys)
    (more,) = listed(capsys, "models=own_rows:deep", "--classes", "5", *keys)
    assert row["kind"] == "table" and row["forward_flops"] > 0
    assert more["parameters"] - row["parameters"] == 2 * (16 + 1)
    for command in ("methods", "keys"):
        assert execute([command, "fedgh:METHOD"]) == 0
        assert "server-lr=" in capsys.readouterr().out


def test_partition_as_a_table_and_a_picture_if_asked_for(capsys, here):
    words = ["partition", "quickstart", "clients=3", "--plot"]
    assert execute(words[:-1]) == 0 and list(here.iterdir()) == []
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


def test_the_command_line_does_not_wait_for_torch(capsys):
    program = "import sys, fedhet.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert execute([]) == execute(["--version"]) == 0
    assert f"fedhet {fedhet.__version__}\n" in capsys.readouterr().out


def test_methods_models_and_keys_for_people_and_programs(capsys):
    assert execute(["methods"]) == execute(["methods", "LG-FedAvg"]) == 0
    assert "arXiv 2001.01523" in capsys.readouterr().out
    assert execute(["methods", "--json"]) == 0
    table = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert table["fedssa"]["keys"]["t-stable"]["default"] == 5
    assert listed(capsys, "--classes", "100")[0]["parameters"] == 2_666_648
    assert execute(["keys", "FedSSA", "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)
    assert keys["rounds"]["default"] == 100 and keys["rounds"]["allowed"].startswith(">= 1")
    assert keys["engine"]["allowed"] == "processes | ray | inline" and keys["mu0"]["default"] == 0.5
    assert execute(["keys", "Dirichlet"]) == 0  # by a word in names and meanings
    found = [line.partition("=")[0] for line in capsys.readouterr().out.splitlines()]
    assert found == ["partition", "alpha"]


def test_runs_are_listed_with_status_method_and_accuracy(capsys, here, stopped):
    (here / "runs" / "odd" / "checkpoint").mkdir(parents=True)
    (here / "runs" / "odd" / "checkpoint" / "run.json").write_text("{")
    assert execute(["runs", "--json"]) == 0
    rows = {Path(row["folder"]).name: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["first"]["status"], rows["first"]["method"]) == ("failed", "fedssa")
    assert rows["odd"]["status"] == "damaged"
