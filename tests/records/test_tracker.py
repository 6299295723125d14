"""The hook for trackers: the calls that each package gets, and what happens when one fails."""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from helpers.tiny import tiny

from fedhet.errors import UserError
from fedhet.records.tracker import tracker_package
from fedhet.testing import simulate


@pytest.fixture
def package(monkeypatch):
    """A package that notes every call, instead of each tracker's."""
    package = MagicMock()
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, package)
    return package


def test_the_calls_that_wandb_gets(tmp_path, package):
    folder, _ = simulate(tiny(tmp_path, tracker="wandb", name="r"))
    assert [name for name, *_ in package.mock_calls] == ["init", "log", "log", "finish"]
    keys = package.init.call_args.kwargs
    assert keys["project"] == "fedhet" and keys["config"]["method"] == "fedssa"
    assert not {"out", "data-path", "state-dir"} & set(keys["config"])  # nobody else's business
    for record, call in zip(folder.read_rounds(), package.log.call_args_list, strict=True):
        (numbers,), step = call
        assert step == {"step": record["round"]}
        assert numbers["test_accuracy_mean"] == record["test_accuracy_mean"]
        assert not {"sha256", "failures", "round"} & set(numbers)


def test_mlflow_goes_on_in_the_run_that_carries_the_experiment(tmp_path, package):
    package.search_runs.return_value = []
    folder, _ = simulate(tiny(tmp_path, tracker="mlflow", rounds=1))
    assert package.start_run.call_args.kwargs["tags"] == {"fedhet": folder.experiment}
    assert package.log_metrics.call_args.kwargs == {"step": 1}
    package.reset_mock()
    package.search_runs.return_value = [SimpleNamespace(info=SimpleNamespace(run_id="abc"))]
    simulate(tiny(tmp_path, tracker="mlflow", rounds=1), folder=folder)
    package.start_run.assert_called_once_with(run_id="abc")
    package.log_params.assert_not_called()


def test_tensorboard_scalars(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra is not installed")
    folder, _ = simulate(tiny(tmp_path, tracker="tensorboard", rounds=1))
    assert list((folder.path / "tensorboard").iterdir())


@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, package, caplog, broken):
    getattr(package, broken).side_effect = ConnectionError("no route to the service")
    folder, _ = simulate(tiny(tmp_path, tracker="wandb", method="standalone"))
    assert len(folder.read_rounds()) == 2
    getattr(package, broken).assert_called_once()  # then it is left alone
    assert "tracker wandb is left out" in caplog.text


def test_without_the_extra_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="tracker: 'wandb' needs its package"):
        tracker_package("wandb")
