"""A package with entry points, built and installed by pip as a user would, without a network."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedhet import plugins
from fedhet.cli.app import execute

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-federated"
version = "1"

[project.entry-points."fedhet.methods"]
tiny_rep = "tiny_federated.fedrep:METHOD"

[project.entry-points."fedhet.models"]
tiny_one = "tiny_federated.tiny_net:make"

[project.entry-points."fedhet.datasets"]
tiny_shapes = "tiny_federated.shapes:load"

[tool.setuptools]
packages = ["tiny_federated"]
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The examples as one package in a folder of its own, which is on sys.path."""
    package = tmp_path / "source" / "tiny_federated"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in ("fedrep", "tiny_net", "shapes"):
        shutil.copy(EXAMPLES / f"{name}.py", package)
    (package.parent / "pyproject.toml").write_text(PROJECT)
    target = tmp_path / "target"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
         "--no-build-isolation", "--target", str(target), str(package.parent)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(target)
    plugins.installed.cache_clear()
    yield target
    plugins.installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("tiny_federated")]:
        del sys.modules[name]


def test_its_method_model_and_data_set_have_names_of_their_own(installed, tmp_path, capsys):
    assert execute(["methods", "--json"]) == 0
    table = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "header is trained alone" in json.dumps(table["tiny_rep"])
    words = [
        "method=tiny_rep", "models=tiny_one", "dataset=tiny_shapes", "engine=inline", "rounds=2",
        "clients=2", "classes-per-client=2", "local-epochs=1", "batch-size=16", "--json",
    ]  # fmt: skip
    assert execute(["run", "quickstart", *words, "--out", str(tmp_path), "--name", "own"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["method"], summary["status"]) == ("tiny_rep", "completed")
    assert summary["failures"] == []
    found = importlib.import_module("tiny_federated.fedrep")
    assert Path(str(found.__file__)).is_relative_to(installed)
