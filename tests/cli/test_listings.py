"""What is listed and explained: methods, models, keys, partitions, runs, help."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import fedhet
from fedhet.cli.app import execute
from fedhet.models import MODELS

pytestmark = pytest.mark.usefixtures("here")


def test_methods_and_models_for_people_and_programs(capsys):
    assert execute(["methods"]) == 0
    assert "mu0=0.5" in capsys.readouterr().out
    assert execute(["methods", "--json"]) == 0
    table = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert table["fedssa"]["keys"]["t-stable"]["default"] == 5
    assert execute(["models", "--json", "--classes", "100"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["parameters"] == 2_666_648
    assert execute(["models", "cnn-1"]) == 0
    assert "2,621,558" in capsys.readouterr().out


OWN = """
from torch import nn

class Rows(nn.Module):
    def __init__(self, classes, d, inputs):
        super().__init__()
        self.features = nn.Linear(inputs.shape[0], d)
        self.head = nn.Linear(d, classes)
"""


def listed(capsys, *words):
    assert execute(["models", "--json", *words]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_models_of_a_kind_a_group_and_of_ones_own_for_given_examples(capsys, here):
    rows = listed(capsys, "--kind", "table")
    assert [row["name"] for row in rows] == list(MODELS["table"])
    assert {row["kind"] for row in rows} == {"table"}
    assert [row["kind"] for row in listed(capsys, "lstm")] == ["signal", "tokens"]
    assert [row["name"] for row in listed(capsys, "@htfe-sen-2")] == ["harcnn-2x1", "harcnn-2x2"]
    (here / "rows_of_mine.py").write_text(OWN)
    keys = ("dataset=synthetic-table:60x3:7", "representation=16")
    (row,) = listed(capsys, "rows_of_mine:Rows", *keys)
    assert row["parameters"] == 14 * 16 + 16 + 16 * 3 + 3
    assert row["forward_flops"] == 2 * (14 * 16 + 16 * 3) and row["kind"] == "table"
    (row,) = listed(capsys, "models=rows_of_mine:Rows", "--classes", "5", *keys)
    assert row["parameters"] == 14 * 16 + 16 + 16 * 5 + 5
    (row,) = listed(capsys, "models=gru", "dataset=synthetic-signal")
    assert row["kind"] == "signal"


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


def test_help_does_not_wait_for_torch(capsys):
    program = "import sys, fedhet.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert execute(["--help"]) == 0
    assert "resume" in capsys.readouterr().out
    assert execute([]) == 0


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
    assert keys["engine"]["allowed"] == "processes | ray | inline" and keys["mu0"]["default"] == 0.5
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
