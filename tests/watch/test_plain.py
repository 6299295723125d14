"""The same in a terminal: lines, in a pipe, without colours; and the one line for a mistake."""

import socket
import threading

import pytest
from cli.refusals import refused
from filelock import FileLock
from watch.folders import append, begin, end, failure, line, scores

from fedhet.cli.app import execute
from fedhet.records.run_folder import LOCK
from fedhet.watch import plain
from fedhet.watch.finding import open_view


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(plain, "POLL", 0.01)


def test_an_ended_run_is_told_and_left(tmp_path, capsys):
    run = begin(tmp_path / "r", rounds=2)
    append(run / "rounds.jsonl", line(1) + line(2, failures=[failure("1", "offline")]))
    append(run / "clients.csv", scores((2, "0", 30.0)))
    end(run, 2)
    assert execute(["watch", "--plain", str(run)]) == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.isascii() and "\x1b" not in said.out
    lines = said.out.splitlines()
    assert lines[0] == "r: fedssa on digits"
    assert lines[1].startswith("round 1 of 2: accuracy 10.00 %, ") and "1.0 kB up" in lines[1]
    assert lines[3] == "  client 1 failed: offline"
    assert lines[4] == "completed" and lines[5].startswith("round: 2 of 2, ")
    assert lines[7].startswith("  client 0, model cnn-1, examples 3, last round 2, ")


def test_a_run_is_followed_to_its_end(tmp_path):
    run = begin(tmp_path / "r", rounds=2)
    held = FileLock(run / LOCK)
    held.acquire()
    found = plain.follow(open_view(run))
    assert next(found) == "r: fedssa on digits"
    assert next(found) == "waiting: it is being started: no round is finished yet"
    threading.Timer(0.1, append, (run / "rounds.jsonl", line(1) + line(2))).start()
    assert next(found).startswith("round 1 of 2")
    end(run, 2, "failed", "no client is left")
    held.release()
    rest = list(found)
    assert rest[0].startswith("round 2 of 2") and "failed: no client is left" in rest


def test_a_sweep_says_what_changes(tmp_path, capsys):
    for name in ("a", "b"):
        begin(tmp_path / "s" / name)
    end(tmp_path / "s" / "a", 4)
    assert execute(["watch", "--plain", str(tmp_path / "s")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "s: 2 runs"
    assert lines[1] == "cell a: finished, round 4 of 4, accuracy 40.00 %"
    assert plain._cell(["c", "fd", "failed", 0, None, None, "away"]) == (
        "cell c (fd): failed, round 0: away"
    )
    assert lines[-1] == "not running: finished: 1, pending: 1, rounds: 4 of 8"


def test_mistakes_are_one_line(tmp_path, capsys):
    assert "no such run" in refused(capsys, "watch", str(tmp_path / "none"))
    assert "no run is there" in refused(capsys, "watch", str(tmp_path))
    (tmp_path / "file").touch()
    assert "is a file" in refused(capsys, "watch", str(tmp_path / "file"))
    assert "give a run folder" in refused(capsys, "watch")
    assert "has no server yet" in refused(capsys, "watch", "--superlink", str(tmp_path))
    run = str(begin(tmp_path / "r"))
    assert "--plain" in refused(capsys, "watch", run, "--plain", "--port", "1")
    assert "at most 65535" in refused(capsys, "watch", run, "--port", "70000")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"--port: {port} cannot be used: " in refused(capsys, "watch", run, "--port", port)
