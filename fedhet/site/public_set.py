"""The public data set of a run: examples that everybody may have, beside the clients' own.

Some methods (FedMD, Cronus, FedDF) let models meet on data that is nobody's. It is a data set like
any other, through the same sources and the same cache, and none of it is a client's: it is in no
partition and in no count. It is opened when a method first asks for it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fedhet.config.schema import RunConfig
from fedhet.data.cache import Dataset, open_dataset
from fedhet.data.inputs import Inputs
from fedhet.data.preparation import FITTED, preparation
from fedhet.errors import UserError
from fedhet.protocol.payload import Array
from fedhet.rng import generator
from fedhet.training.loop import Examples

FOLDER = "image-folder"  # what a path alone means
_BLOCK = 4096  # images that are hashed at a time


@dataclass(frozen=True)
class PublicSet:
    """The examples, in an order that is the same everywhere; labels index ``dataset.classes``."""

    dataset: Dataset
    device: torch.device

    def __len__(self) -> int:
        return len(self.dataset.labels)

    def take(self, positions: Array) -> Examples:
        """Those at ``positions`` (m,), on the device, in that order."""
        examples = torch.from_numpy(np.ascontiguousarray(self.dataset.examples[positions]))
        labels = torch.from_numpy(self.dataset.labels[positions])
        return Examples(
            examples.to(self.device), labels.to(self.device), preparation(self.dataset.inputs)
        )

    def sample(self, count: int, seed: int, round_: int) -> Examples:
        """At most ``count`` for a round: the same draw at the server and at every client.

        Each one's label is its place among them, such as the row of a consensus that it has.
        """
        drawn = generator(seed, "public", round_=round_).permutation(len(self))[:count]
        found = self.take(np.sort(drawn))
        return replace(found, labels=torch.arange(len(found), device=self.device))


def own_copy(config: RunConfig, node: Mapping[str, Any], *, simulated: bool) -> RunConfig:
    """The configuration with the path of this node's own copy; a run names no path on it."""
    if simulated:
        return config
    return config.model_copy(update={"public_path": str(node.get("public-path", ""))})


def open_public(config: RunConfig) -> Dataset:
    """The data set of ``public-dataset`` and ``public-path``; UserError if it cannot be opened."""
    name = config.public_dataset or FOLDER
    # Other than the clients', should both be synthetic.
    return _opened(name, config.public_path, _image(config), config.data_seed + 1)


def _image(config: RunConfig) -> Inputs:
    return Inputs.image(config.image_size, grey=config.grey)


@lru_cache(maxsize=2)
def _opened(name: str, path: str, image: Inputs, seed: int) -> Dataset:
    if name == FOLDER and not path:
        raise UserError(
            "public-path: '' is not allowed: this run uses a public data set; a node names its own "
            "copy (`fedhet node --public FOLDER`, or public-path in its node-config)"
        )
    try:
        high, wide, channels = image.image_shape
        dataset = open_dataset(
            name, data_path=path, image_size=(high, wide), grey=channels == 1, seed=seed
        )
    except UserError as error:
        raise UserError(f"public data set: {error}") from error
    if dataset.inputs.kind in FITTED:
        raise UserError(
            f"public data set: it is of {dataset.inputs.kind}, which every client prepares by its "
            "own examples: nobody could mean the same by it"
        )
    return dataset


@lru_cache(maxsize=2)
def _digest(name: str, path: str, image: Inputs, seed: int) -> str:
    dataset = _opened(name, path, image, seed)
    examples = dataset.examples
    whole = hashlib.sha256(
        json.dumps([examples.shape, examples.dtype.str, dataset.classes]).encode()
    )
    for start in range(0, len(examples), _BLOCK):
        whole.update(np.ascontiguousarray(examples[start : start + _BLOCK]).tobytes())
    whole.update(dataset.labels.tobytes())
    return f"{len(examples)} examples, sha256 {whole.hexdigest()}"


def public_digest(config: RunConfig) -> str:
    """How many examples there are and SHA-256 of them as models see them, labels and classes."""
    name = config.public_dataset or FOLDER
    return _digest(name, config.public_path, _image(config), config.data_seed + 1)
