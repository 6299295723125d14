"""A cell's folder as a run leaves it."""

import json

import yaml
from helpers.written_runs import round_line, write_clients

from fedhet.records.run_folder import source_digest, versions


def leave(out, cell, *, status="completed", reason="", rounds=2, loss=0.5, torch=None, silent=()):
    """A run folder as a cell leaves it; nobody replied in the ``silent`` rounds."""
    folder = out / cell.name
    folder.mkdir(parents=True)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "run.json").write_text("{}")
    offline = [{"client": "0", "reason": "no node is connected"}]
    lines = [
        round_line(r, 50.0, loss, **({"replied": 0, "failures": offline} if r in silent else {}))
        for r in range(1, rounds + 1)
    ]
    (folder / "rounds.jsonl").write_text("".join(lines))
    (folder / "config.yaml").write_text(yaml.safe_dump(cell.config.flat()))
    write_clients(folder, [[50.0]])
    if status:
        ending = {"status": status, "reason": reason, "rounds": rounds}
        (folder / "summary.json").write_text(json.dumps(ending))
    made = {
        "source_sha256": source_digest(),
        "versions": versions() | ({"torch": torch} if torch else {}),
    }
    (folder / "environment.json").write_text(json.dumps(made))
