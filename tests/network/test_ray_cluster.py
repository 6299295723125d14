"""A Ray cluster of three nodes on loopback: the same bytes, a disk that is not shared, kills."""

import contextlib
import json
import os
from pathlib import Path

import psutil
import pytest
import yaml
from engines.commands import Command, summary
from helpers.pace import PATIENCE
from helpers.programs import Process, wait_for
from helpers.ray_nodes import Cluster
from network.federation import PRESET
from network.test_sweep import hashes

from fedhet.cli.app import execute
from fedhet.config.load import build_config
from fedhet.engines import grid
from fedhet.engines.system import environment, script
from fedhet.errors import UserError
from fedhet.testing import simulate

pytestmark = pytest.mark.network
KEYS = PRESET | {"clients": 4, "rounds": 2}
CELLS = {
    "method": "fedssa", "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
    "local-epochs": 1, "batch-size": 16, "rounds": 40, "engine": "ray", "grid": {"seed": [0, 1]},
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("ray"), 0, 1, 1)
    yield made
    made.stop()


def test_ray_nodes_give_the_same_bytes_and_resume_goes_on_without_them(cluster, tmp_path):
    (tmp_path / "preset.yaml").write_text(json.dumps(KEYS))
    words = ["run", str(tmp_path / "preset.yaml"), f"out={tmp_path}", "name=run"]
    env = os.environ | {"RAY_ADDRESS": cluster.address}
    code, error = Command(tmp_path / "run", *words, env=env).ended()
    assert code == 0, error
    assert "engine=ray, since RAY_ADDRESS is set" in error
    assert all(node.running() for node in cluster.nodes)  # somebody else's: left as it was
    ended = summary(tmp_path / "run")
    assert (ended["status"], ended["failures"]) == ("completed", [])
    twin, _ = simulate(build_config(KEYS | {"out": str(tmp_path / "alone")}))
    assert ended["run_sha256"] == summary(twin.path)["run_sha256"]
    assert execute(["resume", str(tmp_path / "run"), "rounds=3", "engine=inline"]) == 0


def test_a_machine_without_the_disk_is_named_before_anything_starts(cluster, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setattr(grid, "_write_proof", lambda path: None)  # it writes to a disk of its own
    ray.init(log_to_driver=False, logging_level="ERROR")
    try:
        with pytest.raises(UserError, match=r"another folder of that name.: `out` must lie on"):
            grid._check_shared_folder(ray, tmp_path)
    finally:
        ray.shutdown()
    assert not list(tmp_path.iterdir())
    assert psutil.pid_exists(cluster.nodes[0].popen.pid)


@pytest.fixture
def breaking(tmp_path):
    made = Cluster(tmp_path, 0, 1, 1)
    yield made
    made.stop()


def sweep(folder: Path, address: str) -> Process:
    words = [script("fedhet"), "sweep", str(folder / "tiny.yaml"), "--out", str(folder / "far")]
    return Process([*words, "--ray", address], folder / "far.log", environment()).start()


def rounds(folder: Path) -> list[int]:
    return [len(path.read_text().splitlines()) for path in folder.glob("far/*/rounds.jsonl")]


def workers(cluster: Cluster) -> list[psutil.Process]:
    found = []
    for node in cluster.nodes:
        for one in node.children():
            with contextlib.suppress(psutil.Error):
                found += [one] if "_in_task" in " ".join(one.cmdline()) else []
    return found


@pytest.mark.timeout(900)
def test_a_killed_command_and_a_killed_node_cost_the_running_round(breaking, tmp_path) -> None:
    """Cells as tasks of the breaking."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(CELLS))
    command = sweep(tmp_path, breaking.address)
    wait_for(lambda: len(rounds(tmp_path)) == 2 and min(rounds(tmp_path)) > 0, "both nodes train")
    command.kill()
    wait_for(lambda: not workers(breaking), "the cells have ended with the command")
    begun = rounds(tmp_path)
    command = sweep(tmp_path, breaking.address)
    wait_for(lambda: all(map(int.__gt__, sorted(rounds(tmp_path)), sorted(begun))), "both go on")
    lost = breaking.nodes[-1]
    for one in (*lost.children(), psutil.Process(lost.popen.pid)):
        with contextlib.suppress(psutil.Error):
            one.kill()
    assert command.popen.wait(4 * PATIENCE) == 0, command.log.read_text()
    assert command.said("engine: inline") and command.said(" completed, ") == 2
    near = ["sweep", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "near"), "engine=inline"]
    assert execute(near) == 0
    assert len(hashes(tmp_path / "far")) == 2
    assert hashes(tmp_path / "far") == hashes(tmp_path / "near")
