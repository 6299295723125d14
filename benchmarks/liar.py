"""One liar of ten under each rule of aggregation: FedSSA on digits, accuracy of all ten clients.

Client 3 trains honestly and sends its header rows times 100, within max-update-norm. Every client
owns five of the ten classes, so that a class has about five owners and trim=0.2 cuts one row at
each end.

    python -m benchmarks.liar [--rounds 6] [--seeds 0 1 2] [--rules mean trimmed-mean median]
"""

import argparse
import contextlib
import tempfile

import numpy as np
from flwr.app import Message

from benchmarks.common import emit
from fedhet.config import build_config
from fedhet.errors import RunFailedError
from fedhet.protocol.messages import arrays_of, to_record
from fedhet.records.run_folder import RunFolder
from fedhet.testing import simulate

LIAR, TIMES = 3, 100
RULES = ["mean", "trimmed-mean", "median"]


def lie(node: int, message: Message, reply: Message) -> Message:
    """The liar's rows, 100 times too long."""
    if node == LIAR and reply.content.array_records:
        classes, *rows = arrays_of(reply)
        content = reply.content
        content["arrays"] = to_record([classes, *(TIMES * row for row in rows)])
        return Message(content, reply_to=message)
    return reply


def accuracy(rule: str, rounds: int, seed: int, *, lying: bool) -> tuple[float, int]:
    """Mean test accuracy of the last round, percent, and how many replies were left out.

    Under a liar honest clients may fail as well: their headers overflow.
    """
    with tempfile.TemporaryDirectory() as out:
        values = {
            "method": "fedssa", "dataset": "digits", "clients": 10, "classes-per-client": 5,
            "models": "cnn-5", "rounds": rounds, "local-epochs": 1, "batch-size": 16,
            "aggregation": rule, "seed": seed, "out": out,
        }  # fmt: skip
        config = build_config(values)
        folder = RunFolder.create(config, rule)
        with contextlib.suppress(RunFailedError):
            simulate(config, tamper=lie if lying else None, folder=folder)
        last = folder.read_rounds()
        return last[-1]["test_accuracy_mean"], sum(r["failed"] for r in last)


def main() -> None:
    """Measure and print: a line per rule and seed, and one for every rule's mean over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rules", nargs="+", default=RULES, choices=RULES)
    chosen = parser.parse_args()
    for rule in chosen.rules:
        moved = []
        for seed in chosen.seeds:
            honest, _ = accuracy(rule, chosen.rounds, seed, lying=False)
            lied, failures = accuracy(rule, chosen.rounds, seed, lying=True)
            moved.append(lied - honest)
            emit(
                "liar", aggregation=rule, rounds=chosen.rounds, seed=seed,
                honest=round(honest, 2), with_liar=round(lied, 2), moved=round(moved[-1], 2),
                failures=failures,
            )  # fmt: skip
        spread = round(float(np.std(moved, ddof=1)), 2) if len(moved) > 1 else None
        emit(
            "liar", aggregation=rule, rounds=chosen.rounds, seeds=len(moved),
            moved=round(float(np.mean(moved)), 2), std=spread, target=1.0,
        )  # fmt: skip


if __name__ == "__main__":
    main()
