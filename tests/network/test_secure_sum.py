"""Three hospitals with `fedhet server` and `fedhet node` whose server learns sums alone."""

import contextlib
import json
import signal
import sqlite3
from pathlib import Path

import psutil
import pytest
from network.deployment import Commands
from network.federation import PRESET, simulated_hash
from network.pace import round_timeout
from network.programs import Process, wait_for

from fedhet.deploy.warm import Warm
from fedhet.engines.process_groups import free_ports

pytestmark = pytest.mark.network
OWN = {"method": "lg_fedavg", "local-epochs": 60, "sum-min": 2, "max-images": 200}
ROUNDS = 100  # more than pass until node 1 is caught in one


@pytest.fixture
def commands(tmp_path):
    made = Commands(tmp_path)
    warm = Warm(made.env)
    warm.hold()  # no node's child, so that it outlives the node that is killed
    yield made
    made.stop()
    warm.release()


def sent_training(node: Process, times: int) -> bool:
    """Whether that many uploads of this node have arrived at the SuperLink, by Flower's own log."""
    name = node.log.stem.removeprefix("node-")
    log = node.log.parent / ".fedhet" / name / "node.log"
    parts = log.read_text(errors="replace").split("Sending: train message")
    return len(parts) == times + 1 and "Sent successfully" in parts[-1]


def waits_for_the_server(folder: Path) -> bool:
    """Whether the SuperLink has an upload that the server has not fetched.

    That of a node which has left meanwhile it would not hand out any more.
    """
    name = folder / "tls" / "server" / "superlink.db"
    with contextlib.closing(sqlite3.connect(f"file:{name}?mode=ro", uri=True)) as database:
        (found,) = database.execute(
            "SELECT count(*) FROM message_res WHERE message_type = 'train' AND delivered_at = ''"
        )
    return bool(found[0])


def kill_all(node: Process) -> None:
    children = node.children()
    node.kill()
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()


def test_a_node_killed_between_its_upload_and_the_unmasking_stays_in_the_sum(commands, tmp_path):
    """Node 2 dies while node 1 still trains, and is gone in the round after.

    That round has no sum if node 2 is missed in it, and one of two clients if it is missed before.
    The twin of the run is simulated, not masked, and loses nobody's reply.
    """
    (port,) = free_ports(1)
    names = ("0", "1", "2")
    words = [word for name in names for word in ("--client", name)]
    assert commands.do("certs", "--out", "tls", "--server", "127.0.0.1", *words).returncode == 0
    commands.start("server", "server", "tls", "--host", "127.0.0.1", "--port", str(port))
    where = ("--server", f"127.0.0.1:{port}")
    nodes = [
        commands.start(f"node-{k}", "node", f"tls/clients/{k}", *where, "--partition", f"{k}/3")
        for k in names
    ]
    for node in nodes:
        wait_for(lambda node=node: node.said("admitted by"), "a node is admitted")
    values = PRESET | OWN | {"rounds": ROUNDS, "secure-sum": "masked"}
    values["round-timeout"] = round_timeout()
    lines = [f"{key}: {value}\n" for key, value in values.items()]
    (tmp_path / "c.yaml").write_text("".join(lines))
    run = commands.start("run", "run", "c.yaml", "name=r", "--superlink", "tls")
    folder = tmp_path / "runs" / "r"

    def rounds() -> list[dict]:
        with contextlib.suppress(OSError):
            return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        return []

    def saved(number: int) -> bool:
        return bool(list(tmp_path.glob(f".fedhet/1/*/1/{number:08}.safetensors")))

    wait_for(lambda: len(rounds()) == 1 or not run.running(), "round 1 is over", pause=0.02)
    held = []

    def stopped() -> bool:
        assert run.running(), run.log.read_text()
        held[:] = [nodes[1].caught(folder, saved)]
        return bool(held[0])

    wait_for(stopped, "node 1 trains", pause=0.02)
    last = len(rounds()) + 1
    wait_for(lambda: sent_training(nodes[2], last), "node 2 has uploaded")
    wait_for(lambda: not waits_for_the_server(tmp_path), "the server has node 2's upload")
    kill_all(nodes[2])
    psutil.Process(held[0]).send_signal(signal.SIGCONT)
    wait_for(lambda: len(rounds()) > last or not run.running(), "a round without node 2")
    assert run.running(), run.log.read_text()
    assert run.popen is not None
    run.popen.send_signal(signal.SIGINT)
    wait_for(lambda: not run.running(), "the run is over")

    *whole, after = rounds()[: last + 1]
    assert [(record["replied"], record["failures"]) for record in whole] == [(3, [])] * last
    (notes,) = tmp_path.glob(".fedhet/2/*/2/sum-last.json")
    noted = json.loads(notes.read_text())
    assert (noted["round"], noted["answered"]) == (last, [])  # so it died between the two
    twin = OWN | {"secure-sum": "unmasked", "rounds": last}
    assert whole[-1]["sha256"] == simulated_hash(tmp_path, **twin)
    failed = {failure["client"] for failure in after["failures"]}
    assert (after["replied"], failed) in ((0, {"2", "the round"}), (2, {"2"}))
    told = (folder / "rounds.jsonl").read_text() + (folder / "summary.json").read_text()
    assert '"clients.csv": "the server learned' in told and "train-images" not in told
