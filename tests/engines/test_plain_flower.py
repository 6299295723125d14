"""Plain ``flwr run``: Flower's own simulation on Ray."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import psutil
from helpers.flower_internals import PATIENT_FLWR
from helpers.programs import wait_for

from fedhet.engines.system import environment, free_ports
from fedhet.testing import simulate, small

ROOT = Path(__file__).resolve().parents[2]
WORDS = "dataset='synthetic:240x4' models='cnn-5' clients=2 rounds=1 batch-size=16 name='plain'"


def test_flwr_run_simulates_on_ray_with_the_same_bytes(tmp_path):
    """Flower's SuperLink stays after it, as the user's; here it is ended."""
    http, control = free_ports(2)
    env = environment({
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
    })  # fmt: skip
    command = [sys.executable, "-c", PATIENT_FLWR, "run", str(ROOT), "local", "--stream"]
    command += ["--run-config", f"{WORDS} out='{tmp_path}'"]
    one = "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=1"  # one of Ray's actors
    command += ["--federation-config", one]
    ending = tmp_path / "plain" / "summary.json"
    try:
        said = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path
        )
        wait_for(ending.exists, "the run ends, perhaps after its stream")
    finally:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == env["FLWR_HOME"]:
                    process.kill()
    ended = json.loads(ending.read_text())
    assert ended["status"] == "completed" and ended["failures"] == [], said
    twin, _ = simulate(small(tmp_path, clients=2, rounds=1))
    assert ended["run_sha256"] == json.loads(twin.summary.read_text())["run_sha256"]
