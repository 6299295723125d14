"""kill -9 of nodes, of the ServerApp and of the SuperLink, with TLS and authentication on."""

import csv
import json

import pytest
from helpers.pace import round_timeout
from helpers.programs import wait_for
from network.federation import Federation, simulated_hash

pytestmark = pytest.mark.network
SUMS = {"method": "lg_fedavg", "local_epochs": 20, "rounds": 100, "secure_sum": "masked"}
NODES, KILLS = 8, 4  # of the soak
BETWEEN = 2  # rounds from one kill to the next


def test_nodes_killed_in_training_come_back(federation, tmp_path):
    """The simulated twin loses the same replies: everything else must be the same.

    Of node 1 all processes die, as with its machine; of node 2 the SuperNode alone, which is
    started again within ten seconds beside what this machine needs for a start.
    """
    federation.whole()
    run = federation.run("killed", rounds=100, round_timeout=round_timeout())
    run.wait_rounds(1)
    memory = federation.memory()
    run.catch(federation, 1)
    killed = len(run.rounds()) + 1
    supernode = federation.nodes[2].child("flower-supernode")
    assert supernode is not None
    supernode.kill()
    federation.nodes[1].kill()
    assert not federation.state(run, 1, killed).exists()
    times = federation.server.said("1: online")
    federation.start_node(1)
    wait_for(lambda: federation.server.said("1: online") > times, "the server says it is back")
    run.wait_for_round(lambda record: record["round"] > killed and record["replied"] == 3)
    grown = federation.memory()
    records = run.rounds()
    assert run.interrupt() == 130 and run.summary()["status"] == "stopped"

    lost = {(record["round"], f["client"]) for record in records for f in record["failures"]}
    assert (killed, "1") in lost and {client for _, client in lost} <= {"1", "2"}
    reasons = [f["reason"] for record in records for f in record["failures"]]
    assert all(reasons) and "no reply within" not in str(reasons)  # noticed before the time-out
    assert all(record["replied"] + len(record["failures"]) == 3 for record in records)
    assert not any(federation.nodes[k].said("not let in yet") for k in (1, 2))
    assert all(grown[name] < 1.5 * memory[name] + 50 for name in memory)
    twin = simulated_hash(tmp_path, lost, rounds=len(records))
    assert records[-1]["sha256"] == twin
    rows = list(csv.DictReader((run.folder / "clients.csv").open()))
    last = {row["client"]: row["generation"] for row in rows if row["round"] == str(len(records))}
    assert last == dict.fromkeys("012", str(len(records)))


@pytest.mark.parametrize("sums", [{}, {"secure_sum": "masked", "sum_owners": 2}], ids=["", "sums"])
def test_resume_after_kill_of_server_app_and_of_superlink(federation, tmp_path, sums):
    """Point 3: both in one run, each in the middle of a round.

    Of sums, what is killed forgets an attempt that clients remember: no mask of it is used again.
    """
    federation.whole()
    run = federation.run(f"crashes-{len(sums)}", **sums)
    run.wait_rounds(1)
    server_app = federation.server.child("flwr-serverapp")
    assert server_app is not None
    server_app.kill()
    run.result(code=3)
    assert run.process.said("ended without a word")  # long before Flower misses its heartbeats
    finished = len(run.rounds())
    assert finished < 2

    run = federation.resume(run)
    run.wait_rounds(finished + 1)
    federation.server.kill()
    run.result(code=3)
    assert finished < len(run.rounds()) < 3
    times = federation.server.said("ended with the last server; to go on: fedhet resume")
    federation.start_server()
    run = federation.resume(run)
    summary = run.result()
    assert federation.server.said("ended with the last server") == times + 1
    assert summary["status"] == "completed" and summary["rounds"] == 3
    assert summary["failures"] == []
    twin = sums | ({"secure_sum": "masked"} if sums else {})
    assert summary["run_sha256"] == simulated_hash(tmp_path, **twin)


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_node_killed_before_its_upload_is_left_out_of_the_sum(tmp_path, nodes):
    """Two of three are fewer than `sum-min`: no sum. Four of five sign who is left, and sum."""
    federation = Federation(tmp_path, nodes)
    try:
        federation.whole()
        run = federation.run("masked", **SUMS, clients=nodes, round_timeout=round_timeout(nodes))
        run.wait_rounds(1)
        victim = nodes - 1
        run.catch(federation, victim, pause=0.1)
        last = len(run.rounds()) + 1
        federation.nodes[victim].kill()
        run.wait_rounds(last)
        if nodes == 3:  # no sum without it: a run that is resumed waits, and loses no round
            assert run.interrupt() == 130
            before, run = len(run.rounds()), federation.resume(run)
            wait_for(lambda: run.process.said("2 of 3 have come (without 2)"), "it waits")
            federation.start_node(victim)
            run.wait_rounds(before + 2)
            assert all(line["replied"] == nodes for line in run.rounds()[before:])
        assert run.interrupt() == 130
    finally:
        federation.stop()
    found = run.rounds()[last - 1]
    failed = {failure["client"] for failure in found["failures"]}
    lost = {(last, str(victim))}
    if nodes == 3:
        assert (found["replied"], failed) == (0, {"2", "the round"})
        return
    assert (found["replied"], failed) == (nodes - 1, {str(victim)})
    # A simulation has no certificates, so nobody signs: it names how many may be left.
    twin = SUMS | {"secure_sum": "masked", "rounds": last, "clients": nodes, "sum_threshold": 4}
    assert found["sha256"] == simulated_hash(tmp_path, lost, **twin)


@pytest.mark.soak
def test_nodes_that_are_killed_while_they_train_come_back_every_time(tmp_path):
    """Nobody but the victims fails, in the end all are there, no memory is lost; with a report."""
    federation = Federation(tmp_path, NODES)
    try:
        federation.whole()
        run = federation.run(
            "soak", clients=NODES, rounds=500, round_timeout=round_timeout(NODES),
            min_replies=NODES // 2,
        )  # fmt: skip
        run.wait_rounds(1)
        start = federation.memory()
        for k in range(KILLS):
            wait_for(lambda k=k: federation.training(k), "the victim trains", pause=0.05)
            federation.nodes[k].kill()
            federation.start_node(k)
            run.wait_rounds(len(run.rounds()) + BETWEEN)
        run.wait_for_round(lambda record: record["replied"] == NODES)
        end = federation.memory()
        assert run.interrupt() == 130
    finally:
        federation.stop()
    records = run.rounds()
    failed = [failure["client"] for record in records for failure in record["failures"]]
    print(json.dumps({
        "rounds": len(records), "failed": failed, "megabytes": [start, end],
        "seconds": [round(record["seconds"], 1) for record in records],
    }))  # fmt: skip
    assert {str(k) for k in range(KILLS)} == set(failed)
    assert all(record["replied"] + len(record["failures"]) == NODES for record in records)
    assert all(end[kind] < 1.5 * megabytes + 50 for kind, megabytes in start.items())
