"""The commands of a deployment as a person types them: ``certs``, ``server``, ``node``, ``run``."""

import json
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest
from network.deployment import Commands
from network.federation import PRESET, simulated_hash
from network.programs import wait_for

from fedhet.deploy.server_folder import CONNECTION, ServerFolder
from fedhet.deploy.warm import state
from fedhet.engines.process_groups import free_ports, script

pytestmark = pytest.mark.network
CLOSED = (
    "/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/acquire-task", "/health", "/",
    "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol%2flist-runs", "/v1/fleet//v1/control/list-runs",
)  # fmt: skip

# An app whose message never arrives whole: its run ends while the SuperNodes fetch it.
VANISHING = """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from fedhet.protocol.flower import lose_what_is_pushed

client = ClientApp()
server = ServerApp()

@server.main()
def main(grid, context):
    lose_what_is_pushed()
    for node in grid.get_node_ids():
        grid.push_messages([Message(RecordDict({"c": ConfigRecord({"x": 1})}), node, "train")])
    time.sleep(6)  # a SuperNode looks for messages every three seconds
"""
VANISHING_PROJECT = """
[project]
name = "vanishing"
version = "1.0.0"
description = ""
license = "Apache-2.0"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "vanishing:server"
clientapp = "vanishing:client"
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    made = Commands(tmp_path_factory.mktemp("deploy"))
    yield made
    made.stop()


def vanish(commands):
    """Run the app whose message never arrives."""
    app = commands.folder / "vanishing"
    app.mkdir()
    (app / "vanishing.py").write_text(VANISHING)
    (app / "pyproject.toml").write_text(VANISHING_PROJECT)
    env = commands.env | {"FLWR_HOME": str(ServerFolder(commands.folder / "tls").flwr_home)}
    words = [script("flwr"), "run", str(app), CONNECTION]
    subprocess.run(words, env=env, cwd=commands.folder, check=True)  # it leaves the app's bundle


@pytest.fixture(scope="module")
def port(commands):
    """Where `fedhet server tls` answers, which knows the clients 0 and 1."""
    (port,) = free_ports(1)
    for folder in ("tls", "other"):
        assert commands.do("certs", "--out", folder, "--server", "127.0.0.1", "--client", "0",
                           "--client", "1").returncode == 0  # fmt: skip
    commands.server = commands.start("server", *serve(port))
    return port


def serve(port):
    return ("server", "tls", "--host", "127.0.0.1", "--port", str(port))


def answer(tls, port, path):
    """Status of a request, as somebody on a client's machine sends it."""
    trust = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    address = f"https://127.0.0.1:{port}{path}"
    try:
        with urllib.request.urlopen(address, data=b"", context=trust, timeout=30) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_key_that_nobody_registered_and_a_false_ca_are_told_so(commands, port):
    where = ("--server", f"127.0.0.1:{port}", "--partition", "0/1", "--cold")
    foreign = commands.start("foreign", "node", "other/clients/0", "--ca", "tls/ca.crt", *where)
    false = commands.start("false", "node", "tls/clients/0", "--ca", "other/ca.crt", *where)
    wait_for(lambda: not false.running(), "a false CA ends the command")
    assert false.popen.returncode == 2 and false.said("is not from the CA in")
    wait_for(lambda: foreign.said("does not know this key"), "it says why")
    assert foreign.running()
    check = commands.do("node", "other/clients/0", "--ca", "tls/ca.crt", *where, "--check")
    assert check.returncode == 2 and "does not know the key" in check.stdout
    foreign.end()


def test_three_commands_make_a_federation(commands, port):
    where, server = ("--server", f"127.0.0.1:{port}"), commands.server
    nodes = [
        commands.start(f"node-{k}", "node", f"tls/clients/{k}", *where, "--partition", f"{k}/2")
        for k in range(2)
    ]
    for node in nodes:
        wait_for(lambda node=node: node.said("admitted by"), "a node is admitted")
    wait_for(lambda: state(commands.env).get("nodes") == 2, "both hold the warm server")

    tls = commands.folder / "tls"
    assert {answer(tls, port, path) for path in CLOSED} == {403}
    assert answer(tls, port, "/v1/fleet/pull-messages") not in {403, 404, 502}
    check = commands.do("node", "tls/clients/0", *where, "--partition", "0/2", "--check")
    assert check.returncode == 0, check.stdout
    assert "over TLS; clocks" in check.stdout and "knows this key" in check.stdout

    vanish(commands)  # what the nodes make of it is looked at below
    wait_for(lambda: server.said("finished:completed"), "the message is gone")

    own = {"clients": 2, "rounds": 2}
    lines = [f"{key}: {value}\n" for key, value in (PRESET | own).items()]
    (commands.folder / "c.yaml").write_text("".join(lines))
    run = commands.do("run", "c.yaml", "name=r", "--superlink", "tls")
    assert run.returncode == 0, run.stderr
    summary = json.loads((commands.folder / "runs" / "r" / "summary.json").read_text())
    assert summary["failures"] == []
    assert summary["run_sha256"] == simulated_hash(commands.folder, **own)
    assert all(node.said("round 2: test accuracy") == 1 for node in nodes)
    for node in nodes:
        wait_for(lambda node=node: node.said("a message was cut off"), "it began anew")
        wait_for(lambda node=node: node.child("flwr-clientapp") is None, "no client is left")

    for process in (nodes[1], server):  # the other client waits, keys and runs stay
        process.terminate()
        wait_for(lambda process=process: not process.running(), "it says good-bye")
        assert process.popen.returncode == 0 and process.said("stopped (SIGTERM)")
    commands.start("server", *serve(port))
    wait_for(lambda: server.said("clients reach") == 2, "the server is back")
    wait_for(lambda: commands.online("0"), "so is a node")
    found = commands.status()
    assert [node["status"] for node in found["nodes"]] == ["online", "offline"]
    assert [node["last_round"] for node in found["nodes"]] == [2, 2]
    runs = [(run["method"], run.get("round")) for run in found["runs"]]
    assert runs == [("fedssa", 2), (None, None)]
    watched = commands.do("watch", "--plain", "--superlink", "tls").stdout.splitlines()
    assert watched[0] == "r: fedssa on synthetic:300x4"
    sites = [line.partition(", since 20") for line in watched if line.startswith("site ")]
    assert [head for head, _, _ in sites] == ["site 0, now online", "site 1, now offline"]
    assert all(rest.endswith(", warm yes, last round 2, failures 0") for _, _, rest in sites)

    supernode = nodes[0].child("flower-supernode")
    assert supernode is not None
    supernode.kill()
    wait_for(lambda: nodes[0].said("ended with code -9: starting it again"), "it is missed")
