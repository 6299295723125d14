"""What one client is and has: identity, device, examples. Resolved here and nowhere else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedhet.config.schema import RunConfig
from fedhet.data.cache import Dataset, open_dataset, open_private_folder
from fedhet.data.data_file import Reading
from fedhet.data.inputs import DATASETS, Inputs, is_hub, noun
from fedhet.data.partition import (
    ClientSplit,
    Partition,
    PartitionSpec,
    Sites,
    make_partition,
    split_folder,
)
from fedhet.data.partition_file import read_partition_file
from fedhet.errors import UserError
from fedhet.files import check_id
from fedhet.models.names import with_weights
from fedhet.protocol.reasons import Refused, Word
from fedhet.rng import generator

DEFAULT_CLIENTS = 10  # N of `fedhet run`'s own simulation where the config says 0
NODE_KEYS = {
    "partition-id", "num-partitions", "data-dir", "name", "model", "device", "state-dir",
    "split-file", "limits", "public-path", "key", "certificate", "ca",
}  # fmt: skip


@dataclass(frozen=True)
class LocalData:
    """One client's share of a dataset; class indices are those of ``dataset.classes``."""

    client: str
    index: int
    clients: int
    dataset: Dataset
    split: ClientSplit

    def class_counts(self) -> dict[str, int]:
        """Training examples per seen class, by class name, in label order."""
        labels, counts = np.unique(self.dataset.labels[self.split.train], return_counts=True)
        return {
            self.dataset.classes[label]: int(n) for label, n in zip(labels, counts, strict=True)
        }


def without_examples(client: str, classes: Sequence[str], inputs: Inputs) -> LocalData:
    """A client whose examples are elsewhere: enough to build its modules and to predict."""
    none = np.zeros(0, dtype=np.int64)
    dataset = Dataset(inputs.zeros(0), none, tuple(classes), (), (), inputs)
    return LocalData(client, 0, 0, dataset, ClientSplit(none, none, none))


def reading_of(config: RunConfig, *, declared: bool = False) -> Reading:
    """Which column of the data's file is what; ``declared`` as on a node."""
    return Reading(
        target=config.target,
        labels=config.labels,
        site=config.site,
        categories=config.categories,
        ignore=config.ignore,
        text=config.text,
        length=config.length,
        vocabulary=config.vocabulary,
        scale=config.scale,
        declared=declared,
    )


def partition_spec(config: RunConfig, clients: int) -> PartitionSpec:
    """What :func:`fedhet.data.partition.make_partition` needs, for N = ``clients``."""
    return PartitionSpec(
        kind=config.partition,
        clients=clients,
        classes_per_client=config.classes_per_client,
        alpha=config.alpha,
        legacy_pfedhn=config.legacy_pfedhn,
        split=config.split,
        file=config.partition_file,
        seed=config.data_seed,
        noun=noun(config.dataset),
    )


def load_dataset(config: RunConfig) -> Dataset:
    """The pooled dataset of a simulation."""
    return open_dataset(
        config.dataset,
        data_path=config.data_path,
        image_size=config.image_size,
        grey=config.grey,
        classes=config.classes,
        seed=config.data_seed,
        reading=reading_of(config),
    )


def load_partition(config: RunConfig, clients: int) -> tuple[Dataset, Partition]:
    """The pooled dataset and its partition; once per process, until a file of them changes."""
    return _partition(config, clients, _age(config.data_path), _age(config.partition_file))


def _age(path: str) -> tuple[int, int]:
    """What changes with a file; zeros where there is none."""
    try:
        found = Path(path).expanduser().stat() if path else None
    except (OSError, RuntimeError):
        found = None
    if found is None:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=2)
def _partition(config: RunConfig, clients: int, *_: tuple[int, int]) -> tuple[Dataset, Partition]:
    dataset = load_dataset(config)
    partition = make_partition(
        dataset.labels,
        len(dataset.classes),
        partition_spec(config, clients),
        dataset.paths,
        dataset.classes,
        Sites(dataset.sites, dataset.site_names),
    )
    return dataset, partition


def load_local(config: RunConfig, node: Mapping[str, Any], *, simulated: bool) -> LocalData:
    """Resolve a node configuration to a client and its examples.

    A deployed node owns its paths: those of the run's configuration are ignored there.
    Raises UserError, in one line, for a node configuration that does not name a client.
    """
    unknown = sorted(set(node) - NODE_KEYS)
    if unknown:
        raise UserError(
            f"node-config: unknown key '{unknown[0]}'; allowed: {', '.join(sorted(NODE_KEYS))}"
        )
    if not simulated:
        config = config.model_copy(update={"data_path": "", "partition_file": ""})
        if node.get("data-dir"):
            return _private(config, node)
    if "partition-id" not in node or "num-partitions" not in node:
        raise UserError(
            'node-config: give data-dir="..." name="..." for private images, or '
            "partition-id=K num-partitions=N for a partition"
        )
    if not simulated and is_hub(config.dataset):
        raise UserError(
            f"dataset '{config.dataset}': a node downloads nothing that a run names: give "
            "data-dir=... with examples of its own"
        )
    index, total = int(node["partition-id"]), int(node["num-partitions"])
    dataset, partition = load_partition(config, config.clients or total)
    if not 0 <= index < len(partition.clients):
        raise UserError(
            f"partition-id: {index} is not allowed: there are {len(partition.clients)} clients"
        )
    client = partition.ids[index]
    return LocalData(client, index, len(partition.clients), dataset, partition.clients[index])


def client_name(config: RunConfig, node: Mapping[str, Any], *, simulated: bool) -> str:
    """The client's id alone: its examples are opened only where nothing else tells it."""
    if not simulated and node.get("data-dir"):
        return check_id(str(node.get("name", "")), "node-config name")
    if config.partition in {"file", "natural"} or "partition-id" not in node:
        return load_local(config, node, simulated=simulated).client
    return str(int(node["partition-id"]))


def _private(config: RunConfig, node: Mapping[str, Any]) -> LocalData:
    """A node's own folder of images, or its file where the run is of files."""
    name = check_id(str(node.get("name", "")), "node-config name")
    dataset = open_private(config, str(node["data-dir"]))
    if not node.get("split-file"):
        split = split_folder(dataset.labels, config.split, config.data_seed, name)
        return LocalData(name, 0, 0, dataset, split)
    ids, splits = read_partition_file(str(node["split-file"]), dataset.paths, 0)
    if name not in ids:
        raise UserError(f"split-file: '{node['split-file']}' has no line for client '{name}'")
    return LocalData(name, 0, 0, dataset, splits[ids.index(name)])


def open_private(config: RunConfig, path: str) -> Dataset:
    """The data that a node keeps at ``path``, read as the run says.

    Of a file every row is this client's: a column that names sites is no feature, and no more.
    Refused where the run does not say which values are classes: whoever chooses the column would
    be told all that stands in it.
    """
    if config.dataset not in DATASETS:
        return open_private_folder(
            path, image_size=config.image_size, grey=config.grey, classes=config.classes
        )
    if not config.classes and not config.labels:
        raise Refused(
            f"target: a run over nodes must name the classes (labels or classes): the values of "
            f"'{config.target}', which may be any column or text, would be told as their names",
            Word.CLASSES,
        )
    return open_dataset(
        config.dataset,
        data_path=path,
        classes=config.classes,
        reading=reading_of(config, declared=True),
    )


def assigned_model(
    config: RunConfig, node: Mapping[str, Any], data: LocalData, *, simulated: bool = True
) -> str:
    """The node's own model, or the one that the configuration assigns to the client.

    Either may name a file of weights; UserError for one that a run names to a deployed node, which
    reads its own files alone.
    """
    if node.get("model"):
        return str(node["model"])
    if config.model_assignment == "random":
        drawn = int(generator(config.seed, "model", data.client).integers(len(config.models)))
    else:
        drawn = data.index % len(config.models)
    if not simulated:
        check_no_weights(config)
    return config.models[drawn]


def check_no_weights(config: RunConfig) -> None:
    """UserError if a run that goes to a network names files of weights."""
    for name in config.models:
        plain, file = with_weights(name)
        if file:
            raise UserError(
                f"models: '{name}' is not allowed on a network, whose nodes read their own files "
                f"alone: name '{plain}', and let a node give --model '{plain} weights=FILE'"
            )
