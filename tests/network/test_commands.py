"""The commands of a deployment as a person types them: who gets in, whose code runs, what waits."""

import subprocess
import time
from pathlib import Path

import httpx
import pytest
from helpers.flower_internals import LOSE_WHAT_IS_PUSHED
from helpers.pace import PATIENCE
from helpers.programs import wait_for
from network.federation import HOST, Federation

from fedhet.deploy.node import TASK_POLL
from fedhet.engines.system import free_ports, script

pytestmark = pytest.mark.network

SERVER = """
import pathlib, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

server = ServerApp()

def messages(grid):
    return [Message(RecordDict({"c": ConfigRecord({"x": 1})}), node, "train")
            for node in grid.get_node_ids()]
"""
# Its message never arrives whole: its run ends while the SuperNodes fetch it.
VANISHING = f"""{SERVER}
@server.main()
def main(grid, context):
    {LOSE_WHAT_IS_PUSHED.strip()}
    grid.push_messages(messages(grid))
    time.sleep(30)  # a SuperNode looks for messages every three seconds, a busy one less often
"""
# A server whose application is called as ours and has code for the clients.
LYING = f"""{SERVER}
@server.main()
def main(grid, context):
    replies = grid.send_and_receive(messages(grid), timeout=600)
    told = [m.error.reason if m.has_error() else "answered" for m in replies]
    pathlib.Path("WHERE/told").write_text("\\n".join(told))
"""
MARKING = """
import os, pathlib, sys
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
if not sys.argv[0].endswith(("flwr", "flwr-serverapp")):  # whose code it is
    pathlib.Path("WHERE/mark").write_text(f"{__name__}: {sys.argv}")
app = ClientApp()

@app.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)
"""
PROJECT = """
[project]
name = "fedhet"
version = "0.2.0"
description = ""
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fedhet"
[tool.flwr.app.components]
serverapp = "own_server:server"
clientapp = "fedhet.client_app:app"
"""


def application(folder: Path, files: dict[str, str]) -> Path:
    """An application of somebody who can submit to the server."""
    for name, text in {**files, "pyproject.toml": PROJECT}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("WHERE", str(folder.parent)))
    return folder


def flwr_run(federation: Federation, app: Path) -> None:
    """Submit an application that is not the installed one, as a lying server does."""
    home, tls = federation.folder / "flwr", federation.tls
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink.own]\naddress = "{tls.control()}"\nroot-certificates = "{tls.inner.ca}"\n'
    )
    env = federation.env | {"FLWR_HOME": str(home)}
    command = [script("flwr"), "run", str(app), "own"]
    subprocess.run(command, env=env, cwd=federation.folder, check=True, timeout=PATIENCE)


def test_a_key_that_nobody_registered_and_a_false_ca_are_told_so(federation):
    federation.whole()
    done = federation.do("certs", "--out", "other", "--server", "127.0.0.1", "--client", "x")
    assert done.returncode == 0
    where = (*federation.at("--server"), "--partition", "0/1")
    foreign = federation.start("foreign", "node", "other/clients/x", "--ca", "tls/ca.crt", *where)
    false = federation.do("node", "tls/clients/0", "--ca", "other/ca.crt", *where, "--state", "f")
    assert false.returncode == 2 and "it must be from the CA in" in false.stderr
    wait_for(lambda: foreign.said("does not know this key"), "it says why")
    # Isolated, since a program that it started would hold its output, and it would not be reaped.
    keyless = [script("flower-supernode"), "--root-certificates", "tls/ca.crt", "--superlink",
               federation.at("--server")[1], "--port", str(free_ports(1)[0]),
               "--isolation", "process"]  # fmt: skip
    done = subprocess.run(
        keyless, env=federation.env, cwd=federation.folder, capture_output=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode and b"SuperNode ID" not in done.stdout + done.stderr
    assert foreign.running()
    check = federation.do("node", "other/clients/x", "--ca", "tls/ca.crt", *where, "--check")
    assert check.returncode == 2 and "does not know the key" in check.stdout
    second = federation.do(*federation.node_words(0))
    assert second.returncode == 2 and "another `fedhet node` uses" in second.stderr
    for path, closed in (("control/list-runs", True), ("fleet/pull-messages", False)):
        got = httpx.post(f"https://{HOST}:{federation.port}/v1/{path}", verify=False, timeout=60)
        assert (got.status_code == 403) == closed
    check = federation.do("node", "tls/clients/0", *where, "--check")
    assert check.returncode == 0, check.stdout
    assert "over TLS" in check.stdout and "knows this key" in check.stdout


def test_code_that_the_server_sends_is_not_run(federation, tmp_path):
    named = ("fedhet/__init__.py", "fedhet/client_app.py", "torch.py", "sitecustomize.py")
    app = application(tmp_path / "app", {"own_server.py": LYING, **dict.fromkeys(named, MARKING)})
    told, mark = tmp_path / "told", tmp_path / "mark"
    federation.whole()
    flwr_run(federation, app)
    wait_for(told.exists, "the server has its answers")
    reasons = told.read_text().splitlines()
    assert len(reasons) == 3 and not mark.exists()
    for node in federation.nodes.values():
        assert node.said("refused: this run's fedhet") == 1
    assert all(reason.endswith("install the same version") for reason in reasons)


def test_a_lost_message_costs_a_restart_and_who_leaves_is_told(federation):
    """What Flower forgets is noticed by its log; server and node end when they are asked to."""
    nodes, server = federation.whole().nodes, federation.server
    app = application(federation.folder / "vanishing", {"own_server.py": VANISHING})
    over = server.said("finished:completed")
    flwr_run(federation, app)
    wait_for(lambda: server.said("finished:completed") > over, "the message is gone")
    assert federation.run("after", rounds=2).result()["failures"] == []
    for node in nodes.values():
        wait_for(lambda node=node: node.said("a message was cut off"), "it began anew")

    for process in (nodes[1], server):  # the others wait, keys and runs stay
        process.terminate()
        wait_for(lambda process=process: not process.running(), "it says good-bye")
        assert process.popen.returncode == 0 and process.said("stopped (SIGTERM)")
    wait_for(lambda: nodes[0].said("waiting for"), "it says what it waits for")
    federation.start_server()
    wait_for(lambda: federation.online() == 2, "so are two nodes", pause=1.0)


def test_a_process_that_dies_costs_its_message_and_nothing_else(federation):
    """Another is started, and the reply that never was is told at once, not after a minute."""
    federation.whole()
    run = federation.run("dies", rounds=100)
    run.wait_rounds(1)
    failures: list[dict] = []
    while not failures:  # one that is killed before it is given the message costs nothing
        running = len(run.rounds()) + 1
        worker = run.catch(federation, 0)
        time.sleep(10 * TASK_POLL)  # it is stopped: the node has time to give it the message
        worker.kill()
        run.wait_rounds(running)
        failures = [f for record in run.rounds() for f in record["failures"]]
    (failure,) = failures
    assert failure["client"] == "0" and "ended by signal 9" in failure["reason"]
    run.wait_for_round(lambda record: record["replied"] == 3 and not record["failures"])
    assert run.interrupt() == 130
    assert federation.nodes[0].said("starting another") == 1
