"""``fedhet status``: who is there and what runs, from the SuperLink and from the run folders."""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhet.deploy.control_api import Control, Run
from fedhet.errors import VerifyError
from fedhet.records.formats import read_evaluations, read_partition
from fedhet.records.run_folder import RunFolder


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
    """What a run folder says about the run and each of its clients; empty where there is none.

    A line that is being written just now, or a file that is damaged, is left out.
    """
    folder = RunFolder(Path(run.folder)) if run.folder else None
    if folder is None or not folder.path.is_dir():
        return {}
    records: list[dict[str, Any]] = []
    clients: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(VerifyError, OSError):
        records = folder.read_rounds()
    with contextlib.suppress(VerifyError, OSError):
        for client, images in read_partition(folder.partition).counts.items():
            clients[client] = {"images": sum(images)}
    with contextlib.suppress(VerifyError, OSError):
        for row in read_evaluations(folder.clients):
            accuracy = math.nan if row.test_accuracy is None else row.test_accuracy
            clients.setdefault(row.client, {}).update(
                model=row.model, last_round=row.generation, test_accuracy=accuracy
            )
    failures = Counter(f["client"] for record in records for f in record["failures"])
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
