"""Time of a secure sum, against the same run without one.

    python -m benchmarks.secure_sum masks [--clients 10 100] [--words 5110 465659]
    python -m benchmarks.secure_sum rounds [--clients 10 100] [--rounds 6] [--repeats 2]
    python -m benchmarks.secure_sum nodes [--nodes 8] [--rounds 8] [--methods fedssa fedmrl]

`masks` measures a sum without messages: one client's masking and its answer, with its notes, the
server's sum with nobody gone and with one. `rounds` measures a simulated round of FedSSA in each
mode, the modes in turn. `nodes` measures a round of warm SuperNodes, and the CPU of a client's part
of it.
"""

import argparse
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.common import COMMON, emit, median, run_fedhet
from benchmarks.nodes import federation, run
from fedhet.protocol.messages import Reply
from fedhet.site.state import FileStore
from fedhet.sums.client import Member
from fedhet.sums.masks import Cohort, SumTerms, Survivors
from fedhet.sums.server import Attempt

MODES = ("off", "masked")
WARM_UP = 1


def masks(clients: int, words: int) -> None:
    """Time one attempt without messages; print its line."""
    names = [f"{k:05d}" for k in range(clients)]
    folder = TemporaryDirectory()
    stores = {name: FileStore(Path(folder.name) / name, sync=False) for name in names}
    members = {name: Member(store, "run", name, SumTerms()) for name, store in stores.items()}
    keys = {name: member.key(None) for name, member in members.items()}
    for member in members.values():
        member.introduce(keys, None)
    reply = Reply({}, {}, [vector := np.arange(words, dtype=np.uint32)])
    figures: dict[str, float] = {}
    for gone in (0, 1):
        attempt, alive = gone + 1, names[: clients - gone]
        cohort = Cohort(tuple(names), attempt, clients)
        collector = Attempt(cohort, words, SumTerms(), round_=1)
        spent = []
        for name in alive:
            started = time.perf_counter()
            upload = members[name].mask(1, cohort, b"", reply).arrays
            spent.append(time.perf_counter() - started)
            collector.take(name, upload)
        figures["mask_milliseconds"] = median([1e3 * seconds for seconds in spent])
        collector.close()
        spent.clear()
        for name in alive:
            survivors = Survivors(tuple(alive), attempt, collector.boxes_for(name).tobytes())
            started = time.perf_counter()
            answer = members[name].open_shares(1, survivors)
            spent.append(time.perf_counter() - started)
            collector.answer(name, answer)
        figures[f"answer_milliseconds_{gone}_gone"] = median([1e3 * seconds for seconds in spent])
        started = time.perf_counter()
        found = collector.total()
        spent = [1e3 * (time.perf_counter() - started)]
        figures[f"server_milliseconds_{gone}_gone"] = round(spent[0], 1)
        if (found != vector * np.uint32(len(alive))).any():
            raise SystemExit("the sum is wrong")
    emit("secure_sum masks", clients=clients, words=words, **figures)


def mode_keys(mode: str) -> list[str]:
    """Return the overrides of a mode."""
    return [] if mode == "off" else [f"secure-sum={mode}"]


def rounds(clients: int, count: int, repeats: int) -> None:
    """Time a simulated round of FedSSA in every mode; print its line."""
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
    )  # fmt: skip


def nodes(count: int, method: str, length: int) -> None:
    """Time a round of warm nodes in every mode; print a line for each."""
    with federation(count) as (home, join):
        join()
        for mode in MODES:
            keys = [*mode_keys(mode), "max-images=400"]
            figures = run(home, method, count, length, keys, mode)
            emit("secure_sum nodes", method=method, nodes=count, mode=mode, **figures)


def chosen_from() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["masks", "rounds", "nodes"], nargs="+")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--words", type=int, nargs="+", default=[5_110, 465_659])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=0, help="of a run; 0: as above")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=[])
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    chosen = chosen_from()
    if "masks" in chosen.what:
        for clients, words in product(chosen.clients, chosen.words):
            masks(clients, words)
    if "rounds" in chosen.what:
        for clients in chosen.clients:
            rounds(clients, chosen.rounds or 6, chosen.repeats)
    if "nodes" in chosen.what:
        for method in chosen.methods or ["fedssa", "fedmrl"]:
            nodes(chosen.nodes, method, chosen.rounds or 8)


if __name__ == "__main__":
    main()
