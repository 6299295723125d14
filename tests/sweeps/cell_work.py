"""What cells do in the tests, importable by their processes, and what they leave behind."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from helpers.written_runs import round_line, write_clients, write_run, write_summary

from fedhet.config.load import load_config
from fedhet.records.run_folder import source_digest, versions


def leave(out, cell, *, status="completed", reason="", rounds=2, loss=0.5, torch=None, silent=()):
    """A run folder as a cell leaves it; nobody replied in the ``silent`` rounds."""
    nobody = {"replied": 0, "failures": [{"client": "0", "reason": "no node is connected"}]}
    told = [(None, nobody) if r in silent else (loss, {}) for r in range(1, rounds + 1)]
    lines = [round_line(r, 50.0, loss, **more) for r, (loss, more) in enumerate(told, 1)]
    summary = {"status": status, "reason": reason, "rounds": rounds} if status else {}
    folder = write_run(out / cell.name, cell.config.flat(), lines, [[50.0]], **summary)
    made = {"source_sha256": source_digest(), "versions": versions()}
    made["versions"] |= {"torch": torch} if torch else {}
    (folder / "environment.json").write_text(json.dumps(made))


def pretend(words: list[str]) -> int:
    """Leave a finished run's folder; LG-FedAvg breaks before it has one."""
    if words[0] == "resume":
        folder = Path(words[1])
    else:
        folder = Path(words[words.index("--out") + 1]) / words[-1]
        if folder.name.startswith("lg_fedavg"):
            sys.exit("no such thing")
        folder.mkdir()
        shutil.copy(words[1], folder / "config.yaml")
    (folder / "rounds.jsonl").write_text(round_line(1, 1.0))
    write_clients(folder, [[1.0]])
    write_summary(folder, status="completed", rounds=1)
    return 0


def refuse(_words: list[str]) -> int:
    print("error: it is another reason today", file=sys.stderr)
    return 3


def killed(_words: list[str]) -> int:
    """Say something, and be killed as by a machine without memory."""
    print("round 3/5", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def silent(_words: list[str]) -> int:
    return 7


def sleep(_words: list[str]) -> int:
    time.sleep(600)
    return 0


def trial(words: list[str]) -> int:
    """Leave a run whose validation accuracy is best at lr 0.01, and whose test says 0.03."""
    config = load_config(Path(words[1]))
    good = 90.0 - 1000 * abs(config.lr - 0.01) + config.seed - getattr(config.params, "lam", 0)
    loss = None if config.lr == 0.003 and config.method == "standalone" else 1.0
    first = round_line(1, 1.0, val_accuracy_mean=99.0)
    last = round_line(2, 1000 * config.lr, loss, val_accuracy_mean=good)
    folder = Path(words[words.index("--out") + 1]) / words[-1]
    tests = [[1.0], [1000 * config.lr]]
    write_run(folder, config.flat(), [first, last], tests, status="completed", rounds=2)
    return 0
