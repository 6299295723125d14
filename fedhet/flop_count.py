"""What a client's round costs, by the server's own count (:mod:`fedhet.protocol.flop_claims`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhet.clients.base import MethodClient, Setup
from fedhet.config.load import find_method
from fedhet.config.schema import RunConfig
from fedhet.data.cache import Dataset
from fedhet.data.inputs import Inputs
from fedhet.data.partition import ClientSplit
from fedhet.errors import UserError
from fedhet.models.names import MODELS, plain_names
from fedhet.protocol.flop_claims import Count
from fedhet.protocol.identity import ClientInfo
from fedhet.protocol.payload import Payload
from fedhet.site.local_data import LocalData
from fedhet.site.modules import forgotten
from fedhet.site.state import FileStore

EXAMPLES = 20
BATCH = 2  # FLOPs grow with the examples of a batch; BatchNorm needs two


def counter(config: RunConfig, classes: Sequence[str], inputs: Inputs) -> Count:
    """A function that counts FLOPs of one round, for any client of a run.

    Those per training image, and those that do not depend on how many there are.
    """

    def count(info: ClientInfo, payload: Payload, round_: int) -> tuple[float, float]:
        small = any(info.model in names for names in MODELS.values())
        if not small and info.model not in plain_names(config.models):
            raise UserError("neither a module nor a large model is built on a node's word alone")
        with forgotten():  # the models that only the count needs
            own, others = new_client(config, classes, info, payload, inputs, round_).work()
            return own / EXAMPLES, others

    return count


def new_client(  # noqa: PLR0913, PLR0917  (all that a round's work depends on)
    config: RunConfig,
    classes: Sequence[str],
    info: ClientInfo,
    payload: Payload,
    inputs: Inputs,
    round_: int,
) -> MethodClient[Any]:
    """A client of that model with a few blank examples, before its first training in a round."""
    client: MethodClient[Any] = find_method(config.method).client(
        _setup(config, classes, info, inputs)
    )
    client.round = round_
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
