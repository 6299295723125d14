"""FLOPs of cells, and what a dry run prints."""

import json

import pytest
import yaml

from fedhet.cli.app import execute
from fedhet.config.schema import RunConfig
from fedhet.errors import UserError
from fedhet.sweeps.flops import CellFlops, extent
from fedhet.testing import simulate, small


@pytest.mark.parametrize(
    ("method", "length"),
    [("fedmrl", {"local_steps": 4}), ("pfedes", {}), ("fedgh", {"local_epochs": 2})],
)
def test_a_cell_is_counted_as_its_run_counts(tmp_path, method, length) -> None:
    keys = {"clients": 2, "models": ["cnn-4", "cnn-5"], "dataset": "synthetic:120x4", "rounds": 1}
    config = small(tmp_path, method=method, partition="iid", image_size=16, **keys | length)
    folder, _ = simulate(config)
    spent = sum(record["train_flops"] for record in folder.read_rounds())
    assert CellFlops().of(config) == pytest.approx(spent, rel=0.05)


def test_examples_are_counted_by_names_and_absent_ones_say_why(tmp_path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(3):
            (tmp_path / label / f"{number}.png").write_text("no image, and never opened")

    def counted(**keys):
        return extent(RunConfig(method="standalone", **keys))[:2]

    assert counted(dataset="image-folder", data_path=str(tmp_path)) == (6, 2)
    assert counted(dataset="synthetic:500x20") == (500, 20)
    assert counted(dataset="cifar100", classes=("apple", "crab")) == (1200, 2)
    for name, said in (("absent", "does not exist"), ("a", "so they have no class")):
        with pytest.raises(UserError, match=said):
            counted(dataset="image-folder", data_path=str(tmp_path / name))


def test_a_dry_run_writes_nothing_and_says_once_what_cannot_be_counted(
    tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "luckless.py").write_text("def make(**keys): raise RuntimeError('out of luck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    grid = [{"seed": [0, 1]}, {"models": [["luckless:make"]], "seed": [0, 1]}]
    preset = {"dataset": "synthetic:400", "method": "standalone", "models": ["cnn-5"], "grid": grid}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(preset))
    words = ["sweep", str(tmp_path / "p.yaml"), f"--out={tmp_path / 'out'}", "--dry-run"]
    assert execute(words) == 0
    first, *_, total, why = capsys.readouterr().out.splitlines()
    assert first == f"p: 4 cells in '{tmp_path / 'out'}'"
    assert total.startswith("4 pending; 4 to run: ") and "2 cells whose FLOPs are unknown" in total
    assert why.startswith("FLOPs unknown: ") and "out of luck" in why
    assert execute([*words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert cells[0]["train_flops_left"] == cells[1]["train_flops_left"] > 0
    assert cells[2]["train_flops_left"] is None and "out of luck" in cells[2]["reason"]
    assert not (tmp_path / "out").exists()
