"""Three hospitals with `fedhet server` and `fedhet node` whose server learns sums alone."""

import contextlib
import json
import sqlite3
from pathlib import Path

from network.federation import Federation, simulated_hash
from network.pace import round_timeout
from network.programs import wait_for

OWN = {"method": "lg_fedavg", "local_epochs": 60, "sum_min": 2, "max_images": 200}
ROUNDS = 100  # more than pass until node 1 is caught in one


def uploaded(federation: Federation, k: int, round_: int) -> bool:
    """Whether the SuperLink has all of node k's answer to a round's train message, by its log."""
    text = federation.log(k).read_text(errors="replace")
    _, *received = text.split("Receiving: train message")
    if len(received) < round_:  # that of the round before is not meant
        return False
    return "Sending: train message" in received[-1] and "Sent successfully" in received[-1]


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
    """Node 2 dies while node 1 still trains, and is gone in the round after.

    That round has no sum if node 2 is missed in it, and one of two clients if it is missed before.
    The twin of the run is simulated, not masked, and loses nobody's reply.
    """
    federation.whole()
    values = OWN | {"rounds": ROUNDS, "secure_sum": "masked", "round_timeout": round_timeout()}
    run = federation.run("masked", **values)
    run.wait_rounds(1)
    held = []

    def stopped() -> bool:
        assert run.process.running(), run.process.log.read_text()
        held[:] = [federation.caught(run, 1)]
        return held[0] is not None

    wait_for(stopped, "node 1 trains", pause=0.02)
    last = len(run.rounds()) + 1
    wait_for(lambda: uploaded(federation, 2, last), "node 2 has uploaded")
    wait_for(lambda: not waits_for_the_server(federation.tls.database), "the server has that")
    federation.nodes[2].kill()
    held[0].resume()
    run.wait_rounds(last + 1)
    assert run.interrupt() == 130

    *whole, after = run.rounds()[: last + 1]
    assert [(record["replied"], record["failures"]) for record in whole] == [(3, [])] * last
    (notes,) = federation.state_dir(2).glob(f"{experiment(federation, run)}/2/sum-last.json")
    noted = json.loads(notes.read_text())
    assert (noted["round"], noted["answered"]) == (last, [])  # so it died between the two
    twin = OWN | {"secure_sum": "unmasked", "rounds": last}
    assert whole[-1]["sha256"] == simulated_hash(tmp_path, **twin)
    failed = {failure["client"] for failure in after["failures"]}
    assert (after["replied"], failed) in ((0, {"2", "the round"}), (2, {"2"}))
    told = (run.folder / "rounds.jsonl").read_text() + (run.folder / "summary.json").read_text()
    assert '"clients.csv": "the server learned' in told and "train-images" not in told


def experiment(federation: Federation, run) -> str:
    """The run's folder in the nodes' states."""
    return federation.state(run, 2, 0).parents[1].name
