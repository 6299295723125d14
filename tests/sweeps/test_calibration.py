"""What is known of this machine: kept, renewed, made anew if damaged, and what is said without."""

import json
from pathlib import Path

import pytest
import yaml

from fedhet.cli.app import execute
from fedhet.config.registry import METHODS
from fedhet.sweeps import calibration, flop_estimate, probe
from fedhet.sweeps.calibration import Calibration
from fedhet.sweeps.cost import Cost, probe_of
from fedhet.sweeps.estimate import Estimator
from fedhet.sweeps.flop_estimate import Rough
from fedhet.testing import simulate, small

MADE = Cost(1.0, 0.0, 0.5, 0.25, 8.0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(flop_estimate, "SECONDS", 0.01)
    return tmp_path / "cache"


@pytest.fixture
def measured(monkeypatch):
    """The kinds that were timed."""
    seen = []
    monkeypatch.setattr(probe, "measure", lambda kind: seen.append(kind) or MADE)
    return seen


@pytest.fixture
def dry(tmp_path, capsys):
    """A sweep of two kinds of cells, without a run: what it prints, line by line."""
    keys = {"dataset": "synthetic:400", "models": ["cnn-5"], "rounds": 2,
            "grid": {"method": ["standalone", "fedssa"], "seed": [0, 1]}}  # fmt: skip
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(keys))

    def run(*words, code=0):
        where = ["--out", str(tmp_path / "out"), "--dry-run"]
        assert execute(["sweep", str(tmp_path / "p.yaml"), *where, *words]) == code
        return capsys.readouterr().out.splitlines()

    return run


def test_nothing_is_trained_unless_asked_for_and_what_was_timed_is_known_then(
    dry, measured, cache
) -> None:
    first, *rest = dry()
    assert first.startswith("p: 4 cells in ")
    assert sum("~0:" in line for line in rest) == 4
    assert any(line.startswith("4 cells, 4 to run: roughly ") for line in rest)
    assert any("2 kinds of these cells were never timed here" in line for line in rest)
    assert not measured and not (cache.parent / "out").exists()
    timed = dry("--calibrate")
    assert sorted(kind.method for kind in measured) == ["fedssa", "standalone"]
    assert not any("~" in line or "rough" in line for line in timed)
    later = dry("seed=7")  # another sweep of these kinds
    assert len(measured) == 2 and not any("~" in line or "rough" in line for line in later)
    assert any("~" in line for line in dry("batch-size=8"))  # another kind
    dry("--calibrate")
    assert len(measured) == 4  # renewed
    assert not (cache.parent / "out").exists()


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:-20], lambda text: text.replace("0.25", "-1"),
     lambda text: text.replace('"held"', '"hold"'), lambda text: "[]",
     lambda text: text.replace('"format": 2', '"format": 0'),
     lambda text: text.replace('"cores": ', '"cores": 1')],
)  # fmt: skip
def test_a_damaged_calibration_counts_as_none_and_is_made_anew(damage) -> None:
    made = Calibration.load()
    made.keep("kind", MADE)
    assert made.path.stat().st_mode & 0o077 == 0
    assert Calibration.load().cost("kind") == MADE
    made.path.write_text(damage(made.path.read_text()))
    again = Calibration.load()
    assert again.cost("kind") is None
    again.keep("other", MADE)
    assert json.loads(made.path.read_text())["costs"].keys() == again.costs.keys()
    assert Calibration.load().cost("other") == MADE


def test_what_was_counted_is_kept_for_the_source_that_it_is_of(tmp_path, monkeypatch) -> None:
    config = small(tmp_path, models=["cnn-5"], dataset="synthetic:100x4")
    counted = []
    count = flop_estimate._counts
    monkeypatch.setattr(
        flop_estimate, "_counts", lambda *what: counted.append(what) or count(*what)
    )
    first = Rough(Calibration.load()).cost(probe_of(config, 4), 4)
    assert Rough(Calibration.load()).cost(probe_of(config, 4), 4) == first and len(counted) == 1
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    own = config.model_copy(update={"models": ("tiny_net:make",)})
    for _ in range(2):  # somebody else's code may be another tomorrow
        Rough(Calibration.load()).cost(probe_of(own, 4), 4)
    assert len(counted) == 3
    monkeypatch.setattr(calibration, "source_digest", lambda: "another")
    assert Rough(Calibration.load()).cost(probe_of(config, 4), 4) == first and len(counted) == 4


def test_two_commands_add_to_one_file_and_another_machine_has_its_own(monkeypatch) -> None:
    one, two = Calibration.load(), Calibration.load()
    one.keep("a", MADE)
    two.keep("b", MADE)
    assert Calibration.load().costs.keys() == two.costs.keys() and len(two.costs) == 2
    assert one.product("cpu", lambda: 7.0) == 7.0
    assert Calibration.load().product("cpu", lambda: 8.0) == 7.0
    Estimator(measure=True)
    assert Calibration.load().product("cpu", lambda: 8.0) == 8.0
    monkeypatch.setattr(calibration, "processor", lambda: "another")
    assert not Calibration.load().costs


def test_a_cache_that_cannot_be_written_costs_no_estimate(dry, monkeypatch) -> None:
    monkeypatch.setenv("FEDHET_CACHE", "/dev/null/cache")
    assert sum("~0:" in line for line in dry()) == 4
    dry("--calibrate", code=2)


@pytest.mark.parametrize("method", METHODS)
def test_arithmetic_says_what_a_run_counts(tmp_path, method) -> None:
    keys = {"clients": 1, "models": ["cnn-5"], "dataset": "synthetic:100x4", "rounds": 1}
    config = small(tmp_path, method=method, classes_per_client=4, local_epochs=3, **keys)
    made = Calibration.load()
    made.products["cpu, fp32, 1 threads"] = 1e12 / flop_estimate.SHARE
    cost = Rough(made).cost(probe_of(config, 4), 4)
    step = cost.state / flop_estimate.STEP / config.batch_size
    folder, _ = simulate(config)
    (record,) = folder.read_rounds()
    images = sum(int(n) for n in folder.partition.read_text().splitlines()[1].split(",")[1:])
    said = (cost.image + 3 * (cost.epoch - step)) * 1e12
    assert said == pytest.approx(record["train_flops"] / images, rel=0.2)
    sizes = [p.stat().st_size for p in folder.path.rglob("*.safetensors") if "state" in p.parts]
    assert cost.state == pytest.approx(max(sizes), rel=0.01)
