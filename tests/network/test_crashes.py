"""kill -9 of SuperNodes, of the ServerApp and of the SuperLink, with TLS and authentication on."""

import csv
import os
import signal
import time
from pathlib import Path

import pytest
from network.federation import Federation, Run, simulated_hash
from network.pace import round_timeout
from network.programs import wait_for

from fedhet.records.run_folder import RunFolder

pytestmark = pytest.mark.network


def test_supernodes_killed_in_training_come_back(federation, tmp_path):
    """Point 2. The simulated twin loses the same replies: everything else must be the same.

    Both die at once, so that their last heartbeats expire side by side, and the run goes on until
    both are back, however many rounds that takes. Who comes back before the server has noticed that
    its message was lost costs the run one whole `round-timeout`, which is what this test waits at
    most.
    """
    federation.whole()
    timeout = round_timeout()
    run = federation.run("killed", rounds=100, round_timeout=timeout)
    run.wait_rounds(1)
    memory = federation.memory()
    pids = []

    def saved(number: int) -> bool:
        return state(federation, run, 1, number).exists()

    def stopped() -> int:
        assert run.process.running(), run.process.log.read_text()  # else nobody trains ever again
        pids.append(federation.nodes[1].caught(run.folder, saved))
        return pids[-1]

    wait_for(stopped, "1 trains", pause=0.02)
    killed = len(run.rounds()) + 1
    for k in (1, 2):
        federation.nodes[k].kill()
    os.kill(pids[-1], signal.SIGKILL)
    assert not saved(killed)
    supervisors = [federation.supervise(k) for k in (1, 2)]
    run.wait_for_round(lambda record: record["round"] > killed and record["replied"] == 3)
    grown = federation.memory()
    records = run.rounds()
    assert run.interrupt() == 130 and run.summary()["status"] == "stopped"

    lost = {(record["round"], f["client"]) for record in records for f in record["failures"]}
    assert (killed, "1") in lost and {client for _, client in lost} <= {"1", "2"}
    assert all(f["reason"] for record in records for f in record["failures"])
    assert all(record["replied"] + len(record["failures"]) == 3 for record in records)
    assert all(record["seconds"] < 2 * timeout for record in records)
    assert all(one.starts for one in supervisors)  # and were refused until they were forgotten
    assert all(grown[name] < 1.5 * memory[name] + 50 for name in memory)
    twin = simulated_hash(tmp_path, lost, rounds=len(records))
    assert records[-1]["sha256"] == twin
    rows = list(csv.DictReader((run.folder / "clients.csv").open()))
    last = {row["client"]: row["generation"] for row in rows if row["round"] == str(len(records))}
    assert last == dict.fromkeys("012", str(len(records)))


def state(federation: Federation, run: Run, k: int, generation: int) -> Path:
    """Where node k saves that generation."""
    folder = federation.state_dir(k) / RunFolder(run.folder).experiment / str(k)
    return folder / f"{generation:08}.safetensors"


@pytest.mark.parametrize("sums", [{}, {"secure_sum": "masked", "sum_owners": 2}], ids=["", "sums"])
def test_resume_after_kill_of_server_app_and_of_superlink(federation, tmp_path, sums):
    """Point 3: both in one run, each in the middle of a round.

    Of sums, what is killed forgets an attempt that clients remember: no mask of it is used again.
    """
    tls = federation.tls
    configs = {
        k: f'partition-id={k} num-partitions=3 ca="{tls.ca}" key="{tls.client(str(k))}" '
        f'certificate="{tls.client(str(k))}.crt"'
        for k in range(3)
    }
    federation.whole(configs)
    for k in range(3):
        federation.supervise(k)
    run = federation.run(f"crashes-{len(sums)}", **sums)
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
    assert summary["failures"] == []
    twin = sums | ({"secure_sum": "unmasked"} if sums else {})
    assert summary["run_sha256"] == simulated_hash(tmp_path, **twin)
