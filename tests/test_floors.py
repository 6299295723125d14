"""The floors of the house: what may import what (docs/architecture.md)."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUND = {"files", "rng", "errors", "plugins", "layout", "reading"}
GROUND |= {"__version__"}  # of fedhet/__init__, which is always there
DOORS = {"server_app", "client_app", "request", "api", "cli"}
MANY = {"sweeps", "reports", "watch"}
MACHINE = {"engines", "deploy", "export", "config", "testing"}
APPS = {"client_app", "server_app"}  # of Flower's, which these run
RUN_APPS = {"fedhet/engines/grid.py", "fedhet/testing.py"}
# Below the methods.
ROOMS = {"records", "site", "protocol", "sums", "training", "models", "data"}


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


SOURCES = [p for top in ("fedhet", "strategies", "clients") for p in (ROOT / top).rglob("*.py")]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_imports_what_is_above_it(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        there = f"{name}.".split(".")[1]
        if name.startswith("fedhet.config.schema"):  # the keys of a run: everybody reads them
            continue
        if here in GROUND:
            assert there in GROUND, f"{path} imports {name}"
        elif here in ROOMS:
            assert there in GROUND | ROOMS, f"{path} imports {name}"
        elif here in {"strategies", "clients"}:
            assert there in GROUND | ROOMS | {"strategies", here}, f"{path} imports {name}"
        elif here in MACHINE:
            above = MANY | (DOORS - APPS if str(path.relative_to(ROOT)) in RUN_APPS else DOORS)
            assert there not in above, f"{path} imports {name}"
        elif here in MANY:
            assert there not in DOORS, f"{path} imports {name}"
        else:
            assert here in DOORS | {"__init__", "__main__"}, f"{path} is on no floor"


@pytest.mark.parametrize("path", sorted((ROOT / "clients").glob("*.py")), ids=lambda p: p.stem)
def test_a_client_sees_only_its_own_half_of_the_server(path: Path) -> None:
    taken = {name.split(".")[2] for name in imports(path) if name.startswith("fedhet.strategies.")}
    assert taken <= {path.stem, "class_vectors"}, f"{path} imports strategies {sorted(taken)}"


# --- Flower: its public names anywhere, all others in one module ------------------------------

FLOWERS = ("flwr.app", "flwr.serverapp.strategy", "flwr.serverapp", "flwr.clientapp.mod",
           "flwr.clientapp")  # fmt: skip
PRIVATE = ROOT / "fedhet" / "protocol" / "flower.py"
TOPS = ("fedhet", "strategies", "clients", "benchmarks", "examples", "docker", "tests")
MODULE = re.compile(r"\bflwr(?:\.[A-Za-z_]\w*)+")  # in a text that is run or imported


def reaches_in(tree: ast.AST) -> list[tuple[int, str]]:
    """Lines that take what is not public of Flower's, by import, by name in a text, or by dict."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name not in FLOWERS]
        elif isinstance(node, ast.ImportFrom) and node.module not in FLOWERS:
            names = [str(node.module)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [
                name
                for name in MODULE.findall(node.value)
                if name not in FLOWERS and name.rpartition(".")[0] not in FLOWERS
            ]
        elif isinstance(node, ast.Attribute) and node.attr == "__dict__":
            names = ["flwr: __dict__"]
        found += [(node.lineno, name) for name in names if re.split("[.:]", name)[0] == "flwr"]
    return found


@pytest.mark.parametrize("top", TOPS)
def test_one_module_reaches_into_flower(top: str) -> None:
    for path in (ROOT / top).rglob("*.py"):
        if path not in (PRIVATE, Path(__file__).resolve()):
            found = reaches_in(ast.parse(path.read_text(encoding="utf-8")))
            assert not found, f"{path.relative_to(ROOT)}: {found}: move it to {PRIVATE.name}"


def test_that_module_says_why_beside_each_import() -> None:
    text = PRIVATE.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = [n for n, name in reaches_in(ast.parse(text)) if "__dict__" not in name]
    assert len(found) > 10
    for number in found:
        near = lines[number - 2 : number + 1]  # above, beside, or inside its brackets
        assert any("# why:" in line for line in near), near[1]


@pytest.mark.parametrize(
    "code",
    [
        "import flwr.client", "from flwr import simulation", "from flwr.common import Scalar",
        "x = 'import flwr.superlink.grid as g'", "load(f'flwr.proto.{name}')",
        "message.metadata.__dict__['_message_id'] = 1",
        "from flwr.server.superlink.fleet import vce",
    ],
)  # fmt: skip
def test_each_way_of_reaching_in_is_seen(code: str) -> None:
    assert reaches_in(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    ["from flwr.app import Message", "import flwr.app", "'[tool.flwr.app.config]'", "'flwr run .'",
     "from flwr.clientapp.mod import LocalDpMod"],
)  # fmt: skip
def test_what_is_public_passes(code: str) -> None:
    assert not reaches_in(ast.parse(code))
