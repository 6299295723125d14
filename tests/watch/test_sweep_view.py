"""A folder of runs as it is watched: the grid of cells, what runs, what is left."""

import json

import pytest
import yaml
from filelock import FileLock
from watch.folders import append, begin, end, line

from fedhet.records.run_folder import LOCK
from fedhet.watch import cell, sweep
from fedhet.watch.sweep import SweepView


@pytest.fixture(autouse=True)
def _asks_always(monkeypatch):
    monkeypatch.setattr(cell, "ASK", 0.0)
    monkeypatch.setattr(sweep, "ASK", 0.0)


def index(folder, cells):
    place = folder / "sweeps" / "p"
    place.mkdir(parents=True)
    (place / "sweep.json").write_text(json.dumps({"format": 1, "sweep": "p", "cells": cells}))
    return place


def listed(name, state="pending", **values):
    return {"name": name, "values": values, "state": state, "reason": "why", "rounds": 0}


@pytest.fixture
def folder(tmp_path):
    """One finished, one running, one diverged, one that has not begun; and another's run."""
    cells = [
        listed("a0", method="standalone", seed=0), listed("a1", method="standalone", seed=1),
        listed("b0", "diverged", method="fedssa", seed=0), listed("b1", method="fedssa", seed=1),
    ]  # fmt: skip
    place = index(tmp_path, cells)
    for name in ("a0", "a1", "b0", "other"):
        begin(tmp_path / name)
    end(tmp_path / "a0", 4)
    end(tmp_path / "b0", 2, "failed", "not finite")
    append(tmp_path / "a1" / "rounds.jsonl", line(1) + line(2))
    (place / "b1.yaml").write_text(yaml.safe_dump({"rounds": 6}))
    return tmp_path


def test_every_cell_stands_where_it_belongs(folder):
    view = SweepView(folder)
    with FileLock(folder / "a1" / LOCK):
        state = view.look().state
    (grid,) = state.grids
    assert grid.columns == ["seed=0", "seed=1"]
    texts = {row: [one and one.text for one in cells] for row, cells in grid.rows}
    assert texts == {
        "standalone": ["40.00 %", "running 20.00 % 2/4"],
        "fedssa": ["diverged 20.00 % 2/4", "pending"],
    }
    assert [one.run for _, cells in grid.rows for one in cells] == ["a0", "a1", "b0", ""]
    facts = dict(state.facts)
    assert (state.status, facts["rounds"]) == ("running", "8 of 22")
    assert facts["finished"] == facts["running"] == facts["diverged"] == "1"
    assert facts["pending"] == "2"  # b1, and the other one, of which only the folder is there
    assert facts["time left"] == "about 0:24"  # 2 + 6 + 4 rounds of 2 s
    rows = {row[0]: row for row in state.tables[0].rows}
    assert rows["b0"][-1] == "not finite" and rows["b1"][4] == 6 and rows["other"][1] == ""


def test_it_is_over_when_nobody_runs_it(folder):
    view = SweepView(folder)
    assert (view.look().state.status, view.look().state.over) == ("not running", True)
    with FileLock(folder / "sweeps" / "p" / LOCK):
        assert not view.look().state.over
    state = view.look().state
    assert state.over and dict(state.facts)["broken off"] == "1"


def test_runs_inside_are_those_that_have_begun(folder):
    view = SweepView(folder)
    view.look()
    found = view.inside("a1")
    assert found is not None and len(found.look().rounds) == 2
    for name in ("b1", "nobody", "", "..", "../x", "sweeps"):
        assert view.inside(name) is None
