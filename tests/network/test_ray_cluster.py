"""A Ray cluster of three nodes on loopback: a run without shared disk, sweeps, a node that dies."""

import contextlib
import json
import os
import subprocess
import time

import psutil
import pytest
import yaml
from network.federation import PRESET
from network.pace import patience
from network.ray_nodes import Cluster

from fedhet.config.load import build_config
from fedhet.engines.system import script
from fedhet.testing import simulate

pytestmark = pytest.mark.network
CONTEXT = PRESET | {"clients": 4, "rounds": 2}


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


def test_ray_nodes_give_the_same_bytes(cluster, tmp_path):
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
    alone = build_config(CONTEXT | {"out": str(tmp_path / "alone")})
    twin, _ = simulate(alone)
    assert summary["run_sha256"] == json.loads(twin.summary.read_text())["run_sha256"]
