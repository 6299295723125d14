"""What a run notes of its machine: enough to know why two runs drifted apart."""

import subprocess

from fedhet.records import run_folder as room


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
