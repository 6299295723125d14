"""What a run notes of its machine: enough to know why two runs drifted apart."""

import platform
import subprocess

import torch

from fedhet.records import run_folder as room
from fedhet.records.run_folder import processor


def test_every_kind_of_linux_says_what_it_runs_on(monkeypatch, tmp_path):
    ours = processor().split(", ")
    assert ours[:: len(ours) - 1] == [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    monkeypatch.setattr(room, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "")
    for cpuinfo, said in (
        (b"cpu family: 6\nmodel name : X\xff 1\n\nmodel name: Y", "X\ufffd 1 (family 6)"),
        (b"CPU implementer : 0x41\nCPU part : 0xd40\n", "(implementer 0x41, part 0xd40)"),
    ):
        (tmp_path / "cpuinfo").write_bytes(cpuinfo)
        assert processor().split(", ", 1)[1].rpartition(", ")[0] == said
    (tmp_path / "cpuinfo").unlink()  # as elsewhere
    assert processor().split(", ") == [platform.machine(), torch.backends.cpu.get_cpu_capability()]


def test_a_commit_is_our_checkouts_and_no_others(tmp_path):
    """A wheel may lie in the repository of whoever made a virtual environment there."""

    def git(*words):
        name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = ["git", "-C", str(tmp_path), *name, *words]
        return subprocess.run(done, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "venv" / "fedhet"
    package.mkdir(parents=True)
    (package / "client_app.py").touch()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "theirs")
    assert room.commit(package) is None
    git("add", ".")
    git("commit", "-q", "-m", "ours")
    assert room.commit(package) == git("rev-parse", "HEAD")
