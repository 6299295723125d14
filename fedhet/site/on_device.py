"""Where a client trains, and its examples there."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhet.config.schema import RunConfig
from fedhet.data.preparation import normalise
from fedhet.errors import UserError
from fedhet.site.local_data import LocalData
from fedhet.training.loop import Examples

# Examples cross to a GPU once per process, as long as a client is dealt the same ones.
_ON_DEVICE: dict[tuple[object, ...], tuple[bytes, Examples]] = {}


def choose_device(config: RunConfig, node: Mapping[str, Any]) -> torch.device:
    """The node's device, else the configured one; ``auto`` is CUDA where there is one.

    Raises UserError if a named CUDA device is not there.
    """
    name = str(node.get("device") or config.device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device: '{name}' is not there: this process sees no CUDA device")
    device = torch.device(name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError(
            f"device: '{name}' is not there: {torch.cuda.device_count()} CUDA device(s) found"
        )
    return device


def examples_of(
    data: LocalData,
    part: str,
    classes: Sequence[str],
    device: torch.device,
    prepare: Callable[[Tensor], Tensor] = normalise,
) -> Examples:
    """The examples of ``part`` (train, val, test) on the device, labels in the global class list.

    Raises UserError naming a class of this client that the global list lacks.
    """
    index = getattr(data.split, part)
    key = (data.client, part, tuple(classes), str(device))
    # Another run in this process may deal other examples to a client of the same name.
    source = str(getattr(data.dataset.examples, "filename", id(data.dataset.examples)))
    dealt = hashlib.sha256(index.tobytes() + source.encode()).digest()
    if key in _ON_DEVICE and _ON_DEVICE[key][0] == dealt:
        kept = _ON_DEVICE[key][1]
        return kept if kept.prepare is prepare else replace(kept, prepare=prepare)
    own = data.dataset.classes
    position = {name: i for i, name in enumerate(classes)}
    to_global = np.array([position.get(name, -1) for name in own], dtype=np.int64)
    labels = to_global[data.dataset.labels[index]]
    if (labels < 0).any():
        missing = own[int(data.dataset.labels[index][labels < 0][0])]
        raise UserError(
            f"class '{missing}' of client '{data.client}' is not among the classes of this run: "
            f"{', '.join(classes)}"
        )
    examples = torch.from_numpy(np.ascontiguousarray(data.dataset.examples[index]))
    found = Examples(examples.to(device), torch.from_numpy(labels).to(device), prepare)
    if device.type != "cpu":  # there the memory map is the cache
        _ON_DEVICE[key] = dealt, found
    return found
