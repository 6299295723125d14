"""Many SuperNodes at once, one killed and restarted every three rounds; prints a report."""

import json
from pathlib import Path

import pytest
from network.federation import Federation, Run
from network.pace import round_timeout
from network.programs import wait_for

pytestmark = [pytest.mark.network, pytest.mark.soak]


def soak(folder: Path, nodes: int, rounds: int) -> dict:
    """Run it; every third round the SuperNode whose turn it is dies while it trains."""
    federation = Federation(folder, nodes)
    try:
        federation.whole()
        run = federation.run(
            "soak", clients=nodes, rounds=rounds, round_timeout=round_timeout(nodes),
            min_replies=nodes // 2,
        )  # fmt: skip
        run.wait_rounds(1)
        start, end, killed = federation.memory(), {}, []
        for victim, round_ in enumerate(range(2, rounds, 3)):
            run.wait_rounds(round_ - 1)
            k = victim % nodes
            wait_for(lambda k=k: federation.training(k), "the victim trains", pause=0.05)
            federation.nodes[k].kill()
            federation.start_node(k)
            killed.append((round_, str(k)))
        run.wait_rounds(rounds - 1)
        end = federation.memory()
        return report(run, killed, start, end)
    finally:
        federation.stop()


def report(run: Run, killed: list[tuple[int, str]], start: dict, end: dict) -> dict:
    summary, records = run.result(), run.rounds()
    return {
        "status": summary["status"],
        "rounds": len(records),
        "replies_expected": sum(r["sampled"] for r in records),
        "replies_received": sum(r["replied"] for r in records),
        "failed": summary["failures"],
        "killed": killed,
        "seconds": [round(r["seconds"], 1) for r in records],
        "start": start,  # MiB
        "end": end,
    }


def check(result: dict) -> None:
    print(json.dumps(result))
    assert result["status"] == "completed"
    failed = len(result["failed"])
    assert result["replies_received"] + failed == result["replies_expected"]
    # Nobody but the victims fails, and each for the rounds that it was away at most.
    assert {f["client"] for f in result["failed"]} <= {client for _, client in result["killed"]}
    assert failed <= 4 * len(result["killed"])
    for kind, megabytes in result["start"].items():
        assert result["end"][kind] < 1.5 * megabytes + 50


def test_twenty_nodes_thirty_rounds(tmp_path):
    check(soak(tmp_path, nodes=20, rounds=30))
