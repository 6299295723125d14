"""Which cells a preset's grid has, what they are called, and the words of `fedhet sweep`."""

from pathlib import Path

import pytest
import yaml
from cli.refusals import refused

from fedhet import TOP
from fedhet.sweeps.grid import Cell, combinations, digest, read_cells
from fedhet.sweeps.sweep import shard

BASE = {"dataset": "digits", "clients": 5, "rounds": 50, "local-epochs": 10, "mu0": 0.25}


def cells(tmp_path, grid, words=(), **more):
    path = tmp_path / "preset.yaml"
    path.write_text(yaml.safe_dump(BASE | more | {"grid": grid}))
    return read_cells(path, words)


def test_a_grid_is_every_combination_in_order_and_paired_keys_move_together() -> None:
    grid = {"partition-seed": [0, 1], "method": ["a", "b"], "seed": [7, 8]}
    made = [tuple(c.values()) for c in combinations(grid, [["partition-seed", "seed"]])]
    assert made == [(0, 7, "a"), (0, 7, "b"), (1, 8, "a"), (1, 8, "b")]


def test_a_list_of_grids_is_their_union_without_repeats(tmp_path) -> None:
    found = cells(tmp_path, [{"method": ["fedssa"], "seed": [0, 1]}, {"seed": [1, 2]}])
    assert [cell.config.seed for cell in found] == [0, 1, 2]
    assert len({cell.name for cell in found}) == 3


def test_keys_of_one_method_stay_with_it_and_words_win_over_the_grid(tmp_path) -> None:
    grid = {"method": ["fedssa", "standalone"], "seed": [0, 1]}
    fedssa, alone = cells(tmp_path, grid, ["seed=5", "rounds=3"])
    assert (alone.config.seed, alone.config.rounds) == (5, 3)
    assert fedssa.config.params.mu0 == 0.25
    assert alone.config.method == "standalone" and "mu0" not in alone.config.flat()


def test_a_cell_is_named_by_what_decides_its_result(tmp_path) -> None:
    (cell,) = cells(tmp_path, {"seed": [0]})
    same = cell.config.model_copy(update={"out": "elsewhere", "name": "x", "actors": 3})
    other = cell.config.model_copy(update={"lr": 0.02})
    assert cell.name == f"fedssa-{digest(same)[:16]}"
    assert digest(other) != digest(same)
    own = same.model_copy(update={"method": "my_methods.one:METHOD"})
    assert Cell({}, own).name.rpartition("-")[0] == "my_methods.one"
    assert cell.config.engine == "inline"


def test_the_presets_are_what_they_say_and_hold_every_cell_once() -> None:
    found = {}
    for path in sorted((TOP / "configs").glob("*/*.yaml")):
        if "grid" not in (keys := yaml.safe_load(path.read_text())):
            continue
        places = [] if keys["dataset"] in ("digits", "cifar10", "cifar100") else ["data-path=i.zip"]
        places += ["partition-file=sites.csv"] if keys["partition"] == "file" else []
        name = f"{path.parent.name}/{path.stem}"
        found[name] = read_cells(path, places)
        assert len({cell.name for cell in found[name]}) == len(found[name])
    paper = {cell.name for cell in found["paper/heterogeneous"]}
    assert {cell.name for cell in found["paper/cost-to-target"]} < paper  # nothing runs twice
    counts = {name: len(found[f"compare/{name}"]) for name in ("heart", "ag-news")}
    assert len(paper) == 11 * 2 * 3 * 5 and counts == {"heart": 19 * 5, "ag-news": 18 * 5}


GRID = {"grid": {"seed": [0]}}


@pytest.mark.parametrize(
    ("keys", "words", "says"),
    [
        ({"grid": {"seed": 3}}, [], "give a list of values"),
        ({"grid": {"seed": [0, 1], "partition-seed": [0]}, "paired": ["seed", "partition-seed"]},
         [], "of one length"),
        ({"grid": {"sede": [0]}}, [], "did you mean 'seed'"),
        (GRID | {"paired": [["seed", "partition-sed"]]}, [], "paired: 'partition-sed' is not a"),
        ({"grid": {"engine": ["ray", "inline"]}}, [], "grid: 'engine' changes no result"),
        ({"grid": {"seed": [0, 1], "lr": [1, 2]}, "paired": [["seed", "lr"], ["lr"]]}, [],
         "'lr' is in two groups"),
        ({"grid": {"data-path": ["a/x", "b/x"]}, "dataset": "image-folder"}, [],
         "data-path: 'a/x' and 'b/x' have the same file name"),
        (GRID, ["--out=preset.yaml", "--dry-run"], "preset.yaml' cannot be written"),
        (GRID, ["--ray=h:1", "--dry-run"], "--dry-run cannot be used with --ray"),
        (GRID, ["name=x"], "name: not allowed here"),
        (GRID, ["--shard=\u0661/\u0662"], "--shard: "),
        (GRID, ["--shard=4/3"], "--shard: "),
        (GRID, ["--shard=1"], "--shard: "),
        ({}, [], "needs the key `grid`"),
        ({}, ["methods=fedssa,fedavg"], "methods: unknown key (did you mean 'method'?)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, keys, words, says):
    monkeypatch.chdir(tmp_path)
    Path("preset.yaml").write_text(yaml.safe_dump({"dataset": "digits"} | keys))
    assert says in refused(capsys, "sweep", "preset.yaml", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["preset.yaml"]


def test_shards_are_disjoint_and_complete(tmp_path) -> None:
    found = cells(tmp_path, {"seed": [0, 1, 2, 3]})
    parts = [shard(found, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(cell.name for part in parts for cell in part) == sorted(c.name for c in found)
    assert shard(found, "9/9") == []
