"""Run folders and sweeps written by hand, as a run and a sweep write them."""

import json
from pathlib import Path
from typing import Any

import yaml
from helpers.written_runs import round_line

from fedhet.config.load import build_config
from fedhet.files import csv_text
from fedhet.records.formats import CLIENT_COLUMNS, OTHER


def line(number: int, **changes: Any) -> str:
    """A line of ``rounds.jsonl``."""
    own = {"seconds": 2.0, "uplink_bytes": 1000, "downlink_bytes": 3000}
    return round_line(number, 10.0 * number, **own | changes)


def failure(client: str, reason: str) -> dict[str, str]:
    return {"client": client, "reason": reason}


def scores(*rows: tuple[int, str, float]) -> str:
    """``clients.csv``: round, client and accuracy."""
    more = [""] * (len(CLIENT_COLUMNS) - 4)
    table = [[r, client, "cnn-1", r, accuracy, *more] for r, client, accuracy in rows]
    return csv_text([[*CLIENT_COLUMNS, OTHER], *table])


def begin(path: Path, rounds: int = 4, **changes: Any) -> Path:
    """A run folder in which no round has ended."""
    (path / "checkpoint").mkdir(parents=True)
    config = build_config({"method": "fedssa", "clients": 2, "rounds": rounds, **changes}).flat()
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    identity = {"experiment": "x", "config": config}
    (path / "checkpoint" / "run.json").write_text(json.dumps(identity))
    (path / "partition.csv").write_text("client,a,b\n0,3,0\n1,2,2\n")
    return path


def end(path: Path, rounds: int, status: str = "completed", reason: str = "") -> None:
    """Its summary."""
    summary = {
        "status": status, "reason": reason, "rounds": rounds, "method": "fedssa",
        "test_accuracy_mean": 10.0 * rounds, "run_sha256": "ab",
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary))


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
