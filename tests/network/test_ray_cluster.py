"""A Ray cluster of three nodes on loopback: a run without shared disk, sweeps, a node that dies."""

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml
from network.federation import PRESET
from network.pace import patience
from network.programs import Process, wait_for
from network.ray_nodes import Cluster

from fedhet.cli.app import execute
from fedhet.config.load import build_config
from fedhet.engines.process_groups import environment, script
from fedhet.testing import simulate

pytestmark = pytest.mark.network
CONTEXT = PRESET | {"clients": 4, "rounds": 2, "state-backend": "context"}
CELLS = {
    "method": "fedssa", "dataset": "synthetic:240x4", "clients": 3, "models": ["cnn-5"],
    "local-epochs": 1, "batch-size": 16, "rounds": 40, "engine": "ray", "grid": {"seed": [0, 1]},
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("ray"), 0, 1, 1)
    yield made
    made.stop()


def actors(cluster: Cluster) -> list[int]:
    """Training processes of each node."""
    return [sum(map(_is_actor, node.children())) for node in cluster.nodes]


def _is_actor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "ray::ClientAppActor" in " ".join(process.cmdline())
    return False


def test_ray_nodes_without_a_shared_disk_give_the_same_bytes_and_nothing_to_resume(
    cluster, tmp_path, capsys
):
    (tmp_path / "preset.yaml").write_text(yaml.safe_dump(CONTEXT))
    words = ["run", str(tmp_path / "preset.yaml"), f"out={tmp_path}", "name=run"]
    env = os.environ | {"RAY_ADDRESS": cluster.address}
    command = subprocess.Popen(
        [script("fedhet"), *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    most = [0, 0, 0]
    while command.poll() is None:
        most = [max(pair) for pair in zip(most, actors(cluster), strict=True)]
        time.sleep(0.2)
    _, error = command.communicate(timeout=patience())
    assert command.returncode == 0, error
    assert most == [0, 1, 1]  # who has a processor trains
    assert all(node.running() for node in cluster.nodes)  # somebody else's: left as it was

    folder = tmp_path / "run"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed" and summary["failures"] == []
    assert not (folder / "state").exists()  # nothing was on a disk
    alone = build_config(CONTEXT | {"out": str(tmp_path / "alone"), "state-backend": "file"})
    twin, _ = simulate(alone)
    assert summary["run_sha256"] == json.loads(twin.summary.read_text())["run_sha256"]

    (folder / "summary.json").write_text(json.dumps(summary | {"status": "failed"}))
    assert execute(["resume", str(folder)]) == 2
    assert "state-backend=context" in capsys.readouterr().err


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
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(CELLS | {"rounds": 400}))
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
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(CELLS))
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
    near = ["sweep", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "near"), "engine=inline"]
    assert execute(near) == 0
    assert len(hashes(home)) == 2 and hashes(home) == hashes(tmp_path / "near")
    for folder in home.glob("fedssa-*"):  # our paths, as if the cell had run here
        twin = tmp_path / "near" / folder.name / "config.yaml"
        ours = yaml.safe_load((folder / "config.yaml").read_text())
        assert ours == yaml.safe_load(twin.read_text()) | {"out": str(home)}
        assert execute(["verify", str(folder)]) == 0
