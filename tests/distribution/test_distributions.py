"""What sdist, wheel and Flower's bundle hold, and that they agree with one another."""

import re
import shutil
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import pytest
from distribution.building import LEFT, ROOT, Built
from packaging.requirements import Requirement

import fedhet
from fedhet import layout
from fedhet.deploy import bundle
from fedhet.errors import UserError
from fedhet.protocol.flower import check_app, packed_app

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = {name for name, _ in layout.sources()}
PRESETS = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml")}


def inside(names: set[str]) -> set[str]:
    """Names of a checkout as a wheel has them."""
    return {f"fedhet/{name.removeprefix('fedhet/')}" for name in names}


def test_the_wheel_holds_the_package_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())
    about = {name for name in found if name.split("/")[0].endswith(".dist-info")}
    others = {
        "fedhet/py.typed", "fedhet/strategies/py.typed", "fedhet/clients/py.typed",
        "fedhet/reports/papers.yaml", "fedhet/reports/templates/report.html",
        *(f"fedhet/watch/page/page.{kind}" for kind in ("html", "css", "js")),
    }  # fmt: skip
    assert found - about == inside(SOURCES | PRESETS) | others
    assert {name.split("/", 1)[1] for name in about} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE",
    }  # fmt: skip


def test_the_sdist_is_what_it_takes_to_build_test_and_read(built: Built) -> None:
    with tarfile.open(built.build("build_sdist")) as archive:
        found = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    tree = {p.relative_to(built.tree).as_posix() for p in built.tree.rglob("*") if p.is_file()}
    made = ("fedhet.egg-info/", "PKG-INFO", "setup.cfg")
    apart = ("docs/data/", "out/", "build/", "docker/.env", ".gitattributes", *made)
    assert {name for name in found if not name.startswith(made)} == {
        name for name in tree if not name.startswith(apart)
    }


def test_an_editable_install_is_a_line_on_the_path(built: Built) -> None:
    """An import hook comes after the path: a folder called `fedhet` would hide the package."""
    with zipfile.ZipFile(built.build("build_editable")) as archive:
        found = [name for name in archive.namelist() if ".dist-info/" not in name]
        (line,) = found
        assert line.endswith(".pth") and archive.read(line).decode().split() == [str(built.tree)]


def test_the_version_is_said_once_in_each_place() -> None:
    assert PROJECT["project"]["version"] == fedhet.__version__ == version("fedhet")
    compose = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    assert f"image: fedhet:{fedhet.__version__}\n" in compose


def members(app: Path) -> dict[str, bytes]:
    """What Flower packs of an app's folder."""
    with zipfile.ZipFile(BytesIO(packed_app(app))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_run_gives_flower_our_sources_and_nothing_else(tmp_path: Path) -> None:
    app = bundle.write(tmp_path / "app")
    assert set(members(app)) == inside(SOURCES) | {"pyproject.toml", ".info/CONTENT"}
    assert not bundle.difference(packed_app(app), bundle.installed())  # a node answers it
    made = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    wrong, limit = check_app(app, made)
    assert not wrong and len(packed_app(app)) < limit / 4
    ours, theirs = PROJECT["tool"]["flwr"]["app"], made["tool"]["flwr"]["app"]
    assert theirs == {
        "publisher": ours["publisher"], "components": ours["components"], "config": {"config": ""},
    }  # fmt: skip
    plain = {key: PROJECT["project"][key] for key in ("name", "version", "description", "license")}
    assert plain.items() <= made["project"].items()
    needs = [config["project"]["dependencies"] for config in (PROJECT, made)]
    first, second = ({str(Requirement(need)) for need in one} for one in needs)
    assert first == second, "installed before pyproject.toml changed: pip install again"


def test_it_is_written_from_files_that_nobody_may_change(tmp_path, monkeypatch) -> None:
    package = tmp_path / "site" / "fedhet"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "fedhet" / "rng.py", package)
    (package / "rng.py").chmod(0o444)
    monkeypatch.setattr(layout, "sources", lambda: [("fedhet/rng.py", package / "rng.py")])
    for name in ("first", "again"):
        app = bundle.write(tmp_path / name)
        assert (app / "fedhet" / "rng.py").stat().st_mode & 0o200
        shutil.rmtree(app)


def test_without_an_installation_one_line_says_what_to_do(monkeypatch) -> None:
    def absent(name: str) -> None:
        raise bundle.PackageNotFoundError(name)

    monkeypatch.setattr(bundle, "metadata", absent)
    with pytest.raises(UserError, match=r"without being installed.*engine=inline"):
        bundle.project()


def test_flowers_bundle_of_a_checkout_is_the_app(built: Built, tmp_path: Path) -> None:
    """Whatever else lies there: records of runs, tests, the user's own files."""
    app = tmp_path / "fedhet"
    shutil.copytree(built.tree, app, ignore=LEFT)
    (app / "runs").mkdir()
    (app / "mine.py").touch()
    (app / "results.json").write_text("{}")
    found = set(members(app))
    assert found - {"pyproject.toml", ".info/CONTENT"} == SOURCES | PRESETS | {
        "README.md", "LICENSE",
    }  # fmt: skip


def test_a_checkout_keeps_the_rules_of_flowers_hub(built: Built, tmp_path: Path, capsys) -> None:
    """Size, number, depth and kinds of files, a publisher, a name; and nothing that is missing."""
    app = tmp_path / "fedhet"
    shutil.copytree(built.tree, app, ignore=LEFT)
    assert check_app(app, PROJECT)[0] == []
    assert re.fullmatch("[a-z][a-z0-9-]*", PROJECT["tool"]["flwr"]["app"]["publisher"])
    assert 0 < len(PROJECT["project"]["description"]) <= 200
