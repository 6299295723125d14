"""What a run gives to Flower, and packages of others that are called as parts of ours.

The wheel is built and used in an empty folder by .ci/run.
"""

import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

from helpers.flower_internals import check_app, packed_folder
from helpers.programs import python

import fedhet
from fedhet.protocol.flower import application

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = {path for top in ("fedhet", "strategies", "clients") for path in (ROOT / top).rglob("*.py")}
SOURCES = {path.relative_to(ROOT).as_posix() for path in OURS}
PRESETS = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml")}


def test_the_version_is_said_once_in_each_place():
    assert PROJECT["project"]["version"] == fedhet.__version__ == version("fedhet")
    compose = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    assert f"image: fedhet:{fedhet.__version__}\n" in compose


def members(app: Path) -> set[str]:
    """Return the names of what Flower packs of an app's folder."""
    with zipfile.ZipFile(BytesIO(packed_folder(app))) as archive:
        return set(archive.namelist())


def test_a_run_gives_flower_our_sources_and_nothing_else(tmp_path):
    app = tmp_path / "app"
    for name, content in application().items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_bytes(content)
    inside = {f"fedhet/{name.removeprefix('fedhet/')}" for name in SOURCES}
    assert members(app) == inside | {"pyproject.toml", ".info/CONTENT"}
    made = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    wrong, limit = check_app(app, made)
    assert not wrong and len(packed_folder(app)) < limit / 4
    ours, theirs = PROJECT["tool"]["flwr"]["app"], made["tool"]["flwr"]["app"]
    assert theirs["components"] == ours["components"]
    assert theirs["publisher"] == ours["publisher"]


def test_a_checkout_keeps_the_rules_of_flowers_hub(tmp_path):
    """Whatever else lies there: records of runs, tests, the user's own files."""
    app = tmp_path / "fedhet"
    app.mkdir()
    words = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\n")
    for name in listed:
        if (ROOT / name).is_file():
            (app / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, app / name)
    (app / "runs").mkdir()
    (app / "mine.py").touch()
    assert check_app(app, PROJECT)[0] == []
    found = members(app) - {"pyproject.toml", ".info/CONTENT", "README.md", "LICENSE"}
    assert found == SOURCES | PRESETS
    assert re.fullmatch("[a-z][a-z0-9-]*", PROJECT["tool"]["flwr"]["app"]["publisher"])


LOAD = """
from importlib.util import find_spec
from fedhet import plugins
plugins.look_here()
print(find_spec("fedhet.clients.base").origin)
"""


def test_a_folder_called_as_ours_hides_none_of_ours(tmp_path):
    for name in ("clients", "strategies", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit")
    done = python("-P", "-c", LOAD, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.stdout.strip() == str(ROOT / "clients" / "base.py")
