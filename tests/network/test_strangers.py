"""Runs given where somebody keeps packages that are called as parts of ours."""

import shutil

import pytest
from engines.commands import Command, summary
from network.federation import EXAMPLES

from fedhet.config.load import find_preset, load_config
from fedhet.testing import simulate

pytestmark = pytest.mark.network

SMALL = (
    "dataset=synthetic:160x10", "models=cnn-5", "clients=4", "classes-per-client=5",
    "public=synthetic:12x2", "alignment=8", "rounds=2",
)  # fmt: skip
RAISE = "raise SystemExit('a stranger was imported')\n"


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_workers_find_the_users_own_method_and_our_modules(tmp_path, monkeypatch, engine) -> None:
    """Nothing in the folder hides a module of ours, of Flower's or of Python's."""
    here = tmp_path / "here"
    for name in ("mine", "clients", "strategies", "configs", "fedhet", "flwr"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("" if name == "mine" else RAISE)
    (here / "queue.py").write_text(RAISE)
    shutil.copy(EXAMPLES / "fedmd.py", here / "mine" / "own.py")
    words = ["method=mine.own:METHOD", *SMALL, f"engine={engine}", "name=a", "actors=1"]
    command = Command(here / "runs" / "a", "run", "quickstart", *words, log=here / "out")
    code, said = command.ended()
    assert code == 0, said
    assert summary(command.folder)["failures"] == []
    assert command.rounds()[1]["downlink_floats"] == 4 * 8 * 10
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here / "mine")  # the same method by another name
    words = [*SMALL, "method=own:METHOD", f"out={tmp_path / 'simulated'}"]
    simulated = simulate(load_config(find_preset("quickstart"), words))[0].read_rounds()
    assert [line["sha256"] for line in command.rounds()] == [line["sha256"] for line in simulated]
