"""Seconds from Enter to the first round of ``fedhet run quickstart rounds=3``, and to its end.

python -m benchmarks.start_up [--engine processes|inline|ray ...] [--repeats 5]

Each line has the medians of one engine, counted from Enter: ``imports`` (of a process that does
nothing else), ``partition`` (the data is partitioned and checked, the run folder made),
``first_round`` (its line is in ``rounds.jsonl``) and ``whole``. Compiled files are kept and one run
goes first that is not counted, as on a user's machine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import emit, median
from fedhet.engines.system import script

TARGETS = {"processes": 4.0, "inline": 3.0, "ray": 15.0}  # of the first round
WHOLE = 10.0
MARKS = {"partition": "config.yaml", "first_round": "rounds.jsonl"}  # files that say so


def once(engine: str) -> dict[str, float]:
    """Return the seconds of one run, watched from outside."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fedhet.engines.session"], check=True, **quiet)  # type: ignore[call-overload]
    seconds = {"imports": time.perf_counter() - started}
    with tempfile.TemporaryDirectory() as out:
        words = ["run", "quickstart", "rounds=3", f"engine={engine}", "--out", out, "--name", "run"]
        started = time.perf_counter()
        process = subprocess.Popen([script("fedhet"), *words], **quiet)  # type: ignore[call-overload]
        while process.poll() is None:
            for mark, name in MARKS.items():
                file = Path(out, "run", name)
                if mark not in seconds and file.exists() and file.stat().st_size:
                    seconds[mark] = time.perf_counter() - started
            time.sleep(0.005)
        seconds["whole"] = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"the run with engine={engine} failed")
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", nargs="+", choices=TARGETS, default=["processes", "inline"])
    asked = parser.parse_args()
    for engine in asked.engine:
        once(engine)
        runs = [once(engine) for _ in range(asked.repeats)]
        figures = {mark: median([run[mark] for run in runs]) for mark in runs[0]}
        targets = {"target_first_round": TARGETS[engine], "target_whole": WHOLE}
        emit("start_up", engine=engine, repeats=len(runs), **figures, **targets)


if __name__ == "__main__":
    main()
