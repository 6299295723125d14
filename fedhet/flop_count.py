"""What a client's round costs, by the server's own count (:mod:`fedhet.protocol.flop_claims`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhet.clients.base import MethodClient, Setup
from fedhet.config import find_method
from fedhet.data.cache import Dataset
from fedhet.data.inputs import Inputs
from fedhet.data.partition import ClientSplit
from fedhet.errors import UserError
from fedhet.models.names import plain_names
from fedhet.node.modules import forgotten
from fedhet.node.site import LocalData
from fedhet.node.state import FileStore
from fedhet.protocol.flop_claims import Count
from fedhet.protocol.identity import ClientInfo
from fedhet.protocol.payload import Payload
from fedhet.schema import RunConfig

EXAMPLES = 20
BATCH = 2  # FLOPs grow with the examples of a batch; BatchNorm needs two


def counter(config: RunConfig, classes: Sequence[str], inputs: Inputs) -> Count:
    """A function that counts FLOPs of one round, for any client of a run.

    Those per training image, and those that do not depend on how many there are.
    """

    def count(info: ClientInfo, payload: Payload) -> tuple[float, float]:
        if ":" in info.model and info.model not in plain_names(config.models):
            raise UserError("a module that the run does not name is not imported on a node's word")
        with forgotten():  # the models that only the count needs
            own, others = first_round(config, classes, info, payload, inputs).work()
            return own / EXAMPLES, others

    return count


def first_round(
    config: RunConfig,
    classes: Sequence[str],
    info: ClientInfo,
    payload: Payload,
    inputs: Inputs,
) -> MethodClient[Any]:
    """A client of that model with a few blank examples, as it is before it trains in round 1."""
    client: MethodClient[Any] = find_method(config.method).client(
        _setup(config, classes, info, inputs)
    )
    client.round = 1
    client.restore(0)
    client.receive(client.download_type.from_ndarrays(payload.to_ndarrays()))
    return client


def _setup(config: RunConfig, classes: Sequence[str], info: ClientInfo, inputs: Inputs) -> Setup:
    """A client of that model with a few blank examples of its classes."""
    own = np.array(info.seen or range(len(classes)), dtype=np.int64)
    blank = inputs.zeros(EXAMPLES)
    dataset = Dataset(blank, np.resize(own, EXAMPLES), tuple(classes), (), (), inputs)
    none = np.zeros(0, dtype=np.int64)
    split = ClientSplit(np.arange(EXAMPLES), none, none)
    return Setup(
        config=config.model_copy(update={"batch_size": BATCH}),
        data=LocalData(info.client, 0, 0, dataset, split),
        classes=classes,
        model=info.model,
        device=torch.device("cpu"),
        store=FileStore(Path(), sync=False),  # generation 0 needs none
    )
