"""How long a sweep may take on this machine, from tiny federations on invented images.

No image is opened: every kind of cell (method, its parameters, models, batch size, arithmetic) runs
three tiny federations inline, which differ in epochs and in images. What of a round's time belongs
to a client, to an image, to an image's epoch and to evaluation is then scaled by the cell's own
numbers.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedhet.data.folder import ImageFolder
from fedhet.data.partition_file import count_clients
from fedhet.data.sources import Synthetic, find_source
from fedhet.errors import RunFailedError, UserError
from fedhet.experiments.grid import Cell
from fedhet.files import read_jsonl
from fedhet.node.site import DEFAULT_CLIENTS
from fedhet.records.run_folder import RunFolder
from fedhet.runtime.inline import run
from fedhet.runtime.launch import Launch
from fedhet.schema import RunConfig

EXTENTS = {  # images, classes
    "digits": (1797, 10), "cifar10": (60_000, 10), "cifar100": (60_000, 100),
    "fashion-mnist": (70_000, 10),
}  # fmt: skip
BATCHES = 2  # of training images per probed client
# What of a configuration says how long a step takes; all else is the probe's own.
KEPT = (
    "method", "params", "image_size", "batch_size", "optimizer", "weight_decay", "grad_clip",
    "augment", "precision", "threads", "device", "evaluate_before", "aggregation",
)  # fmt: skip


@dataclass(frozen=True)
class Guess:
    """Seconds of a cell from its first round to its last, or None and why."""

    seconds: float | None
    reason: str = ""


@dataclass(frozen=True)
class Cost:
    """Seconds of one process: a client's round, a training image's round and epoch, a held one."""

    client: float
    image: float
    epoch: float
    held: float

    def of(self, config: RunConfig, images: int, clients: int) -> float:
        """Seconds of a whole cell whose data set has that many images."""
        sampled = config.cohort(clients)
        share = config.split[0] / sum(config.split)
        trained = images * share * sampled / clients
        per_image = self.image + self.epoch * config.local_epochs
        # Only those are evaluated again that took part since; at the end all have been once.
        rest = 1 - sampled / clients
        again = config.rounds / config.evaluate_every * (1 - rest**config.evaluate_every)
        evaluated = again + rest**config.rounds
        return config.rounds * (
            sampled * self.client + trained * per_image
        ) + evaluated * self.held * images * (1 - share)


@dataclass(frozen=True)
class Probed:
    """Seconds of a round without evaluation and of one with it; images that each took."""

    plain: float
    evaluated: float
    trained: int
    held: int


def extent(config: RunConfig) -> tuple[int, int]:
    """Images and classes of a cell's data set, by its name or the names of its files.

    Raises UserError where they are not here to be counted.
    """
    if config.dataset in EXTENTS:
        return EXTENTS[config.dataset]
    source = find_source(
        config.dataset, data_path=config.data_path, seed=config.seed, downloads=Path()
    )
    if not isinstance(source, ImageFolder | Synthetic):
        raise UserError(f"dataset '{config.dataset}': nothing but its own code counts its images")
    images, classes = source.extent()
    if classes < 2 or images < classes:
        raise UserError(
            f"data-path '{config.data_path}': {images} images of {classes} classes are too few: "
            "expected <class>/<image>"
        )
    return images, classes


def guess(cells: Iterable[Cell]) -> list[Guess]:
    """How long each cell takes in one process, or with all that Ray would start for it."""
    costs: dict[str, Cost] = {}
    return [_guess(cell.config, costs) for cell in cells]


def _guess(config: RunConfig, costs: dict[str, Cost]) -> Guess:
    try:
        images, classes = extent(config)
        clients = config.clients or DEFAULT_CLIENTS
        if config.partition == "file" and not config.clients:
            clients = count_clients(config.partition_file)
        probe = _probe(config, classes)
        key = repr(sorted(probe.flat().items(), key=lambda pair: pair[0]))
        if key not in costs:
            costs[key] = _measure(probe)
    except (UserError, RunFailedError) as error:
        return Guess(None, str(error))
    together = config.processes(clients) if config.engine == "ray" else 1
    return Guess(costs[key].of(config, images, clients) / together)


def _probe(config: RunConfig, classes: int) -> RunConfig:
    """The smallest federation with the cell's method, models and arithmetic."""
    models = tuple(dict.fromkeys(config.models))
    images = max(2 * classes, BATCHES * config.batch_size) * len(models) * 5 // 4
    kept = {key: getattr(config, key) for key in KEPT}
    return RunConfig().model_copy(
        update=kept | {
            "dataset": f"synthetic:{images}x{classes}", "clients": len(models), "models": models,
            "partition": "dirichlet", "alpha": 1e6, "rounds": 3, "local_epochs": 1,
            "evaluate_every": 3, "engine": "inline", "keep_state": False,
        }
    )  # fmt: skip


def _measure(probe: RunConfig) -> Cost:
    """Costs from the probe, from it with two epochs, and from it with twice the images."""
    _, images, classes = probe.dataset.replace("x", ":").split(":")
    larger = {"dataset": f"synthetic:{2 * int(images)}x{classes}"}
    once = _rounds(probe)
    twice = _rounds(probe.model_copy(update={"local_epochs": 2}))
    double = _rounds(probe.model_copy(update=larger))
    more = double.trained - once.trained
    both = max(0.0, double.plain - once.plain) / more  # of an image: its round and its one epoch
    epoch = min(both, max(0.0, twice.plain - once.plain) / once.trained)
    client = max(0.0, once.plain - both * once.trained) / probe.clients
    held = max(0.0, double.evaluated - double.plain) / double.held
    return Cost(client, both - epoch, epoch, held)


def _rounds(config: RunConfig) -> Probed:
    """A warm round that is not evaluated, and the last one, which is."""
    with tempfile.TemporaryDirectory() as folder:
        config = config.model_copy(update={"out": folder})
        made = RunFolder.create(config, "probe")
        run(Launch(config, made), lambda rounds: None)
        _, plain, evaluated = (float(record["seconds"]) for record in read_jsonl(made.rounds))
        lines = made.partition.read_text(encoding="utf-8").splitlines()[1:]
        trained = sum(int(n) for line in lines for n in line.split(",")[1:])
        images = int(config.dataset.replace("x", ":").split(":")[1])
        return Probed(plain, evaluated, trained, images - trained)
