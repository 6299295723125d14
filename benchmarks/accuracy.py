r"""Accuracy, traffic, FLOPs and time of methods on CIFAR-10, one line per run.

The two settings are those of docs/results.md: N=10, C=100 %, 1 epoch, 10 rounds, and N=100,
C=10 %, 10 epochs, 30 rounds; batch 64, SGD with lr 0.01 and momentum 0.9, CNN-1 to CNN-5.

    python -m benchmarks.accuracy --setting n10 --cifar10 FOLDER_OR_ZIP --partition CSV \
        --methods standalone fedssa --seeds 0 1 2 --out DIR
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.common import COMMON, SETTINGS, command, emit
from fedhet.registry import METHODS

ROUNDS = {"n10": 10, "n100": 30}
KEYS = (
    "test_accuracy_mean", "best_validation_test_accuracy_mean", "test_accuracy_std",
    "test_accuracy_p10", "uplink_floats_per_client_round", "downlink_floats_per_client_round",
    "wall_seconds", "run_sha256",
)  # fmt: skip


def main() -> None:
    """Run what is not there yet, and print every run's line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=list(ROUNDS), default="n10")
    parser.add_argument("--cifar10", required=True, help="image folder or zip")
    parser.add_argument("--partition", required=True, help="CSV path,client,split")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--keys", nargs="*", default=[], help="more key=value, e.g. mu=0.2")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for method in chosen.methods:
        for seed in chosen.seeds:
            name = "-".join([chosen.setting, method, f"s{seed}", *chosen.keys]).replace("=", "_")
            summary = chosen.out / name / "summary.json"
            if not summary.exists():
                overrides = [
                    *COMMON[1:], *SETTINGS[chosen.setting], *chosen.keys, f"method={method}",
                    f"seed={seed}", f"rounds={ROUNDS[chosen.setting]}", "dataset=image-folder",
                    f"data-path={chosen.cifar10}", "partition=file",
                    f"partition-file={chosen.partition}", "keep-state=false",
                ]  # fmt: skip
                words = command(chosen.out, overrides, name)
                subprocess.run(words, check=True, stdout=sys.stderr)
            done = json.loads(summary.read_text())
            if done["status"] != "completed":
                raise SystemExit(f"{summary.parent} {done['status']}: {done['reason']}")
            replies = round(done["fraction"] * done["clients"]) * done["rounds"]
            gflops = done["train_flops_total"] / replies / 1e9
            emit(
                "accuracy", setting=chosen.setting, method=method, seed=seed,
                keys=chosen.keys, gflops_per_client_round=round(gflops, 1),
                **{key: done[key] for key in KEYS},
            )  # fmt: skip


if __name__ == "__main__":
    main()
