"""A Ray cluster without shared disk: two Ray nodes on loopback, states in Flower's context."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from network.federation import PRESET
from network.pace import patience
from network.programs import Process, wait_for

from fedhet.cli.app import execute
from fedhet.config import build_config
from fedhet.runtime.superlink import environment, free_ports, script
from fedhet.testing import simulate

pytestmark = pytest.mark.network
CHANGES = {"clients": 4, "rounds": 2, "state-backend": "context"}


class Cluster:
    """``ray start --head`` and a second ``ray start --address``, one CPU each."""

    def __init__(self, logs: Path) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="fh", dir="/tmp"))  # sockets want a short path
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        common = ["--num-cpus=1", "--object-store-memory=200000000", "--block"]
        head = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1",
                "--include-dashboard=false", f"--temp-dir={self.home}"]  # fmt: skip
        self.nodes = []
        for name, words in {"head": head, "second": [f"--address={self.address}"]}.items():
            command = [script("ray"), "start", *words, *common]
            self.nodes.append(Process(command, logs / f"{name}.log", environment()).start())
            wait_for(lambda name=name: self._joined(name), f"Ray's {name} node runs")

    def _joined(self, name: str) -> bool:
        node = self.nodes[-1]
        assert node.running(), node.log.read_text()
        return bool(node.said("Ray runtime started"))

    def actors(self) -> list[int]:
        """Training processes of each node."""
        return [sum(map(_is_actor, node.children())) for node in self.nodes]

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.end()
        shutil.rmtree(self.home, ignore_errors=True)


def _is_actor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "ray::ClientAppActor" in " ".join(process.cmdline())
    return False


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.stop()


def test_two_ray_nodes_give_the_same_bytes_and_nothing_to_resume(cluster, tmp_path, capsys):
    values = PRESET | CHANGES
    (tmp_path / "preset.yaml").write_text("".join(f"{k}: {v}\n" for k, v in values.items()))
    words = ["run", str(tmp_path / "preset.yaml"), f"out={tmp_path}", "name=run"]
    env = os.environ | {"RAY_ADDRESS": cluster.address}
    command = subprocess.Popen(
        [script("fedhet"), *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    most = [0, 0]
    while command.poll() is None:
        most = [max(pair) for pair in zip(most, cluster.actors(), strict=True)]
        time.sleep(0.2)
    _, error = command.communicate(timeout=patience())
    assert command.returncode == 0, error
    assert most == [1, 1]  # both nodes trained
    assert all(node.running() for node in cluster.nodes)  # somebody else's: left as it was

    folder = tmp_path / "run"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed" and summary["failures"] == []
    assert not (folder / "state").exists()  # nothing was on a disk
    alone = build_config(values | {"out": str(tmp_path / "alone"), "state-backend": "file"})
    twin, _ = simulate(alone)
    assert summary["run_sha256"] == json.loads(twin.summary.read_text())["run_sha256"]

    (folder / "summary.json").write_text(json.dumps(summary | {"status": "failed"}))
    assert execute(["resume", str(folder)]) == 2
    assert "state-backend=context" in capsys.readouterr().err
