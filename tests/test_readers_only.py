"""Nothing parses a file or a message but :mod:`fedhet.reading`; what else does, and why."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [p for top in ("fedhet", "strategies", "clients") for p in (ROOT / top).rglob("*.py")]
# Calls that make values out of bytes or text, by the module that they are of.
PARSES = {
    "json": {"load", "loads", "JSONDecoder"},
    "yaml": {"load", "safe_load", "full_load", "unsafe_load", "load_all", "safe_load_all",
             "compose", "parse", "scan"},
    "csv": {"reader", "DictReader"},
    "tomllib": {"load", "loads"},
    "numpy": {"load", "loadtxt", "genfromtxt", "fromfile", "memmap"},
    "numpy.lib.format": {"open_memmap", "read_array"},
    "torch": {"load"},
    "safetensors": {"safe_open", "deserialize"},
    "safetensors.torch": {"load", "load_file", "load_model"},
    "safetensors.numpy": {"load", "load_file"},
    "pydantic_core": {"from_json"},
    "pyarrow.parquet": {"ParquetFile", "read_table", "ParquetDataset"},
    "pandas": {"read_csv", "read_parquet", "read_json", "read_excel"},
}  # fmt: skip
NEVER = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
# What is not fedhet's own to bound, or is no stranger's.
EXCEPT = {
    ("fedhet/data/cache.py", "json.loads"): "this user's own cache; names of files need not be "
    "UTF-8, and come back as they were",
    ("fedhet/data/cache.py", "numpy.load"): "this user's own cache, without pickles",
    ("fedhet/data/cache.py", "numpy.lib.format.open_memmap"): "this user's own cache",
    ("fedhet/protocol/messages.py", "numpy.lib.format.read_array"): "Flower's arrays, whose head "
    "and length are checked first",
    ("fedhet/data/decode.py", "json.load"): "what this process wrote to its own child",
}


def calls(path: Path) -> set[str]:
    """Parsing functions that a file names, however it imports them, as ``module.function``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                found |= {alias.name} & NEVER
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} & NEVER
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            module, _, function = _whole(node, known).rpartition(".")
            if function in PARSES.get(module, ()):
                found.add(f"{module}.{function}")
    return found


def _whole(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_whole(node.value, known)}.{node.attr}"
    return ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_readers_parse(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    left = {call for call in calls(path) if (name, call) not in EXCEPT}
    assert not left or name.startswith("fedhet/reading/"), f"{name}: {sorted(left)}"


def test_every_exception_is_one_and_the_test_sees_what_it_forbids(tmp_path: Path) -> None:
    for name, call in EXCEPT:
        assert call in calls(ROOT / name)
    one = tmp_path / "x.py"
    one.write_text(
        "import json as j, numpy as np, pickle\nfrom csv import DictReader as D\n"
        "import numpy.lib.format\nj.loads('')\nD([])\nnp.lib.format.open_memmap('')\n"
        "json.dumps(1)\n"
    )
    assert calls(one) == {
        "json.loads", "csv.DictReader", "numpy.lib.format.open_memmap", "pickle",
    }  # fmt: skip
    readers = set().union(*(calls(p) for p in (ROOT / "fedhet" / "reading").glob("*.py")))
    assert {"yaml.load", "csv.reader", "tomllib.loads", "pydantic_core.from_json"} <= readers
