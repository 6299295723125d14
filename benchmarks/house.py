"""Sizes of the house against their budgets: lines, modules, and what one inline round enters.

    python -m benchmarks.house

Files are counted as `git ls-files` lists them. A run of one client and two rounds is followed by
`sys.setprofile`: "run" is the whole command after its imports, "round" what lies between two calls
of `configure_train`. The last line is JSON. The exit code is 1 if a budget is exceeded.
"""

import ast
import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.common import emit
from fedhet.cli.app import execute

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("fedhet", "strategies", "clients")
OWN = tuple(f"{ROOT / name}{os.sep}" for name in PRODUCT)  # not an environment inside the checkout
ROOMS = {  # lines and modules of a room, lines of its tests
    "engines": (900, 6, 600),
    "deploy": (2200, 8, 500),
    "sweeps": (1200, 5, 800),
    "data": (3200, 11, 1900),
    "reports": (2200, 9, 900),
    "watch": (700, 4, 400),
    "records": (1300, 7, 600),
    "cli": (1500, 7, 1000),
    "config": (1200, 5, 300),
    "sums": (2000, 8, 1300),
    "site": (1100, 6, 800),
    "protocol": (1600, 6, 700),
    "training": (800, 6, 400),
    "models": (1250, 7, 600),
    "export": (700, 5, 450),
    "beside": (1500, 10, 700),
}
TESTS = {"strategies": 700, "methods": 2700, "network": 1300}
WHOLE = {"product": 28_000, "benchmarks": 1_600, "tests": 16_000}
MODULES, CLASSES_TWICE = 110, 0
ROUND = {"files": 60, "functions": 450, "parses": 1}
SMALL = (
    "method=fedssa", "dataset=synthetic:40x4", "clients=1", "models=cnn-5", "rounds=2",
    "local-epochs=1", "engine=inline",
)  # fmt: skip


def files() -> list[Path]:
    """Return the Python and JavaScript files that git lists."""
    words = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    found = [Path(name) for name in listed if name.endswith((".py", ".js"))]
    return [path for path in found if (ROOT / path).is_file()]


def lines(paths: list[Path]) -> int:
    """Return the number of lines of these files."""
    return sum((ROOT / path).read_bytes().count(b"\n") for path in paths)


def room(path: Path) -> str:
    """Return the room of a product file or of a test."""
    if path.parts[0] in {"strategies", "clients"}:
        return path.parts[0]
    return path.parts[1] if len(path.parts) > 2 else "beside"  # noqa: PLR2004


def classes_twice() -> list[str]:
    """Return the names of classes that two modules of the product define."""
    found: Counter[str] = Counter()
    for path in files():
        if path.parts[0] in PRODUCT and path.suffix == ".py":
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            found.update({node.name for node in tree.body if isinstance(node, ast.ClassDef)})
    return sorted(name for name, count in found.items() if count > 1 and name[0] != "_")


class Followed:
    """Code objects of the product that a run enters, whole and between two rounds' starts."""

    def __init__(self) -> None:
        self.run: Counter[Any] = Counter()
        self.round: Counter[Any] = Counter()
        self.starts = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OWN):
            return
        if code.co_name == "configure_train":
            self.starts += 1
        self.run[code] += 1
        if self.starts == 1:
            self.round[code] += 1


def follow() -> dict[str, int]:
    """Return how many files and functions a run and a round enter, and how often keys are read."""
    followed = Followed()
    with tempfile.TemporaryDirectory() as out:
        words = ["run", "quickstart", *SMALL, "--out", out, "--json"]
        with contextlib.redirect_stdout(io.StringIO()):
            if execute([*words, "--name", "imports"]):
                raise SystemExit("the run failed")
            sys.setprofile(followed)
            try:
                execute([*words, "--name", "followed"])
            finally:
                sys.setprofile(None)

    def entered(codes: Counter[Any]) -> tuple[int, int]:
        own = [c for c in codes if c.co_name not in {"<lambda>", "<genexpr>", "<module>"}]
        return len({code.co_filename for code in own}), len(own)

    parses = sum(n for code, n in followed.run.items() if code.co_name == "build_config")
    run, single = entered(followed.run), entered(followed.round)
    return {
        "run_files": run[0], "run_functions": run[1], "round_files": single[0],
        "round_functions": single[1], "parses": parses,
    }  # fmt: skip


def rows(paths: list[Path]) -> Iterator[tuple[str, int, int]]:
    """Yield what is counted, how much there is now, and its budget."""
    product = [path for path in paths if path.parts[0] in PRODUCT]
    tests = [path for path in paths if path.parts[0] == "tests"]
    sized: Callable[[list[Path], str], list[Path]] = lambda found, name: [  # noqa: E731
        path for path in found if room(path) == name
    ]
    for name, (most, modules, tested) in ROOMS.items():
        own = sized(product, name)
        yield f"{name}: lines", lines(own), most
        yield f"{name}: modules", len([p for p in own if p.suffix == ".py"]), modules
        yield f"{name}: lines of tests", lines(sized(tests, name)), tested
    for name, most in TESTS.items():
        yield f"tests of {name}", lines(sized(tests, name)), most
    yield (
        "strategies and clients: lines",
        lines([p for p in product if p.parts[0] != "fedhet"]),
        5000,
    )
    yield "modules of fedhet", sum(p.parts[0] == "fedhet" for p in product), MODULES
    yield "product: lines", lines(product), WHOLE["product"]
    yield "tests: lines", lines(tests), WHOLE["tests"]
    yield "benchmarks: lines", lines([p for p in paths if p.parts[0] == "benchmarks"]), 1600


def main() -> int:
    """Count, print, and return 1 if a budget is exceeded."""
    entered, twice = follow(), classes_twice()
    table = list(rows(files()))
    table += [("classes of one name", len(twice), CLASSES_TWICE)]
    table += [
        ("files of a round", entered["round_files"], ROUND["files"]),
        ("functions of a round", entered["round_functions"], ROUND["functions"]),
        ("parses of the configuration", entered["parses"], ROUND["parses"]),
    ]
    for name, now, budget in table:
        print(f"{name:40} {now:7,} / {budget:7,}{'' if now <= budget else '   exceeded'}")
    if twice:
        print("classes of one name:", ", ".join(twice))
    whole = f"{entered['run_files']} files, {entered['run_functions']} functions"
    print(f"a whole inline run enters {whole}")
    over = [name for name, now, budget in table if now > budget]
    emit("house", exceeded=over, **entered, **{name: now for name, now, _ in table if ":" in name})
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
