"""What others call their folders, classes and clients is shown, and never obeyed by a terminal."""

import json

import pytest
from helpers.tiny import tiny

from fedhet.cli.app import execute
from fedhet.cli.common import show_table
from fedhet.testing import simulate

EVIL = "n\x1b]0;owned\x07\x9b31m"


def test_a_table(capsys):
    show_table(EVIL, (EVIL, "b"), [(EVIL, 1), ("[red]x", 2)])
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\x07" not in said and "\x9b" not in said
    assert "n?]0;owned??31m" in said and "[red]x" in said


@pytest.fixture
def run(tmp_path):
    return simulate(tiny(tmp_path, engine="inline", name="own", rounds=1))[0].path


def test_names_of_folders_and_reasons(run, capfd):
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"status": EVIL, "clients_lost": [{"client": EVIL, "round": 1, "reason": EVIL}]}
    (run / "summary.json").write_text(json.dumps(summary))
    moved = run.rename(run.with_name(EVIL))
    execute(["runs", str(moved.parent)])
    execute(["verify", str(moved)])
    execute(["resume", str(moved)])
    execute(["report", str(moved), "--no-models", "--out", str(run.parent / "out")])
    said = "".join(capfd.readouterr())
    assert "\x1b" not in said and "n?]0;owned" in said
