"""`fedhet new method`: what it writes passes lint, types and its own tests as it stands."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.refusals import refused

from fedhet.cli.app import execute

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("types", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_the_skeleton_passes_lint_types_and_its_tests(tmp_path, monkeypatch, capsys, types):
    monkeypatch.chdir(tmp_path)
    assert execute(["new", "method", "my_method"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("method=my_method:METHOD")
    wheel = tmp_path / "wheel" / "fedhet"  # what a wheel holds, for mypy: it imports nothing
    wheel.mkdir(parents=True)
    for path in (*(ROOT / "fedhet").iterdir(), ROOT / "strategies", ROOT / "clients"):
        (wheel / path.name).symlink_to(path)
    env = {"PYTHONPATH": str(ROOT), "MYPYPATH": str(wheel.parent)}
    config = str(ROOT / "pyproject.toml")
    written = [str(path) for path in sorted(tmp_path.glob("*.py"))]
    cache = str(ROOT / ".mypy_cache")
    for words in (
        ["ruff", "check", "--config", config, *written],
        ["ruff", "format", "--check", "--config", config, *written],
        *([["mypy", "--config-file", config, "--cache-dir", cache, *written]] if types else []),
        ["pytest", "-q", "-p", "no:cacheprovider", *written],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, check=False,
            capture_output=True, text=True, env={**os.environ, **env},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["method", "My-Method"], "'My-Method' is not allowed"),
        (["method", "_1"], "'_1' is not allowed"),
        (["method", "fedssa"], "already has a method 'fedssa'"),
        (["model", "x"], "'model' is not allowed"),
    ],
)
def test_a_wrong_name_writes_nothing(tmp_path, monkeypatch, capsys, words, text):
    monkeypatch.chdir(tmp_path)
    assert execute(["new", *words]) == 2
    assert text in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_file_is_one_line(tmp_path, monkeypatch, capsys):
    def full(path, *_, **_more):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_text", full)
    assert "my_method.py': Permission denied" in refused(capsys, "new", "method", "my_method")
