"""How a sweep runs its cells, and what it says of them."""

import errno
import json
import os
from unittest.mock import Mock

import pytest
from sweeps import cell_work as work
from sweeps.cell_work import leave

from fedhet.cli.sweeps import SweepProgress
from fedhet.errors import RunFailed, UserError
from fedhet.records.run_folder import RunFolder
from fedhet.sweeps import sweep
from fedhet.sweeps.sweep import Sweep


def nothing(_now: Sweep) -> None:
    """Show nothing."""


def test_a_folder_whose_run_was_killed_while_it_made_it_is_made_anew(cells, tmp_path) -> None:
    folder = tmp_path / cells[0].name
    (folder / "checkpoint").mkdir(parents=True)
    found = Sweep("s", tmp_path, cells[:1], work.pretend)
    (job,) = found.jobs
    assert job.state == "pending" and job.taken(), "it may be made at this moment"
    os.utime(folder, (0, 0))
    assert not job.taken()
    found.run(1, nothing)
    assert job.state == "completed"


def test_a_cell_that_somebody_is_at_is_waited_for(cells, tmp_path, capsys) -> None:
    leave(tmp_path, cells[0], rounds=1, silent=[1], status="failed", reason="?")
    found = Sweep("s", tmp_path, cells[:2], work.pretend)
    lock = RunFolder(tmp_path / cells[0].name).lock()

    def release(now: Sweep) -> None:
        if now.jobs[0].waits and now.jobs[1].state == "completed":
            lock.release()
        progress.update(now)

    with SweepProgress(found) as progress:
        found.run(1, release)
    assert [job.state for job in found.jobs] == ["completed", "completed"]
    said = capsys.readouterr().err
    assert said.count(f"for {cells[0].name}, which another process is running") == 1


def test_a_cell_that_ends_early_says_why_and_not_what_an_earlier_attempt_said(
    cells, tmp_path
) -> None:
    leave(tmp_path, cells[1], rounds=1, status="failed", reason="of yesterday")
    for cell, do, says in (
        (cells[0], work.killed, "killed by SIGKILL, perhaps for want of memory, after round 0"),
        (cells[0], work.silent, "it ended with code 7"),
        (cells[1], work.refuse, "error: it is another reason today"),
    ):
        found = Sweep("s", tmp_path, [cell], do)
        found.run(1, nothing)
        assert found.jobs[0].reason == says


@pytest.mark.parametrize(
    ("where", "name", "error", "says"),
    [
        (sweep, "write_json", OSError(errno.ENOSPC, "No space left on device"),
         "cannot continue: No space left on device; when"),
        (sweep._FORKS.Process, "start", EOFError("unexpected EOF"),
         "the process that starts its cells was killed; the"),
    ],
    ids=["a full disk", "a killed fork server"],
)  # fmt: skip
def test_it_ends_in_one_line(cells, tmp_path, monkeypatch, where, name, error, says) -> None:
    found = Sweep("s", tmp_path, cells[:1], work.pretend)
    monkeypatch.setattr(found, "_prepare", Mock(return_value=found._prepare()))
    with monkeypatch.context() as patch:
        patch.setattr(where, name, Mock(side_effect=error))
        with pytest.raises(RunFailed, match=says):
            found.run(1, nothing)
    assert not found.running()
    again = Sweep("s", tmp_path, cells[:1], work.pretend)
    again.run(1, nothing)  # the lock is free
    assert again.jobs[0].state == "completed"


def test_cells_run_side_by_side_and_one_that_breaks_stops_no_other(cells, tmp_path, capsys) -> None:
    """The cells' work is a small function; tests/network runs real ones. Each gets its line."""
    out, running = tmp_path / "out", []
    found = Sweep("s", out, cells, work.pretend)

    def show(now: Sweep) -> None:
        running.append(len(now.running()))
        progress.update(now)

    with SweepProgress(found) as progress:
        found.run(3, show)
    assert max(running) == 3
    assert [job.state for job in found.jobs] == ["completed", "completed", "failed", "failed"]
    said = capsys.readouterr().err
    assert f"fedhet: {cells[0].name} completed, accuracy 1.00 %, {cells[0].label}" in said
    assert f"fedhet: {cells[2].name} failed, accuracy -, {cells[2].label}: no such thing" in said
    kept = json.loads((out / "sweeps" / "s" / "sweep.json").read_text())
    assert [cell["state"] for cell in kept["cells"]] == [job.state for job in found.jobs]


def test_what_interrupts_a_sweep_ends_its_cells_and_one_command_runs_at_a_time(
    cells, tmp_path
) -> None:
    found, second = (Sweep("s", tmp_path, cells, work.sleep) for _ in range(2))

    def stop(now: Sweep) -> None:
        if len(now.running()) == 2:
            with pytest.raises(UserError, match="already runs in another process"):
                second.run(1, nothing)
            processes.extend(job.process for job in now.running())
            raise KeyboardInterrupt

    processes: list = []
    with pytest.raises(KeyboardInterrupt):
        found.run(2, stop)
    assert len(processes) == 2 and not any(process.is_alive() for process in processes)
    assert not found.running()
