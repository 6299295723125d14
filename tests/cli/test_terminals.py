"""What others call their folders, classes and clients is shown, and never obeyed by a terminal."""

import json
import math

from helpers.tiny import tiny
from watch.folders import failure, line

from fedhet.cli.app import execute
from fedhet.cli.common import RunProgress, show_table
from fedhet.testing import simulate

EVIL = "n\x1b]0;owned\x07\x9b31m"


def test_a_table(capsys):
    show_table(EVIL, (EVIL, "b"), [(EVIL, 1), ("[red]x", 2)])
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\x07" not in said and "\x9b" not in said
    assert "n?]0;owned??31m" in said and "[red]x" in said


def test_a_round_names_whom_it_did_without_when_that_changes(capsys):
    away = [failure("west", "offline")]
    many = [failure(name, "offline") for name in "dcba"]
    lost = [*away, failure("the round", "owners cannot be counted: 1 of 2 uploads came")]
    rounds = [
        {}, {"failures": away, "replied": 1}, {"failures": away, "replied": 1}, {},
        {"failures": many, "replied": 1}, {"failures": lost, "replied": 0},
    ]  # fmt: skip
    lines = [json.loads(line(number, **changes)) for number, changes in enumerate(rounds, 1)]
    progress = RunProgress("fedssa", 10)
    progress._printed = math.inf  # no line is due
    for count in range(len(lines) + 1):
        progress.update(lines[:count])
    said = capsys.readouterr().out.splitlines()
    for text, parts in zip(said, (
        ("round 2/10, ", "1 of 2 replied (client west: offline)"), ("round 4/10, ", "2 of 2"),
        ("round 5/10, ", "client c: offline; 1 more)"), ("round 6/10, lost (", "owners cannot be"),
    ), strict=True):  # fmt: skip
        assert all(part in text for part in parts), text


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
    assert "\x1b" not in said and "n?]0;owned" in said
