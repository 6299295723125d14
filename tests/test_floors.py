"""What may import what (docs/explanation/round.md); who may reach into Flower's private parts."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.house import circles, trees

ROOT = Path(__file__).resolve().parents[1]
FLOORS = (  # from the ground up; a room imports rooms of its own floor and of those below
    {"errors", "files", "lazy", "rng", "plugins", "__version__", "HERE", "TOP"},
    {"records", "site", "protocol", "sums", "training", "models", "data"},
    {"strategies"},
    {"clients"},
    {"config", "engines", "deploy", "export", "testing", "client_app", "server_app"},
    {"sweeps", "reports", "watch"},
    {"api", "app", "cli", "__init__", "__main__"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
EVERYBODYS = "fedhet.config.schema"  # the keys of a run
CLASS_VECTORS = "class_vectors"  # the half that several methods share


def sources(*tops: str) -> list[Path]:
    return [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, with the names taken out of packages."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def test_nothing_imports_what_is_above_it() -> None:
    wrong = []
    for path in sources("fedhet", "strategies", "clients"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        here = parts[1] if parts[0] == "fedhet" else parts[0]
        for name in imports(path):
            if name.startswith("fedhet.") and not name.startswith(EVERYBODYS):
                there = name.split(".")[1]
                if FLOOR[there] > FLOOR[here]:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
                if here == "clients" and there == "strategies":
                    half = name.split(".")[2]
                    if half not in {path.stem, CLASS_VECTORS}:
                        wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    assert not list(circles(trees()))


def test_an_import_inside_a_function_has_its_reason_beside_it() -> None:
    """Ruff refuses those that no comment excuses; reading files, most processes need none."""
    bare = re.compile(r"noqa: [A-Z0-9, ]*PLC0415(?!.*  \(\S)")
    for path in sources("fedhet", "strategies", "clients"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for above, line in zip(["", *lines], lines, strict=False):
            reason = "PLC0415" in above or above.lstrip().startswith("#")  # one for several
            assert reason or not bare.search(line), f"{path.relative_to(ROOT)}: {line.strip()}"


def test_nothing_that_reads_what_others_sent_can_unpickle() -> None:
    never = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    rooms = [f"fedhet/{room}" for room in ("records", "protocol", "sums", "site", "data", "export")]
    for path in sources(*rooms, "strategies", "clients"):
        assert not {name.split(".")[0] for name in imports(path)} & never, path


def test_a_dry_run_lists_and_a_mistake_do_without_torch(tmp_path: Path) -> None:
    """It takes two seconds; only names of the form module:NAME may import it."""
    sweep, mistake = ["sweep", "paper/as-published", "--dry-run"], ["run", "fedgen", "rounds=x"]
    for words, code in ((sweep, 0), (["methods"], 0), (["keys", "fedgen"], 0), (mistake, 2)):
        program = f"import sys; from fedhet.cli.app import execute; code = execute({words}); "
        program += f"assert code == {code} and 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


PUBLIC = ("flwr.app", "flwr.serverapp.strategy", "flwr.serverapp", "flwr.clientapp.mod",
          "flwr.clientapp")  # fmt: skip
PRIVATE = ROOT / "fedhet" / "protocol" / "flower.py"
TESTED = ROOT / "tests" / "helpers" / "flower_internals.py"  # what tests alone ask of Flower
TOPS = ("fedhet", "strategies", "clients", "benchmarks", "examples", "docker", "tests")
MODULE = re.compile(r"\bflwr(?:\.[A-Za-z_]\w*)+|(?:from|import) flwr(?![.\w])")  # also in a text


def reaches_in(text: str) -> list[tuple[int, str]]:
    """Return the lines that take what is not public of Flower's, by import or in a text."""
    return [
        (number, name)
        for number, line in enumerate(text.splitlines())
        for name in MODULE.findall(line)
        if name not in PUBLIC and ("import" in line or name.rpartition(".")[0] not in PUBLIC)
    ]


def test_one_module_reaches_into_flower_and_says_why() -> None:
    for path in sources(*TOPS):
        text = path.read_text(encoding="utf-8")
        if path not in {PRIVATE, TESTED, Path(__file__).resolve()}:
            found = reaches_in(text)
            assert not found, f"{path.relative_to(ROOT)}: {found}: move it to {PRIVATE.name}"
    text = PRIVATE.read_text(encoding="utf-8")
    lines = text.splitlines()
    for number, name in reaches_in(text):
        near = lines[number - 1 : number + 2]  # above, beside, or inside its brackets
        assert any("# why:" in line for line in near) or "PROGRAMS" in near[1], name
