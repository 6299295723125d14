"""How long a sweep may take here and what it keeps, from tiny federations on invented examples.

No image is opened, and a file of other examples once, for their shape: every kind of cell (method,
its parameters, models, batch size, arithmetic) runs three tiny federations inline, which differ in
epochs and in images. What of a round's time belongs to a client, to an image, to an image's epoch
and to evaluation is then scaled by the cell's own numbers.
"""

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedhet.data.cache import Dataset, open_dataset
from fedhet.data.folder import ImageFolder
from fedhet.data.inputs import DATASETS, SYNTHETIC
from fedhet.data.partition_file import count_clients
from fedhet.data.sources import find_source
from fedhet.data.synthetic import Synthetic, SyntheticKind, invented
from fedhet.errors import RunFailedError, UserError
from fedhet.node.site import DEFAULT_CLIENTS, load_partition, reading_of
from fedhet.reading.structured import read_jsonl
from fedhet.records import register
from fedhet.records.run_folder import RunFolder
from fedhet.records.states import states_of
from fedhet.records.tables import read_partition
from fedhet.runtime.inline import run
from fedhet.runtime.launch import Launch
from fedhet.schema import RunConfig
from fedhet.sweeps.grid import Cell

T = TypeVar("T")
Unknown = UserError | RunFailedError  # why nobody can say
EXTENTS = {  # images, classes
    "digits": (1797, 10), "cifar10": (60_000, 10), "cifar100": (60_000, 100),
    "fashion-mnist": (70_000, 10),
}  # fmt: skip
BATCHES = 2  # of training images per probed client
GENERATIONS = 2  # of a client's state that stay: the last, and the one before it if there was one
# What of a configuration says how long a step takes; all else is the probe's own.
KEPT = (
    "method", "params", "image_size", "small_model", "representation", "batch_size", "optimizer",
    "weight_decay", "grad_clip", "augment", "precision", "threads", "device", "evaluate_before",
    "aggregation",
)  # fmt: skip


@dataclass(frozen=True)
class Guess:
    """Seconds of a cell from its first round to its last, or None and why; bytes that it keeps."""

    seconds: float | None
    reason: str = ""
    kept: float = 0.0


@dataclass(frozen=True)
class Cost:
    """Seconds of one process: a client's round, a training image's round and epoch, a held one.

    ``state`` are the bytes of a client's state, in the mean over the models.
    """

    client: float
    image: float
    epoch: float
    held: float
    state: float = 0.0

    def of(self, config: RunConfig, images: int, clients: int) -> float:
        """Seconds of a whole cell whose data set has that many images."""
        sampled = config.cohort(clients)
        share = config.split[0] / sum(config.split)
        trained = images * share * sampled / clients
        per_image = self.image + self.epoch * config.local_epochs
        # First everybody is evaluated, or all that took part; then those that took part since.
        every = min(config.evaluate_every, config.rounds)
        whole, rest = divmod(config.rounds, every)
        absent = 1 - sampled / clients
        new = 1 - absent**every
        first = 1.0 if config.evaluate_all else new
        evaluated = first + (whole - 1) * new + (1 - absent**rest)
        return config.rounds * (
            sampled * self.client + trained * per_image
        ) + evaluated * self.held * images * (1 - share)

    def kept(self, config: RunConfig, clients: int) -> float:
        """Bytes of the clients' states that a whole cell leaves; the never sampled have none."""
        if not config.keep_state or config.state_backend != "file":
            return 0.0
        rounds, chosen = config.rounds, config.cohort(clients) / clients
        never = (1 - chosen) ** rounds
        once = rounds * chosen * (1 - chosen) ** (rounds - 1)
        return self.state * clients * (GENERATIONS * (1 - never - once) + once)


@dataclass(frozen=True)
class Probed:
    """Seconds of a round without evaluation and of one with it; images that each took.

    ``states`` are the bytes of all clients' states after the last.
    """

    plain: float
    evaluated: float
    trained: int
    held: int
    states: int = 0


def opened(config: RunConfig) -> Dataset | None:
    """Data whose shape only its file tells, through the cache; None for images and invented."""
    if config.dataset not in DATASETS:
        return None
    return open_dataset(
        config.dataset,
        data_path=config.data_path,
        classes=config.classes,
        reading=reading_of(config),
    )


def extent(config: RunConfig) -> tuple[int, int]:
    """Images and classes of a cell's data set, by its name or the names of its files.

    Of chosen ``classes`` each is taken to have as many images as any. Raises UserError where they
    are not here to be counted.
    """
    images, classes = _whole(config)
    chosen = len(config.classes) or classes
    return images * min(chosen, classes) // classes, chosen


def _whole(config: RunConfig) -> tuple[int, int]:
    if config.dataset in EXTENTS:
        return EXTENTS[config.dataset]
    data = opened(config)
    if data is not None:
        return len(data.labels), len(data.classes)
    source = find_source(
        config.dataset, data_path=config.data_path, seed=config.seed, downloads=Path()
    )
    if not isinstance(source, ImageFolder | Synthetic | SyntheticKind):
        raise UserError(f"dataset '{config.dataset}': nothing but its own code counts its images")
    images, classes = source.extent()
    if classes < 2 or images < classes:
        raise UserError(
            f"data-path '{config.data_path}': {images} images of {classes} classes are too few: "
            "expected <class>/<image>"
        )
    return images, classes


class Estimator:
    """Remembers what data sets hold and what kinds of cells cost, or why nobody can say."""

    def __init__(self) -> None:
        self._extents: dict[Any, tuple[int, int] | Unknown] = {}
        self._costs: dict[Any, Cost | Unknown] = {}

    def guess(self, config: RunConfig) -> Guess:
        """How long a cell takes in one process, or with all that Ray would start for it."""
        try:
            data = (config.dataset, config.data_path, config.classes)
            images, classes = _once(self._extents, data, lambda: extent(config))
            clients = config.clients or DEFAULT_CLIENTS
            if config.partition == "file" and not config.clients:
                clients = count_clients(config.partition_file)
            if config.partition == "natural" and not config.clients:
                clients = len(load_partition(config, 0)[1].ids)
            probe = _probe(config, classes)
            kind = repr(sorted(probe.flat().items(), key=lambda pair: pair[0]))
            cost = _once(self._costs, kind, lambda: _measure(probe))
        except (UserError, RunFailedError) as error:
            return Guess(None, str(error))
        together = config.processes(clients) if config.engine == "ray" else 1
        seconds = cost.of(config, images, clients) / together
        return Guess(seconds, kept=cost.kept(config, clients))


def _once(kept: dict[Any, T | Unknown], key: object, make: Callable[[], T]) -> T:
    """What ``make`` gave or raised the first time for this key."""
    if key not in kept:
        try:
            kept[key] = make()
        except (UserError, RunFailedError) as error:
            kept[key] = error
    found = kept[key]
    if isinstance(found, UserError | RunFailedError):
        raise found
    return found


def guess(cells: Iterable[Cell]) -> list[Guess]:
    """How long each cell takes; one probe for all that are alike."""
    estimator = Estimator()
    return [estimator.guess(cell.config) for cell in cells]


def _probe(config: RunConfig, classes: int) -> RunConfig:
    """The smallest federation with the cell's method, models and arithmetic."""
    models = tuple(dict.fromkeys(config.models))
    images = max(2 * classes, BATCHES * config.batch_size) * len(models) * 5 // 4
    kept = {key: getattr(config, key) for key in KEPT}
    return RunConfig().model_copy(
        update=kept | {
            "dataset": _invented(config, images, classes), "clients": len(models), "models": models,
            "partition": "dirichlet", "alpha": 1e6, "rounds": 3, "local_epochs": 1,
            "evaluate_every": 3, "engine": "inline",
            "max_classes": max(classes, RunConfig().max_classes),
        }
    )  # fmt: skip


def _invented(config: RunConfig, examples: int, classes: int) -> str:
    """The invented data set of the same kind and shape of examples."""
    data = opened(config)
    if data is not None:
        return invented(data.inputs, examples, classes)
    name, _, shape = config.dataset.partition(":")
    if name in SYNTHETIC:
        shape = shape.partition(":")[2]
        return f"{name}:{examples}x{classes}" + (f":{shape}" if shape else "")
    return f"synthetic:{examples}x{classes}"


def _measure(probe: RunConfig) -> Cost:
    """Costs from the probe, from it with two epochs, and from it with twice the images."""
    name, size, *shape = probe.dataset.split(":")
    images, classes = size.split("x")
    larger = {"dataset": ":".join([name, f"{2 * int(images)}x{classes}", *shape])}
    once = _rounds(probe)
    twice = _rounds(probe.model_copy(update={"local_epochs": 2}))
    double = _rounds(probe.model_copy(update=larger))
    more = double.trained - once.trained
    both = max(0.0, double.plain - once.plain) / more  # of an image: its round and its one epoch
    epoch = min(both, max(0.0, twice.plain - once.plain) / once.trained)
    client = max(0.0, once.plain - both * once.trained) / probe.clients
    held = max(0.0, double.evaluated - double.plain) / double.held
    return Cost(client, both - epoch, epoch, held, once.states / probe.clients / GENERATIONS)


def _rounds(config: RunConfig) -> Probed:
    """A warm round that is not evaluated, and the last one, which is.

    Raises RunFailedError if any client of it fails. Nothing is shown, and nothing is left.
    """
    with tempfile.TemporaryDirectory() as folder, _cache_in(folder), ExitStack() as done:
        config = config.model_copy(update={"out": folder})
        made = RunFolder.create(config, "probe")
        done.callback(register.forget, made.experiment)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                run(Launch(config, made), lambda rounds: None)
        except RunFailedError as error:
            reason = made.read_summary().get("reason") or error
            raise RunFailedError(f"three rounds on invented images failed: {reason}") from None
        records = read_jsonl(made.rounds)
        failure = next((one for record in records for one in record["failures"]), None)
        if failure is not None:
            raise RunFailedError(f"a client failed on invented images: {failure['reason']}")
        _, plain, evaluated = (float(record["seconds"]) for record in records)
        trained = sum(map(sum, read_partition(made.partition).counts.values()))
        images = int(config.dataset.split(":")[1].split("x")[0])
        states = sum(p.stat().st_size for p in states_of(made, config).rglob("*") if p.is_file())
        return Probed(plain, evaluated, trained, images - trained, states)


@contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    """The cache of data sets is there meanwhile: invented images are of no use to anybody."""
    before = os.environ.get("FEDHET_CACHE")
    os.environ["FEDHET_CACHE"] = str(Path(folder) / "cache")
    try:
        yield
    finally:
        if before is None:
            del os.environ["FEDHET_CACHE"]
        else:
            os.environ["FEDHET_CACHE"] = before
