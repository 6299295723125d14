"""How long a sweep's cells are said to take, and what they leave on the disk."""

import json

import numpy as np
import pytest
import yaml

from fedhet.cli.app import execute
from fedhet.config.schema import RunConfig
from fedhet.errors import UserError
from fedhet.site.local_data import load_partition
from fedhet.sweeps import probe
from fedhet.sweeps.cost import Cost
from fedhet.sweeps.estimate import Estimator, Guess, extent
from fedhet.sweeps.grid import read_cells
from fedhet.sweeps.probe import Probed


def config(**keys):
    return RunConfig(method="standalone", **keys)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Nothing was ever timed on this machine."""
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def guess(cells):
    """By tiny federations."""
    estimator = Estimator(measure=True)
    return [estimator.guess(cell.config) for cell in cells]


def write(path, **keys):
    base = {"dataset": "synthetic:400", "rounds": 4, "batch-size": 8, "method": "standalone"}
    path.write_text(yaml.safe_dump(base | keys))
    return path


def evaluations(config, clients):
    """How often a client is evaluated in the mean, by drawing cohorts."""
    draws = np.random.default_rng(0)
    total, repeats = 0, 200
    for _ in range(repeats):
        behind = np.full(clients, config.evaluate_all)
        for round_ in range(1, config.rounds + 1):
            behind[draws.choice(clients, config.cohort(clients), replace=False)] = True
            if round_ % config.evaluate_every == 0 or round_ == config.rounds:
                total += int(behind.sum())
                behind[:] = False
    return total / clients / repeats


@pytest.mark.parametrize("everybody", [True, False])
@pytest.mark.parametrize(("rounds", "every"), [(12, 4), (13, 4), (5, 4), (5, 100)])
def test_costs_scale_with_what_a_round_trains_and_evaluates(everybody, rounds, every) -> None:
    cost = Cost(client=1.0, image=0.01, epoch=0.1, held=10.0)
    cell = config(fraction=0.3, split=(8, 1, 1), rounds=rounds, local_epochs=3,
                  evaluate_every=every, evaluate_all=everybody)  # fmt: skip
    # 3 clients of 80 training images a round; every evaluation of everybody takes 200 images.
    trained = rounds * (3 * 1.0 + 240 * (0.01 + 0.3))
    held = cost.of(cell, 1000, clients=10) - trained
    assert held == pytest.approx(evaluations(cell, 10) * 200 * 10.0, rel=0.02)


@pytest.mark.parametrize(("classes", "batch"), [(100, 64), (100, 32), (10, 8), (10, 64)])
def test_exact_costs_give_exact_seconds(tmp_path, monkeypatch, classes, batch) -> None:
    true = Cost(client=0.3, image=0.002, epoch=0.01, held=0.001)

    def exact(config):
        dataset, made = load_partition(config, config.clients)
        trained = int(sum(len(split.train) for split in made.clients))
        held = len(dataset.labels) - trained
        plain = config.clients * true.client + trained * (
            true.image + true.epoch * config.local_epochs
        )
        return Probed(plain, plain + held * true.held, trained, held)

    monkeypatch.setattr(probe, "_rounds", exact)
    grid = {"seed": [0], "local-epochs": [10]}
    keys = {"dataset": f"synthetic:{60 * classes}x{classes}", "batch-size": batch}
    path = write(tmp_path / "p.yaml", grid=grid, partition="dirichlet", **keys)
    (cell,) = read_cells(path, [])
    (found,) = guess([cell])
    assert found.seconds == pytest.approx(true.of(cell.config, 60 * classes, 10))


@pytest.mark.parametrize(
    ("fraction", "rounds", "models", "generations"),
    [
        (1.0, 1, ["cnn-4", "cnn-5"], 1.0),
        (1.0, 4, ["cnn-4", "cnn-5"], 2.0),
        (0.25, 3, ["cnn-5"], 2 * (1 - 0.75**3) - 3 * 0.25 * 0.75**2),  # in expectation
    ],
)
def test_a_dry_run_tells_what_the_cells_keep(
    tmp_path, capsys, fraction, rounds, models, generations
) -> None:
    path = write(tmp_path / "p.yaml", clients=8, models=models, fraction=fraction, rounds=rounds,
                 method="fedssa", grid={"seed": [0]})  # fmt: skip
    out = tmp_path / "out"
    words = ["sweep", str(path), f"--out={out}"]
    assert execute([*words, "--dry-run", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["cells"]
    assert execute([*words, "--dry-run", "--json", "--calibrate"]) == 0
    (timed,) = json.loads(capsys.readouterr().out)["cells"]
    sizes = [one["estimated_state_bytes"] for one in (told, timed)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01) and (told["rough"], timed["rough"]) == (
        1,
        0,
    )
    assert execute([*words, "--dry-run"]) == 0
    assert f"are free in '{tmp_path}'" in capsys.readouterr().out.splitlines()[-1]
    assert execute(words) == 0
    (states,) = out.glob("fedssa-*/state/*")
    sizes = [file.stat().st_size for file in states.rglob("*.safetensors")]
    mean = sum(sizes) / len(sizes)
    assert told["estimated_state_bytes"] == pytest.approx(8 * generations * mean, rel=0.01)
    capsys.readouterr()
    fresh = ["sweep", str(path), f"--out={tmp_path / 'none'}", "keep-state=false", "--dry-run"]
    assert execute(fresh) == 0
    assert "free" not in capsys.readouterr().out


def test_a_folder_is_measured_by_names_and_an_absent_or_empty_one_says_why(tmp_path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(3):
            (tmp_path / label / f"{number}.png").write_text("no image, and never opened")
    assert extent(config(dataset="image-folder", data_path=str(tmp_path))) == (6, 2)
    assert extent(config(dataset="synthetic:500x20")) == (500, 20)
    assert extent(config(dataset="cifar100")) == (60_000, 100)
    assert extent(config(dataset="cifar100", classes=("apple", "crab"))) == (1200, 2)
    for name, said in (("absent", "no such file"), ("a", "0 images of 0 classes are too few")):
        with pytest.raises(UserError, match=said):
            extent(config(dataset="image-folder", data_path=str(tmp_path / name)))


def test_cells_that_differ_in_seeds_are_timed_once_and_unknown_ones_say_why(tmp_path) -> None:
    grid = [
        {"seed": [0, 1], "partition-seed": [0, 1]},
        {"dataset": ["image-folder"], "data-path": [str(tmp_path / "absent")]},
    ]
    *known, absent = guess(read_cells(write(tmp_path / "p.yaml", grid=grid), []))
    assert len(known) == 4
    assert len({one.seconds for one in known}) == 1
    assert known[0].seconds > 0
    assert absent.seconds is None
    assert "no such file" in absent.reason


def test_a_probe_tells_nobody_and_has_limits_of_its_own(tmp_path, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(probe, "run", lambda launch, tell: seen.append(launch.config))
    monkeypatch.setattr(probe, "read_jsonl", lambda path: [])
    keys = {"tracker": "tensorboard", "max-images": 60, "lr": 1000, "out": str(tmp_path / "out")}
    cells = read_cells(write(tmp_path / "p.yaml", grid={"seed": [0]}, **keys), [])
    with pytest.raises(ValueError, match="unpack"):  # a probe that leaves no rounds
        guess(cells)
    assert (seen[0].tracker, seen[0].max_images, seen[0].lr) == ("none", 1_000_000, 0.01)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def broken(tmp_path, monkeypatch) -> str:
    """The name of an architecture that cannot be made."""
    module = "def make(**keys): raise RuntimeError('out of luck')\n"
    (tmp_path / "luckless.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    return "luckless:make"


@pytest.mark.parametrize("measured", [True, False])
def test_what_fails_is_tried_once_and_said_once(
    tmp_path, monkeypatch, capsys, broken, cache, measured
) -> None:
    tried, cost = [], Estimator._cost
    monkeypatch.setattr(Estimator, "_cost", lambda *all_: tried.append(1) or cost(*all_))
    path = write(tmp_path / "p.yaml", models=[broken], grid={"seed": [0, 1, 2]})
    estimator = Estimator(measure=measured)
    guesses = [estimator.guess(cell.config) for cell in read_cells(path, [])]
    assert len(tried) == 1
    assert {one.seconds for one in guesses} == {None}
    (reason,) = {one.reason for one in guesses}
    assert "out of luck" in reason and "log:" not in reason
    assert capsys.readouterr() == ("", "")
    assert [path.name for path in cache.iterdir()] == ["calibration"]  # no invented images


def test_a_probe_in_which_one_client_fails_is_no_estimate(tmp_path, broken) -> None:
    path = write(tmp_path / "p.yaml", models=[broken, "cnn-5"], grid={"seed": [0]})
    (one,) = guess(read_cells(path, []))
    assert one.seconds is None and "a client failed on invented images" in one.reason
    assert "out of luck" in one.reason


def test_a_dry_run_counts_what_the_sweep_would_run(tmp_path, monkeypatch, capsys) -> None:
    path = write(tmp_path / "p.yaml", grid={"seed": [0, 1, 2, 3]})
    out = tmp_path / "out"
    half, failed, *_ = read_cells(path, [])
    for cell, status in ((half, "stopped"), (failed, "failed")):
        folder = out / cell.name
        folder.mkdir(parents=True)
        lines = [{"round": r, "test_accuracy_mean": 1.0, "failures": [], "replied": 1}
                 for r in (1, 2)]  # fmt: skip
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        ending = {"status": status, "reason": "?", "rounds": 2}
        (folder / "summary.json").write_text(json.dumps(ending))
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "run.json").write_text("{}")
    monkeypatch.setattr(Estimator, "guess", lambda self, config: Guess(3600.0))
    words = ["sweep", str(path), f"--out={out}", "--dry-run"]
    assert execute([*words, "--workers=2"]) == 0
    assert "4 cells, 4 to run: about 1:30:00 with 2 at a time" in capsys.readouterr().out
    assert execute([*words, "--workers=9"]) == 0  # no sooner than its longest cell
    assert "about 1:00:00 with 9 at a time" in capsys.readouterr().out
    assert not (out / "sweeps").exists()
    monkeypatch.setattr(Estimator, "guess", lambda self, config: Guess(None, "why"))
    assert execute(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == ["4 cells, 4 to run", "no estimate: why"]
