"""A file or a folder gets its name when all of it is there, and never otherwise."""

import os
import stat
from pathlib import Path

import pytest
from helpers.tiny import tiny

from fedhet.export.model import export
from fedhet.files import appearing, csv_text, plain_path, replacing
from fedhet.testing import simulate


class Stop(BaseException):
    """Not an Exception: as Ctrl-C."""


def test_a_path_has_no_detours_and_means_what_it_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    assert plain_path("x/../c") == tmp_path.resolve() / "c"
    assert plain_path("link/../c") == tmp_path.resolve() / "a" / "c"
    assert plain_path("link") == tmp_path / "link"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def synced(monkeypatch):
    """Names of what was synced and renamed, in order."""
    order, fsync, replace, rename = [], os.fsync, Path.replace, Path.rename

    def seen(handle):
        order.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(Path, "replace", lambda a, b: (order.append("named"), replace(a, b))[1])
    monkeypatch.setattr(Path, "rename", lambda a, b: (order.append("named"), rename(a, b))[1])
    return order


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Stop()])
@pytest.mark.parametrize("shared", [False, True])
def test_what_fails_leaves_the_old_file(tmp_path, error, shared):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(type(error)), replacing(path, shared=shared) as new:
        new.write_text("half")
        raise error
    assert path.read_text() == "old" and names(tmp_path) == ["x"]


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, synced):
    with replacing(tmp_path / "x", synced=True) as new:
        new.write_text("new")
    assert synced == [".x.tmp", "named", tmp_path.name]
    synced.clear()
    with replacing(tmp_path / "x") as new:
        new.write_text("newer")
    assert synced == ["named"] and (tmp_path / "x").read_text() == "newer"


def test_a_folder_appears_whole_and_synced(tmp_path, synced):
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "of a killed process").touch()
    with appearing(tmp_path / "out") as new:
        (new / "in").mkdir()
        (new / "in" / "x").write_text("x")
    assert synced == ["in", "x", ".out.tmp", "named", tmp_path.name]
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["in"]


def test_a_folder_that_fails_vanishes_and_one_that_is_there_stays(tmp_path):
    with pytest.raises(Stop), appearing(tmp_path / "out") as new:
        (new / "x").write_text("x")
        raise Stop
    assert names(tmp_path) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(OSError, match="not empty"), appearing(tmp_path / "out") as new:
        (new / "x").write_text("x")
    assert names(tmp_path / "out") == ["mine"] and names(tmp_path) == ["out"]


@pytest.mark.parametrize("private", [False, True])
def test_a_link_at_the_other_name_is_not_followed(tmp_path, private):
    dear = tmp_path / "dear"
    dear.write_text("dear")
    (tmp_path / ".x.tmp").symlink_to(dear)
    with replacing(tmp_path / "x", private=private) as new:
        new.write_text("new")
    assert dear.read_text() == "dear" and (tmp_path / "x").read_text() == "new"
    assert not (tmp_path / "x").is_symlink() and names(tmp_path) == ["dear", "x"]


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a regular file"), replacing(tmp_path / "pipe"):
        pass
    assert names(tmp_path) == ["pipe"] and (tmp_path / "pipe").is_fifo()


def test_what_is_made_from_examples_is_its_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    before = os.umask(0o022)
    noise = {"dp_clip": 1.0, "dp_epsilon": 9.0, "dp_delta": 1e-3}
    folder, _ = simulate(tiny(tmp_path, rounds=1, state_dir=str(tmp_path / "state"), **noise))
    made = list((tmp_path / "state").rglob("*")) + list((tmp_path / "cache").rglob("*"))
    assert {"client.json", "privacy.json", "00000001.safetensors", "examples.bin"} <= {
        path.name for path in made
    }
    assert mode(folder.path / "config.yaml") == 0o644  # to be shown: as the user's umask has it
    state = next((tmp_path / "state").rglob("client.json")).parent
    export(state, tmp_path / "model")
    private = [folder.checkpoint.parent, folder.partition, folder.clients, folder.rounds]
    private += [folder.summary, *(tmp_path / name for name in ("state", "cache", "model"))]
    below = [path for top in private for path in (top, *top.rglob("*")) if not path.is_symlink()]
    assert len(below) > 8 and not [str(path) for path in below if mode(path) & 0o077]
    assert os.umask(before) == 0o022


def test_a_cell_is_no_formula_and_moves_no_terminals_cursor():
    """Names of classes may be a stranger's: predictions.csv is looked at in a terminal."""
    cells = ["a\x1b[2Jb", "x\u202ey\x9b", "=1+1", "two\nlines"]
    assert csv_text([cells]) == 'a?[2Jb,x?y?,\'=1+1,"two\nlines"\n'
