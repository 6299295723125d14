"""Plain ``flwr run``: Flower's own simulation on Ray, and what a person sees who errs."""

import contextlib
import json
import subprocess
import sys
import traceback
from pathlib import Path

import psutil
import pytest
import torch
from flwr.app import Context, RecordDict
from helpers.flower_internals import PATIENT_FLWR
from helpers.programs import wait_for

from fedhet import server_app
from fedhet.engines.system import environment, free_ports
from fedhet.errors import UserError
from fedhet.testing import simulate, small

ROOT = Path(__file__).resolve().parents[2]
WORDS = "dataset='synthetic:240x4' models='cnn-5' clients=2 rounds=1 batch-size=16 name='plain'"


@pytest.mark.parametrize(("text", "lines"), [("", 1), ('{"config": {"mu": 1}, "run": {}}', 4)])
def test_a_mistake_comes_without_a_traceback(monkeypatch, text, lines):
    """Flower prints what the ServerApp raised; of `fedhet run` the log has it as a whole."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    monkeypatch.setattr(server_app, "log_to_stderr", lambda: None)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), series_id=0,
        run_config={"config": text, "method": "fedproto", "mu0": 0.3, "lam": ""},
    )  # fmt: skip
    threads = torch.get_num_threads()
    with pytest.raises(UserError, match="only method") as error:
        server_app.app(None, context)
    torch.set_num_threads(threads)
    shown = "".join(traceback.format_exception(error.value)).splitlines()
    assert (len(shown) == 1) if lines == 1 else (len(shown) >= lines), shown


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
