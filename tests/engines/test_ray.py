"""Ray, also by plain ``flwr run``: the same bytes as everywhere, on 127.0.0.1."""

import signal
from pathlib import Path

import psutil
from engines.commands import WORK, run, summary
from helpers.flower_internals import flwr_run

from fedhet.config.load import find_preset, load_config
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
    ending = tmp_path / "plain" / "summary.json"
    said = flwr_run(ROOT, tmp_path, WORDS, ending)
    ended = summary(ending.parent)
    assert ended["status"] == "completed" and ended["failures"] == [], said
    twin, _ = simulate(small(tmp_path, clients=2, rounds=1))
    assert ended["run_sha256"] == summary(twin.path)["run_sha256"]
