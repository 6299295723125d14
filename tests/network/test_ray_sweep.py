"""``fedhet sweep --ray`` on two nodes of a Ray cluster, one of which dies: the same bytes."""

import json
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml
from network.pace import patience
from network.programs import Process, wait_for
from network.ray_nodes import Cluster

from fedhet.runtime.superlink import environment, script

pytestmark = pytest.mark.network
PRESET = {
    "method": "fedssa", "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
    "local-epochs": 1, "batch-size": 16, "rounds": 40, "engine": "ray", "grid": {"seed": [0, 1]},
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("ray"), 0, 1, 1)
    yield made
    made.stop()


def sweep(folder: Path, name: str, *options: str) -> Process:
    words = [script("fedhet"), "sweep", str(folder / "tiny.yaml"), "--out", str(folder / name)]
    return Process([*words, *options], folder / f"{name}.log", environment()).start()


def cells(node: Process) -> list[psutil.Process]:
    """The cells that train on a node."""
    return [one for one in node.children() if "fedhet" in one.cmdline()[2:3]]


def rounds(folder: Path) -> list[int]:
    return [len(path.read_text().splitlines()) for path in folder.glob("*/rounds.jsonl")]


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.parent.name: json.loads(path.read_text())["run_sha256"]
        for path in folder.glob("*/summary.json")
    }


def test_cells_end_with_a_killed_sweep_and_the_same_command_goes_on(cluster, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(PRESET | {"rounds": 400}))
    command, home = sweep(tmp_path, "far", "--ray", cluster.address), tmp_path / "far"
    wait_for(lambda: len(rounds(home)) == 2 and min(rounds(home)) > 0, "both nodes train")
    trained = [one for node in cluster.nodes for one in cells(node)]
    assert len(trained) == 2
    command.kill()
    _, alive = psutil.wait_procs(trained, patience())
    assert not alive
    begun = rounds(home)
    command = sweep(tmp_path, "far", "--ray", cluster.address, "--json")
    wait_for(lambda: min(rounds(home)) > max(begun), "both cells have gone on")
    command.terminate()
    assert command.popen.wait(patience()) == 128 + 15
    endings = [json.loads(path.read_text()) for path in home.glob("*/summary.json")]
    assert [ending["status"] for ending in endings] == ["stopped"] * 2
    assert not any(cells(node) for node in cluster.nodes)


def test_a_node_that_dies_gives_its_cell_to_the_other_with_the_same_bytes(cluster, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(PRESET))
    command, home = sweep(tmp_path, "far", "--ray", cluster.address), tmp_path / "far"
    try:
        wait_for(lambda: len(rounds(home)) == 2 and min(rounds(home)) > 0, "both nodes train")
        _, lost, _ = cluster.nodes
        running = [*cells(lost), *lost.children()]
        for one in (psutil.Process(lost.popen.pid), *running):
            one.kill()
        assert command.popen.wait(patience()) == 0, command.log.read_text()
        assert command.said("it goes on elsewhere") == 1 and command.said("fedhet: engine:") == 1
        assert command.said(" finished ") == 2
    finally:
        command.end()
    near = sweep(tmp_path, "near", "engine=inline")
    try:
        assert near.popen.wait(patience()) == 0
    finally:
        near.end()
    assert len(hashes(home)) == 2 and hashes(home) == hashes(tmp_path / "near")
    for folder in home.glob("fedssa-*"):  # our paths, as if the cell had run here
        twin = tmp_path / "near" / folder.name / "config.yaml"
        ours = yaml.safe_load((folder / "config.yaml").read_text())
        assert ours == yaml.safe_load(twin.read_text()) | {"out": str(home)}
        assert subprocess.run([script("fedhet"), "verify", folder], check=False).returncode == 0
