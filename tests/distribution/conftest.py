"""A copy of the tree, its wheel, and the wheel unpacked; each is made once."""

import zipfile
from pathlib import Path

import pytest
from distribution.building import Built, copy_tree


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    tree = tmp_path_factory.mktemp("packaging") / "tree"
    copy_tree(tree)
    # What a build of an earlier state left: a file that is gone, in the folder of setuptools.
    (tree / "build" / "lib" / "fedhet").mkdir(parents=True)
    (tree / "build" / "lib" / "fedhet" / "gone.py").touch()
    return Built(tree)


@pytest.fixture(scope="session")
def wheel(built: Built) -> Path:
    return built.build("build_wheel")


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked in a folder that stands for site-packages; its name has a space."""
    place = tmp_path_factory.mktemp("site packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place
