"""Many SuperNodes at once, one killed and restarted every three rounds; prints a report."""

import json
from pathlib import Path

import pytest
from helpers.pace import round_timeout
from helpers.programs import wait_for
from network.federation import Federation, Run

pytestmark = [pytest.mark.network, pytest.mark.soak]


def soak(folder: Path, nodes: int, rounds: int) -> tuple[Run, list[tuple[int, str]], dict, dict]:
    """Run it; every third round the SuperNode whose turn it is dies while it trains.

    Returns the run, rounds and victims, and the server's MiB after round 1 and at the end.
    """
    federation = Federation(folder, nodes)
    try:
        federation.whole()
        run = federation.run(
            "soak", clients=nodes, rounds=rounds, round_timeout=round_timeout(nodes),
            min_replies=nodes // 2,
        )  # fmt: skip
        run.wait_rounds(1)
        start, killed = federation.memory(), []
        for victim, round_ in enumerate(range(2, rounds, 3)):
            run.wait_rounds(round_ - 1)
            k = victim % nodes
            wait_for(lambda k=k: federation.training(k), "the victim trains", pause=0.05)
            federation.nodes[k].kill()
            federation.start_node(k)
            killed.append((round_, str(k)))
        run.wait_rounds(rounds - 1)
        end = federation.memory()
        run.result()
        return run, killed, start, end
    finally:
        federation.stop()


def test_twenty_nodes_thirty_rounds(tmp_path):
    """Nobody but the victims fails, and each for the rounds that it was away at most."""
    run, killed, start, end = soak(tmp_path, nodes=20, rounds=30)
    summary, records = run.result(), run.rounds()
    expected, received = (sum(r[key] for r in records) for key in ("sampled", "replied"))
    failed = summary["failures"]
    print(json.dumps({
        "rounds": len(records), "expected": expected, "received": received, "failed": failed,
        "killed": killed, "seconds": [round(r["seconds"], 1) for r in records],
        "megabytes": [start, end],
    }))  # fmt: skip
    assert summary["status"] == "completed" and received + len(failed) == expected
    assert {f["client"] for f in failed} <= {client for _, client in killed}
    assert len(failed) <= 4 * len(killed)
    for kind, megabytes in start.items():
        assert end[kind] < 1.5 * megabytes + 50
