"""A Ray cluster of three nodes on loopback: the same bytes, resumed; a disk that is not shared."""

import json
import os

import psutil
import pytest
from engines.commands import Command, summary
from helpers.ray_nodes import Cluster
from network.federation import PRESET

from fedhet.cli.app import execute
from fedhet.config.load import build_config
from fedhet.engines import grid
from fedhet.errors import UserError
from fedhet.testing import simulate

pytestmark = pytest.mark.network
KEYS = PRESET | {"clients": 4, "rounds": 2}


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
