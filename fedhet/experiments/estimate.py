"""How long a sweep may take on this machine, from tiny federations on invented images.

No image is opened: every kind of cell (method, its parameters, models, batch size, arithmetic) runs
three tiny federations inline, which differ in epochs and in images. What of a round's time belongs
to a client, to an image, to an image's epoch and to evaluation is then scaled by the cell's own
numbers. What one process does at a time is what is estimated.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhet.data.folder import ImageFolder
from fedhet.data.sources import Synthetic, find_source
from fedhet.errors import UserError
from fedhet.experiments.grid import Cell
from fedhet.files import read_jsonl
from fedhet.records.run_folder import RunFolder
from fedhet.runtime.inline import run
from fedhet.runtime.launch import Launch
from fedhet.schema import RunConfig

EXTENTS = {  # images, classes
    "digits": (1797, 10), "cifar10": (60_000, 10), "cifar100": (60_000, 100),
    "fashion-mnist": (70_000, 10),
}  # fmt: skip
BATCHES = 2  # of training images per probed client
UNCOUNTED = 10  # clients taken for a partition file that has not been read


def extent(config: RunConfig) -> tuple[int, int] | None:
    """Images and classes of a cell's data set, by its name or the names of its files.

    None where they are not here to be counted, or only the data set's own code could.
    """
    if config.dataset in EXTENTS:
        return EXTENTS[config.dataset]
    try:
        source = find_source(
            config.dataset, data_path=config.data_path, seed=config.seed, downloads=Path()
        )
        return source.extent() if isinstance(source, ImageFolder | Synthetic) else None
    except UserError:
        return None


@dataclass(frozen=True)
class Cost:
    """Seconds of one process: a client's round, a training image's round and epoch, a held one."""

    client: float
    image: float
    epoch: float
    held: float

    def of(self, config: RunConfig, images: int) -> float:
        """Seconds of a whole cell whose data set has that many images."""
        clients = config.clients or UNCOUNTED
        sampled = config.cohort(clients)
        share = config.split[0] / sum(config.split)
        trained = images * share * sampled / clients
        per_image = self.image + self.epoch * config.local_epochs
        evaluations = -(-config.rounds // config.evaluate_every)
        return config.rounds * (
            sampled * self.client + trained * per_image
        ) + evaluations * self.held * images * (1 - share)


def seconds(cells: Iterable[Cell]) -> list[float | None]:
    """Estimated seconds of each cell in one process; None where the number of images is unknown."""
    costs: dict[str, Cost] = {}
    found: list[float | None] = []
    for cell in cells:
        size = extent(cell.config)
        if size is None:
            found.append(None)
            continue
        images, classes = size
        probe = _probe(cell.config, classes)
        key = repr(sorted(probe.flat().items(), key=lambda pair: pair[0]))
        if key not in costs:
            costs[key] = _measure(probe, classes)
        found.append(costs[key].of(cell.config, images))
    return found


def _probe(config: RunConfig, classes: int) -> RunConfig:
    """The smallest federation with the cell's method, models and arithmetic."""
    models = tuple(dict.fromkeys(config.models))
    images = max(2 * classes, BATCHES * config.batch_size) * len(models) * 5 // 4
    changes: dict[str, Any] = {
        "dataset": f"synthetic:{images}x{classes}", "clients": len(models), "fraction": 1.0,
        "partition": "dirichlet", "alpha": 1e6, "partition_file": "", "data_path": "",
        "classes": (), "split": (8, 1, 1), "rounds": 3, "local_epochs": 1, "models": models,
        "model_assignment": "modulo", "seed": 0, "partition_seed": 0, "engine": "inline",
        "state_dir": "", "name": "", "evaluate_every": 3, "keep_state": False, "min_replies": 1,
    }  # fmt: skip
    return config.model_copy(update=changes)


def _measure(probe: RunConfig, classes: int) -> Cost:
    """Costs from the probe, from it with two epochs, and from it with twice the images."""
    images = int(probe.dataset.partition(":")[2].partition("x")[0])
    larger = {"dataset": f"synthetic:{2 * images}x{classes}"}
    once, _ = _rounds(probe)
    twice, _ = _rounds(probe.model_copy(update={"local_epochs": 2}))
    double, evaluated = _rounds(probe.model_copy(update=larger))
    trained, held = images * 0.8, 2 * images * 0.2
    both = max(0.0, double - once) / trained  # of an image: its round and its one epoch
    epoch = min(both, max(0.0, twice - once) / trained)
    client = max(0.0, once - both * trained) / probe.clients
    return Cost(client, both - epoch, epoch, max(0.0, evaluated - double) / held)


def _rounds(config: RunConfig) -> tuple[float, float]:
    """Seconds of a warm round that is not evaluated, and of one that is."""
    with tempfile.TemporaryDirectory() as folder:
        config = config.model_copy(update={"out": folder})
        made = RunFolder.create(config, "probe")
        run(Launch(config, made), lambda rounds: None)
        _, plain, evaluated = (float(record["seconds"]) for record in read_jsonl(made.rounds))
        return plain, evaluated
