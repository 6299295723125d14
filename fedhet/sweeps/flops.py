"""FLOPs of a cell: what its rounds train, by the method's own losses, without training.

No image is opened. A table, signals or texts are opened once, through the cache.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedhet.clients.base import MethodClient, Setup
from fedhet.config.registry import find_method
from fedhet.config.schema import RunConfig
from fedhet.data.cache import Dataset, open_dataset
from fedhet.data.inputs import DATASETS, Inputs
from fedhet.data.partition import ClientSplit
from fedhet.data.sources import find_source
from fedhet.engines.session import resolve_clients
from fedhet.errors import RunFailed, UserError, brief
from fedhet.protocol.handshake import ClientInfo, Roster
from fedhet.site.local_data import LocalData, reading_of
from fedhet.site.state import FileStore
from fedhet.training.loop import set_trainable

T = TypeVar("T")
EXTENTS = {  # images, classes
    "digits": (1797, 10), "cifar10": (60_000, 10), "cifar100": (60_000, 100),
    "fashion-mnist": (70_000, 10),
}  # fmt: skip
# What changes no FLOPs of a training example, and at which value its kind is counted.
ALIKE = {
    "seed": 0, "partition_seed": None, "lr": 0.1, "rounds": 1, "clients": 0, "fraction": 1.0,
    "partition": "iid", "alpha": 1.0, "out": "", "name": "", "data_path": "", "partition_file": "",
    "evaluate_every": 1, "threads": 1,
}  # fmt: skip
EXAMPLES = 20  # of a client whose FLOPs are counted, all blank
BATCH = 2  # FLOPs grow with the examples of a batch; BatchNorm needs two
Unknown = UserError | RunFailed  # why a number cannot be known


class CellFlops:
    """Count FLOPs of cells; each kind of cell and each data set once."""

    def __init__(self) -> None:
        self._extents: dict[object, tuple[int, int, Inputs] | Unknown] = {}
        self._counts: dict[object, tuple[float, float] | Unknown] = {}

    def of(self, config: RunConfig) -> float:
        """Return the training FLOPs of a whole cell.

        Raise UserError or RunFailed, the same for all cells of a kind, if its data set or its
        method cannot be counted.
        """
        data = (config.dataset, config.data_path, config.classes, config.image_size, config.grey)
        images, classes, inputs = _once(self._extents, data, lambda: extent(config))
        once = {"local_steps": 0, "local_epochs": 1} if config.local_steps else {}
        kind = config.model_copy(update=ALIKE | once), classes, inputs
        own, others = _once(self._counts, kind, lambda: _per_example(*kind))
        clients = resolve_clients(config).clients
        examples: float = config.local_steps * config.batch_size  # of a client's round
        examples = examples or images * config.split[0] / sum(config.split) / clients
        return config.rounds * config.cohort(clients) * (own * examples + others)


def _once(known: dict[object, T | Unknown], key: object, make: Callable[[], T]) -> T:
    """Return what ``make`` returned the first time for this key, or raise what it raised."""
    if key not in known:
        try:
            known[key] = make()
        except (UserError, RunFailed) as error:
            known[key] = error
        except Exception as error:  # noqa: BLE001  (somebody else's method or model)
            known[key] = RunFailed(f"FLOPs cannot be counted: {brief(error)}")
    found = known[key]
    if isinstance(found, UserError | RunFailed):
        raise found
    return found


def extent(config: RunConfig) -> tuple[int, int, Inputs]:
    """Return the examples and classes of a cell's data set, and what an example is.

    By its name or the names of its files. Of chosen ``classes`` each is taken to have as many
    examples as any. Raise UserError if they cannot be counted.
    """
    name, inputs = config.dataset, Inputs.image(config.image_size, grey=config.grey)
    if name in DATASETS:
        data = open_dataset(
            name, data_path=config.data_path, classes=config.classes, reading=reading_of(config)
        )
        return len(data.labels), len(data.classes), data.inputs
    images, classes = EXTENTS.get(name, (0, 0))
    if not classes:
        source = find_source(name, data_path=config.data_path, seed=config.seed, downloads=Path())
        if source.extent is None:
            raise UserError(f"dataset '{name}': its size is unknown before it is loaded")
        images, classes = source.extent
        inputs = source.inputs or inputs
    chosen = len(config.classes) or classes
    return images * min(chosen, classes) // classes, chosen, inputs


def _per_example(config: RunConfig, count: int, inputs: Inputs) -> tuple[float, float]:
    """Return FLOPs of a client's round, in the mean over the models.

    Those for each of its training examples, and those that do not depend on them.
    """
    roster, classes = Roster(), tuple(map(str, range(count)))
    roster.classes, roster.inputs = classes, inputs
    models, each = tuple(dict.fromkeys(config.models)), (2,) * count
    for k, model in enumerate(models):
        info = ClientInfo(
            str(k), classes, classes, each, sum(each), model, "cpu", tuple(range(count))
        )
        roster.infos[info.client], roster.generations[info.client] = info, 0
    config = config.model_copy(
        update={"clients": len(models), "models": models, "batch_size": BATCH}
    )
    torch.set_num_threads(1)
    strategy = find_method(config.method).strategy(config, roster)
    strategy.initialise()
    found = []
    for info in roster.infos.values():
        client = _client(config, info, inputs)
        payload = strategy.download(info, 1)
        client.receive(client.download_type.from_ndarrays(payload.to_ndarrays()))
        found.append(_work(client))
    own, others = (sum(one) / len(found) for one in zip(*found, strict=True))
    return own / EXAMPLES, others


def _client(config: RunConfig, info: ClientInfo, inputs: Inputs) -> MethodClient[Any]:
    """Return a client of that model with blank examples, before its first training."""
    labels = np.resize(np.arange(len(info.classes), dtype=np.int64), EXAMPLES)
    dataset = Dataset(inputs, labels, info.classes, examples=inputs.zeros(EXAMPLES))
    none = np.zeros(0, dtype=np.int64)
    setup = Setup(
        config=config,
        data=LocalData(info.client, 0, 0, dataset, ClientSplit(np.arange(EXAMPLES), none, none)),
        classes=info.classes,
        model=info.model,
        device=torch.device("cpu"),
        store=FileStore(Path(), sync=False),  # generation 0 needs none
    )
    client: MethodClient[Any] = find_method(config.method).client(setup)
    client.round = 1
    client.restore(0)
    return client


def _work(client: MethodClient[Any]) -> tuple[float, float]:
    """Return the FLOPs of a round's training on the client's own examples, and on others."""
    data, own, others = client.examples("train"), 0.0, 0.0
    for number, phase in enumerate(client.phases()):
        set_trainable(list(client.modules.values()), phase, client._fixed)
        flops = client._flops(number, phase, data)
        own, others = (own + flops, others) if phase.data is None else (own, others + flops)
    return own, others
