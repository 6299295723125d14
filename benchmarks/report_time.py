"""Seconds of `fedhet report` over generated records of many settings.

    python -m benchmarks.report_time [--settings 17] [--methods 4] [--seeds 5] [--rounds 100]

The run folders are copies of small runs whose lines are repeated; nothing of them is trained. The
report is written once before, for the imports of matplotlib and its cache of fonts.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.common import emit
from fedhet.engines.system import script
from fedhet.testing import simulate, small

METHODS = ("standalone", "fedssa", "lg_fedavg", "fedproto")


def trained(place: Path, method: str) -> Path:
    """Return the folder of a run of one round."""
    keys = {"image_size": 16, "dataset": "synthetic:120x4", "rounds": 1, "keep_state": False}
    return simulate(small(place / method, method=method, name=method, **keys))[0].path


def written(run: Path, place: Path, setting: int, seed: int, rounds: int) -> None:
    """Copy a run as one of another setting and seed, with as many rounds."""
    folder = place / f"{run.name}-{setting}-{seed}"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    changes = {"seed": seed, "local-epochs": setting + 1, "rounds": rounds, "name": folder.name}
    (folder / "config.yaml").write_text(yaml.safe_dump(config | changes))
    (line,) = (folder / "rounds.jsonl").read_text().splitlines()
    lines = [json.dumps(json.loads(line) | {"round": r}) for r in range(1, rounds + 1)]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    head, *rows = (folder / "clients.csv").read_text().splitlines()
    several = [f"{r},{row.partition(',')[2]}" for r in range(1, rounds + 1) for row in rows]
    (folder / "clients.csv").write_text("\n".join([head, *several]) + "\n")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"rounds": rounds, "seed": seed}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=17)
    parser.add_argument("--methods", type=int, default=len(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        (place / "runs").mkdir()
        for method in METHODS[: chosen.methods]:
            run = trained(place, method)
            for setting in range(chosen.settings):
                for seed in range(chosen.seeds):
                    written(run, place / "runs", setting, seed, chosen.rounds)
        folders = sorted(map(str, (place / "runs").iterdir()))

        def report(name: str, given: list[str]) -> float:
            started = time.perf_counter()
            words = [script("fedhet"), "report", *given, "--out", str(place / name), "--no-models"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
            return time.perf_counter() - started

        report("warm-up", folders[: chosen.seeds])
        seconds = report("report", folders)
    emit(
        "report_time", settings=chosen.settings, runs=len(folders), rounds=chosen.rounds,
        seconds=round(seconds, 1), target=15,
    )  # fmt: skip


if __name__ == "__main__":
    main()
