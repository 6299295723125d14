"""Builds distributions from a copy of the tree, and runs Python beside them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEFT = shutil.ignore_patterns("*.egg-info", "build", "out", "__pycache__")
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])('out'))"


@dataclass
class Built:
    """A copy of the tree, and what building it gave."""

    tree: Path

    def build(self, hook: str) -> Path:
        """Call a hook of the build backend, as pip and `build` do; it has to warn of nothing."""
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            [sys.executable, "-W", "always", "-c", BUILD, hook], cwd=self.tree, env=env,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        about = [line for line in said.splitlines() if "warning" in line.lower()]
        assert [line for line in about if "Editable installation" not in line] == []
        return self.tree / "out" / done.stdout.splitlines()[-1]


def copy_tree(target: Path) -> None:
    """Everything that git has or would take; all there is where there is no git, as in an sdist."""
    found = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    if (ROOT / ".git").exists():
        words = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
        found = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\n")
    for name in found:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def python(
    words: list[str], folder: Path, *path: Path, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, as a console script does, with these places to import from."""
    clean: Mapping[str, str] = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, "-P", *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**clean, "PYTHONPATH": os.pathsep.join(map(str, path)), **env},
    )  # fmt: skip
