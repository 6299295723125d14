"""What a search tries, how it judges, and what it leaves."""

import json
import re

import pytest
import yaml
from cli.refusals import refused
from helpers.written_runs import round_line
from sweeps import cell_work as work

from fedhet.cli import sweeps as command
from fedhet.config.load import load_config
from fedhet.errors import RunFailed, UserError
from fedhet.sweeps.grid import Search, best, read_cells, validation

WORDS = ["method=fedproto,standalone", "lr=0.003,0.01,0.03", "lam=0.1,1,10"]


@pytest.fixture
def preset(tmp_path):
    path = tmp_path / "small.yaml"
    values = {"dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"], "rounds": 2}
    path.write_text(yaml.safe_dump(values | {"local-epochs": 1, "mu0": 0.4}))
    return path


@pytest.fixture
def tune(preset, tmp_path, monkeypatch):
    """The command with two workers, whose runs ``do`` does."""

    def run(words, do=work.trial, out=None):
        monkeypatch.setattr(command, "run_cell", do)
        target = out or tmp_path / "best.yaml"
        command.tune(str(preset), words, target, tmp_path / "runs", workers=2)

    return run


def test_every_method_gets_as_many_trials_and_no_foreign_keys(preset):
    trials, again, others = (Search.read(preset, WORDS).trials(0, seed) for seed in (0, 0, 5))
    proto, alone = ([t for t in trials if t.method == m] for m in ("fedproto", "standalone"))
    assert [t.values for t in alone] == [{"lr": lr} for lr in (0.003, 0.01, 0.03)]
    assert len({t.label for t in proto}) == 3 and all(set(t.values) == {"lr", "lam"} for t in proto)
    labels = [[t.label for t in drawn] for drawn in (trials, again, others)]
    assert labels[0] == labels[1] != labels[2]


def test_a_sweep_says_which_methods_are_searched(preset):
    values = yaml.safe_load(preset.read_text()) | {"method": "fd"}
    seeds = {"partition-seed": [0, 1], "seed": [0, 1]}
    for grid, words, methods in (
        ({"method": ["fedproto", "fml"]}, [], ["fedproto", "fml"]),
        ({"method": ["fedproto", "fml"]}, ["method=standalone"], ["standalone"]),
        ({}, [], ["fd"]),
    ):
        keys = {"paired": ["seed", "partition-seed"], "grid": grid | seeds}
        preset.write_text(yaml.safe_dump(values | keys))
        search = Search.read(preset, [*words, "lr=0.01,0.1", "seed=5"])
        assert search.methods == methods and search.base["seed"] == 5


def test_a_whole_grid_is_walked_in_order_and_seeds_repeat_a_trial(preset):
    search = Search.read(preset, ["method=fedproto", "lr=0.1,0.2", "lam=1,2", "seed=0,1,2"])
    trials = search.trials(0, 0)
    assert [t.label for t in trials] == [
        f"lr={lr} lam={lam}" for lr in (0.1, 0.2) for lam in (1, 2)
    ]
    assert [[cell.config.seed for cell in t.cells] for t in trials] == [[0, 1, 2]] * 4
    assert {cell.config.engine for t in trials for cell in t.cells} == {"inline"}
    assert len({cell.name for t in trials for cell in t.cells}) == 12


def test_lists_mappings_and_paths_are_no_search(preset):
    fixed = ["ignore=a,b", "labels={ill: [1, 2], healthy: [0]}", "data-path=../t.csv",
             "models=cnn-5 weights=../w.safetensors"]  # fmt: skip
    assert list(Search.read(preset, [*fixed, "lr=0.1,0.2"]).axes) == ["lr"]


def test_the_best_validation_accuracy_of_the_last_round_wins(preset, tmp_path, capsys, tune):
    out = tmp_path / "tuned" / "best.yaml"
    tune([*WORDS, "seed=0,1"], out=out)
    printed = capsys.readouterr()
    assert "test accuracy" not in printed.out
    assert printed.out.splitlines()[-1] == str(out)
    text = out.read_text()
    assert "standalone  lr=0.01  accuracy 90.50 %  chosen\n" in text
    assert "standalone  lr=0.003  diverged\n" in text
    by = f"# by: fedhet tune {preset} method=fedproto"  # as it was given: it can be given again
    assert text.startswith(f"# fedhet sweep best.yaml --out DIR\n{by}")
    cells = [cell.config for cell in read_cells(out, [])]
    of_proto, of_none = cells[:5], cells[5:]
    chosen = re.search(r"fedproto  lr=(\S+) lam=(\S+)  .*chosen\n", text)
    assert {(c.lr, c.params.lam) for c in of_proto} == {tuple(map(float, chosen.groups()))}
    assert {(c.lr, c.tuned) for c in of_none} == {(0.01, ("lr",))}
    assert {c.tuned for c in of_proto} == {("lam", "lr")}
    blocks = [(k, k) for k in range(2, 7)]  # the trials had seeds 0 and 1, and so partitions
    assert [(c.partition_seed, c.seed) for c in of_none] == blocks


def test_no_test_accuracy_is_shown_and_no_trial_of_other_code_taken_up(tmp_path, capsys, tune):
    tune(["lr=0.01,0.02"])
    printed = capsys.readouterr()
    assert printed.err.count("completed") == 2 and "10.00" not in printed.err + printed.out
    assert "90.00 %" in printed.out and "chosen" in printed.out
    config = load_config(tmp_path / "best.yaml")  # of one method: a run's
    assert (config.method, config.lr, config.rounds) == ("fedssa", 0.01, 2)
    assert printed.out.splitlines()[-1] == str(tmp_path / "best.yaml")
    with pytest.raises(RunFailed, match="2 of 2 runs failed"):
        tune(["lr=0.3,0.4"], work.silent, out=tmp_path / "none.yaml")
    assert not (tmp_path / "none.yaml").exists()
    for folder in (tmp_path / "runs").glob("fedssa-*"):
        kept = {"source_sha256": "0", "versions": {"torch": "0"}}
        (folder / "environment.json").write_text(json.dumps(kept))
    with pytest.raises(UserError, match="trials of different code .* another --runs"):
        tune(["lr=0.01,0.02"], work.silent)


def test_of_equal_trials_the_first_and_of_none_nothing(preset, tmp_path):
    trials = Search.read(preset, ["method=fd", "gamma=1,2,3"]).trials(0, 0)
    assert best(trials, [50.0, 60.0, 60.0]) == trials[1:2]
    assert best(trials, [None, None, None]) == []
    trials = Search.read(preset, ["method=fd", "gamma=1,2,3", "metric=log_loss"]).trials(0, 0)
    assert best(trials, [0.9, 0.4, 0.4]) == trials[1:2], "less of it is better"
    assert validation([tmp_path / "nothing"]) is None
    for rounds, expected in (((40.0, 0.0), 0.0), ((40.0, None), 40.0)):
        lines = [round_line(r, 1.0, val_accuracy_mean=v) for r, v in enumerate(rounds, 1)]
        (tmp_path / "rounds.jsonl").write_text("".join(lines))
        assert validation([tmp_path]) == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give at least one key several values"),
        (["lr=0.1,0.2", "lr=0.3,0.4"], "lr: it is given twice"),
        (["lr=0.1,0.10"], "lr: 0.1 is given twice in '0.1,0.10'"),
        (["lrr=0.1,0.2"], "lrr: unknown key for fedssa (did you mean 'lr'"),
        (["method=fd,fml", "lam=1,2"], "lam: unknown key for fd, fml"),
        (["split=8:0:2", "lr=0.1,0.2"], "split: its validation share is 0"),
        ([*WORDS, "--trials=4"], "trials: 4 is more than the 3 combinations of method 'standal"),
        (["lr=0.1,0.2", "--out=."], "--out: '.' is a folder"),
        (["lr=0.1,0.2", "--out=small.yaml/x.yaml"], "--out: 'small.yaml' cannot be written"),
    ],
)
def test_a_mistake_is_one_line(preset, tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    assert refused(capsys, "tune", preset.name, *words).startswith(says)
    assert list(tmp_path.iterdir()) == [preset]
