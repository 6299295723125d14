"""Damage to what a run left behind: named by ``fedhet verify`` and ``fedhet resume``, exit 3."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.tiny import tiny
from helpers.written_runs import append, line

from fedhet.cli.app import execute
from fedhet.engines.grid import run
from fedhet.engines.launch import Launch
from fedhet.errors import RunFailed, UserError
from fedhet.files import write_text
from fedhet.protocol.messages import instruction
from fedhet.records.formats import read_evaluations
from fedhet.records.run_folder import RunFolder
from fedhet.testing import simulate

ROUNDS = 3


class Cut(Exception):
    pass


def _cut(node, message, reply):
    """The server dies in the last round, when all clients have trained already.

    A copy of client 0's first state stays: the run itself keeps the last two.
    """
    what = instruction(message)
    if message.metadata.message_type == "train" and (what.round, node) == (1, 0):
        own = Path(what.state_dir) / what.experiment / "0"
        shutil.copy(own / "00000001.safetensors", own / "older~")
    if message.metadata.message_type == "train" and (what.round, node) == (ROUNDS, 2):
        raise Cut
    return reply


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was cut in its last round, and one that is completed."""
    base = tmp_path_factory.mktemp("damage")
    config = tiny(base, rounds=ROUNDS, name="cut", engine="inline")
    with pytest.raises(Cut):
        simulate(config, tamper=_cut)
    done, _ = simulate(tiny(base, rounds=ROUNDS, name="done", engine="inline"))
    return {"cut": RunFolder(base / "runs" / "cut").path, "done": done.path}


def copy(run: Path, to: Path) -> Path:
    """The same files by hard links; :func:`put` replaces one."""
    return Path(shutil.copytree(run, to / run.name, copy_function=os.link))


def put(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def flip(path: Path, place: int = -9) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    put(path, bytes(data))


def lines(path: Path, change) -> None:
    put(path, b"".join(change(path.read_bytes().splitlines(keepends=True))))


def state(run: Path, client: str, generation: int) -> Path:
    (experiment,) = (run / "state").iterdir()
    return experiment / client / f"{generation:08d}.safetensors"


def last(run: Path) -> int:
    return len((run / "rounds.jsonl").read_bytes().splitlines())


def older(run: Path) -> None:
    put(state(run, "0", last(run)), state(run, "0", 1).with_name("older~").read_bytes())


def altered(path: Path) -> None:
    put(path, path.read_bytes().replace(b'"replied": 3', b'"replied": 2', 1))


def led_out(path: Path) -> None:
    put(path, json.dumps(json.loads(path.read_text()) | {"experiment": "../../x"}).encode())


SERVER, CLIENTS = "checkpoint/server.safetensors", "clients.csv"
DAMAGE = {
    "a byte in a state": (lambda r: flip(state(r, "0", last(r))), "state/"),
    "an older state under this name": (older, "state/"),
    "no state": (lambda r: state(r, "2", last(r)).unlink(), "state/"),
    "a byte in the checkpoint's arrays": (lambda r: flip(r / SERVER), SERVER),
    "no checkpoint": (lambda r: (r / SERVER).unlink(), SERVER),
    "a lost line": (lambda r: lines(r / "rounds.jsonl", lambda x: x[1:]), "rounds.jsonl"),
    "the last line lost": (lambda r: lines(r / "rounds.jsonl", lambda x: x[:-1]), "rounds.jsonl"),
    "an altered line": (lambda r: altered(r / "rounds.jsonl"), "rounds.jsonl"),
    "a garbled line": (lambda r: lines(r / "rounds.jsonl", lambda x: [b"{\n", *x[1:]]), "line 1"),
    "the last line twice": (lambda r: lines(r / "rounds.jsonl", lambda x: [*x, x[-1]]), "line 3"),
    "a client's line twice": (lambda r: lines(r / CLIENTS, lambda x: [*x, x[-1]]), CLIENTS),
    "no lines": (lambda r: (r / "rounds.jsonl").unlink(), "rounds.jsonl"),
    "cut clients.csv": (lambda r: lines(r / CLIENTS, lambda x: [*x[:-1], x[-1][:-3]]), CLIENTS),
    "clients' lines turned": (lambda r: lines(r / CLIENTS, lambda x: [x[0], *x[:0:-1]]), CLIENTS),
    "a list in run.json": (lambda r: put(r / "checkpoint/run.json", b"[1]"), "run.json"),
    "no run.json": (lambda r: (r / "checkpoint/run.json").unlink(), "run.json"),
    "an id that leads out": (lambda r: led_out(r / "checkpoint/run.json"), "run.json"),
    "environment.json": (lambda r: flip(r / "environment.json"), "environment.json"),
    "partition.csv": (lambda r: flip(r / "partition.csv", -3), "partition.csv"),
    "an empty summary.json": (lambda r: write_text(r / "summary.json", ""), "summary.json"),
}  # fmt: skip


def complaint(run: Path, capsys, command: str) -> str:
    capsys.readouterr()
    assert execute([command, str(run)]) == 3
    return capsys.readouterr().err


FINISHED = [("done", one) for one in ("a byte in a state", "an altered line", "no checkpoint")]


@pytest.mark.parametrize(("which", "damage"), [*(("cut", one) for one in DAMAGE), *FINISHED])
def test_every_damage_is_named_and_changes_nothing(runs, tmp_path, capsys, which, damage):
    change, name = DAMAGE[damage]
    run = copy(runs[which], tmp_path)
    change(run)
    before = [path.read_bytes() for path in run.glob("rounds.jsonl")]
    for command in ("verify", "resume") if which == "cut" else ("verify",):
        said = complaint(run, capsys, command)
        assert name in said and "Traceback" not in said
    assert [path.read_bytes() for path in run.glob("rounds.jsonl")] == before


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_run_whose_folder_is_removed_ends_in_one_line(tmp_path, capfd, engine):
    config = tiny(tmp_path, rounds=ROUNDS, name="gone", engine=engine)

    def remove(records):
        if records:
            shutil.rmtree(tmp_path / "runs" / "gone")

    with pytest.raises(RunFailed, match="'.*gone' was removed or renamed while the run went on"):
        run(Launch(config, RunFolder.create(config, "gone")), remove)
    assert "Traceback" not in capfd.readouterr().err


def test_lines_of_a_run_that_was_resumed_meanwhile_are_read_anew(tmp_path):
    folder = RunFolder(tmp_path)
    append(folder.rounds, line(1) + line(2))
    assert [one["seconds"] for one in folder.read_rounds()] == [2.0, 2.0]
    folder.rounds.write_text(line(1) + line(2, seconds=9.0) + line(3))
    assert [one["seconds"] for one in folder.read_rounds()] == [2.0, 9.0, 2.0]


def test_a_summary_of_other_rounds_is_named(runs, tmp_path, capsys):
    run = copy(runs["done"], tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    for key, wrong in (("run_sha256", "0" * 64), ("rounds", 99), ("test_accuracy_mean", 99.0)):
        put(run / "summary.json", json.dumps(summary | {key: wrong}).encode())
        said = complaint(run, capsys, "verify")
        assert "summary.json" in said and (key in said or "round 99" in said)


def test_what_a_crash_leaves_is_no_damage(runs, tmp_path):
    run = copy(runs["cut"], tmp_path)
    lines(run / "rounds.jsonl", lambda x: [*x, b'{"round": 3, "cut sho'])
    lines(run / "clients.csv", lambda x: [*x, b"3,0,cnn"])
    assert execute(["verify", str(run)]) == 0
    for name, count in (("rounds.jsonl", 1), ("clients.csv", 3)):  # the lines, but no checkpoint
        whole = (runs["done"] / name).read_bytes().splitlines(keepends=True)
        lines(run / name, lambda x, whole=whole, count=count: [*x[:-1], *whole[-count:]])
    shutil.copytree(run, tmp_path / "again")
    assert execute(["resume", str(tmp_path / "again")]) == 0
    end, whole = (RunFolder(r).read_summary() for r in (tmp_path / "again", runs["done"]))
    assert end["run_sha256"] == whole["run_sha256"]
    assert execute(["verify", str(tmp_path / "again")]) == 0


def test_a_lost_state_is_accepted_only_when_asked_and_stands_in_the_summary(runs, tmp_path, capsys):
    run = Path(shutil.copytree(runs["cut"], tmp_path / "run"))
    flip(state(run, "0", last(run)))
    assert execute(["resume", str(run), "--accept-lost"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    (lost,) = summary["clients_lost"]
    assert (summary["status"], lost["client"], lost["round"]) == ("completed", "0", ROUNDS)
    assert "is damaged" in lost["reason"]
    assert {f["client"] for f in summary["failures"]} == {"0"}
    assert "client 0 is lost since round 3" in capsys.readouterr().out
    assert execute(["verify", str(run)]) == 0


def test_lines_are_on_the_disk_before_the_checkpoint(tmp_path, monkeypatch):
    order, original = [], os.fsync

    def fsync(handle):
        order.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    simulate(tiny(tmp_path, rounds=1))
    final = max(i for i, name in enumerate(order) if name.startswith(".server.safetensors"))
    for name in ("rounds.jsonl", "clients.csv"):
        assert order.index(name) < final
    assert order[final + 1] == "checkpoint"  # the folder: the new name


def test_a_full_disk_leaves_no_half_folder(tmp_path, monkeypatch):
    config, full = tiny(tmp_path, name="full"), Mock(side_effect=OSError(28, os.strerror(28)))
    with monkeypatch.context() as patch:
        patch.setattr("fedhet.files.write_json", full)
        with pytest.raises(UserError, match="No space left"):
            RunFolder.create(config, "x")
    assert not (tmp_path / "runs" / "full").exists()
    RunFolder.create(config, "x")


def test_a_resumed_run_keeps_the_columns_of_an_older_header(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_clients([])
    folder.clients.write_text("round,client,model,generation,test_accuracy,val_accuracy,other\n")
    line = {"round": 1, "client": "0", "model": "cnn-1", "generation": 1}
    folder.append_clients([line | {"test_accuracy": 50.0, "val_accuracy": 40.0, "test_ece": 3.0}])
    assert folder.clients.read_text().splitlines()[1] == (
        '1,0,cnn-1,1,50.0,40.0,"{""test_ece"": 3.0}"'
    )
    assert read_evaluations(folder.clients)[0]["test_ece"] == 3.0
