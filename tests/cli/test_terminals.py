"""What others call their folders, classes and clients is shown, and never obeyed by a terminal."""

import json
import math

from helpers.tiny import tiny
from watch.folders import failure, line

from fedhet.cli.app import execute
from fedhet.cli.common import RunProgress
from fedhet.testing import simulate

EVIL = "n\x1b]0;owned\x07\x9b31m[red]"


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
