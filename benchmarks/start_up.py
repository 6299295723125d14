"""Seconds from `fedhet run` to the first finished round (digits, N = 10).

python -m benchmarks.start_up [--engine ray|inline] [--repeats 5]
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.common import command, emit, median
from fedhet.files import read_jsonl


def once(engine: str) -> float:
    """One run, watched from outside."""
    with tempfile.TemporaryDirectory() as out:
        words = command(
            Path(out),
            ["method=fedssa", "clients=10", "rounds=2", "local-epochs=1", f"engine={engine}"],
        )
        started = time.perf_counter()
        process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        rounds = Path(out) / "run" / "rounds.jsonl"
        while process.poll() is None and not read_jsonl(rounds):
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        if process.wait():
            raise SystemExit("the run failed")
        return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", choices=["ray", "inline"], default="ray")
    asked = parser.parse_args()
    seconds = [once(asked.engine) for _ in range(asked.repeats)]
    target = {"ray": 9, "inline": 5}[asked.engine]
    figures = {"engine": asked.engine, "repeats": len(seconds), "target": target}
    emit("start_up", **figures, seconds=median(seconds), fastest=min(seconds))


if __name__ == "__main__":
    main()
