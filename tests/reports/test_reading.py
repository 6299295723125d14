"""What is read of runs, and that damage of any kind leaves one out."""

import json
import shutil

import pytest
from written_runs import edit, make_run

from fedhet.reports.reading import read_runs
from fedhet.reports.runs import pack
from fedhet.reports.sections import build
from fedhet.testing import simulate, small


def test_what_is_left_out_is_named(sweep, tmp_path):
    make_run(sweep, "fd", 0, [[1.0] * 4], status="failed", rounds=2)
    make_run(sweep, "fd", 1, [[1.0] * 4], loss=None, rounds=2)
    (make_run(sweep, "fml", 0, [[1.0] * 4]) / "summary.json").unlink()
    (make_run(sweep, "fedkd", 0, [[1.0] * 4]) / "summary.json").write_text("{")
    (make_run(sweep, "fedapen", 0, [[1.0] * 4]) / "rounds.jsonl").write_text("x{}\n")
    (make_run(sweep, "fedapen", 1, [[1.0] * 4]) / "partition.csv").write_text('{"x": ')
    shutil.copytree(sweep / "fedssa-s0", sweep / "fedssa-again")
    made = build([sweep], models=False)
    reasons = {one.name: one.reason for one in made.left_out}
    assert reasons.pop("fedkd-s0").startswith("cannot be read: 'summary.json' is damaged")
    assert reasons.pop("fedapen-s0").startswith("cannot be read: 'rounds.jsonl': line 1 is damaged")
    assert reasons.pop("fedapen-s1").startswith(
        "cannot be read: 'partition.csv': line 1 is damaged"
    )
    again = reasons.pop("fedssa-s0" if "fedssa-s0" in reasons else "fedssa-again")
    assert again.startswith("a second run of one cell, with the same result")
    assert reasons == {
        "fd-s0": "failed: not finite",
        "fd-s1": "failed: it diverged, in the last round no reply counted",
        "fml-s0": "not finished: round 1 of 1",
    }
    (accuracy,) = (table for table in made.tables() if table.name.startswith("accuracy"))
    shown = {row[0].text: row[1].text for row in accuracy.rows}
    assert shown == {"Standalone": "5", "FedSSA": "5", "FD": "0 (2 failed)"}


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("config.yaml", "evaluate-every: 1", "evaluate-every: 0", "greater than or equal to 1"),
        ("config.yaml", "lr: 0.01", "lr: x", "config.lr: "),
        ("config.yaml", "fraction: 0.5", "fraction: [1]", "config.fraction: "),
        ("rounds.jsonl", '"train_flops"', '"x"', "rounds.0.train_flops: "),
        ("rounds.jsonl", '_mean": 2.5', '_mean": "x"', "rounds.1.test_accuracy_mean: "),
        ("environment.json", "{}", '{"versions": "x"}', "environment.versions: "),
        ("environment.json", "{}", '{"cuda": 5}', "environment.cuda: "),
        ("summary.json", '"failures": []', '"failures": 5', "summary.failures: "),
        ("summary.json", '"rounds": 2', '"rounds": 3', "rounds.jsonl has 2 of 3 rounds"),
        ("summary.json", "fedssa0", "fedssa1", "not the round that summary.json is of"),
        ("clients.csv", "round,", '"' + 2**17 * "x" + "round,", "not CSV"),
        ("rounds.jsonl", '"round": 2', '"evaluated_clients": 9, "round": 2', "4 of 9 clients"),
        ("clients.csv", "2,3,cnn-1,2,4.0,1.0,\n", "", "clients.csv ends with 1.75 %"),
    ],
)  # fmt: skip
def test_damage_of_any_kind_leaves_a_run_out(tmp_path, name, old, new, said):
    path = make_run(tmp_path, "fedssa", 0, [[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    (path / "environment.json").write_text("{}")
    make_run(tmp_path, "standalone", 0, [[1.0] * 4])
    edit(path / name, old, new)
    runs, (left,) = read_runs([tmp_path])
    assert [run.name for run in runs] == ["standalone-s0"]
    assert left.name == "fedssa-s0" and said in left.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"config": {', b'"config": "x", "y": {'),
        (b'"rounds": {', b'"rounds": [1], "y": {'),
        (b'"rounds": {', b'"rounds": {}, "y": {'),
        (b'"name": "', b'"name": "\xff'),
        (b'"train_flops"', b'"x"'),
        (b'"test_accuracy_mean":[2.5]', b'"test_accuracy_mean":[null]'),
        (b'"test":[1.0,', b'"test":["1.0",'),
        (b'"test":[1.0,', b'"test":[NaN,'),
        (b'"test":[1.0,', b'"test":[101.0,'),
        (b'"client":["0","1"', b'"client":["0","0"'),
        (b'"model":["cnn-1"', b'"model":[1'),
        (b'"round":[1]', b'"round":[2]'),
        (b'"clients":4', b'"clients":' + b"9" * 400),
        (b'"classes":["a","b"]', b'"classes":[1,2]'),
        (b'"classes":["a","b"]', b'"classes":[]'),
        (b"0:3", b"7:3"),
        (b"0:3", b"0:" + b"9" * 40),
        (b'"config": {', b'"config": ' + b"[" * 200_000),
    ],
)
def test_damaged_packed_records_are_left_out(tmp_path, old, new):
    make_run(tmp_path / "runs", "fedssa", 0, [[1.0, 2.0, 3.0, 4.0]])
    ((run,), _) = read_runs([tmp_path / "runs"])
    path = pack(run, tmp_path / "packed")
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    runs, left = read_runs([tmp_path / "packed"])
    assert not runs and left[0].reason.startswith("cannot be read: ")


def test_a_packed_record_is_the_run(sweep, tmp_path):
    runs, _ = read_runs([sweep])
    path = pack(runs[0], tmp_path / "records")
    (again,), _ = read_runs([path])
    for name in ("name", "config", "summary", "environment", "rounds", "clients", "counts"):
        assert getattr(again, name) == getattr(runs[0], name)


def test_a_record_is_called_like_its_file(tmp_path):
    """What it calls itself may be a path."""
    make_run(tmp_path / "runs", "fedssa", 0, [[1.0, 2.0, 3.0, 4.0]])
    ((run,), _) = read_runs([tmp_path / "runs"])
    path = pack(run, tmp_path / "packed")
    edit(path, f'"name": "{run.name}"', '"name": "../../elsewhere"')
    ((again,), _) = read_runs([path])
    assert again.name == run.name


def test_a_sweep_says_of_itself_that_it_was_short(sweep):
    index = sweep / "sweeps" / "p" / "sweep.json"
    index.parent.mkdir(parents=True)
    index.write_text(json.dumps({"format": 1, "sweep": "p", "note": "quick profile", "cells": []}))
    assert "p: quick profile." in build([sweep], models=False).lead
    index.write_text(json.dumps({"format": 1, "note": "quick profile", "cells": []}))
    assert "quick profile" not in build([sweep], models=False).lead


def test_rounds_between_evaluations_are_no_points_of_a_curve(tmp_path):
    """rounds.jsonl repeats the last figures there."""
    folder, _ = simulate(small(tmp_path, rounds=5, evaluate_every=2))
    (run,), _ = read_runs([folder.path])
    assert [r["round"] for r in run.evaluated] == [2, 4, 5]
