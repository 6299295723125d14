"""How a cell's folder is read: what is finished, continued, begun anew, or left to the user."""

import json
import shutil
from unittest.mock import Mock

import pytest
import yaml
from sweeps import cell_work as work
from sweeps.cell_work import leave

from fedhet.cli.app import execute
from fedhet.errors import Damaged
from fedhet.sweeps.sweep import Sweep, command_line, gpu_share


def concluded(out, cells):
    return Sweep("s", out, cells, execute).jobs


def test_the_folder_says_what_a_cell_is(cells, tmp_path) -> None:
    """Replies that overflowed are divergence, and absent ones are not."""
    leave(tmp_path, cells[0], rounds=3, silent=[3])
    leave(tmp_path, cells[1], status="failed", reason="array 0 holds NaN or infinity", rounds=1)
    leave(tmp_path, cells[2], status="failed", reason="the SuperLink ended", rounds=1)
    states = ["completed", "diverged", "failed", "pending"]
    found = Sweep("s", tmp_path, cells, execute)
    assert [job.state for job in found.jobs] == states
    assert found.counts() == dict.fromkeys(states, 1) | {"running": 0, "damaged": 0}
    leave(tmp_path, cells[3], loss=None)
    assert concluded(tmp_path, cells)[3].state == "diverged"


def test_a_killed_run_is_continued_and_a_new_one_begun(cells, tmp_path) -> None:
    leave(tmp_path, cells[0], status="", rounds=1)
    old, new = concluded(tmp_path, cells[:2])
    assert old.state == "pending" and old.rounds == 1
    preset = tmp_path / "cell.yaml"
    preset.write_text(yaml.safe_dump(cells[0].config.flat()))
    for changes, trust in (({"clients": 3}, ["--trust"]), ({"tracker": "wandb"}, [])):
        keys = cells[0].config.flat() | changes  # the data said so; nobody asked for it
        identity = {"experiment": "x", "config": keys}
        (old.folder.path / "checkpoint" / "run.json").write_text(json.dumps(identity))
        (old.folder.path / "config.yaml").write_text(yaml.safe_dump(keys))
        assert command_line(old.folder.path, preset) == ["resume", str(old.folder.path), *trust]
    words = ["run", str(preset), "--out", str(tmp_path), "--name", cells[1].name]
    assert command_line(new.folder.path, preset) == words


def test_results_of_another_torch_are_noticed(cells, tmp_path) -> None:
    leave(tmp_path, cells[0])
    assert Sweep("s", tmp_path, cells, execute).mixed() == ""
    leave(tmp_path, cells[1], torch="0.1")
    assert "torch 0.1" in Sweep("s", tmp_path, cells, execute).mixed()
    (tmp_path / cells[0].name / "environment.json").write_text("{}")
    found = Sweep("s", tmp_path, cells[:1], execute)
    assert "environment.json' is damaged" in found.mixed()
    leave(tmp_path, cells[2])
    path = tmp_path / cells[2].name / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_sha256": "0" * 64}))
    assert "data with other values" in Sweep("s", tmp_path, cells[2:], execute).mixed()


DAMAGE = {
    "has 0 of the 2 rounds that": lambda f: (f / "rounds.jsonl").write_text(""),
    "rounds.jsonl": lambda f: (f / "rounds.jsonl").write_text("[" * 100_000 + "\n"),
    "config.yaml": lambda f: (f / "config.yaml").write_text(""),
    "summary.json": lambda f: (f / "summary.json").write_text("x"),
    "is not a folder": lambda f: (shutil.rmtree(f), f.write_text("")),
    "checkpoint/run.json' is missing": lambda f: (
        shutil.rmtree(f / "checkpoint"), (f / "summary.json").unlink(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("says", DAMAGE)
def test_a_damaged_cell_is_left_to_the_user_and_stops_no_other(cells, tmp_path, says) -> None:
    for cell in cells[:2]:
        leave(tmp_path, cell)
    DAMAGE[says](tmp_path / cells[0].name)
    broken, whole = concluded(tmp_path, cells[:2])
    assert (broken.state, broken.due, whole.state) == ("damaged", False, "completed")
    assert says in broken.reason and "; remove '" in broken.reason


def test_a_folder_that_is_another_cells_is_a_failure_and_is_left_alone(cells, tmp_path) -> None:
    for cell in cells[:3]:
        leave(tmp_path, cell)
    renamed, resumed = (tmp_path / cell.name for cell in cells[:2])
    shutil.copy(tmp_path / cells[2].name / "config.yaml", renamed)
    # The data said how many clients there are.
    options = {**cells[1].config.flat(), "round-timeout": 99.0, "out": "/elsewhere", "clients": 3}
    (resumed / "config.yaml").write_text(yaml.safe_dump(options))
    found = Sweep("s", tmp_path, cells[:3], work.pretend)
    states = [(job.state, job.due) for job in found.jobs]
    assert states == [("damaged", False), ("completed", False), ("completed", False)]
    assert "another cell: method is lg_fedavg, not standalone; remove '" in found.jobs[0].reason
    found.run(1, lambda now: None)
    assert found.jobs[0].state == "damaged" and (renamed / "summary.json").exists()


def test_reasons_and_logs_of_others_are_shown_as_text_and_in_part(cells, tmp_path) -> None:
    leave(tmp_path, cells[0], status="failed", reason="loss is nan \x1b[2J")
    found = Sweep("s", tmp_path, cells[:2], execute)
    assert "?[2J" in found.jobs[0].reason and "\x1b" not in found.jobs[0].reason
    job = found.jobs[1]
    job.process = Mock(exitcode=1, why="")
    log = found._file(job, "log")
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        file.truncate(8 << 30)  # takes no room
        file.seek(0, 2)
        file.write(b"\nthe last \x1b[2J word\n")
    assert found._last_words(job) == "the last ?[2J word"


@pytest.mark.parametrize("where", ["sweeps", "sweeps/s", "sweeps/s/x.log"])
def test_no_link_leads_out_of_a_folder_that_was_sent(cells, tmp_path, where) -> None:
    out, dear = tmp_path / "out", tmp_path / "dear"
    (out / where).parent.mkdir(parents=True)
    dear.mkdir()
    (out / where).symlink_to(dear)
    with pytest.raises(Damaged, match="is a link"):
        Sweep("s", out, cells[:1], execute).run(1, lambda _: None)
    assert not any(dear.rglob("*.*"))


def test_cells_share_the_gpus_of_the_fullest_machine(cells) -> None:
    config = cells[0].config
    machines = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0, "GPU": 1.0}, {"CPU": 64.0}]
    for changes, share in (({}, 0.25), ({"threads": 4}, 1.0), ({"device": "cpu"}, 0.0)):
        assert gpu_share(config.model_copy(update=changes), machines) == share
    assert gpu_share(config, machines[2:]) == 0.0
