"""Who else on the machine can read what is made from images: nobody."""

import os
import stat
import threading

import pytest

from fedhet.export.save import export
from fedhet.files import private_files
from fedhet.testing import simulate, small


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable(root):
    """What others may read or enter at or below ``root``."""
    return [
        str(path)
        for path in [root, *root.rglob("*")]
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


def test_states_caches_and_a_runs_private_parts_are_their_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    noise = {"dp_clip": 1.0, "dp_epsilon": 9.0, "dp_delta": 1e-3}
    folder, _ = simulate(small(tmp_path, rounds=1, state_dir=str(tmp_path / "state"), **noise))
    made = list((tmp_path / "state").rglob("*")) + list((tmp_path / "cache").rglob("*"))
    assert {"client.json", "privacy.json", "00000001.safetensors", "examples.npy"} <= {
        path.name for path in made
    }
    for private in ("state", "cache"):
        assert readable(tmp_path / private) == []
    assert readable(folder.checkpoint.parent) == []
    for private in (folder.partition, folder.clients, folder.rounds, folder.summary):
        assert readable(private) == []
    # What is to be shown stays as the user's own umask has it.
    assert stat.S_IMODE((folder.path / "config.yaml").stat().st_mode) == 0o644
    assert os.umask(0o022) == 0o022

    state = next((tmp_path / "state").rglob("client.json")).parent
    export(state, tmp_path / "model")
    assert readable(tmp_path / "model") == []


def test_the_users_umask_comes_back_whoever_leaves_last():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with private_files():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with private_files():
        thread.start()
        assert entered.wait(10)
    assert os.umask(0o077) == 0o077  # the other thread is still making its files
    leave.set()
    thread.join()
    assert os.umask(0o022) == 0o022
