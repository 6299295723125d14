"""Cells as tasks of a Ray cluster of two nodes: killed commands and nodes cost a round."""

import contextlib
from pathlib import Path

import psutil
import pytest
import yaml
from helpers.pace import PATIENCE
from helpers.programs import Process, wait_for
from helpers.ray_nodes import Cluster
from network.test_sweep import hashes

from fedhet.cli.app import execute
from fedhet.engines.system import environment, script

PRESET = {
    "method": "fedssa", "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
    "local-epochs": 1, "batch-size": 16, "rounds": 40, "engine": "ray", "grid": {"seed": [0, 1]},
}  # fmt: skip


@pytest.fixture
def cluster(tmp_path):
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


@pytest.mark.network
@pytest.mark.timeout(900)
def test_a_killed_command_and_a_killed_node_cost_the_running_round(cluster, tmp_path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(PRESET))
    command = sweep(tmp_path, cluster.address)
    wait_for(lambda: len(rounds(tmp_path)) == 2 and min(rounds(tmp_path)) > 0, "both nodes train")
    command.kill()
    wait_for(lambda: not workers(cluster), "the cells have ended with the command")
    begun = rounds(tmp_path)
    command = sweep(tmp_path, cluster.address)
    wait_for(lambda: all(map(int.__gt__, sorted(rounds(tmp_path)), sorted(begun))), "both go on")
    lost = cluster.nodes[-1]
    for one in (*lost.children(), psutil.Process(lost.popen.pid)):
        with contextlib.suppress(psutil.Error):
            one.kill()
    assert command.popen.wait(4 * PATIENCE) == 0, command.log.read_text()
    assert command.said("engine: inline") and command.said(" completed, ") == 2
    near = ["sweep", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "near"), "engine=inline"]
    assert execute(near) == 0
    assert len(hashes(tmp_path / "far")) == 2
    assert hashes(tmp_path / "far") == hashes(tmp_path / "near")
