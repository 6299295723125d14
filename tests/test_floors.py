"""The floors of the house: what may import what (docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUND = {"schema", "ids", "files", "rng", "errors", "plugins", "layout", "reading"}
GROUND |= {"__version__"}  # of fedhet/__init__, which is always there
# Below the methods.
ROOMS = {"records", "node", "protocol", "secure_sum", "training", "models", "data"}


def every_import(path: Path) -> set[str]:
    """Modules that a file imports, wherever in it, with the names taken out of packages."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports(path: Path) -> set[str]:
    """Those of our own packages."""
    return {name for name in every_import(path) if name.split(".")[0] == "fedhet"}


def room(path: Path) -> str:
    """The room of a file: ``node``, ``strategies``, or a module of the ground."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "fedhet" else parts[0]


FLOWERS = {"flwr.app", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.clientapp"}  # public
SOURCES = [p for top in ("fedhet", "strategies", "clients") for p in (ROOT / top).rglob("*.py")]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_imports_what_is_above_it(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        there = f"{name}.".split(".")[1]
        if here == "secure_sum":  # a protocol of texts, numbers and bytes
            assert there == here, f"{path} imports {name}"
        elif here in GROUND:
            assert there in GROUND, f"{path} imports {name}"
        elif here in ROOMS:
            assert there in GROUND | ROOMS, f"{path} imports {name}"
        elif here in {"strategies", "clients"}:
            assert there in GROUND | ROOMS | {"strategies", here}, f"{path} imports {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "clients").glob("*.py")), ids=lambda p: p.stem)
def test_a_client_sees_only_its_own_half_of_the_server(path: Path) -> None:
    taken = {name.split(".")[2] for name in imports(path) if name.startswith("fedhet.strategies.")}
    assert taken <= {path.stem, "class_vectors"}, f"{path} imports strategies {sorted(taken)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_one_module_imports_what_flower_calls_private(path: Path) -> None:
    taken = {name for name in every_import(path) if name.split(".")[0] == "flwr"}
    private = {name for name in taken if name.rpartition(".")[0] not in FLOWERS}
    reaches_in = "__dict__" in path.read_text(encoding="utf-8")
    if room(path) == "protocol" and path.stem == "flower":
        assert private and reaches_in
    else:
        assert not private and not reaches_in, f"{path}: {sorted(private)}"
