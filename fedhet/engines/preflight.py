"""Everything that can be wrong with a run, found before any process is started."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch

from fedhet.config.load import check_replies, find_method
from fedhet.config.schema import RunConfig
from fedhet.data.cache import Dataset
from fedhet.data.inputs import IMAGE, SIGNAL, Inputs
from fedhet.data.partition import Partition, says_clients
from fedhet.errors import UserError
from fedhet.files import plain_path, tried_folder
from fedhet.models import build_model
from fedhet.models.zoo import small_name
from fedhet.records.tracker import tracker_package
from fedhet.site.local_data import DEFAULT_CLIENTS, choose_device, load_partition
from fedhet.sums.contribution import about_few, too_few

ANSWER = 5.0  # seconds within which the address of a Ray cluster takes a connection
# Keys whose value is a path.
PATHS = ("out", "data-path", "partition-file", "public-path", "state-dir")


def absolute_paths(config: RunConfig) -> RunConfig:
    """The configuration with paths that mean the same in every process and after a ``cd``."""
    paths = {
        key: str(plain_path(value))
        for key in (path.replace("-", "_") for path in PATHS)
        if (value := str(getattr(config, key)))
    }
    return config.model_copy(update=paths)


def resolve_clients(config: RunConfig) -> RunConfig:
    """``clients: 0`` as our own simulation's number: the file's or the data's, or 10."""
    if config.clients:
        return config
    if config.partition in ("file", "natural") or says_clients(config.partition):
        return config.model_copy(update={"clients": len(load_partition(config, 0)[1].ids)})
    return config.model_copy(update={"clients": DEFAULT_CLIENTS})


def check_state_dir(config: RunConfig) -> None:
    """The folder of the clients' states can be written; nothing is left behind."""
    if not config.state_dir:
        return
    path = Path(config.state_dir).resolve()
    try:
        with tried_folder(path):
            pass
    except OSError as error:
        raise UserError(f"state-dir: '{path}' cannot be written: {error.strerror}") from error


def check_models(config: RunConfig, classes: int, inputs: Inputs) -> None:
    """Every model can be built for these classes and these examples, the shared one too."""
    names = list(config.models)
    strategy = find_method(config.method).strategy
    if strategy.shares_small_model:
        names.append(small_name(config, inputs.kind, strategy.own_small(config.params)))
    with torch.random.fork_rng(devices=[]):
        for name in dict.fromkeys(names):
            build_model(name, classes=classes, d=config.representation, inputs=inputs)


def check_declared(config: RunConfig) -> None:
    """UserError for what every node of a network would refuse to learn from its own files."""
    if config.dataset in ("table", "texts") and not config.target:
        raise UserError("target: '' is not allowed on a network: name the column of the class")
    for name, values in config.categories:
        if not values:
            raise UserError(
                f"categories: '{name}' needs its values on a network, such as "
                f"categories={{{name}: [a, b]}}: nodes must not learn them from each other"
            )


def check_kind(config: RunConfig, inputs: Inputs) -> None:
    """What the method and `augment` can work with; of other people's data only known by now."""
    refuses = find_method(config.method).strategy.refuses
    if inputs.kind in refuses:
        raise UserError(
            f"method: '{config.method}' is not allowed with dataset={config.dataset}, which is of "
            f"{inputs.kind}: {refuses[inputs.kind]}"
        )
    own = {"crop-flip": IMAGE, "jitter-scale": SIGNAL}.get(config.augment, inputs.kind)
    if inputs.kind != own:
        raise UserError(
            f"augment: '{config.augment}' is not allowed with dataset={config.dataset}, which is "
            f"of {inputs.kind}: it is for {own}s"
        )


def few_owners(config: RunConfig, dataset: Dataset, partition: Partition) -> list[str]:
    """A line if no class has owners enough for its rows to be summed: nothing would be shared."""
    strategy = find_method(config.method).strategy
    if not config.summed or not strategy.sums_classes(config, config.params):
        return []
    seen = [partition.seen(k, dataset.labels) for k in range(len(partition.clients))]
    owners = np.bincount(np.concatenate(seen), minlength=len(dataset.classes)).astype(np.float64)
    few, owned = too_few(owners, config.sum_owners), int((owners > 0).sum())
    return [about_few(owners, config.sum_owners)] if few and few == owned else []


def check_simulation(config: RunConfig) -> tuple[Dataset, Partition]:
    """Check all that a simulation on this machine needs; ``clients`` is resolved."""
    check_state_dir(config)
    if config.tracker != "none":
        tracker_package(config.tracker)
    choose_device(config, {})
    check_replies(config)
    dataset, partition = load_partition(config, config.clients)
    check_kind(config, dataset.inputs)
    check_models(config, len(dataset.classes), dataset.inputs)
    return dataset, partition


def check_ray_address(said: str, key: str = "RAY_ADDRESS") -> None:
    """Raise UserError if ``key`` names a place where nothing takes a connection."""
    if said in {"", "auto", "local"}:
        return
    try:
        parts = urlsplit(said if "://" in said else f"//{said}")
        with socket.create_connection((str(parts.hostname), int(parts.port or 0)), ANSWER):
            pass
    except (OSError, ValueError) as error:
        raise UserError(
            f"{key}: nothing answers at '{said}' ({error}): start that cluster, or correct the "
            "address (HOST:PORT)"
        ) from error
