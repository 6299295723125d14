"""`fedhet new method`: what it writes passes lint, types and its own tests as it stands."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fedhet.cli.app import execute

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("types", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_the_skeleton_passes_lint_types_and_its_tests(tmp_path, monkeypatch, capsys, types):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert execute(["new", "method", "my_method"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("method=my_method:METHOD")
    assert "from fedhet." not in Path("my_method.py").read_text()  # one place gives all
    config = ["--config", str(ROOT / "pyproject.toml")]
    written = sorted(tmp_path.glob("*.py"))
    commands = [["ruff", "check", *config], ["ruff", "format", "--check", *config]]
    if types:  # mypy imports nothing: it is shown what a wheel holds
        wheel = tmp_path / "wheel" / "fedhet"
        wheel.mkdir(parents=True)
        for path in (*(ROOT / "fedhet").iterdir(), ROOT / "strategies", ROOT / "clients"):
            (wheel / path.name).symlink_to(path)
        monkeypatch.setenv("MYPYPATH", str(wheel.parent))
        cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
        commands.append(["mypy", "--config-file", config[1], *cache])
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-m", *words, *written], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    tests = runpy.run_path("test_my_method.py")
    names = [name for name in tests if name.startswith("test_")]
    assert len(names) == 3
    for name in names:
        (tmp_path / name).mkdir()
        tests[name](tmp_path / name)
    del sys.modules["my_method"]
