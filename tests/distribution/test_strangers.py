"""Packages of others that are called as parts of ours: neither side hides the other's.

In the working folder, on PYTHONPATH and beside ours in site-packages; with ours as a wheel, as a
checkout on the path and as Flower's bundle. Ray's actors: tests/network/test_strangers.py.
"""

import json
import shutil
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from distribution.building import LEFT, Built, python

from fedhet.config.load import load_config
from fedhet.engines.session import find_preset
from fedhet.protocol.flower import packed_app
from fedhet.testing import simulate

SMALL = ["rounds=1", "clients=2", "models=cnn-5", "local-epochs=1", "engine=inline"]
RAISE = "raise SystemExit('a stranger was imported')\n"


def strange(folder: Path) -> Path:
    """A folder with everything that could be mistaken for ours; importing it ends the program."""
    for name in ("clients", "configs", "runtime"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(RAISE)
    for name in ("strategies", "layout", "schema"):
        (folder / f"{name}.py").write_text(RAISE)
    return folder


def own(folder: Path) -> Path:
    """A folder with a ``clients`` of the user's, of two modules."""
    (folder / "clients").mkdir(parents=True)
    (folder / "clients" / "__init__.py").touch()
    (folder / "clients" / "own.py").write_text("from clients.whole import METHOD\n")
    (folder / "clients" / "whole.py").write_text("METHOD = __file__\n")
    return folder


@pytest.fixture(scope="module")
def places(built: Built, installed: Path, tmp_path_factory) -> dict[str, Path]:
    """Where ours is imported from, by the kind of installation."""
    bundle = tmp_path_factory.mktemp("bundle")
    shutil.copytree(built.tree, bundle / "fedhet", ignore=LEFT)
    app = bundle / "unpacked"
    with ZipFile(BytesIO(packed_app(bundle / "fedhet"))) as archive:
        archive.extractall(app)
    return {"wheel": installed, "checkout": built.tree, "bundle": app}


@pytest.mark.parametrize("kind", ["wheel", "bundle"])
def test_strangers_break_nothing(places, kind, tmp_path) -> None:
    here = strange(tmp_path / "here")
    first = strange(tmp_path / "first")
    (here / "fedhet").mkdir()  # a clone, say: no package
    words = ["-m", "fedhet", "run", "quickstart", *SMALL, "--name", "a", "--json"]
    done = python(words, here, first, places[kind])
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    environment = json.loads((here / "runs" / "a" / "environment.json").read_text())
    config = load_config(find_preset("quickstart"), [*SMALL, f"out={tmp_path / 'ours'}"])
    folder, _ = simulate(config)
    ours = json.loads((folder.path / "environment.json").read_text())
    assert environment["source_sha256"] == ours["source_sha256"]  # by names of a checkout
    assert said["run_sha256"] == json.loads(folder.summary.read_text())["run_sha256"]
    assert environment["git_commit"] is None
    asked = python(["-c", "import fedhet; print(fedhet.__file__)"], here, first, places[kind])
    assert asked.stdout.startswith(str(places[kind]))


LOAD = """
import sys
from fedhet import plugins
plugins.look_here()
print(plugins.load("method", "clients.own:METHOD"))
"""


@pytest.mark.parametrize("kind", ["wheel", "checkout", "bundle"])
@pytest.mark.parametrize("where", ["working folder", "path", "site-packages"])
def test_a_package_called_clients_is_the_users(places, kind, where, tmp_path) -> None:
    """Ours comes first on the path, as Flower puts its bundle."""
    here = tmp_path / "here"
    here.mkdir()
    path = [places[kind]]
    if where == "site-packages" and kind == "wheel":
        path = [own(Path(shutil.copytree(places[kind], tmp_path / "site")))]
    elif where == "working folder":
        own(here)
    else:
        path.append(own(tmp_path / "theirs"))
    done = python(["-c", LOAD], here, *path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_a_name_that_is_another_package_names_its_file(places, tmp_path) -> None:
    """An installed package comes before the working folder, as everything that is installed."""
    own(tmp_path / "here")
    taken = tmp_path / "taken" / "clients"
    taken.mkdir(parents=True)
    (taken / "__init__.py").touch()
    done = python(["-c", LOAD], tmp_path / "here", taken.parent, places["wheel"])
    line = done.stderr.splitlines()[-1]
    assert f"No module named 'clients.own'; 'clients' is '{taken / '__init__.py'}')" in line
