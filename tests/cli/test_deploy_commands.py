"""Mistakes in the commands of a deployment, the check, the status: nothing is started."""

import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cli.refusals import refused
from filelock import FileLock
from helpers.flower_internals import read_run_config
from helpers.written_runs import failure, line, scores

from fedhet.cli.app import execute
from fedhet.config.load import build_config
from fedhet.deploy import node, submit
from fedhet.deploy.certs import make
from fedhet.deploy.control import ServerFolder, collect
from fedhet.deploy.node import Node, NodePlan, said
from fedhet.engines import launch
from fedhet.engines.system import Interrupted, free_ports
from fedhet.errors import RunFailed, UserError
from fedhet.protocol.flower import NodeInfo, RunStatus
from fedhet.records.run_folder import RunFolder

SHARE = ("--partition", "0/1")


@pytest.fixture
def tls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    make(tmp_path / "tls", ["127.0.0.1"], ["a"])
    ServerFolder(tmp_path / "tls").make()
    return tmp_path / "tls"


MISTAKES = (
    (["node", "tls/clients/a", "--server", "h:1"], "--data FOLDER"),
    (["node", "tls/clients/a", "--server", "h:1", "--partition", "3/3"], "'3/3'"),
    (["node", "tls/clients/a", "--server", "h:1", "--data", "nowhere"], "nowhere"),
    (["node", "tls/clients/b", "--server", "h:1", *SHARE], "clients/b"),
    (["node", "tls/clients/a", "--server", "https://h", *SHARE], "https://h"),
    (["node", "tls/clients/a", "--server", "h:1", *SHARE, "--model", "cnn-9"], "'cnn-9' is unknow"),
    (["server", "tls", "--database", "no/x.db"], "--database: '"),
    (["server", "tls", "--host", "no host"], "--host, --port: no host:8443"),
    (["server", "elsewhere"], "fedhet certs --out"),
    (["status", "--superlink", "127.0.0.1:9093"], "'127.0.0.1:9093' is not a folder of"),
    (["status", "--superlink", "tls"], "is not running: start it with `fedhet server "),
    (["run", "quickstart", "--superlink", "tls"], "is not running: start it with"),
    (["unit", "client"], "server or node"),
    (["run", "kinds/table", "target=ill", "categories=smoker", "--superlink", "tls"],
     "categories: 'smoker' needs its values on a network"),
)  # fmt: skip


def test_a_mistake_is_one_line(tls, capsys):
    ServerFolder(tls).prepare(*free_ports(1))  # as a server leaves it that answered there
    for words, names in MISTAKES:
        assert names in refused(capsys, *words)


def test_a_unit_runs_the_command_it_is_for(capsys):
    for what in ("server", "node"):
        assert execute(["unit", what]) == 0
        assert f"fedhet {what} " in capsys.readouterr().out


def test_a_second_server_leaves_the_first_one_reachable(tls, capsys):
    (port,) = free_ports(1)
    ServerFolder(tls).prepare(port)
    words = ["server", "tls", "--host", "127.0.0.1", "--port", f"{free_ports(1)[0]}"]
    with FileLock(ServerFolder(tls).home / ".lock"), socket.create_server(("127.0.0.1", port)):
        assert execute(words) == 2
    assert "already has a running server" in capsys.readouterr().err
    assert ServerFolder(tls).control() == f"127.0.0.1:{port}"
    assert ServerFolder(tls).home.stat().st_mode & 0o077 == 0


def test_a_node_takes_no_path_that_flower_could_not_read(tls):
    with pytest.raises(UserError, match="data-dir: "):
        NodePlan(tls, tls, "h:1", {"data-dir": 'a"b'}, tls)
    config = {"data-dir": "/😀 's"}
    words = NodePlan(tls, tls, "h:1", config, tls).words(1)
    assert read_run_config([words[-1]]) == config


FORGETS = """#!{python}
import time
print("INFO :  SuperNode ID: 17", flush=True)
print("INFO :  Run ID 5 is not in `RUNNING` status. Ignoring reply message 6.", flush=True)
print("[code: 2004] Failed to activate SuperNode.\\n" * 2, end="", flush=True)
print({line!r}, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("line", "what"),
    [("Run ID 5 is not in `RUNNING` status. Ignoring message 7.", "a message"),
     ("ERROR :  Failed to receive message 7: 500 Internal Server Error", "a message"),
     ("\x1b[91mERROR \x1b[0m:     403 Filtered", "the connection")],
)  # fmt: skip
def test_a_supernode_that_lost_a_message_or_its_server_begins_anew(
    tmp_path, monkeypatch, line, what
):
    supernode = tmp_path / "flower-supernode"
    supernode.write_text(FORGETS.format(python=sys.executable, line=line))
    supernode.chmod(0o700)
    monkeypatch.setattr(node, "script", lambda _name: str(supernode))
    monkeypatch.setattr(node, "RETRY", 600.0)  # it does not wait
    said, starts = [], []

    def reach(_server, _ca):
        starts.append(1)
        if len(starts) > 1:
            raise RuntimeError("enough")

    monkeypatch.setattr(node, "reach", reach)
    plan = NodePlan(tmp_path, tmp_path, "h:1", {}, tmp_path / "log")
    with pytest.raises(RuntimeError, match="enough"):
        Node(plan, said.append).run()
    assert said == ["admitted by h:1 (node 17)", node.UNKNOWN,
                    f"{what} was cut off: starting the SuperNode again"]  # fmt: skip


LEAVES = """
import subprocess, sys
made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(f"left behind {made.pid}")
"""


def test_a_node_that_ended_is_noticed_though_what_it_started_holds_its_output():
    words = [sys.executable, "-c", LEAVES]
    with subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0) as process:
        (line,) = filter(None, said(process))
    os.kill(int(line.split()[-1]), signal.SIGKILL)


def test_status_puts_superlink_and_run_folder_together(tmp_path):
    config = {"method": "fedssa", "rounds": 3, "metric": "auroc"}
    link = SimpleNamespace(
        nodes=lambda: [
            NodeInfo(node_id=1, name="b", status="online"),
            NodeInfo(node_id=2, name="a", status="offline"),
        ],
        runs=lambda: [
            RunStatus(8, "running", "2026", config, str(tmp_path)),
            RunStatus(6, "finished", "2026", config | {"rounds": 2}, str(tmp_path)),  # resumed
            RunStatus(7, "finished", "2025", {}, ""),
        ],
    )
    second = line(2, failures=[failure("b", "away")], test_auroc_mean=0.5)
    (tmp_path / "rounds.jsonl").write_text(line(1) + second)
    (tmp_path / "partition.csv").write_text("client,x,y\na,3,4\nb,,\n")
    (tmp_path / "clients.csv").write_text(scores((1, "a", 50.0), (2, "a", 75.0)))
    found = collect(link)
    assert found["nodes"] == [
        {"name": "a", "node": "2", "status": "offline", "images": 7, "model": "cnn-1",
         "last_round": 2, "failures": 0},
        {"name": "b", "node": "1", "status": "online", "failures": 1},
    ]  # fmt: skip
    first, second = found["runs"]
    assert (first["round"], first["rounds"], first["failures"]) == (2, 3, 1)
    assert (first["metric"], first["test_auroc_mean"]) == ("auroc", 0.5)
    assert second == {"run": "7", "status": "finished", "started": "2025", "method": None,
                      "folder": ""}  # fmt: skip


@pytest.fixture
def superlink(tmp_path, monkeypatch):
    """A SuperLink that takes a run."""
    control = SimpleNamespace(close=lambda: None)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    control.connect = lambda: control
    monkeypatch.setattr(submit, "server_folder", lambda _: control)
    return control


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(build_config({"out": str(tmp_path)}), "r")


def submitted(folder, where="local", said=print, **launched):
    started = launch.Launch(launched.pop("config", build_config({})), folder, **launched)
    submit.submit_remote(started, where, lambda _: None, said)


def test_a_run_whose_process_dies_without_a_word_is_given_up(superlink, monkeypatch, folder):
    """Flower would notice by its heartbeats, a minute later."""
    monkeypatch.setattr("fedhet.deploy.network.TOLD_AFTER", 0.0)
    for name in ("ASK", "POLL"):
        monkeypatch.setattr(submit, name, 0.0)
    superlink.start = lambda *_: 1
    superlink.runs = Mock(return_value=[RunStatus(1, "running", "2026", {}, "")])
    folder.wait_for("waiting 5 s or more")  # of a server that was killed: no news of this one
    superlink.stop, said = Mock(), []
    locked = iter([False, False, True, True])
    monkeypatch.setattr(submit, "held", lambda _: next(locked, False))
    with pytest.raises(RunFailed, match="its process on the server ended without a word"):
        submitted(folder, said=said.append)
    assert superlink.runs.call_count == 6 and superlink.stop.called
    assert sum(line.startswith("waiting for the run's process since") for line in said) == 1
    assert not any("5 s or more" in line for line in said)
    assert folder.read_summary()["status"] == "failed"


def test_a_run_whose_answer_was_lost_is_said_to_be_in_doubt(superlink, folder):
    superlink.start = Mock(side_effect=RunFailed("the connection was closed"))
    with pytest.raises(RunFailed, match=r"may or may not have accepted .* `fedhet status`"):
        submitted(folder)


def test_what_the_server_waits_for_is_shown_where_the_run_was_asked_for(folder):
    said = []
    reader = launch.Reader(folder, lambda _: None, said.append)
    folder.wait_for("2 of 3 clients since 10:00:00")
    reader.read()
    reader.read()
    assert said == ["2 of 3 clients since 10:00:00"]


@pytest.mark.parametrize(
    ("ending", "seen", "says"),
    [
        (UserError("connection refused"), UserError, "connection refused"),
        (Interrupted(2), Interrupted, "SIGINT"),
    ],
)
def test_a_resumption_that_no_superlink_takes_changes_nothing(
    tmp_path, superlink, ending, seen, says
):
    config = build_config({"out": str(tmp_path), "name": "ended", "rounds": 2})
    folder = RunFolder.create(config, "ended")
    folder.write_summary(config, "completed", 0, "")

    def contents():
        found = sorted(folder.path.rglob("*"))
        return {p: (p.stat().st_mode, p.is_file() and p.read_bytes()) for p in found}

    def refuse(_envelope):
        raise ending

    before = contents()
    superlink.start = refuse
    with pytest.raises(seen, match=says):
        submitted(folder, config=config.model_copy(update={"rounds": 4}), resume=True)
    assert contents() == before


def test_an_old_ending_does_not_pass_for_that_of_a_resumed_run(superlink, monkeypatch, folder):
    config = build_config({})
    folder.write_summary(config, "completed", 0, "")
    monkeypatch.setattr(submit, "ASK", 0.0)
    superlink.start = Mock(return_value=1)
    superlink.runs = Mock(return_value=[RunStatus(1, "finished:stopped", "2026", {}, "")])
    with pytest.raises(RunFailed, match="stopped"):
        submitted(folder, resume=True)
    assert folder.read_summary()["status"] == "stopped"
