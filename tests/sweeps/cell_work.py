"""What cells do in the tests of the sweep's machinery, importable by their processes."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from helpers.written_runs import round_line, write_clients

from fedhet.config.load import load_config


def pretend(words: list[str]) -> int:
    """Leave a finished run's folder after half a second; LG-FedAvg breaks before it has one."""
    time.sleep(0.5)
    folder = Path(words[words.index("--out") + 1]) / words[-1]
    if folder.name.startswith("lg_fedavg"):
        sys.exit("no such thing")
    folder.mkdir()
    shutil.copy(words[1], folder / "config.yaml")
    (folder / "rounds.jsonl").write_text(round_line(1, 1.0))
    write_clients(folder, [[1.0]])
    ending = {"status": "completed", "reason": "", "rounds": 1}
    (folder / "summary.json").write_text(json.dumps(ending))
    return 0


def refuse(_words: list[str]) -> int:
    """Say why it cannot go on, and end."""
    print("error: it is another reason today", file=sys.stderr)
    return 3


def killed(_words: list[str]) -> int:
    """Say something, and be killed as by a machine without memory."""
    print("round 3/5", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def silent(_words: list[str]) -> int:
    """End without a word."""
    return 7


def sleep(_words: list[str]) -> int:
    """Never end by itself."""
    time.sleep(600)
    return 0


def trial(words: list[str]) -> int:
    """Leave a run whose validation accuracy is best at lr 0.01, and whose test says 0.03."""
    config = load_config(Path(words[1]))
    folder = Path(words[words.index("--out") + 1]) / words[-1]
    folder.mkdir(parents=True)
    good = 90.0 - 1000 * abs(config.lr - 0.01) + config.seed - getattr(config.params, "lam", 0)
    loss = None if config.lr == 0.003 and config.method == "standalone" else 1.0
    first = round_line(1, 1.0, val_accuracy_mean=99.0)
    last = round_line(2, 1000 * config.lr, loss, val_accuracy_mean=good)
    (folder / "rounds.jsonl").write_text(first + last)
    (folder / "config.yaml").write_text(Path(words[1]).read_text())
    write_clients(folder, [[1.0], [1000 * config.lr]])
    ending = {"status": "completed", "reason": "", "rounds": 2}
    (folder / "summary.json").write_text(json.dumps(ending))
    return 0


def broken(_words: list[str]) -> int:
    """End as a run that cannot even start."""
    return 1
