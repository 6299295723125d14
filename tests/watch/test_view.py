"""What a folder says: a run through all its states, damage, a sweep's grid, and the plain lines."""

import json
import time
from itertools import product
from pathlib import Path

import pytest
from helpers.written_runs import append, begin, end, failure, line, scores

from fedhet.cli.app import execute
from fedhet.files import NOBODY
from fedhet.records.run_folder import RunFolder
from fedhet.watch import view
from fedhet.watch.view import RunView, SweepView, follow


@pytest.fixture(autouse=True)
def asked_each_time(monkeypatch):
    monkeypatch.setattr(view, "ASK", 0.0)


def table(look, name):
    titles = [title for title, _ in look["tables"][name]["columns"]]
    return [dict(zip(titles, row, strict=True)) for row in look["tables"][name]["rows"]]


def test_a_run_from_its_beginning_to_its_end(tmp_path):
    run = begin(tmp_path / "run", rounds=4)
    one = RunView(run)
    assert one.look()["status"] == "interrupted"
    with RunFolder(run).lock():
        RunFolder(run).wait_for("a site")
        assert one.look()["says"] == "a site" and one.look()["status"] == "waiting"
        RunFolder(run).wait_for("")
        for number in (1, 2, 3):
            append(run / "rounds.jsonl", line(number))
        append(run / "rounds.jsonl", '{"round": 4')  # not whole yet
        look = one.look()
        facts = look["facts"]
        assert look["status"] == "running" and facts["round"] == "3 of 4"
        assert facts["time left"] == "about 0:02" and facts["sent down"] == "9.0 kB"
        assert facts["accuracy"] == "30.00 %" and "balanced accuracy" not in facts
    assert "it was interrupted" in one.look()["says"]
    end(run, 3, "failed", "too few replies")
    append(run / "clients.csv", "nothing\n")
    look, damage = one.look(), " ".join(one.look()["damage"])
    assert (look["status"], look["says"]) == ("failed", "too few replies")
    assert "'clients.csv'" in damage and str(tmp_path) not in damage


def test_clients_and_the_reasons_of_failures(tmp_path):
    run = begin(tmp_path / "run")
    append(run / "rounds.jsonl", line(1, failures=[failure("1", "it is\nlate")]))
    append(run / "rounds.jsonl", line(2, lost=[{"client": "0", "reason": "gone", "round": 1}]))
    append(run / "clients.csv", scores((1, "0", 50.0), (2, "1", 60.0)))
    look = RunView(run).look()
    zero, one = table(look, "clients so far")
    assert (zero["accuracy"], zero["last round"], zero["why"]) == (50.0, 1, "lost: gone")
    assert (one["failures"], one["why"]) == (1, "round 1: it is late")
    assert table(look, "failures") == [{"round": 1, "client": "1", "why": "it is late"}]


def sweep(folder: Path) -> Path:
    """Two methods, two seeds: one cell finished, one runs, one failed, one has not begun."""
    cells: list[dict] = []
    for method, seed in product(("fedssa", "fd"), (0, 1)):
        name, values = f"{method}-{seed}", {"method": method, "seed": seed}
        cells.append({"name": name, "values": values, "state": "pending"})
        if name != "fd-1":
            begin(folder / name, rounds=4, seed=seed)
            append(folder / name / "rounds.jsonl", line(1))
    end(folder / "fedssa-0", 4)
    cells[2] |= {"state": "failed", "reason": "no room"}
    cells.append({"name": "../evil", "values": {}})
    (folder / "sweeps" / "x").mkdir(parents=True)
    (folder / "sweeps" / "x" / "sweep.json").write_text(json.dumps({"cells": cells}))
    return folder


def test_a_sweeps_cells(tmp_path):
    with RunFolder(sweep(tmp_path) / "fedssa-1").lock():
        one = SweepView(tmp_path)
        look = one.look()
    states = [row["state"] for row in table(look, "cells")]
    assert states == ["completed", "running", "failed", "pending"]
    second = {"cell": "fedssa-1", "round": "1/4", "metric": 10.0, "what": "fedssa seed=1"}
    assert second.items() <= table(look, "cells")[1].items()
    assert look["facts"]["time left"] == "about 0:06" and look["status"] == "running"
    assert set(one.runs) == {"fedssa-0", "fedssa-1", "fd-0", "fd-1"}
    assert one.runs["fedssa-0"].look()["name"] == "fedssa-0"
    assert one.runs["fd-1"].look()["says"] == "the folder does not exist"


def test_plain_lines_of_a_run(tmp_path, monkeypatch):
    run = begin(tmp_path / "run", rounds=2)
    failures = [failure("1", "late"), failure(NOBODY, "no sum")]
    append(run / "rounds.jsonl", line(1, failures=failures))
    steps = iter([lambda: append(run / "rounds.jsonl", line(2)), lambda: end(run, 2)])
    monkeypatch.setattr(time, "sleep", lambda _: next(steps)())
    with RunFolder(run).lock():
        said = list(follow(RunView(run)))
    assert said[1].startswith("round 1 of 2: accuracy 10.00 %")
    assert said[2:5] == ["  the round is lost: no sum", "  client 1 failed: late", "running"]
    assert said[5].startswith("round 2 of 2: accuracy 20.00 %") and said[-4] == "completed"


def test_plain_lines_of_a_sweep_and_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    sweep(tmp_path)
    assert execute(["watch", str(tmp_path), "--plain"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("cell fedssa-0, state completed") and said[3].endswith("why no room")
    assert said[-1] == "completed: 1, failed: 1, interrupted: 1, pending: 1, rounds: 6 of 12"
