"""The inline engine: the same bytes as the others, in one process, and all that a run owes."""

import json
import os
from unittest.mock import Mock

import pytest
from cli.refusals import refused
from engines.commands import NOTEBOOK, PROXIES, WORK, launched, summary
from filelock import FileLock
from flwr.app import Context, RecordDict
from helpers.programs import python
from helpers.tiny import tiny

from fedhet import server_app
from fedhet.cli.app import execute
from fedhet.cli.common import RunProgress
from fedhet.clients.fedssa import FedSSAClient
from fedhet.engines import grid, session
from fedhet.engines.launch import Launch, conclude
from fedhet.engines.system import Interrupted
from fedhet.errors import RunFailed
from fedhet.records.run_folder import RunFolder
from fedhet.testing import LocalGrid, simulate


def small(tmp_path, **changes):
    return tiny(tmp_path, engine="inline", **changes)


def test_a_clients_traceback_is_on_the_console_and_in_the_log(tmp_path, capsys, monkeypatch):
    def receive(self, payload):
        if self.setup.data.client != "2":
            raise AssertionError

    monkeypatch.setattr(FedSSAClient, "receive", receive)
    for name in ("broken", "again"):
        folder = launched(small(tmp_path, rounds=2), name)
        for text in (capsys.readouterr().err, folder.log.read_text()):
            assert text.count("Traceback") == text.count("in receive") == 1
        failures = [(f["client"], f["reason"][:30]) for f in summary(folder.path)["failures"]]
        assert failures == [("0", where := "AssertionError (test_inline.py"), ("1", where)] * 2


def test_after_rounds_that_nobody_survived_more_of_them_are_asked_for(tmp_path, monkeypatch):
    said = []
    console = session.Console(said.append, RunProgress)
    with monkeypatch.context() as patch:
        patch.setattr(FedSSAClient, "receive", lambda self, payload: 1 / 0)
        with pytest.raises(RunFailed, match="no round came about"):
            session.start(small(tmp_path, rounds=1, name="broken"), "", console)
    run = tmp_path / "runs" / "broken"
    assert said[-1] == f"continue it with: fedhet resume {run} rounds=2"
    assert execute(["resume", str(run), "rounds=2"]) == 0
    assert [record["replied"] > 0 for record in RunFolder(run).read_rounds()] == [False, True]


def test_an_error_of_the_server_is_shown_and_fails_the_run(tmp_path, capsys, monkeypatch):
    failing = Mock(side_effect=ZeroDivisionError("by hand"))
    monkeypatch.setattr("fedhet.strategies.fedssa.FedSSAStrategy.aggregate", failing)
    with pytest.raises(RunFailed, match="ZeroDivisionError: by hand") as raised:
        launched(small(tmp_path, name="broken"), "")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert "Traceback" in capsys.readouterr().err
    assert summary(tmp_path / "runs" / "broken")["status"] == "failed"


@pytest.mark.parametrize("interrupt", [Interrupted(2), KeyboardInterrupt()])
def test_interrupted_it_is_stopped_and_resumes_to_the_same_bytes(tmp_path, interrupt):
    reported = []

    def stop(records):
        reported.append(len(records))
        if len(records) == 1:
            raise interrupt

    config = small(tmp_path, name="cut")
    with pytest.raises(BaseException) as raised:
        launched(config, "", stop)
    assert raised.value is interrupt and reported == [0, 1]
    folder = RunFolder(tmp_path / "runs" / "cut")
    launch = Launch(config, folder, resume=True)
    assert launch.status() == ("stopped", "SIGINT")
    grid.run(launch, lambda _: None)
    whole, _ = simulate(small(tmp_path))
    assert summary(folder.path)["run_sha256"] == summary(whole.path)["run_sha256"]
    assert "round 2/2" in folder.log.read_text()
    FileLock(folder.path / ".lock", blocking=False).acquire()


# In a deployment every message is a new process: what it imports is what it costs.
HEAVY = ("ray", "torch._dynamo", "torch._inductor", "torchvision", "sklearn")


def test_the_command_line_runs_and_extends_it_and_loads_nothing_heavy(tmp_path, capsys):
    """Its JSON is JSON in a notebook's environment, too, and no proxy is asked."""
    words = [*WORK, "engine=inline", "optimizer=adam", "lr=0.001", "augment=crop-flip"]
    words += ["--out", str(tmp_path), "--json"]
    first, two = tmp_path / "first", tmp_path / "two"
    program = (
        "import sys; from fedhet.cli.app import execute\n"
        f"code = execute(['run', 'quickstart', 'rounds=1', '--name', 'first', *{words!r}])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    env = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"}
    done = python("-c", program, env=env | NOTEBOOK | PROXIES)
    assert done.stderr.endswith("[]\n"), done.stderr  # after what moves the terminal's cursor
    assert json.loads(done.stdout)["rounds"] == 1
    assert execute(["resume", str(first), "rounds=2"]) == 0
    assert execute(["run", "quickstart", "rounds=2", "--name", "two", *words]) == 0
    assert summary(first)["run_sha256"] == summary(two)["run_sha256"]
    assert RunFolder(first).started_config()["rounds"] == 2
    capsys.readouterr()
    for more, said in (([], "is completed; to add rounds"), (["rounds=1"], "rounds: 1 is not")):
        assert said in refused(capsys, "resume", str(first), *more)


def test_a_server_app_that_flower_ends_was_stopped_unless_the_command_knows_better(tmp_path):
    config = small(tmp_path)
    launch = Launch(config, RunFolder.create(config, "ended"))
    text = launch.envelope()
    context = Context(0, 0, {}, RecordDict(), {"config": text})
    grid = LocalGrid(text, config.clients)
    grid.push_messages = Mock(side_effect=SystemExit(0))  # in a message, as `flwr stop` makes it
    with pytest.raises(SystemExit):
        server_app.app(grid, context)
    assert launch.status() == ("stopped", "Flower was told to stop the run")
    conclude(launch, ("failed", "the SuperLink ended"))
    assert launch.status() == ("failed", "the SuperLink ended")
