"""kill -9 of a SuperNode, of the ServerApp and of the SuperLink, with TLS and authentication on."""

import csv
import time

import pytest
from network.federation import simulated_hash
from network.programs import wait_for

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]


def test_a_supernode_killed_in_training_comes_back(federation, tmp_path):
    """Point 2. The simulated twin loses the same replies: everything else must be the same."""
    node, received = federation.nodes[1], federation.nodes[1].said("Receiving: train message")
    timeout = 60
    long = {"local_epochs": 20, "rounds": 5, "round_timeout": timeout}
    run = federation.run("killed", **long)
    used: dict[int, float] = {}

    def round_1_is_over() -> bool:
        pid, seconds = node.message()
        used[pid] = max(seconds, used.get(pid, 0.0))
        return federation.receiving(1, received + 2)()

    wait_for(round_1_is_over, 300, "node 1 is in round 2")
    first = max(used, key=lambda pid: used[pid])
    saved = set(federation.state_dir(1).rglob("00000002.safetensors"))

    def is_training() -> bool:  # a message spends its first half on imports
        pid, seconds = node.message()
        return pid != first and seconds > 0.7 * used[first]

    wait_for(is_training, 300, "node 1 is training", pause=0.05)
    node.kill()
    assert set(federation.state_dir(1).rglob("00000002.safetensors")) == saved  # not yet done
    killed = len(run.rounds()) + 1
    supervisor = federation.supervise(1)
    summary = run.result(600)
    rounds = run.rounds()
    failures = summary["failures"]
    assert killed in {f["round"] for f in failures} and {f["client"] for f in failures} == {"1"}
    assert all(f["reason"] for f in failures)
    assert all(record["seconds"] < timeout + 20 for record in rounds)
    assert rounds[-1]["replied"] == 3, failures
    assert supervisor.starts > 1  # refused until its old heartbeat had expired
    lost = {(f["round"], f["client"]) for f in failures}
    assert summary["run_sha256"] == simulated_hash(tmp_path, lost, **long)
    rows = list(csv.DictReader((run.folder / "clients.csv").open()))
    assert rows[-2]["client"] == "1" and rows[-2]["generation"] == "5"


def test_resume_after_kill_of_server_app_and_of_superlink(federation, tmp_path):
    """Point 3: both in one run, each in the middle of a round."""
    long = {"local_epochs": 2, "rounds": 3}
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
