"""Ray, also by plain ``flwr run``: the same bytes as everywhere, on 127.0.0.1."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from engines.commands import WORK, run, summary
from helpers.flower_internals import PATIENT_FLWR
from helpers.programs import wait_for

from fedhet.config.load import find_preset, load_config
from fedhet.engines.system import environment, free_ports
from fedhet.testing import simulate, small

ROOT = Path(__file__).resolve().parents[2]
WORDS = "dataset='synthetic:240x4' models='cnn-5' clients=2 rounds=1 batch-size=16 name='plain'"


def test_a_run_on_ray_is_private_and_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = run(tmp_path, "run", "engine=ray", "rounds=4000", "actors=1")
    command.wait_rounds(1)
    listening = {
        (one.name(), connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for one in command.children()
        if one.is_running()
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    command.popen.send_signal(signal.SIGINT)
    code, err = command.ended()
    assert code == 130 and "fedhet resume" in err and "Traceback" not in err, err
    assert {"gcs_server", "raylet"} <= {name for name, *_ in listening}
    assert {ip for _, ip, _ in listening} == {"127.0.0.1"}
    ended = summary(command.folder)
    assert ended["status"] == "stopped" and ended["failures"] == []
    rounds = command.rounds()
    keys = [*WORK, f"rounds={len(rounds)}", f"out={tmp_path}"]
    twin, _ = simulate(load_config(find_preset("quickstart"), keys))
    assert rounds[-1]["sha256"] == twin.read_rounds()[-1]["sha256"]


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
    ended = summary(ending.parent)
    assert ended["status"] == "completed" and ended["failures"] == [], said
    twin, _ = simulate(small(tmp_path, clients=2, rounds=1))
    assert ended["run_sha256"] == summary(twin.path)["run_sha256"]
