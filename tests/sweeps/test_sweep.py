"""What a sweep takes a cell's folder for."""

import json
import shutil
from unittest.mock import Mock

import pytest
import yaml
from sweeps import cell_work as work
from sweeps.left import leave
from written_runs import counted, make_run, round_line

from fedhet.cli.app import execute
from fedhet.errors import VerifyError
from fedhet.records.summary import diverged
from fedhet.sweeps.sweep import Order, Sweep


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
    preset = tmp_path / "cell.yaml"
    preset.write_text(yaml.safe_dump(cells[0].config.flat()))

    def words(job):
        return Order(execute, job.folder, preset, tmp_path / "log").words()

    assert words(old) == ["resume", str(old.folder)]

    def started(**changes):
        keys = cells[0].config.flat() | changes
        identity = {"experiment": "x", "config": keys}
        (old.folder / "checkpoint" / "run.json").write_text(json.dumps(identity))
        (old.folder / "config.yaml").write_text(yaml.safe_dump(keys))

    started(clients=3)  # as the data said
    assert words(old) == ["resume", str(old.folder), "--trust"]  # nothing that was not asked for
    started(tracker="wandb")
    assert words(old) == ["resume", str(old.folder)]
    assert words(new) == ["run", str(preset), "--out", str(tmp_path), "--name", cells[1].name]


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
    assert "rounds.0.replied: Field required" in found.jobs[1].reason
    assert "environment.json' is damaged" in found.mixed()


def test_a_strangers_reasons_and_logs_are_shown_as_text_and_in_part(cells, tmp_path) -> None:
    leave(tmp_path, cells[0], status="failed")
    path = tmp_path / cells[0].name / "summary.json"
    summary = json.loads(path.read_text()) | {"reason": "loss is nan \x1b[2J"}
    path.write_text(json.dumps(summary))
    found = Sweep.open("s", tmp_path, cells[:2], execute)
    assert "?[2J" in found.jobs[0].reason and "\x1b" not in found.jobs[0].reason
    job = found.jobs[1]
    job.process = Mock(exitcode=1)
    log = found._file(job, "log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        file.truncate(8 << 30)  # takes no room
        file.seek(0, 2)
        file.write(b"\nthe last \x1b[2J word\n")
    assert found._last_words(job) == "the last ?[2J word"


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


@pytest.mark.parametrize("where", ["sweeps", "sweeps/s", "sweeps/s/x.log"])
def test_no_link_leads_out_of_a_strangers_folder(cells, tmp_path, where) -> None:
    out, dear = tmp_path / "out", tmp_path / "dear"
    (out / where).parent.mkdir(parents=True)
    dear.mkdir()
    (out / where).symlink_to(dear)
    with pytest.raises(VerifyError, match="is a link"):
        Sweep.open("s", out, cells[:1], execute).run(1, lambda _: None)
    assert not any(dear.rglob("*.*"))
