"""What a secure sum costs, in time and in accuracy, against the same without; five questions.

    python -m benchmarks.secure_sum masks [--clients 10 100] [--words 5110 465659]
    python -m benchmarks.secure_sum rounds [--clients 10 100] [--rounds 6] [--repeats 2]
    python -m benchmarks.secure_sum nodes [--nodes 8] [--rounds 8] [--methods fedssa fedmrl]
    python -m benchmarks.secure_sum accuracy [--data digits n100 n100-c10] [--methods fedssa fedmrl]
    python -m benchmarks.secure_sum noise [--data digits n100 n100-c10] [--epsilons 8 2]

Several at once share the runs that they have in common.

`masks`: the arithmetic alone, milliseconds: one client's masking and its answer, the server's sum
with nobody gone and with one. `rounds`: seconds of a simulated round of FedSSA in each mode, the
modes in turn. `nodes`: a round of warm SuperNodes, and CPU of a client's part of it. `accuracy`:
off against unmasked, whose bytes are those of masked. `noise`: accuracy at an epsilon, with each
client's own noise and with noise for the sum. Each line is one measurement.
"""

import argparse
import functools
import sys
import time
from collections.abc import Sequence
from itertools import product

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.common import COMMON, emit, median, run_fedhet
from benchmarks.nodes import federation, run
from fedhet.sums.masks import public_bytes
from fedhet.sums.member import Member, Terms
from fedhet.sums.server import Collector

MODES = ("off", "unmasked", "masked")
WARM_UP = 1
DELTA = "1e-5"
# Who has what, and a number just above every client's training images: the unit of weights, which
# make an update smaller and leave the noise as it is.
HUNDRED = ["clients=100", "classes-per-client=10", "local-epochs=1", "max-images=600"]
DATA = {
    "digits": ["dataset=digits", "clients=10", "local-epochs=1", "max-images=160"],
    "n100": [*HUNDRED, "fraction=1.0"],
    "n100-c10": [*HUNDRED, "fraction=0.1"],
}


def masks(clients: int, words: int) -> None:
    """The arithmetic of one attempt, without messages; prints its line."""
    names = [f"{k:05d}" for k in range(clients)]
    private = {name: X25519PrivateKey.generate() for name in names}
    keys = {name: public_bytes(key) for name, key in private.items()}
    members = {name: Member(name, "run", key, keys) for name, key in private.items()}
    vector = np.arange(words, dtype=np.uint32)
    figures: dict[str, float] = {}
    for gone in (0, 1):
        attempt, alive = gone + 1, names[: clients - gone]
        collector = Collector(names, words, Terms())
        spent = []
        for name in alive:
            started = time.perf_counter()
            upload = members[name].mask(1, attempt, names, b"", vector)
            spent.append(time.perf_counter() - started)
            collector.take(name, *upload)
        figures["mask_milliseconds"] = median([1e3 * seconds for seconds in spent])
        collector.close()
        spent.clear()
        for name in alive:
            boxes = collector.boxes_for(name)
            started = time.perf_counter()
            answer = members[name].unmask(1, attempt, alive, boxes)
            spent.append(time.perf_counter() - started)
            collector.answer(name, *answer)
        figures[f"answer_milliseconds_{gone}_gone"] = median([1e3 * seconds for seconds in spent])
        started = time.perf_counter()
        found = collector.total()
        figures[f"server_milliseconds_{gone}_gone"] = round(
            1e3 * (time.perf_counter() - started), 1
        )
        if (found != vector * np.uint32(len(alive))).any():
            raise SystemExit("the sum is wrong")
    emit("secure_sum masks", clients=clients, words=words, **figures)


def mode_keys(mode: str) -> list[str]:
    """Overrides of a mode."""
    return [] if mode == "off" else [f"secure-sum={mode}"]


def rounds(clients: int, count: int, repeats: int) -> None:
    """A simulated round of FedSSA in every mode; prints its line."""
    setting = [*COMMON, "dataset=synthetic:60000", f"clients={clients}", "local-epochs=1"]
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(repeats):
        for mode in MODES:
            lines = run_fedhet([*setting, *mode_keys(mode), f"rounds={count + WARM_UP}"])
            found[mode] += [line["seconds"] for line in lines[WARM_UP:]]
    seconds = {mode: median(times) for mode, times in found.items()}
    emit(
        "secure_sum rounds", clients=clients, rounds=count * repeats, **seconds,
        masked_to_off=round(seconds["masked"] / seconds["off"], 3),
        masked_to_unmasked=round(seconds["masked"] / seconds["unmasked"], 3), target=1.15,
    )  # fmt: skip


def nodes(count: int, method: str, length: int) -> None:
    """A round of warm nodes in every mode; prints a line for each."""
    with federation("warm", count) as (home, join):
        join()
        for mode in MODES:
            keys = [*mode_keys(mode), "max-images=400"]
            figures = run(home, method, count, length, keys, mode)
            emit("secure_sum nodes", method=method, nodes=count, mode=mode, **figures)


def setting_of(data: str, path: str, more: Sequence[str]) -> list[str]:
    """Overrides of a data set: digits, or an image folder such as CIFAR-100 among 100 clients."""
    images = [] if data == "digits" else ["dataset=synthetic:60000x100"]
    if images and path:
        images = ["dataset=image-folder", f"data-path={path}"]
    return [*DATA[data], *images, "lr=0.01", "batch-size=64", "evaluate-every=5", *more]


@functools.cache
def accuracy_of(overrides: tuple[str, ...], mode: str = "off") -> float | None:
    """Mean test accuracy of all clients after the last round, percent; each run once.

    None where the run failed, which noise can do: what is sent down outgrows a site's limit.

    In a sum as well each client says its own: a sum of accuracies has only the round's clients,
    which at C = 10 % are others than the ones that are compared with.
    """
    keys = mode_keys(mode) and [*mode_keys(mode), "sum-metrics=false"]
    try:
        last = run_fedhet([*overrides, *keys])[-1]
    except SystemExit as failed:
        print(failed, file=sys.stderr)
        return None
    return round(float(last["test_accuracy_mean"]), 2)


def accuracy(setting: Sequence[str], data: str, method: str, length: int) -> None:
    """Off against unmasked; prints its line."""
    keys = (*setting, f"method={method}", f"rounds={length}")
    off, summed = accuracy_of(keys), accuracy_of(keys, "unmasked")
    if off is None or summed is None:
        raise SystemExit(f"a run of {method} on {data} failed")
    emit(
        "secure_sum accuracy", data=data, method=method, rounds=length, off=off, unmasked=summed,
        difference=round(summed - off, 2), target=0.2,
    )  # fmt: skip


def noise(setting: Sequence[str], data: str, method: str, length: int, epsilon: float) -> None:
    """Own noise against noise for the sum, and neither; prints its line."""
    keys = (*setting, f"method={method}", f"rounds={length}")
    private = (*keys, "dp-clip=1.0", f"dp-epsilon={epsilon:g}", f"dp-delta={DELTA}")
    none, own, common = accuracy_of(keys), accuracy_of(private), accuracy_of(private, "unmasked")
    emit(
        "secure_sum noise", data=data, method=method, rounds=length, epsilon=epsilon, delta=DELTA,
        without_noise=none, own_noise=own, noise_for_the_sum=common,
    )  # fmt: skip


def chosen_from() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = ["masks", "rounds", "nodes", "accuracy", "noise"]
    parser.add_argument("what", choices=what, nargs="+")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--words", type=int, nargs="+", default=[5_110, 465_659])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=0, help="of a run; 0: as above")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--data", choices=list(DATA), nargs="+", default=["digits"])
    parser.add_argument("--cifar100", default="", help="image folder or zip; default: synthetic")
    parser.add_argument("--keys", nargs="+", default=[], help="further overrides")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0, 2.0])
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    chosen = chosen_from()
    data = [(one, setting_of(one, chosen.cifar100, chosen.keys)) for one in chosen.data]
    if "masks" in chosen.what:
        for clients, words in product(chosen.clients, chosen.words):
            masks(clients, words)
    if "rounds" in chosen.what:
        for clients in chosen.clients:
            rounds(clients, chosen.rounds or 6, chosen.repeats)
    if "nodes" in chosen.what:
        for method in chosen.methods or ["fedssa", "fedmrl"]:
            nodes(chosen.nodes, method, chosen.rounds or 8)
    if "accuracy" in chosen.what:
        for (name, setting), method in product(data, chosen.methods or ["fedssa", "fedmrl"]):
            accuracy(setting, name, method, chosen.rounds or 15)
    if "noise" in chosen.what:
        methods = chosen.methods or ["fedssa", "fedproto", "pfedes"]
        for (name, setting), method, epsilon in product(data, methods, chosen.epsilons):
            noise(setting, name, method, chosen.rounds or 15, epsilon)


if __name__ == "__main__":
    main()
