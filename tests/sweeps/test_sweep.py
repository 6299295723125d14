"""What a sweep takes a cell's folder for, and how it runs cells."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import yaml
from sweeps import cell_work as work
from written_runs import counted, make_run, round_line, write_clients

from fedhet.cli.app import execute
from fedhet.cli.sweep import Progress
from fedhet.errors import RunFailedError, UserError
from fedhet.records.environment import source_digest, versions
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import diverged
from fedhet.sweeps import place, sweep
from fedhet.sweeps.grid import read_cells
from fedhet.sweeps.sweep import Sweep, shard


@pytest.fixture
def cells(tmp_path):
    path = tmp_path / "preset.yaml"
    grid = {"method": ["standalone", "lg_fedavg"], "seed": [0, 1]}
    path.write_text(yaml.safe_dump({"dataset": "digits", "rounds": 2, "grid": grid}))
    return read_cells(path, [])


def leave(out, cell, *, status="completed", reason="", rounds=2, loss=0.5, torch=None, silent=()):
    """A run folder as a cell leaves it; nobody replied in the ``silent`` rounds."""
    folder = out / cell.name
    folder.mkdir(parents=True)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "run.json").write_text("{}")
    offline = [{"client": "0", "reason": "no node is connected"}]
    lines = [
        round_line(r, 50.0, loss, **({"replied": 0, "failures": offline} if r in silent else {}))
        for r in range(1, rounds + 1)
    ]
    (folder / "rounds.jsonl").write_text("".join(lines))
    (folder / "config.yaml").write_text(yaml.safe_dump(cell.config.flat()))
    write_clients(folder, [[50.0]])
    if status:
        ending = {"status": status, "reason": reason, "rounds": rounds}
        (folder / "summary.json").write_text(json.dumps(ending))
    made = {
        "source_sha256": source_digest(),
        "versions": versions() | ({"torch": torch} if torch else {}),
    }
    (folder / "environment.json").write_text(json.dumps(made))


def test_the_folder_says_what_a_cell_is(cells, tmp_path) -> None:
    out = tmp_path / "out"
    leave(out, cells[0])
    leave(out, cells[1], status="failed", reason="array 0 holds NaN or infinity", rounds=1)
    leave(out, cells[2], status="failed", reason="the SuperLink ended", rounds=1)
    found = Sweep.open("s", out, cells, execute)
    assert [job.state for job in found.jobs] == ["finished", "diverged", "failed", "pending"]
    assert found.counts() == {
        "finished": 1, "running": 0, "pending": 1, "diverged": 1, "failed": 1,
    }  # fmt: skip


def test_replies_that_all_overflowed_are_divergence(cells, tmp_path) -> None:
    leave(tmp_path, cells[0], loss=None)
    assert Sweep.open("s", tmp_path, cells[:1], execute).jobs[0].state == "diverged"


def test_a_last_round_without_replies_is_no_divergence(cells, tmp_path) -> None:
    leave(tmp_path, cells[0], rounds=3)
    path = tmp_path / cells[0].name / "rounds.jsonl"
    offline = {"client": "0", "reason": "no node is connected"}
    kept = "".join(path.read_text().splitlines(keepends=True)[:2])
    path.write_text(kept + round_line(3, 50.0, None, failures=[offline]))
    assert Sweep.open("s", tmp_path, cells[:1], execute).jobs[0].state == "finished"


def test_a_summary_without_lines_is_no_result(cells, tmp_path) -> None:
    leave(tmp_path, cells[0])
    (tmp_path / cells[0].name / "rounds.jsonl").write_text("")
    (job,) = Sweep.open("s", tmp_path, cells[:1], execute).jobs
    assert job.state == "failed" and "rounds.jsonl" in job.reason


def test_only_a_loss_out_of_bounds_is_divergence() -> None:
    def line(reason: str) -> dict:
        return {**counted(None), "failures": [{"client": "0", "reason": reason}]}

    assert diverged(line("metric 'train_loss' is 4e+40, not within -3e+38 and 3e+38"))
    assert not diverged(line("metric 'train_flops' is -1e+30, not within 0 and 1e+20"))


def test_a_killed_run_is_continued_and_a_new_one_begun(cells, tmp_path) -> None:
    leave(tmp_path, cells[0], status="", rounds=1)
    old, new = Sweep.open("s", tmp_path, cells[:2], execute).jobs
    assert old.state == "pending" and old.rounds == 1
    assert place.begun(old.folder) and not place.begun(new.folder)
    preset = tmp_path / "cell.yaml"
    assert place.command(old.folder, preset, begun=True) == ["resume", str(old.folder)]
    assert place.command(new.folder, preset, begun=False) == [
        "run", str(preset), "--out", str(tmp_path), "--name", cells[1].name,
    ]  # fmt: skip


def test_results_of_another_torch_are_noticed(cells, tmp_path) -> None:
    leave(tmp_path, cells[0])
    assert Sweep.open("s", tmp_path, cells, execute).mixed() == ""
    leave(tmp_path, cells[1], torch="0.1")
    assert "torch 0.1" in Sweep.open("s", tmp_path, cells, execute).mixed()


def test_a_damaged_cell_is_that_cells_failure(cells, tmp_path) -> None:
    for cell in cells[:3]:
        leave(tmp_path, cell)
    (tmp_path / cells[0].name / "rounds.jsonl").write_text("x{}\n")
    (tmp_path / cells[1].name / "rounds.jsonl").write_text('{"round": 1}\n')
    (tmp_path / cells[2].name / "environment.json").write_text("{}")
    found = Sweep.open("s", tmp_path, cells, execute)
    assert [job.state for job in found.jobs] == ["failed", "failed", "finished", "pending"]
    assert "line 1 is damaged" in found.jobs[0].reason
    assert "last line is damaged" in found.jobs[1].reason
    assert "environment.json' is damaged" in found.mixed()


def test_a_completed_cell_whose_lines_are_cut_is_a_failure(cells, tmp_path) -> None:
    for cell in cells[:3]:
        folder = make_run(tmp_path, "standalone", 0, [[1.0, 2.0], [3.0, 4.0]], name=cell.name)
        (folder / "config.yaml").write_text(yaml.safe_dump(cell.config.flat()))
    rounds = tmp_path / cells[0].name / "rounds.jsonl"
    rounds.write_text(rounds.read_text()[:-9])
    clients = tmp_path / cells[1].name / "clients.csv"
    clients.write_text("\n".join(clients.read_text().splitlines()[:-1]) + "\n")
    jobs = Sweep.open("s", tmp_path, cells[:3], execute).jobs
    assert [job.state for job in jobs] == ["failed", "failed", "finished"]
    assert jobs[0].reason.startswith("rounds.jsonl has 1 of 2 rounds; remove '")
    assert "clients.csv ends with 2.50 %, and summary.json with 3.50 %" in jobs[1].reason


def test_a_completed_cell_that_no_report_could_read_is_a_failure(cells, tmp_path) -> None:
    for cell in cells[:2]:
        leave(tmp_path, cell)
    rounds = tmp_path / cells[0].name / "rounds.jsonl"
    rounds.write_text(round_line(1, "much") + round_line(2, 50.0))
    (tmp_path / cells[1].name / "config.yaml").unlink()
    jobs = Sweep.open("s", tmp_path, cells[:2], execute).jobs
    assert [job.state for job in jobs] == ["failed", "failed"]
    assert jobs[0].reason.startswith("rounds.0.test_accuracy_mean: Input should be a valid number")
    assert "config.yaml" in jobs[1].reason


def test_a_folder_that_is_another_cells_is_a_failure_and_is_left_alone(cells, tmp_path) -> None:
    for cell in cells[:3]:
        leave(tmp_path, cell)
    renamed, resumed = (tmp_path / cell.name for cell in cells[:2])
    shutil.copy(tmp_path / cells[2].name / "config.yaml", renamed)
    options = {**cells[1].config.flat(), "round-timeout": 99.0, "out": "/elsewhere"}
    (resumed / "config.yaml").write_text(yaml.safe_dump(options))
    found = Sweep.open("s", tmp_path, cells[:3], execute)
    found.work = work.pretend
    assert [(job.state, job.due) for job in found.jobs] == [
        ("failed", False), ("finished", False), ("finished", False),
    ]  # fmt: skip
    assert (
        "is another cell's: method is lg_fedavg, not standalone; remove '" in found.jobs[0].reason
    )
    found.run(1, lambda now: None)
    assert found.jobs[0].state == "failed" and (renamed / "summary.json").exists()


@pytest.mark.parametrize("name", ["rounds.jsonl", "config.yaml"])
def test_a_file_nested_too_deeply_is_that_cells_failure(cells, tmp_path, name) -> None:
    leave(tmp_path, cells[0])
    path = tmp_path / cells[0].name / name
    path.write_text("[" * 100_000 + "\n")
    (job,) = Sweep.open("s", tmp_path, cells[:1], execute).jobs
    assert (job.state, job.damaged) == ("failed", True) and str(path) in job.reason


def test_a_completed_cell_cut_before_its_first_evaluation_is_a_failure(cells, tmp_path) -> None:
    folder = make_run(tmp_path, "standalone", 0, [[1.0], [2.0]], name=cells[0].name)
    (folder / "config.yaml").write_text(yaml.safe_dump(cells[0].config.flat()))
    (folder / "rounds.jsonl").write_text(round_line(1, None))
    (job,) = Sweep.open("s", tmp_path, cells[:1], execute).jobs
    assert job.state == "failed" and "rounds.jsonl has 1 of 2 rounds" in job.reason


def test_a_folder_broken_off_while_it_was_made_makes_room(cells, tmp_path) -> None:
    (tmp_path / cells[0].name / "checkpoint").mkdir(parents=True)
    found = Sweep.open("s", tmp_path, cells[:1], execute)
    found.work = work.pretend
    assert (found.jobs[0].state, found.jobs[0].anew) == ("pending", True)
    found.run(1, lambda now: None)
    assert found.jobs[0].state == "finished"


def test_a_cell_without_hope_begins_anew(cells, tmp_path) -> None:
    said = {"status": "failed", "reason": "no client replied"}
    leave(tmp_path, cells[0], rounds=1, silent=[1], torch="0.1", **said)
    leave(tmp_path, cells[1], rounds=2, silent=[2], torch="0.1", **said)
    leave(tmp_path, cells[2], rounds=1, **said)
    found = Sweep.open("s", tmp_path, cells[:3], execute)
    assert [(job.state, job.anew, job.rounds) for job in found.jobs] == [
        ("failed", True, 0), ("failed", True, 0), ("failed", False, 1),
    ]  # fmt: skip
    assert found.mixed() == ""  # nothing of what the old torch made is kept
    found.work = work.pretend
    found.run(2, lambda now: None)
    assert [job.state for job in found.jobs] == ["finished", "finished", "failed"]
    for cell in cells[:2]:
        assert (found.folder / "failed" / cell.name / "rounds.jsonl").exists()


def test_a_cell_that_somebody_is_at_is_waited_for(cells, tmp_path, capsys) -> None:
    leave(tmp_path, cells[0], rounds=1, silent=[1], status="failed", reason="?")
    found = Sweep.open("s", tmp_path, cells[:2], execute)
    found.work = work.pretend
    lock = RunFolder(tmp_path / cells[0].name).lock()

    def release(now: Sweep) -> None:
        if now.jobs[0].waits and now.jobs[1].state == "finished":
            lock.release()
        progress.update(now)

    with Progress(found, quiet=False) as progress:
        found.run(1, release)
    assert [job.state for job in found.jobs] == ["finished", "finished"]
    said = capsys.readouterr().err
    assert said.count(f"{cells[0].name} is being run by another process, which is waited for") == 1


def test_a_killed_cell_says_so_and_not_what_an_earlier_attempt_said(cells, tmp_path) -> None:
    found = Sweep.open("s", tmp_path, cells[:1], execute)
    found.work = work.killed
    found.run(1, lambda now: None)
    assert found.jobs[0].reason == "killed by SIGKILL, perhaps for want of memory, after round 0"
    found = Sweep.open("s", tmp_path, cells[:1], execute)
    found.work = work.silent
    found.run(1, lambda now: None)
    assert found.jobs[0].reason == "it ended with code 7"


def test_a_cell_that_nothing_can_continue_is_damaged(cells, tmp_path) -> None:
    for cell in cells[:2]:
        leave(tmp_path, cell, status="")
    incomplete, garbled = (tmp_path / cell.name for cell in cells[:2])
    shutil.rmtree(incomplete / "checkpoint")
    (garbled / "summary.json").write_text("x")
    identity = {"experiment": "0123456789abcdef", "config": cells[1].config.flat()}
    (garbled / "checkpoint" / "run.json").write_text(json.dumps(identity))
    (tmp_path / cells[2].name).write_text("")
    jobs = Sweep.open("s", tmp_path, cells[:3], execute).jobs
    assert [(job.state, job.due) for job in jobs] == [("failed", False)] * 3
    assert "checkpoint/run.json' is missing" in jobs[0].reason
    assert "without this file `fedhet resume` goes on" in jobs[1].reason
    assert "is not a folder; remove '" in jobs[2].reason


def test_a_cell_that_cannot_go_on_says_what_stops_it_now(cells, tmp_path) -> None:
    leave(tmp_path, cells[0], rounds=1, status="failed", reason="of yesterday")
    found = Sweep.open("s", tmp_path, cells[:1], execute)
    found.work = work.refuse
    found.run(1, lambda now: None)
    assert found.jobs[0].reason == "error: it is another reason today"
    leave(tmp_path, cells[1])
    (tmp_path / cells[1].name / "rounds.jsonl").write_text("x{}\n")
    damaged = Sweep.open("s", tmp_path, cells[1:2], execute)
    damaged.work = work.refuse
    damaged.run(1, lambda now: None)
    assert damaged.jobs[0].reason.endswith("to run the cell anew")


def test_a_cell_that_ends_well_at_last_gets_its_line(cells, tmp_path, capsys) -> None:
    leave(tmp_path, cells[0], status="failed", reason="?", silent=[1, 2])
    found = Sweep.open("s", tmp_path, cells[:1], execute)
    found.work = work.pretend
    with Progress(found, quiet=False) as progress:
        progress.update(found)
        assert capsys.readouterr().err == ""
        found.run(1, progress.update)
    assert f"fedhet: {cells[0].name} finished" in capsys.readouterr().err


def test_a_cell_that_fails_says_why_in_its_line(cells, tmp_path, capsys) -> None:
    """Not only when the last of its neighbours has ended, hours later."""
    found = Sweep.open("s", tmp_path, cells[2:3], execute)
    found.work = work.pretend
    with Progress(found, quiet=False) as progress:
        found.run(1, progress.update)
    line = f"fedhet: {cells[2].name} failed -  {cells[2].label}: no such thing\n"
    assert capsys.readouterr().err == line


def test_the_table_of_progress_says_why_a_cell_failed(cells, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    leave(tmp_path, cells[0], rounds=1, status="failed", reason="'/a[/b]' is gone")
    found = Sweep.open("s", tmp_path, cells[:1], execute)
    with Progress(found, quiet=False) as progress:
        progress.update(found)
    assert f"{cells[0].label}: '/a[/b]' is gone" in capsys.readouterr().err


def test_printed_commands_say_all_that_was_said(tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "preset.yaml"
    path.write_text(yaml.safe_dump({"dataset": "digits", "grid": {"seed": [0]}}))
    options = ["--accept-mixed", "--workers=3", "--profile=quick"]
    assert execute(["sweep", str(path), f"--out={tmp_path / 'out'}", "--print", *options]) == 0
    said = capsys.readouterr().out
    assert "--profile quick --workers 3 --accept-mixed --cell fedssa-" in said
    monkeypatch.chdir(tmp_path)
    assert execute(["sweep", "preset.yaml", "state-dir=s", "lr=0.1", "--out=o", "--print"]) == 0
    said = capsys.readouterr().out
    place = f"{tmp_path}/"
    assert f"sweep {place}preset.yaml state-dir={place}s lr=0.1 --out {place}o --cell" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--cell="], "--cell: '' is not allowed"),
        (["--out", ""], "--out: '' is not allowed"),
        (["--out=preset.yaml", "--dry-run"], "preset.yaml' is not a folder"),
        (["--print", "--json"], "--print does not go with --json"),
        (["--print", "--dry-run"], "--print does not go with --dry-run"),
        (["name=x"], "name: it is the cells' own"),
        (["grid=3"], "grid: it stands in the preset"),
        (["--shard=\u0661/\u0662"], "--shard: "),
    ],
)
def test_words_that_would_do_nothing_are_refused(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    Path("preset.yaml").write_text(yaml.safe_dump({"dataset": "digits", "grid": {"seed": [0]}}))
    assert execute(["sweep", "preset.yaml", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["preset.yaml"]


def test_a_full_disk_ends_a_sweep_in_one_line(cells, tmp_path, monkeypatch) -> None:
    found = Sweep.open("s", tmp_path, cells[:1], execute)
    found.work = work.pretend
    found._prepare()
    monkeypatch.setattr(found, "_prepare", lambda: None)

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sweep, "write_json", full)
    with pytest.raises(RunFailedError, match=r"cannot go on: No space left on device; when"):
        found.run(1, lambda now: None)
    assert not found.running()
    monkeypatch.undo()
    again = Sweep.open("s", tmp_path, cells[:1], execute)
    again.run(1, lambda now: None)  # the lock is free
    assert again.jobs[0].state == "finished"


def test_a_killed_fork_server_ends_a_sweep_in_one_line(cells, tmp_path, monkeypatch) -> None:
    def gone(_process):
        raise EOFError("unexpected EOF")

    found = Sweep.open("s", tmp_path, cells[:1], execute)
    monkeypatch.setattr(place._Forked, "start", gone)
    with pytest.raises(RunFailedError, match="the process that starts its cells was killed; the"):
        found.run(1, lambda now: None)
    assert Sweep.open("s", tmp_path, cells[:1], execute).jobs[0].state == "pending"


def test_a_shard_beyond_the_cells_has_nothing_to_do(tmp_path, capsys) -> None:
    path = tmp_path / "preset.yaml"
    path.write_text(yaml.safe_dump({"dataset": "digits", "grid": {"seed": [0, 1]}}))
    assert execute(["sweep", str(path), f"--out={tmp_path / 'out'}", "--shard=3/9"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "out")


def test_cells_run_side_by_side_and_one_that_breaks_stops_no_other(cells, tmp_path) -> None:
    """The cells' work is a small function here; tests/network runs real ones."""
    out, running = tmp_path / "out", []
    found = Sweep.open("s", out, cells, execute)
    found.work = work.pretend
    found.run(3, lambda now: running.append(len(now.running())))
    assert max(running) == 3
    assert [job.state for job in found.jobs] == ["finished", "finished", "failed", "failed"]
    assert found.jobs[2].reason == "no such thing"
    kept = json.loads((out / "sweeps" / "s" / "sweep.json").read_text())
    assert [cell["state"] for cell in kept["cells"]] == [job.state for job in found.jobs]
    again = Sweep.open("s", out, cells, execute)
    assert [job.state for job in again.jobs[:2]] == ["finished", "finished"]


def test_what_interrupts_a_sweep_ends_its_cells(cells, tmp_path) -> None:
    found = Sweep.open("s", tmp_path, cells, execute)
    found.work = work.sleep

    def stop(now: Sweep) -> None:
        if len(now.running()) == 2:
            processes.extend(job.process for job in now.running())
            raise KeyboardInterrupt

    processes: list = []
    with pytest.raises(KeyboardInterrupt):
        found.run(2, stop)
    assert len(processes) == 2 and not any(process.is_alive() for process in processes)
    assert not found.running()


def test_one_command_at_a_time(cells, tmp_path) -> None:
    first, second = (Sweep.open("s", tmp_path, cells, execute) for _ in range(2))

    def meanwhile(_now: Sweep) -> None:
        with pytest.raises(UserError, match="being run by another process"):
            second.run(1, lambda _: None)
        raise KeyboardInterrupt

    first.work = work.sleep
    with pytest.raises(KeyboardInterrupt):
        first.run(1, meanwhile)


def test_shards_are_disjoint_and_complete(cells) -> None:
    parts = [shard(cells, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(cell.name for part in parts for cell in part) == sorted(c.name for c in cells)
    for wrong in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(UserError, match="--shard"):
            shard(cells, wrong)
