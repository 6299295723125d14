"""Sizes of the house against their limits: lines, modules, circles, what an inline round enters.

    python -m benchmarks.house            # exit code 1 if a limit is exceeded, or can be lowered
    python -m benchmarks.house --lower    # write numbers that are lower today into limits.json

Files are counted as `git ls-files` lists them. A run of one client and two rounds is followed by
`sys.setprofile`; a round is what lies between two calls of `configure_train`, and its depth the
largest number of the product's frames on the stack. The last line is JSON.
"""

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from benchmarks.common import emit
from fedhet.cli.app import execute

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("fedhet", "strategies", "clients")
OWN = tuple(f"{ROOT / name}{os.sep}" for name in PRODUCT)  # not an environment inside the checkout
GOALS = {
    "lines of the product": 28_000,
    "lines of tests": 18_000,
    "lines of benchmarks": 1_600,
    "modules": 110,
    "lines of the longest file": 700,
    "classes of one name": 0,
    "import circles": 0,
    "files of a round": 40,
    "functions of a round": 350,
    "frames of a round": 25,
}
LIMITS = Path(__file__).with_name("limits.json")  # where a goal is not reached yet
SMALL = (
    "method=fedssa", "dataset=synthetic:40x4", "clients=1", "models=cnn-5", "rounds=2",
    "local-epochs=1", "engine=inline",
)  # fmt: skip


def files(*tops: str) -> list[Path]:
    """Return the Python and JavaScript files below these folders that git lists."""
    words = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", *tops]
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    paths = [ROOT / name for name in listed if name.endswith((".py", ".js"))]
    return [path for path in paths if path.is_file()]


def lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_bytes().count(b"\n")


def trees() -> dict[str, ast.Module]:
    """Return the product's modules by the names that they are imported by, parsed."""
    parsed = {}
    for path in files(*PRODUCT):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "fedhet" else ("fedhet", *parts)
        if path.suffix == ".py":
            name = ".".join(parts).removesuffix(".__init__")
            parsed[name] = ast.parse(path.read_text(encoding="utf-8"))
    return parsed


def classes_twice(modules: dict[str, ast.Module]) -> list[str]:
    """Return the names of public classes that two modules define."""
    names = Counter(
        node.name
        for tree in modules.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )
    return sorted(name for name, count in names.items() if count > 1)


def imported(tree: ast.AST, modules: dict[str, ast.Module]) -> Iterator[str]:
    """Yield the modules that one imports anywhere, inside functions and for types as well."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else str(node.module)
        else:
            yield from imported(node, modules)


def circles(modules: dict[str, ast.Module]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others.

    The package itself hands out the names of its modules when they are asked for; it is left out.
    """
    number = {name: i for i, name in enumerate(sorted(modules.keys() - {"fedhet"}))}
    arrows = [
        (number[name], number[other])
        for name, tree in modules.items()
        for other in imported(tree, modules)
        if {name, other} <= set(number)
    ]
    ends = [[arrow[side] for arrow in arrows] for side in (0, 1)]
    graph = coo_matrix(([1] * len(arrows), ends), shape=(len(number), len(number)))
    _, group = connected_components(graph, directed=True, connection="strong")
    names = [[n for n in number if group[number[n]] == one] for one in range(group.max() + 1)]
    return [circle for circle in names if len(circle) > 1]


class Followed:
    """The product's functions that the first round of a run enters, and its deepest stack."""

    def __init__(self) -> None:
        self.codes: set[Any] = set()
        self.starts = self.deepest = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OWN):
            return
        self.starts += code.co_name == "configure_train"
        if self.starts != 1:
            return
        if code.co_name not in {"<lambda>", "<genexpr>", "<module>"}:
            self.codes.add(code)
        depth, above = 0, frame
        while above is not None:
            depth += above.f_code.co_filename.startswith(OWN)
            above = above.f_back  # type: ignore[assignment]
        self.deepest = max(self.deepest, depth)


def follow() -> Followed:
    """Return what the round of an inline run enters, once everything is imported."""
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
    return followed


def main() -> int:
    """Count, print, and return 1 if a number is above its limit, or below one above its goal."""
    modules, followed, product = trees(), follow(), files(*PRODUCT)
    twice, tied = classes_twice(modules), circles(modules)
    longest = max((*product, *files("tests", "benchmarks")), key=lines)
    python = [path for path in files("fedhet") if path.suffix == ".py"]
    values = (
        sum(map(lines, product)), sum(map(lines, files("tests"))),
        sum(map(lines, files("benchmarks"))), len(python),
        lines(longest), len(twice), len(tied),
        len({code.co_filename for code in followed.codes}), len(followed.codes), followed.deepest,
    )  # fmt: skip
    now = dict(zip(GOALS, values, strict=True))
    limits = GOALS | json.loads(LIMITS.read_text(encoding="utf-8"))
    if "--lower" in sys.argv[1:]:
        limits = {name: max(GOALS[name], min(limits[name], now[name])) for name in GOALS}
        above = {name: limit for name, limit in limits.items() if limit > GOALS[name]}
        LIMITS.write_text(json.dumps(above, indent=1) + "\n", encoding="utf-8")
    wrong = []
    for name, goal in GOALS.items():
        limit, note = limits[name], ""
        if now[name] > limit:
            note = "exceeded"
        elif limit > max(goal, now[name]):
            note = "lower its limit: python -m benchmarks.house --lower"
        wrong += [name] * bool(note)
        print(f"{name:26} {now[name]:7,}   limit {limit:7,}   goal {goal:7,}   {note}".rstrip())
    print(f"longest file: {longest.relative_to(ROOT)}")
    for what, names in (("classes of one name", [twice]), ("import circle", tied)):
        for group in names:
            if group:
                print(f"{what}: {', '.join(group)}")
    emit("house", wrong=wrong, **now)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
