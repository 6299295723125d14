"""The hook for trackers: the calls that each package gets, and what happens when one fails."""

import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
from helpers.tiny import tiny

from fedhet.errors import UserError
from fedhet.records.tracker import tracker_package
from fedhet.testing import simulate


class Recorder(ModuleType):
    """A package that notes every call; calls in ``broken`` raise."""

    def __init__(self, name: str, broken: tuple[str, ...] = ()) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple, dict]] = []
        self.broken = broken
        self.found: list[SimpleNamespace] = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(self.call, name)

    def call(self, name, /, *args, **keys):
        self.calls.append((name, args, keys))
        if name in self.broken:
            raise ConnectionError("no route to the service")
        return self.found if name == "search_runs" else None

    def named(self, name):
        return [call for call in self.calls if call[0] == name]


def test_the_calls_that_wandb_gets(tmp_path, monkeypatch):
    package = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", package)
    folder, _ = simulate(tiny(tmp_path, tracker="wandb", name="r"))
    assert [call[0] for call in package.calls] == ["init", "log", "log", "finish"]
    keys = package.named("init")[0][2]
    assert keys["project"] == "fedhet" and keys["config"]["method"] == "fedssa"
    assert not {"out", "data-path", "state-dir"} & set(keys["config"])  # nobody else's business
    for record, (_, (numbers,), step) in zip(
        folder.read_rounds(), package.named("log"), strict=True
    ):
        assert step == {"step": record["round"]}
        assert numbers["test_accuracy_mean"] == record["test_accuracy_mean"]
        assert "sha256" not in numbers and "failures" not in numbers


def test_mlflow_goes_on_in_the_run_that_carries_the_experiment(tmp_path, monkeypatch):
    package = Recorder("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", package)
    folder, _ = simulate(tiny(tmp_path, tracker="mlflow", rounds=1))
    assert package.named("start_run")[0][2]["tags"] == {"fedhet": folder.experiment}
    assert package.named("log_metrics")[0][2] == {"step": 1}
    package.found = [SimpleNamespace(info=SimpleNamespace(run_id="abc"))]
    package.calls.clear()
    simulate(tiny(tmp_path, tracker="mlflow", rounds=1), folder=folder)
    assert package.named("start_run")[0][2] == {"run_id": "abc"}
    assert not package.named("log_params")


def test_tensorboard_scalars(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra is not installed")
    folder, _ = simulate(tiny(tmp_path, tracker="tensorboard", rounds=1))
    assert list((folder.path / "tensorboard").iterdir())


@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, monkeypatch, caplog, broken):
    package = Recorder("wandb", (broken,))
    monkeypatch.setitem(sys.modules, "wandb", package)
    folder, _ = simulate(tiny(tmp_path, tracker="wandb", method="standalone"))
    assert len(folder.read_rounds()) == 2
    assert len(package.named(broken)) == 1  # it is asked once, then left alone
    assert "tracker wandb is left out" in caplog.text


def test_without_the_extra_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="tracker: 'wandb' needs its package"):
        tracker_package("wandb")
