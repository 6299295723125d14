"""A run folder as it is watched: what it says, also while it is written, cut, or damaged."""

import os
import socket
import time

import pytest
from filelock import FileLock
from watch.folders import append, begin, end, failure, line, scores

from fedhet.deploy.control_api import Node
from fedhet.files import NOBODY
from fedhet.records.run_folder import LOCK, OWNER
from fedhet.watch import run as room
from fedhet.watch.run import RunView
from fedhet.watch.view import State

ROUND, SUM_UP = 0, 10


@pytest.fixture(autouse=True)
def _asks_always(monkeypatch):
    monkeypatch.setattr(room, "ASK", 0.0)


def table(state: State, name: str):
    return next(one for one in state.tables if one.name == name)


def test_from_not_begun_to_its_end(tmp_path):
    run = begin(tmp_path / "r")
    view = RunView(run)
    look = view.look()
    assert (look.state.status, look.state.over) == ("not running", True)
    assert "has not begun" in look.state.says and not look.rounds
    with FileLock(run / OWNER):
        assert (view.look().state.status, view.look().state.over) == ("waiting", False)
        (run / "waiting.txt").write_text("waiting for 2 of 2 clients since 10:00\n")
        assert view.look().state.says == "waiting for 2 of 2 clients since 10:00"
        (run / "waiting.txt").unlink()
        with FileLock(run / LOCK):
            append(run / "rounds.jsonl", line(1))
            append(run / "clients.csv", scores((1, "0", 10.0), (1, "1", 20.0)))
            append(run / "rounds.jsonl", line(2) + line(3)[:40])
            look = view.look()
    assert (look.state.status, look.state.title) == ("running", "fedssa on digits")
    assert [row[ROUND] for row in look.rounds] == [1, 2]
    assert [row[SUM_UP] for row in look.rounds] == [1000, 2000]
    facts = dict(look.state.facts)
    assert facts["round"] == "2 of 4" and facts["accuracy"] == "20.00 %"
    assert facts["time left"] == "about 0:04" and facts["sent down"] == "6.0 kB"
    append(run / "rounds.jsonl", line(3)[40:] + line(4))
    end(run, 4)
    look = view.look()
    assert (look.state.status, look.state.over, look.era) == ("completed", True, 0)
    assert [row[ROUND] for row in look.rounds] == [1, 2, 3, 4]
    assert "time left" not in dict(look.state.facts) and not look.state.damage


def test_who_replied_and_who_failed_and_why(tmp_path):
    run = begin(tmp_path / "r")
    append(run / "rounds.jsonl", line(1, failures=[failure("1", "offline")]))
    lost = [{"client": "1", "round": 2, "reason": "gone"}]
    append(run / "rounds.jsonl", line(2, failures=[failure("1", "late")], lost=lost))
    append(run / "clients.csv", scores((1, "0", 10.0), (2, "0", 30.0)))
    state = RunView(run).look().state
    first, second = table(state, "clients").rows
    assert first == ["0", "cnn-1", 3, 2, 30.0, 1.0, 0, "replied", ""]
    assert second == ["1", "", 4, None, None, None, 2, "failed", "lost: gone"]
    assert table(state, "failures").rows == [(2, "1", "late"), (1, "1", "offline")]
    assert (state.status, state.says) == (
        "not running", "it was broken off; `fedhet resume` goes on with it",
    )  # fmt: skip


def test_what_befell_a_round_is_no_clients(tmp_path):
    run = begin(tmp_path / "r")
    failures = [failure(NOBODY, "no sum"), failure("1", "late")]
    append(run / "rounds.jsonl", line(1, failures=failures))
    state = RunView(run).look().state
    assert [row[0] for row in table(state, "clients").rows] == ["0", "1"]
    assert [row[1] for row in table(state, "failures").rows] == ["1", NOBODY]


def test_seconds_that_add_up_to_nothing_sensible_are_shown(tmp_path):
    run = begin(tmp_path / "r")
    append(run / "rounds.jsonl", line(1, seconds=1e308) + line(2, seconds=1e308))
    assert "?" in dict(RunView(run).look().state.facts).values()


def test_of_too_many_clients_those_with_trouble_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("fedhet.watch.books.CLIENTS", 2)
    run = begin(tmp_path / "r")
    append(run / "rounds.jsonl", line(1, failures=[failure("9", "offline")]))
    append(run / "clients.csv", scores(*((1, str(k), 1.0) for k in range(9))))
    found = table(RunView(run).look().state, "clients")
    assert ([row[0] for row in found.rows], found.more) == (["0", "9"], 8)


def test_a_resumed_run_cuts_what_was_not_final(tmp_path):
    run = begin(tmp_path / "r")
    append(run / "rounds.jsonl", line(1) + line(2) + line(3))
    view = RunView(run)
    assert len(view.look().rounds) == 3
    os.truncate(run / "rounds.jsonl", len(line(1)))
    look = view.look()
    assert ([row[ROUND] for row in look.rounds], look.era) == ([1], 1)
    # Between two looks, to more than there was: the bytes before tell.
    (run / "rounds.jsonl").write_text(line(1) + line(2, seconds=2.25) + line(3) + line(4))
    assert [row[ROUND] for row in view.look().rounds] == [1, 2, 3, 4]


def test_what_is_before_damage_is_shown_and_damage_is_named(tmp_path):
    run = begin(tmp_path / "r")
    append(run / "rounds.jsonl", line(1))
    append(run / "clients.csv", scores((1, "0", 10.0)))
    view = RunView(run)
    view.look()
    append(run / "rounds.jsonl", line(2) + line(3, replied=-1) + line(4))
    append(run / "clients.csv", "2,../x,cnn-1,2,1.0,1.0,\n")
    (run / "partition.csv").write_bytes(b"\xff")
    (run / "config.yaml").write_text("a: !!python/object:os.system x")
    (run / "summary.json").write_text("{")
    look = view.look()
    assert len(look.rounds) == 2
    text = "\n".join(look.state.damage)
    assert len(look.state.damage) == 5 and str(tmp_path) not in text
    for part in ("'rounds.jsonl': line 3: replied", "'clients.csv': line 3: client", "tags",
                 "'partition.csv'", "'summary.json'"):  # fmt: skip
        assert part in text
    assert view.look().state.damage == look.state.damage


def test_nothing_is_written_and_no_pipe_is_waited_for(tmp_path):
    run = begin(tmp_path / "r")
    for name in ("rounds.jsonl", "waiting.txt", "summary.json", LOCK):
        os.mkfifo(run / name)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(run / "clients.csv"))
        before = {path: path.lstat().st_mtime_ns for path in (run, *run.rglob("*"))}
        began = time.monotonic()
        state = RunView(run).look().state
        assert time.monotonic() - began < 5.0
    assert len(state.damage) == 3
    assert {path: path.lstat().st_mtime_ns for path in (run, *run.rglob("*"))} == before


def test_the_lock_of_who_writes_is_left_to_him(tmp_path):
    run = begin(tmp_path / "r")
    view = RunView(run)
    view.look()
    with view.folder.lock():  # raises if we had kept it
        assert view.look().state.status == "waiting"
    assert not (run / OWNER).exists()


def test_a_folder_that_vanishes_is_gone(tmp_path):
    run = begin(tmp_path / "r")
    view = RunView(run)
    view.look()
    run.rename(tmp_path / "elsewhere")
    assert (view.look().state.status, view.look().state.over) == ("gone", True)


class Control:
    """A server that knows two sites."""

    def nodes(self):
        return [
            Node(7, "0", "online", "2026-11-25T08:00:00+00:00"),
            Node(8, "1", "offline", "2026-11-25T08:00:01+00:00"),
        ]
