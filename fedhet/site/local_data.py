"""A client's identity, device and examples."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhet.config.schema import DataKeys, RunConfig
from fedhet.data.cache import Dataset, open_dataset
from fedhet.data.inputs import DATASETS, HUB, Inputs, Reading
from fedhet.data.partition import ClientSplit, Partition, check_groups, make_partition, split_client
from fedhet.data.preparation import normalise
from fedhet.errors import Code, Refused, UserError
from fedhet.files import check_id
from fedhet.models.names import FOLDER as MODEL_FOLDER
from fedhet.models.names import parse
from fedhet.rng import generator
from fedhet.training.loop import Examples, Recent

NODE_KEYS = {
    "partition-id", "num-partitions", "data-dir", "name", "model", "device", "state-dir",
    "limits", "key", "certificate", "ca",
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
        """Return training examples per seen class, by class name, in label order."""
        labels, counts = np.unique(self.dataset.labels[self.split.train], return_counts=True)
        names = (self.dataset.classes[label] for label in labels)
        return dict(zip(names, counts.tolist(), strict=True))


def without_rare(data: LocalData, least: int) -> tuple[LocalData, list[str]]:
    """Return a client without the classes of fewer than ``least`` training examples; their names.

    Examples of one group count once: five visits of a patient are one patient. Raises Refused if
    no class is left.
    """
    labels, names, rows = data.dataset.labels, data.dataset.classes, data.split.train
    if data.dataset.grouped:
        pairs = np.stack([labels[rows], data.dataset.groups[rows]])
        rows = rows[np.unique(pairs, axis=1, return_index=True)[1]]
    counts = np.bincount(labels[rows], minlength=len(names))
    present = np.unique(labels[np.concatenate(astuple(data.split))])
    rare = [names[label] for label in present if counts[label] < least]
    if not rare:
        return data, []
    if len(rare) == len(present):
        what = "groups" if data.dataset.grouped else "examples"
        raise Refused(f"no class has min-class={least} training {what}", Code.LIMIT, "min-class")
    kept = (part[counts[labels[part]] >= least] for part in astuple(data.split))
    return replace(data, split=ClientSplit(*kept)), rare


def without_examples(client: str, classes: Sequence[str], inputs: Inputs) -> LocalData:
    """Return a client without examples: enough to build its modules and to predict."""
    none = np.zeros(0, dtype=np.int64)
    dataset = Dataset(inputs, none, tuple(classes), examples=inputs.zeros(0))
    return LocalData(client, 0, 0, dataset, ClientSplit(none, none, none))


def reading_of(config: RunConfig, *, declared: bool = False) -> Reading:
    """Return which column of the data's file is what; ``declared`` as on a node."""
    return Reading(**{k: getattr(config, k) for k in DataKeys.model_fields}, declared=declared)


def load_dataset(config: RunConfig) -> Dataset:
    """Return the pooled dataset of a simulation."""
    return open_examples(config, config.dataset, config.data_path)


def open_examples(config: RunConfig, name: str, path: str, *, declared: bool = False) -> Dataset:
    """Return the data set ``name`` of clients' examples; ``declared`` as on a node."""
    dataset = open_dataset(
        name, data_path=path, image_size=config.image_size, grey=config.grey,
        window=config.window, standardise=config.standardise, classes=config.classes,
        seed=config.data_seed, reading=reading_of(config, declared=declared),
    )  # fmt: skip
    if "site" in config.model_fields_set and not config.site:  # asked for without one
        notes = tuple(note for note in dataset.notes if not note.startswith("no site: "))
        dataset = replace(dataset, notes=notes)
    return dataset


@lru_cache(maxsize=2)
def load_partition(config: RunConfig, clients: int) -> tuple[Dataset, Partition]:
    """Return the pooled dataset and its partition; kept, since messages ask this, for one run."""
    dataset = load_dataset(config)
    return dataset, make_partition(dataset, config.model_copy(update={"clients": clients}))


def load_local(config: RunConfig, node: Mapping[str, Any], *, simulated: bool) -> LocalData:
    """Return the client that a node configuration names, with its examples.

    A deployed node owns its paths: those of the run's configuration are ignored there. Raises
    UserError for a node configuration that names no client.
    """
    if unknown := sorted(set(node) - NODE_KEYS):
        allowed = ", ".join(sorted(NODE_KEYS))
        raise UserError(f"node-config: unknown key '{unknown[0]}'; allowed: {allowed}")
    if not simulated:
        config = config.model_copy(update={"data_path": "", "partition_file": ""})
        if node.get("data-dir"):
            name = check_id(str(node.get("name", "")), "node-config name")
            dataset = open_private(config, str(node["data-dir"]))
            check_groups(dataset, config)
            every = np.arange(len(dataset.labels))
            split = split_client(every, dataset, config.split, config.data_seed, name)
            return LocalData(name, 0, 0, dataset, split)
        if config.dataset.startswith(HUB):
            text = f"dataset '{config.dataset}': a node does not download data"
            raise UserError(f"{text}: give data-dir=... with its own examples")
    if not {"partition-id", "num-partitions"} <= node.keys():
        node_options = 'data-dir="..." name="..." for private images'
        raise UserError(f"node-config: give {node_options}, or partition-id=K num-partitions=N")
    index, total = int(node["partition-id"]), int(node["num-partitions"])
    dataset, partition = load_partition(config, config.clients or total)
    if not 0 <= index < (count := len(partition.clients)):
        raise UserError(f"partition-id: {index} is not allowed: there are {count} clients")
    return LocalData(partition.ids[index], index, count, dataset, partition.clients[index])


def open_private(config: RunConfig, path: str) -> Dataset:
    """Return the data that a node keeps at ``path``, read as the run says.

    Every row of a file is this client's. Raises Refused where the run does not name the classes:
    the values of the column that it chose would be told as their names.
    """
    files = config.dataset in DATASETS
    if files and not config.classes and not config.labels:
        leak = f"the node would send the values of column '{config.target}' as their names"
        text = f"target: a run over nodes must name the classes (labels or classes), or {leak}"
        raise Refused(text, Code.CLASSES)
    return open_examples(config, config.dataset if files else "image-folder", path, declared=True)


def assigned_model(
    config: RunConfig, node: Mapping[str, Any], data: LocalData, *, simulated: bool = True
) -> str:
    """Return the node's own model, or the one that the configuration assigns to the client.

    Raises UserError for a file of weights that a run names to a deployed node.
    """
    if node.get("model"):
        return str(node["model"])
    if not simulated:
        check_no_weights(config)
    if config.model_assignment == "random":
        return str(generator(config.seed, "model", data.client).choice(config.models))
    return config.models[data.index % len(config.models)]


def check_no_weights(config: RunConfig) -> None:
    """Raise UserError if a run that goes to a network names files of weights."""
    for name in config.models:
        named = parse(name)
        of_folder = named.plain.startswith(MODEL_FOLDER)
        if named.weights or of_folder:
            own = f"{MODEL_FOLDER}FOLDER" if of_folder else f"{named.plain} weights=FILE"
            text = f"models: '{name}' is not allowed on a network, where nodes read only their own"
            other = f"name another model, and start the node with --model '{own}'"
            raise UserError(f"{text} files: {other}")


# Examples cross to a GPU once, as long as a client is dealt the same ones and 1 GiB has room.
_ON_DEVICE: Recent[tuple[object, ...], Examples] = Recent(
    1 << 30, lambda kept: kept.examples.nbytes + kept.labels.nbytes
)


def choose_device(config: RunConfig, node: Mapping[str, Any]) -> torch.device:
    """Return the node's device, else the configured one; ``auto`` is CUDA where there is one.

    Raises UserError if a named CUDA device is not there.
    """
    name = str(node.get("device") or config.device)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(("cuda" if count else "cpu") if name == "auto" else name)
    if device.type == "cuda" and (device.index or 0) >= count:
        text = f"device: '{name}' is not available: torch finds {count} CUDA device(s)"
        raise UserError(f"{text}; use auto or cpu")
    return device


def forget() -> None:
    """Drop the examples that this process keeps on a device."""
    _ON_DEVICE.clear()


def examples_of(
    data: LocalData, part: str, classes: Sequence[str], device: torch.device,
    prepare: Callable[[Tensor], Tensor] = normalise,
) -> Examples:  # fmt: skip
    """Return the examples of ``part`` (train, val, test) on the device, with global class ids.

    Raises UserError naming a class of this client that the global list lacks.
    """
    index = getattr(data.split, part)
    # Another run in this process may deal other examples to a client of the same name.
    source = str(getattr(data.dataset.examples, "filename", id(data.dataset.examples)))
    dealt = hashlib.sha256(index.tobytes() + source.encode()).digest()
    key = (data.client, part, tuple(classes), str(device), dealt)
    if (kept := _ON_DEVICE.get(key)) is not None:
        return kept if kept.prepare is prepare else replace(kept, prepare=prepare)
    class_names, labels = data.dataset.classes, data.dataset.labels[index]
    for label in np.unique(labels):
        if class_names[label] not in classes:
            text = (
                f"class '{class_names[label]}' of client '{data.client}' is not a class of this run"
            )
            raise UserError(f"{text}; its classes: {', '.join(classes)}")
    position = {name: i for i, name in enumerate(classes)}
    to_global = np.array([position.get(name, -1) for name in class_names], dtype=np.int64)
    examples = torch.from_numpy(np.ascontiguousarray(data.dataset.examples[index]))
    targets = torch.from_numpy(to_global[labels])
    placed = Examples(examples.to(device), targets.to(device), prepare)
    if device.type != "cpu":  # there the memory map is the cache
        _ON_DEVICE.put(key, placed)
    return placed
