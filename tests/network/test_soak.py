"""Eight nodes at once, of which one after the other is killed and restarted; prints a report."""

import json

import pytest
from helpers.pace import round_timeout
from helpers.programs import wait_for
from network.federation import Federation

pytestmark = [pytest.mark.network, pytest.mark.soak]
NODES, KILLS = 8, 4
BETWEEN = 2  # rounds from one kill to the next


def test_nodes_that_are_killed_while_they_train_come_back_every_time(tmp_path):
    """Nobody but the victims fails, in the end everybody is there, and no memory is lost."""
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
