"""Where our own packages and presets lie.

Beside ``fedhet/`` in a checkout and in Flower's bundle, inside it where a wheel was installed;
their names are the same: ``fedhet.strategies``.
"""

from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
OWN_FOLDERS = ("strategies", "clients", "configs")


def folder(name: str, package: Path = HERE) -> Path:
    """Return the folder of that name (one of :data:`OWN_FOLDERS`) of a ``fedhet`` package."""
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def is_top(path: str) -> bool:
    """Whether a folder is a checkout's or a bundle's top, in which ``clients/`` is ours."""
    package = Path(path) / HERE.name
    return (package / Path(__file__).name).is_file() and not (package / OWN_FOLDERS[0]).is_dir()


def sources(package: Path = HERE) -> Iterator[tuple[str, Path]]:
    """Our Python files by the name that they have in a checkout, such as ``clients/base.py``.

    In the order of the names, whatever the layout: a digest over them is the same in both.
    """
    beside = OWN_FOLDERS[:2]
    found = {
        f"fedhet/{path.relative_to(package).as_posix()}": path
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in beside
    }
    for name in beside:
        place = folder(name, package)
        found |= {f"{name}/{p.relative_to(place).as_posix()}": p for p in place.rglob("*.py")}
    yield from sorted(found.items())
