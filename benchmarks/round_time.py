"""Seconds per round of a real FedSSA run against the bare loop of the same moment.

Bare rounds are measured before and after the run, so that drift of a shared machine meets both;
the first rounds of each (imports, first touches) are warm-up and left out.

    python -m benchmarks.round_time --setting n10 [--cifar10 FOLDER_OR_ZIP]
"""

import argparse

from benchmarks.bare_loop import measure
from benchmarks.common import emit, median, run_fedhet, settings

WARM_UP = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=["n10", "n100"], default="n10")
    parser.add_argument("--cifar10", default="", help="image folder or zip; default: synthetic")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    overrides = settings(chosen.setting, chosen.cifar10, f"precision={chosen.precision}")
    half = max(3, chosen.rounds // 2)
    bare = measure(overrides, half)
    lines = run_fedhet([*overrides, f"rounds={chosen.rounds + WARM_UP}"])
    bare += measure(overrides, half)
    rounds = [line["seconds"] for line in lines[WARM_UP:]]
    emit(
        "round_time", setting=chosen.setting, precision=chosen.precision, rounds=len(rounds),
        seconds_per_round=median(rounds), bare_seconds_per_round=median(bare),
        ratio=round(median(rounds) / median(bare), 3), target=1.08,
    )  # fmt: skip


if __name__ == "__main__":
    main()
