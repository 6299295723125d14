"""Finished runs, read: what is left out and why, and records of strangers."""

import sys

import pytest
from helpers.written_runs import edit, make_run

from fedhet import load_sweep
from fedhet.errors import UserError
from fedhet.reports.reading import pack, read_runs
from fedhet.reports.report import Runs


def reason(folder) -> str:
    (one,) = read_runs([folder])[1]
    return one.reason


def test_places_without_runs(tmp_path):
    with pytest.raises(UserError, match="nothing' does not exist"):
        load_sweep(tmp_path / "nothing")
    with pytest.raises(UserError, match="has no run folder"):
        load_sweep(tmp_path)
    path = make_run(tmp_path, "fd", 0, [[1.0]], status="stopped")
    with pytest.raises(UserError, match=r"no run is finished, .*: fd-s0: stopped: not finite"):
        load_sweep(path)


def test_a_run_that_is_not_finished_or_diverged_is_left_out(tmp_path):
    path = make_run(tmp_path, "fd", 0, [[1.0], [2.0]])
    (path / "summary.json").rename(tmp_path / "kept")
    assert reason(path) == "not finished: round 2 of 2"
    (tmp_path / "kept").rename(path / "summary.json")
    other = make_run(tmp_path, "fd", 1, [[1.0]], loss=None)
    assert reason(other) == "failed: it diverged: no reply of the last round was accepted"
    assert len(load_sweep([path, other]).frame()) == len(load_sweep(path, str(other)).frame()) == 1


FLOPS = '"train_flops": 1000000000000.0'
KEY = "fraction: 0.5"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("summary.json", '"rounds": 2', '"rounds": 3', "has 2 of the 3 rounds"),
        ("summary.json", '"run_sha256": "666430"', '"run_sha256": "x"', "is not what 'rou"),
        ("clients.csv", "2,3,cnn-1,2,4.0", "2,3,cnn-1,2,9.0", "clients.csv ends with 3.75 %"),
        ("clients.csv", "2,3,cnn-1,2,4.0", "2,3,cnn-1,2,x", "line 9: test_accuracy is damaged"),
        ("clients.csv", "2,3,cnn-1,2,4.0", '2,3,"cnn-1,2,4.0', "not CSV: unexpected end"),
        ("rounds.jsonl", '"round": 2', '"round": 5', "line 2 is damaged: round: 5, where 2"),
        ("rounds.jsonl", FLOPS, '"train_flops": NaN', "line 1 is damaged: not JSON"),
        ("rounds.jsonl", FLOPS, '"train_flops": -1', "greater than or equal to 0"),
        ("config.yaml", KEY, "fraction: half", "fraction is damaged: Input should be"),
        ("config.yaml", KEY, "fraction: !!python/name:os.system", "a constructor for the tag"),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path, file, old, new, said):
    path = make_run(tmp_path, "fd", 0, [[1.0] * 4, [1.0, 2.0, 3.0, 4.0]])
    edit(path / file, old, new)
    assert said in reason(path)


def test_a_packed_record_is_read_back_and_lasts(sweep, tmp_path):
    runs, _ = read_runs([sweep])
    pack(runs, tmp_path)
    text = (tmp_path / "fedssa-s0.run").read_text()
    assert "/somewhere" not in text and '"test_accuracy":[11,21,31,41]' in text
    (tmp_path / "twice").mkdir()
    pack([runs[0], runs[0]], tmp_path / "twice")
    assert len(list((tmp_path / "twice").iterdir())) == 2  # further ones of a name get a number
    again, left_out = read_runs(tmp_path.glob("*.run"))
    one, other = Runs(runs), Runs(again, left_out)
    assert not left_out and one.verdict == other.verdict
    assert one.frame().equals(other.frame()) and one.frame("clients").equals(other.frame("clients"))
    (tmp_path / "odd.run").write_text('{"format": "something else"}')
    assert [each.name for each in read_runs([tmp_path])[1]] == ["odd"]


def test_accuracies_between_evaluations_count_once(tmp_path):
    make_run(tmp_path, "fd", 0, [[1.0] * 4, [1.0] * 4, [2.0] * 4], evaluate_every=2)
    rounds = load_sweep(tmp_path).frame("rounds")
    assert rounds["test_accuracy_mean"].isna().tolist() == [True, False, False]


def test_a_record_names_code_and_none_is_imported(tmp_path):
    (tmp_path / "evil_method.py").write_text("raise SystemExit('imported')\n")
    for key in (1, 2):
        path = make_run(tmp_path / "runs", "fedssa", key, [[1.0] * 4], mu0=0.1 * key)
        edit(path / "config.yaml", "method: fedssa", "method: evil_method:METHOD")
    assert list(load_sweep(tmp_path / "runs").frame()["variant"]) == [
        "evil_method (mu0=0.1)", "evil_method (mu0=0.2)",
    ]  # fmt: skip
    assert "evil_method" not in sys.modules


def test_a_key_of_an_older_version_makes_no_variant_at_the_value_that_was_kept(tmp_path):
    for seed, kept in enumerate(("linear", "mlp")):
        path = make_run(tmp_path, "fedmrl", seed, [[1.0] * 4])
        edit(path / "config.yaml", "method: fedmrl", f"method: fedmrl\nprojector: {kept}")
    variants = ["FedMRL", "FedMRL (projector=mlp)"]
    assert load_sweep(tmp_path).frame()["variant"].tolist() == variants
