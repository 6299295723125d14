"""What a sweep costs beside its training: overhead of a cell, and how busy the cores are.

Overhead of a cell is the time from its process's start to its end, less the seconds of its rounds;
busy is the share of all workers' time that was spent in rounds.

    python -m benchmarks.sweep [--cells 40] [--rounds 60] [--workers 2]
    python -m benchmarks.sweep --preset PRESET [--workers 2] [--out DIR] [KEY=VALUE ...]

The second form measures what is not ended yet of a real sweep, and leaves its cells in DIR (sweep).
"""

import argparse
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.common import emit, median
from fedhet.cli import execute
from fedhet.cli.sweep import Options, open_sweep
from fedhet.errors import UserError, VerifyError
from fedhet.reading.structured import read_jsonl
from fedhet.sweeps.grid import read_cells
from fedhet.sweeps.job import DIVERGED, FAILED, FINISHED, Job
from fedhet.sweeps.sweep import Sweep, default_workers

PRESET = {
    "method": "standalone", "dataset": "synthetic:6000x10", "clients": 10, "models": ["cnn-5"],
    "local-epochs": 1, "batch-size": 64, "evaluate-every": 10,
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=40, help="without --preset")
    parser.add_argument("--rounds", type=int, default=60, help="without --preset")
    parser.add_argument("--workers", type=int, default=default_workers(1))
    parser.add_argument("--preset", default="")
    parser.add_argument("--out", type=Path, default=Path("sweep"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    if given.preset:
        try:
            _, found = open_sweep(given.preset, given.overrides, Options(given.out))
            if mixed := found.mixed():
                raise UserError(f"{mixed}: figures of different code are not mixed")
            measure(found, given.workers)
        except UserError as error:
            raise SystemExit(f"error: {error}") from None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "preset.yaml"
        grid = {"seed": list(range(given.cells)), "partition-seed": [0]}
        path.write_text(yaml.safe_dump(PRESET | {"rounds": given.rounds, "grid": grid}))
        cells = read_cells(path, given.overrides)
        measure(Sweep.open("benchmark", Path(folder) / "out", cells, execute), given.workers)


def training_seconds(job: Job) -> float:
    """Seconds of the rounds that a cell has finished; 0 before the first, or if it is damaged."""
    try:
        return float(sum(r["seconds"] for r in read_jsonl(job.folder / "rounds.jsonl")))
    except (VerifyError, OSError, KeyError, TypeError):
        return 0.0  # the sweep itself says what is wrong with this cell


def measure(found: Sweep, workers: int) -> None:
    """Run what is not ended yet of a sweep, and print what that cost beside its training."""
    ends: dict[str, float] = {}

    def note(now: Sweep) -> None:
        for job in now.jobs:
            if job.started and job.state in {FINISHED, DIVERGED}:
                ends.setdefault(job.cell.name, time.monotonic() - job.started)

    if all(job.state in {FINISHED, DIVERGED} for job in found.jobs):
        raise SystemExit(f"nothing to measure: all {len(found.jobs)} cells had ended before")
    before = {job.cell.name: training_seconds(job) for job in found.jobs}
    started = time.monotonic()
    found.run(workers, note)
    wall = time.monotonic() - started
    if not ends:
        reasons = [f"{job.cell.name}: {job.reason}" for job in found.jobs if job.state == FAILED]
        raise SystemExit("nothing to measure: " + "; ".join(reasons[:1]))
    trained = {
        job.cell.name: training_seconds(job) - before[job.cell.name]
        for job in found.jobs
        if job.cell.name in ends
    }
    emit(
        "sweep",
        cells=len(ends),
        workers=workers,
        cell_seconds=median(list(trained.values())),
        overhead_seconds=median([ends[name] - seconds for name, seconds in trained.items()]),
        overhead_target=4,
        busy=round(sum(trained.values()) / (workers * wall), 3),
        busy_target=0.95,
    )


if __name__ == "__main__":
    main()
