"""How long a sweep's cells are said to take."""

import pytest
import yaml

from fedhet.experiments.estimate import Cost, extent, seconds
from fedhet.experiments.grid import read_cells
from fedhet.schema import RunConfig


def config(**keys):
    return RunConfig(method="standalone", **keys)


def test_costs_scale_with_what_a_round_trains() -> None:
    cost = Cost(client=1.0, image=0.01, epoch=0.1, held=0.001)
    cell = config(
        clients=10, fraction=0.5, split=(8, 1, 1), rounds=6, local_epochs=3, evaluate_every=4
    )
    # 5 clients of 80 training images a round; rounds 4 and 6 are evaluated on 200 images.
    assert cost.of(cell, 1000) == pytest.approx(6 * (5 * 1.0 + 400 * (0.01 + 0.3)) + 2 * 0.2)


def test_a_folder_is_measured_by_names_and_an_absent_one_not_at_all(tmp_path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(3):
            (tmp_path / label / f"{number}.png").write_text("no image, and never opened")
    assert extent(config(dataset="image-folder", data_path=str(tmp_path))) == (6, 2)
    assert extent(config(dataset="image-folder", data_path=str(tmp_path / "absent"))) is None
    assert extent(config(dataset="synthetic:500x20")) == (500, 20)
    assert extent(config(dataset="cifar100")) == (60_000, 100)


def test_cells_that_differ_in_seeds_are_timed_once_and_unknown_ones_are_none(tmp_path) -> None:
    path = tmp_path / "preset.yaml"
    grid = [
        {"seed": [0, 1], "partition-seed": [0, 1]},
        {"dataset": ["image-folder"], "data-path": [str(tmp_path / "absent")]},
    ]
    base = {"dataset": "synthetic:400", "rounds": 2, "batch-size": 8, "image-size": 32}
    path.write_text(yaml.safe_dump(base | {"grid": grid, "method": "standalone"}))
    *known, absent = seconds(read_cells(path, []))
    assert len(known) == 4
    assert len(set(known)) == 1
    assert known[0] > 0
    assert absent is None
