"""Peak memory of all processes of a run together (PSS, so that shared pages count once).

python -m benchmarks.memory [--cifar10 FOLDER_OR_ZIP] [--clients 10 100 1000]
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.common import COMMON, command, emit


def total_pss(process: psutil.Process) -> int:
    """Bytes of a process and all its descendants."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def peak(words: list[str]) -> int:
    """Largest total seen while a command lasts, in bytes."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watched, highest = psutil.Process(process.pid), 0
    while process.poll() is None:
        try:
            highest = max(highest, total_pss(watched))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.5)
    if process.wait():
        raise SystemExit("the run failed")
    return highest


def main() -> None:
    """Measure and print one line per number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar10", default="", help="image folder or zip, for N = 10 and 100")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    chosen = parser.parse_args()
    first = 0
    for clients in chosen.clients:
        real = chosen.cifar10 and clients <= 100
        data = (
            ["dataset=image-folder", f"data-path={chosen.cifar10}"]
            if real
            else ["dataset=synthetic:60000"]
        )
        keys = [*COMMON, *data, f"clients={clients}", f"fraction={10 / clients}", "rounds=3"]
        with tempfile.TemporaryDirectory() as out:
            bytes_ = peak(command(Path(out), [*keys, "local-epochs=1", "start-timeout=600"]))
        first = first or bytes_
        emit(
            "memory", clients=clients, data="cifar10" if real else "synthetic",
            peak_mebibytes=round(bytes_ / 2**20), ratio_to_first=round(bytes_ / first, 2),
            target=1.3,
        )  # fmt: skip


if __name__ == "__main__":
    main()
