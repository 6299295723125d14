"""A federation with TLS has the simulation's bytes, though a node dies within a masked sum."""

import contextlib
import json
import sqlite3
from pathlib import Path

from helpers.programs import wait_for
from network.federation import simulated_hash

SUMS = {"method": "lg_fedavg", "local_epochs": 10, "sum_min": 2}
ROUNDS = 100  # more than pass until node 1 is caught in one


def uploaded(log: str, round_: int) -> bool:
    """Whether the SuperLink has all of a node's upload of a round, by the node's log of the run."""
    _, trained, after = log.partition(f"round {round_}: test accuracy")
    return bool(trained) and "Sent successfully" in after.partition("Sending: train message")[2]


def waits_for_the_server(database: Path) -> bool:
    """Whether the SuperLink has an upload that the server has not fetched.

    That of a node which has left meanwhile it would not hand out any more.
    """
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as link:
        (found,) = link.execute(
            "SELECT count(*) FROM message_res WHERE message_type = 'train' AND delivered_at = ''"
        )
    return bool(found[0])


def test_a_node_killed_between_its_upload_and_the_unmasking_stays_in_the_sum(federation, tmp_path):
    """Node 2 dies while node 1 still trains. The twin is simulated, and loses nobody's reply."""
    log = federation.whole().log(2)
    before = len(log.read_text(errors="replace"))  # of the other test's run
    run = federation.run("masked", **SUMS, rounds=ROUNDS, secure_sum="masked")
    held = run.catch(federation, 1, pause=0.1)
    last = len(run.rounds()) + 1
    wait_for(
        lambda: uploaded(log.read_text(errors="replace")[before:], last), "node 2 has uploaded"
    )
    wait_for(lambda: not waits_for_the_server(federation.tls.database), "the server has that")
    federation.nodes[2].kill()
    held.resume()
    run.wait_rounds(last)
    assert run.interrupt() == 130

    whole = run.rounds()[:last]
    assert [(record["replied"], record["failures"]) for record in whole] == [(3, [])] * last
    experiment = federation.state(run, 2, 0).parents[1].name
    noted = json.loads((federation.state_dir(2) / experiment / "2/sum-last.json").read_text())
    assert (noted["round"], noted["answered"]) == (last, [])  # so it died between the two
    twin = SUMS | {"secure_sum": "unmasked", "rounds": last}
    assert whole[-1]["sha256"] == simulated_hash(tmp_path, **twin)
    told = (run.folder / "rounds.jsonl").read_text() + (run.folder / "summary.json").read_text()
    assert '"clients.csv": "the server learned' in told and "train-images" not in told
    found = json.loads(federation.do("status", "--superlink", "tls", "--json").stdout)
    assert {"0": "online", "1": "online"}.items() <= {
        node["name"]: node["status"] for node in found["nodes"]
    }.items()
    assert found["runs"][0]["method"] == "lg_fedavg" and found["runs"][0]["round"] >= last
