"""Seconds from `fedhet run` to the first finished round (digits, N = 10).

python -m benchmarks.start_up [--repeats 5]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import emit, median
from fedhet.results import read_jsonl


def once() -> float:
    """One run, watched from outside."""
    with tempfile.TemporaryDirectory() as out:
        preset = Path(out) / "quick.yaml"
        preset.write_text("method: fedssa\nclients: 10\nrounds: 2\nlocal-epochs: 1\n")
        command = [str(Path(sys.executable).with_name("fedhet")), "run", str(preset)]
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--out", out, "--name", "run"],
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
    seconds = [once() for _ in range(parser.parse_args().repeats)]
    emit("start_up", repeats=len(seconds), seconds=median(seconds), target=15)


if __name__ == "__main__":
    main()
