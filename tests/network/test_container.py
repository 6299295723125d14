"""The compose file with podman: three sites and their tables (mark ``container``, on demand).

Needs root, ``podman`` and ``podman-compose`` 1.6 on the PATH, and the image ``fedhet:0.2.0``. Old
podman versions know no conditions between services: they are started in order here.
"""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from helpers.pace import PATIENCE
from helpers.programs import wait_for

pytestmark = [
    pytest.mark.network,
    pytest.mark.container,
    pytest.mark.skipif(shutil.which("podman-compose") is None, reason="podman-compose is missing"),
]
DOCKER = Path(__file__).resolve().parents[2] / "docker"


class Compose:
    """``podman-compose`` in a copy of ``docker/``, so that ``../runs`` is a temporary folder."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(DOCKER, folder / "docker")
        (folder / "runs").mkdir()
        self.folder = folder
        self.env = os.environ | {"FEDHET_OVERRIDES": "rounds=2"}

    def __call__(self, *words: str) -> None:
        command = ["podman-compose", "-f", "docker/compose.yaml", *words]
        subprocess.run(command, cwd=self.folder, env=self.env, check=True, timeout=PATIENCE)

    def up(self, *services: str) -> None:
        self("up", "-d", "--no-deps", "--no-build", *services)

    def podman(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["podman", *words], capture_output=True, text=True, check=False)

    def exited(self, service: str) -> bool:
        shown = self.podman("inspect", f"docker_{service}_1", "--format", "{{.State.Status}}")
        return shown.stdout.strip() == "exited"


@pytest.fixture
def compose(tmp_path):
    made = Compose(tmp_path)
    yield made
    made("down", "-v")


def test_three_sites_with_tables_end_a_masked_run(compose):
    compose.up("certs", "tables")
    for service in ("certs", "tables"):
        wait_for(lambda s=service: compose.exited(s), f"{service} is done")
    compose.up("server")
    check = ("exec", "docker_server_1", "python3", "/opt/fedhet/docker/health.py")
    wait_for(lambda: compose.podman(*check).returncode == 0, "the server is healthy")
    compose.up("node-0", "node-1", "node-2", "first-run")
    knock = (
        "import httpx; print(httpx.post('https://server:8443/v1/control/list-runs', verify=False))"
    )
    refused = compose.podman("exec", "docker_node-0_1", "python3", "-c", knock)
    assert "403" in refused.stdout, refused
    wait_for(lambda: compose.exited("first-run"), "the run has ended")
    said = compose.podman("logs", "docker_first-run_1")
    # Not `podman cp`: an old one does not see the volumes of a container that has ended.
    exported = compose.folder / "runs.tar"
    compose.podman("volume", "export", "docker_runs", "--output", str(exported))
    with tarfile.open(exported) as archive:
        archive.extractall(compose.folder / "runs", filter="data")
    assert list((compose.folder / "runs").iterdir()), said.stdout + said.stderr
    (run,) = (compose.folder / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "completed" and summary["failures"] == []
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [record["replied"] for record in rounds] == [3, 3]
    assert "train-images" not in (run / "rounds.jsonl").read_text()  # masked
