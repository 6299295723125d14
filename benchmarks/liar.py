"""One liar of ten clients on digits: what it does to the others, for every method.

Client 3 trains honestly and lies about the result in every round. Every client owns five of the ten
classes, so that a class has about five owners and trim=0.2 cuts one row at each end.

    python -m benchmarks.liar [--lie norm|grow|within] [--methods ...] [--rounds 6] [--seeds 0]
    python -m benchmarks.liar --rules mean trimmed-mean median --seeds 0 1 2
    python -m benchmarks.liar --margin [--methods ...] [--rounds 20] [--fraction 1.0]

``norm`` uploads random numbers of norm 9,999, just below max-update-norm; ``grow`` the honest
step times 9, 81, 729, ...; ``within`` the honest step times 9, which max-update-ratio lets pass. A
method's line compares the nine others with the same run in which client 3 never answers, and with
the one in which it is honest. With ``--rules`` it is FedSSA's rows times 100 under each rule of
aggregation, max-update-ratio off, and the accuracy of all ten. ``--margin`` has no liar: how near
the longest honest step comes to being left out, six clients with 7 to 22 images of 2 to 5 classes.
"""

import argparse
import contextlib
import csv
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from flwr.app import Error, Message

from benchmarks.common import emit
from fedhet.config.load import build_config
from fedhet.config.registry import METHODS
from fedhet.errors import RunFailedError
from fedhet.protocol.checks import Steps
from fedhet.protocol.messages import TRAIN, arrays_of, instruction, to_record
from fedhet.protocol.payload import Array
from fedhet.records.run_folder import RunFolder
from fedhet.testing import Tamper, simulate

LIAR, TIMES, NORM, WITHIN = 3, 100, 9_999.0, 9.0
original = Steps.odd
RULES = ["mean", "trimmed-mean", "median"]
LIES = ["norm", "grow", "within"]


@dataclass(frozen=True)
class Found:
    """What a run came to; accuracies in percent, ``out`` counts replies that were left out."""

    completed: bool
    everybody: float
    others: float
    others_out: int
    liar_out: int


def floating(array: Array) -> bool:
    """Whether an array is one that a liar of finite numbers changes."""
    return array.dtype.kind == "f" and array.size > 0


def of_norm(arrays: Sequence[Array], norm: float) -> list[Array]:
    """Random numbers in place of all floating ones, with this L2 norm together."""
    random = np.random.default_rng(0)
    new = [random.normal(size=a.shape) if floating(a) else a for a in arrays]
    squares = [np.square(a).sum() for a in new if floating(a)]
    times = norm / np.sqrt(sum(squares) or 1.0)
    return [(times * a).astype(np.float32) if floating(a) else a for a in new]


def farther(arrays: Sequence[Array], sent: Sequence[Array], times: float) -> list[Array]:
    """The step from what was sent, so many times; from nothing where shapes differ."""
    own, start = ([a for a in given if floating(a)] for given in (arrays, sent))
    same = [a.shape for a in own] == [b.shape for b in start[: len(own)]]
    began = iter(start if same else [np.zeros_like(a) for a in own])
    new = []
    for a in arrays:
        if floating(a):
            b = next(began)
            new.append(b + np.float32(times) * (a - b))
        else:
            new.append(a)
    return new


def lying(how: str) -> Tamper:
    """A tamper with client 3's replies; ``silent``: none ever comes."""

    def tamper(node: int, message: Message, reply: Message) -> Message:
        if node != LIAR or message.metadata.message_type != TRAIN:
            return reply
        if how == "silent":
            return Message(Error(code=1, reason="silent"), reply_to=message)
        if not reply.content.array_records:
            return reply
        arrays, sent, content = arrays_of(reply), arrays_of(message), reply.content
        if how == "norm":
            lie = of_norm(arrays, NORM)
        elif how == "rows":
            lie = [TIMES * a if floating(a) else a for a in arrays]
        else:
            grown = WITHIN ** (instruction(message).round if how == "grow" else 1)
            lie = farther(arrays, sent, grown)
        content["arrays"] = to_record(lie)
        return Message(content, reply_to=message)

    return tamper


def measure(how: str, rounds: int, seed: int, **keys: object) -> Found:
    """A run with client 3 as ``how`` says; empty: honest."""
    with tempfile.TemporaryDirectory() as out:
        values = {
            "dataset": "digits", "clients": 10, "models": "cnn-5", "local-epochs": 1,
            "batch-size": 16, "rounds": rounds, "seed": seed, "out": out,
        } | {key.replace("_", "-"): value for key, value in keys.items()}  # fmt: skip
        if "partition" not in values:
            values["classes-per-client"] = 5
        config = build_config(values)
        folder = RunFolder.create(config, "liar")
        completed = False
        with contextlib.suppress(RunFailedError):
            simulate(config, tamper=lying(how) if how else None, folder=folder)
            completed = True
        records = folder.read_rounds()
        failed = [f["client"] for record in records for f in record["failures"]]
        with folder.clients.open() as file:  # the last row of a client is its present accuracy
            last = {row["client"]: float(row["test_accuracy"]) for row in csv.DictReader(file)}
    others = [accuracy for client, accuracy in last.items() if client != str(LIAR)]
    liar_out = failed.count(str(LIAR))
    everybody = records[-1]["test_accuracy_mean"]
    return Found(completed, everybody, float(np.mean(others)), len(failed) - liar_out, liar_out)


def compare_methods(methods: Sequence[str], lie: str, rounds: int, seeds: Sequence[int]) -> None:
    """A line per method and seed."""
    for method in methods:
        for seed in seeds:
            honest, silent, lied = (
                measure(how, rounds, seed, method=method) for how in ("", "silent", lie)
            )
            emit(
                "liar", method=method, lie=lie, rounds=rounds, seed=seed,
                completed=lied.completed, others_left_out=lied.others_out,
                liar_left_out=lied.liar_out, others_honest=round(honest.others, 2),
                others_silent=round(silent.others, 2), others_lied=round(lied.others, 2),
                moved=round(lied.others - silent.others, 2), target=1.0,
            )  # fmt: skip


def compare_rules(rules: Sequence[str], rounds: int, seeds: Sequence[int]) -> None:
    """A line per rule and seed, and one for every rule's mean over seeds."""
    for rule in rules:
        moved = []
        for seed in seeds:
            keys = {"method": "fedssa", "aggregation": rule, "max_update_ratio": 0}
            honest, lied = (measure(how, rounds, seed, **keys) for how in ("", "rows"))
            moved.append(lied.everybody - honest.everybody)
            emit(
                "liar", aggregation=rule, rounds=rounds, seed=seed,
                honest=round(honest.everybody, 2), with_liar=round(lied.everybody, 2),
                moved=round(moved[-1], 2), failures=lied.others_out + lied.liar_out,
            )  # fmt: skip
        spread = round(float(np.std(moved, ddof=1)), 2) if len(moved) > 1 else None
        emit(
            "liar", aggregation=rule, rounds=rounds, seeds=len(moved),
            moved=round(float(np.mean(moved)), 2), std=spread, target=1.0,
        )  # fmt: skip


def margins(methods: Sequence[str], rounds: int, fraction: float, seeds: Sequence[int]) -> None:
    """A line per method and seed: the longest honest step, times the median and of the limit."""
    for method in methods:
        for seed in seeds:
            found: list[tuple[float, float]] = []

            def watched(steps: Steps, lengths: Mapping[str, float]) -> dict[str, str]:
                given = list(lengths.values())
                if steps.usual(given):
                    most = max(given, default=0.0)
                    found.append((most / steps.usual(given), most / steps.limit(given)))  # noqa: B023
                return original(steps, lengths)

            with patch.object(Steps, "odd", watched):
                honest = measure(
                    "", rounds, seed, method=method, dataset="synthetic:120x5", image_size=16,
                    clients=6, partition="dirichlet", models="cnn-4,cnn-5", batch_size=4,
                    fraction=fraction,
                )  # fmt: skip
            # None where no step is bounded: a method that sends none, or bounds them itself
            times, share = map(max, zip(*found, strict=True)) if found else (None, None)
            emit(
                "liar", method=method, rounds=rounds, seed=seed, fraction=fraction,
                left_out=honest.others_out + honest.liar_out,
                times_the_median=times and round(times, 2), of_the_limit=share and round(share, 3),
            )  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lie", default="norm", choices=LIES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rules", nargs="+", choices=RULES)
    parser.add_argument("--margin", action="store_true")
    parser.add_argument("--fraction", type=float, default=1.0, help="of --margin")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    chosen = parser.parse_args()
    if chosen.margin:
        margins(chosen.methods, chosen.rounds, chosen.fraction, chosen.seeds)
    elif chosen.rules:
        compare_rules(chosen.rules, chosen.rounds, chosen.seeds)
    else:
        compare_methods(chosen.methods, chosen.lie, chosen.rounds, chosen.seeds)


if __name__ == "__main__":
    main()
