"""People with a phone and a watch each: real processes with files of their own, and a simulation.

Every client of an NPZ of signals is a ``fedhet node --data FILE.npz`` with its own model behind
``fedhet server`` with TLS, keys and the fence; the run must end with the bytes of the simulation on
one file of all these clients. Prints one line a method.

    python -m benchmarks.sensors NPZ [--people 3] [--methods fedssa] [--rounds 6] [--disturb]
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import emit
from benchmarks.sites import PATIENCE, Deployment, compare
from fedhet.engines.signals import interruptible

COLUMNS = ("subject", "device")
PHONE = ("conv1d-1", "conv1d-2", "conv1d-3")
WATCH = ("conv1d-4", "conv1d-5")


def lay_out(npz: Path, people: int, out: Path) -> tuple[list[str], list[str]]:
    """A file for each client below ``out`` and ``all.npz``; returns their names and the classes."""
    with np.load(npz, allow_pickle=False) as arrays:
        named = {key: arrays[key] for key in ("x", "y", *COLUMNS)}
    first = np.unique(named["subject"])[:people]
    kept = np.isin(named["subject"], first)
    named = {key: array[kept] for key, array in named.items()}
    out.mkdir()
    np.savez(out / "all.npz", **named)
    owner = np.char.add(np.char.add(named["subject"], "-"), named["device"])
    sites = [str(name) for name in np.unique(owner)]
    for site in sites:
        np.savez(out / f"{site}.npz", **{key: array[owner == site] for key, array in named.items()})
    return sites, [str(name) for name in np.unique(named["y"])]


def main() -> None:
    """Measure and print; a signal ends everything that was started."""
    with interruptible():
        _main()


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("npz", type=Path)
    parser.add_argument("--people", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["fedssa"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--disturb", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sites, classes = lay_out(chosen.npz, chosen.people, folder / "sites")
        models = [(PHONE if k % 2 == 0 else WATCH)[k // 2 % 2] for k in range(len(sites))]
        place = Deployment(
            folder,
            dict(zip(sites, models, strict=True)),
            lambda site: ("--data", f"sites/{site}.npz"),
        )
        try:
            for method in chosen.methods:
                config = {
                    "method": method, "dataset": "signals", "clients": len(sites), "scale": 1000,
                    "classes": ",".join(classes), "rounds": chosen.rounds, "local-epochs": 2,
                    "batch-size": 16, "round-timeout": PATIENCE, "start-timeout": PATIENCE,
                }  # fmt: skip
                more = {
                    "data-path": str(folder / "sites" / "all.npz"), "partition": "natural",
                    "site": ",".join(COLUMNS), "models": models,
                }  # fmt: skip
                emit("sensors", **compare(place, config, more, disturbed=chosen.disturb))
        finally:
            place.stop()


if __name__ == "__main__":
    main()
