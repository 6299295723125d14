"""A real run on Ray, given where somebody keeps packages that are called as parts of ours."""

import json
import subprocess

import pytest
from network.commands import Command, assert_gone
from network.pace import patience

from fedhet.cli.new import new_method
from fedhet.config import load_config
from fedhet.runtime.session import find_preset
from fedhet.runtime.superlink import script
from fedhet.testing import simulate

pytestmark = pytest.mark.network

SMALL = ("rounds=1", "clients=2", "models=cnn-5", "local-epochs=1", "actors=1")
RAISE = "raise SystemExit('a stranger was imported')\n"


def test_actors_find_the_users_clients_and_our_own(tmp_path, monkeypatch) -> None:
    """Nothing in the folder hides a module of ours, of Flower's or of Python's."""
    here = tmp_path / "here"
    for name in ("clients", "strategies", "configs", "fedhet", "flwr"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("" if name == "clients" else RAISE)
    (here / "queue.py").write_text(RAISE)
    new_method("own", here / "clients")
    (here / "clients" / "test_own.py").unlink()
    words = ["run", "quickstart", "method=clients.own:METHOD", *SMALL, "--name", "a"]
    process = subprocess.Popen(
        [script("fedhet"), *words], cwd=here, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    folder = here / "runs" / "a"
    try:
        _, said = process.communicate(timeout=patience())
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert_gone(folder, [])
    summary = Command(folder, process).summary()
    assert summary["failures"] == []
    monkeypatch.syspath_prepend(here / "clients")  # the same method by another name
    words = [*SMALL, "method=own:METHOD", f"out={tmp_path / 'simulated'}"]
    simulated, _ = simulate(load_config(find_preset("quickstart"), words))
    assert summary["run_sha256"] == json.loads(simulated.summary.read_text())["run_sha256"]
