"""kill -9 of a SuperNode, of the ServerApp and of the SuperLink, with TLS and authentication on."""

import csv
import time
from pathlib import Path

import pytest
from network.federation import simulated_hash
from network.pace import round_timeout
from network.programs import wait_for

pytestmark = pytest.mark.network


def test_a_supernode_killed_in_training_comes_back(federation, tmp_path):
    """Point 2. The simulated twin loses the same replies: everything else must be the same."""
    node, timeout = federation.nodes[1], round_timeout()
    long = {"local_epochs": 100, "rounds": 5, "round_timeout": timeout}
    run = federation.run("killed", **long)
    run.wait_rounds(1)
    saved = states(federation)
    wait_for(node.trains, "node 1 is training", pause=0.02)
    node.kill()
    assert states(federation) == saved  # not yet done
    killed = len(run.rounds()) + 1
    supervisor = federation.supervise(1)
    summary = run.result()
    rounds = run.rounds()
    failures = summary["failures"]
    assert killed in {f["round"] for f in failures} and {f["client"] for f in failures} == {"1"}
    assert all(f["reason"] for f in failures)
    assert all(record["seconds"] < 2 * timeout for record in rounds)
    assert rounds[-1]["replied"] == 3, failures
    assert supervisor.starts > 1  # refused until its old heartbeat had expired
    lost = {(f["round"], f["client"]) for f in failures}
    assert summary["run_sha256"] == simulated_hash(tmp_path, lost, **long)
    rows = list(csv.DictReader((run.folder / "clients.csv").open()))
    assert rows[-2]["client"] == "1" and rows[-2]["generation"] == "5"


def states(federation) -> set[Path]:
    """Generations that node 1 has saved."""
    return set(federation.state_dir(1).rglob("*.safetensors"))


def test_resume_after_kill_of_server_app_and_of_superlink(federation, tmp_path):
    """Point 3: both in one run, each in the middle of a round."""
    long = {"rounds": 3}
    run = federation.run("crashes", **long)
    run.wait_rounds(1)
    server_app = federation.superlink.child("flwr-serverapp")
    assert server_app is not None
    server_app.kill()
    run.result(code=3)
    finished = len(run.rounds())
    assert finished < 2

    run = federation.resume(run)
    run.wait_rounds(finished + 1)
    federation.superlink.kill()
    time.sleep(2.0)
    federation.start_superlink()
    run.result(code=3)
    assert finished < len(run.rounds()) < 3

    federation.wait_online(3)
    summary = federation.resume(run).result()
    assert summary["status"] == "completed" and summary["rounds"] == 3
    assert summary["run_sha256"] == simulated_hash(tmp_path, **long)
