"""What one kind of cell costs, and what of it a whole cell takes."""

from dataclasses import dataclass

from fedhet.config.schema import RunConfig
from fedhet.data.cache import Dataset, open_dataset
from fedhet.data.inputs import DATASETS, SYNTHETIC
from fedhet.data.synthetic import invented
from fedhet.site.local_data import reading_of

GENERATIONS = 2  # of a client's state that stay: the last, and the one before it if there was one
BATCHES = 2  # of training images per probed client
# What of a configuration says how long a step takes; all else is the probe's own.
KEPT = (
    "method", "params", "image_size", "grey", "small_model", "representation", "batch_size",
    "optimizer", "weight_decay", "grad_clip", "augment", "precision", "threads", "device",
    "evaluate_before", "aggregation",
)  # fmt: skip


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


def probe_of(config: RunConfig, classes: int) -> RunConfig:
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
