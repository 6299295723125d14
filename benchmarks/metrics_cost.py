"""Share of a round's seconds that the metrics beside accuracy take, on the CPU.

Rounds run in this process and the calls of ``metrics_of`` are timed.

    python -m benchmarks.metrics_cost --setting n10 [--cifar10 FOLDER_OR_ZIP]
"""

import argparse
import tempfile
import time

import torch

from benchmarks.common import config_of, emit, median, settings
from fedhet.testing import simulate
from fedhet.training import metrics


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=["n10", "n100"], default="n10")
    parser.add_argument("--cifar10", default="", help="image folder or zip; default: synthetic")
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    calls, whole = list[float](), metrics.metrics_of

    def timed(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        started = time.perf_counter()
        found = whole(logits, labels)
        calls.append(time.perf_counter() - started)
        return found

    metrics.metrics_of = timed
    with tempfile.TemporaryDirectory() as out:
        keys = [f"rounds={chosen.rounds}", f"out={out}", "engine=inline"]
        config = config_of(settings(chosen.setting, chosen.cifar10, *keys))
        seconds = [line["seconds"] for line in simulate(config)[0].read_rounds()]
    own = sum(calls[: -2 * config.clients])  # without the confusion matrices after the last round
    emit(
        "metrics_cost", setting=chosen.setting, rounds=chosen.rounds,
        seconds_per_round=median(seconds), share=round(own / sum(seconds), 5), target=0.01,
    )  # fmt: skip


if __name__ == "__main__":
    main()
