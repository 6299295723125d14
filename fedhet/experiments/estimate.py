"""How long a sweep may take on this machine, from tiny federations on invented images.

No data set is touched: every kind of cell (method, its parameters, models, batch size, arithmetic)
runs two rounds inline on a few random images, and the second one's seconds per image are scaled by
the cell's images, epochs and rounds. What one process does at a time is what is estimated.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedhet.experiments.grid import Cell
from fedhet.files import read_jsonl
from fedhet.records.run_folder import RunFolder
from fedhet.runtime.inline import run
from fedhet.runtime.launch import Launch
from fedhet.schema import RunConfig

POOLS = {"digits": 1797, "cifar10": 60_000, "cifar100": 60_000, "fashion-mnist": 70_000}
BATCHES = 2  # of training images per probed client


def pool(config: RunConfig) -> int | None:
    """Images of a cell's data set as far as its name tells; None where only the files would."""
    name, _, size = config.dataset.partition(":")
    if name == "synthetic" and size:
        return int(size.partition("x")[0])
    return POOLS.get(name)


def seconds(cells: Iterable[Cell]) -> list[float | None]:
    """Estimated seconds of each cell in one process; None where the number of images is unknown."""
    probes: dict[str, float] = {}
    found: list[float | None] = []
    for cell in cells:
        images = pool(cell.config)
        if images is None:
            found.append(None)
            continue
        probe = _probe(cell.config)
        key = repr(sorted(probe.flat().items(), key=lambda pair: pair[0]))
        if key not in probes:
            probes[key] = _measure(probe)
        config = cell.config
        share = config.cohort(config.clients or 10) / (config.clients or 10)
        trained = images * share * config.local_epochs * config.split[0] / sum(config.split)
        found.append(probes[key] * trained * config.rounds)
    return found


def _probe(config: RunConfig) -> RunConfig:
    """The smallest federation with the cell's method, models and arithmetic."""
    models = tuple(dict.fromkeys(config.models))
    classes = 100 if config.dataset == "cifar100" else 10
    images = max(2 * classes, BATCHES * config.batch_size) * len(models) * 5 // 4
    changes: dict[str, Any] = {
        "dataset": f"synthetic:{images}x{classes}", "clients": len(models), "fraction": 1.0,
        "partition": "dirichlet", "alpha": 1e6, "partition_file": "", "data_path": "",
        "classes": (), "split": (8, 1, 1), "rounds": 2, "local_epochs": 1, "models": models,
        "model_assignment": "modulo", "seed": 0, "engine": "inline", "state_dir": "", "name": "",
        "evaluate_every": 1, "keep_state": False, "min_replies": 1,
    }  # fmt: skip
    return config.model_copy(update=changes)


def _measure(config: RunConfig) -> float:
    """Seconds per training image of the second round."""
    with tempfile.TemporaryDirectory() as folder:
        config = config.model_copy(update={"out": folder})
        made = RunFolder.create(config, "probe")
        run(Launch(config, made), lambda rounds: None)
        counts = (Path(folder) / made.path.name / "partition.csv").read_text().splitlines()[1:]
        images = sum(int(n) for line in counts for n in line.split(",")[1:])
        return float(read_jsonl(made.rounds)[1]["seconds"]) / max(1, images)
