"""A federation with TLS has the simulation's bytes, though a node dies within a masked sum."""

import contextlib
import json
import sqlite3
from pathlib import Path

from helpers.programs import wait_for
from network.federation import TRAINS, simulated_hash

SUMS = {"method": "lg_fedavg", "models": "holding:make", "sum_min": 2}
# CNN-5 that begins to train when a file says so, in this process or everywhere.
HOLDING = """
import os, time
from pathlib import Path
import torch
from fedhet.models.zoo import build_model

HERE, MARK = Path(__file__).parent, f"trains-{os.getpid()}"

def hold(layer, _):
    if layer.training and torch.is_grad_enabled():
        (HERE / MARK).touch()
        while not ((HERE / "go").exists() or (HERE / MARK.replace("trains", "go")).exists()):
            time.sleep(0.05)

def make(classes, d, inputs):
    net = build_model("cnn-5", classes=classes, d=d, inputs=inputs)
    net.conv1.register_forward_pre_hook(hold)
    return net
"""


def uploaded(log: str) -> bool:
    """Whether the SuperLink has all of a node's first upload, by the node's log of the run."""
    _, trained, after = log.partition("round 1: test accuracy")
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


def end_lease(database: Path, name: str) -> None:
    """Let a dead node's time be over; by itself that takes two heartbeats, a minute."""
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as link, link:
        changed = link.execute("UPDATE node SET online_until = 1 WHERE name = ?", (name,))
        assert changed.rowcount == 1


def test_a_node_killed_between_its_upload_and_the_unmasking_stays_in_the_sum(
    federation, tmp_path, monkeypatch
):
    """Node 2 dies while node 1 still trains. The twin is simulated, and loses nobody's reply."""
    modules, log = federation.modules, federation.whole().log(2)
    before = len(log.read_text(errors="replace"))  # of other tests' runs
    (modules / "holding.py").write_text(HOLDING)
    run = federation.run("masked", **SUMS, rounds=100, secure_sum="masked")
    wait_for(lambda: len(list(modules.glob("trains-*"))) == 3, "all nodes train")
    for k in (0, 2):
        (modules / f"go-{federation.nodes[k].child(TRAINS).pid}").touch()
    wait_for(lambda: uploaded(log.read_text(errors="replace")[before:]), "node 2 has uploaded")
    wait_for(lambda: not waits_for_the_server(federation.tls.database), "the server has that")
    federation.nodes[2].kill()
    end_lease(federation.tls.database, "2")
    (modules / "go").touch()
    run.wait_rounds(1)
    assert run.interrupt() == 130

    first = run.rounds()[0]
    assert (first["replied"], first["failures"]) == (3, [])
    experiment = federation.state(run, 2, 0).parents[1].name
    noted = json.loads((federation.state_dir(2) / experiment / "2/sum-last.json").read_text())
    assert (noted["round"], noted["answered"]) == (1, [])  # so it died between the two
    monkeypatch.syspath_prepend(modules)
    twin = SUMS | {"secure_sum": "masked", "rounds": 1}
    assert first["sha256"] == simulated_hash(tmp_path, **twin)
    told = (run.folder / "rounds.jsonl").read_text() + (run.folder / "summary.json").read_text()
    assert '"clients.csv": "the server learned' in told and "train-images" not in told
    found = json.loads(federation.do("status", "--superlink", "tls", "--json").stdout)
    assert {"0": "online", "1": "online"}.items() <= {
        node["name"]: node["status"] for node in found["nodes"]
    }.items()
    assert found["runs"][0]["method"] == "lg_fedavg" and found["runs"][0]["round"] >= 1
