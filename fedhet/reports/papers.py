"""The papers' numbers, and which of them belong to a setting and an arm."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedhet.reading.structured import read_yaml

FILE = Path(__file__).with_name("papers.yaml")


@dataclass(frozen=True)
class Printed:
    """One number of a paper in percent, or None where it says that training failed."""

    accuracy: float | None
    source: str  # paper, arXiv id and table
    row: str = ""  # what the paper calls an ablation


@lru_cache
def content() -> dict[str, Any]:
    """``papers.yaml`` of this package."""
    return read_yaml(FILE)


def method_names() -> dict[str, str]:
    """Methods with the names that the papers give them, in the papers' order."""
    return dict(content()["methods"])


def conditions() -> str:
    """Under what the papers' numbers were measured, in words."""
    return str(content()["conditions"])


def printed(
    method: str, keys: Mapping[str, Any], where: Mapping[str, Any], models: list[str]
) -> Printed | None:
    """The paper's number for an arm; None if no paper has it.

    ``keys`` are the method's own keys off their defaults; ``where`` holds data, clients, fraction
    and classes-per-client.
    """
    if where not in content()["columns"]:
        return None
    column = content()["columns"].index(where)
    for table in content()["tables"]:
        for row in table["rows"]:
            same = (row["method"], row.get("keys", {})) == (method, dict(keys))
            if same and table["models"] == models:
                paper = content()["sources"][row["source"]]
                source = f"{paper['title']}, arXiv {paper['arxiv']}, {row['where']}"
                return Printed(row["values"][column], source, row.get("name", ""))
    return None


def targets(data: str, clients: int) -> list[float]:
    """Accuracies whose price the papers compare, percent."""
    for entry in content()["targets"]:
        if entry["data"] == data and entry.get("clients", clients) == clients:
            return [float(value) for value in entry["values"]]
    return []
