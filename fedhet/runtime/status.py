"""``fedhet status``: who is there and what runs, from the SuperLink and from the run folders."""

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhet.files import read_jsonl
from fedhet.runtime.control_api import Control, Run


def collect(control: Control) -> dict[str, Any]:
    """Nodes and runs; ``nodes`` know more where the newest run's folder can be read here."""
    runs = control.runs()
    told = [(run, _told(run)) for run in runs]
    latest = next((what for _, what in told if what), {})
    clients = latest.get("clients", {})
    nodes = [
        {
            "name": node.name,
            "node": str(node.id),
            "status": node.status,
            **clients.get(node.name, {}),
        }
        for node in sorted(control.nodes(), key=lambda node: node.name)
    ]
    return {
        "nodes": nodes,
        "runs": [
            {
                "run": str(run.id),
                "status": run.status,
                "started": run.started,
                "method": run.config.get("method"),
                "folder": run.folder,
                **{key: value for key, value in what.items() if key != "clients"},
            }
            for run, what in told
        ],
    }


def _told(run: Run) -> dict[str, Any]:
    """What a run folder says about the run and each of its clients; empty where there is none."""
    folder = Path(run.folder) if run.folder else None
    if folder is None or not folder.is_dir():
        return {}
    records = read_jsonl(folder / "rounds.jsonl") if (folder / "rounds.jsonl").exists() else []
    failures = Counter(f["client"] for record in records for f in record["failures"])
    clients: dict[str, dict[str, Any]] = {}
    for row in _rows(folder / "partition.csv"):
        images = sum(int(n) for key, n in row.items() if key != "client")
        clients[row["client"]] = {"images": images}
    for row in _rows(folder / "clients.csv"):
        known = clients.setdefault(row["client"], {})
        known |= {"model": row["model"], "last_round": int(row["generation"])}
        known["test_accuracy"] = float(row["test_accuracy"] or "nan")
    for client, known in clients.items():
        known["failures"] = failures[client]
    last: Mapping[str, Any] = records[-1] if records else {}
    return {
        "clients": clients,
        "round": last.get("round", 0),
        "rounds": run.config.get("rounds"),
        "test_accuracy_mean": last.get("test_accuracy_mean"),
        "failures": sum(failures.values()),
    }


def _rows(path: Path) -> list[dict[str, str]]:
    """Lines of a table; one that is being written is left out."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]
