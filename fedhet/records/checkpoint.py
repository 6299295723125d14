"""The server's checkpoint: one safetensors file, replaced in one step after every round."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from fedhet.files import private_files, sync
from fedhet.protocol.payload import Array


@dataclass(frozen=True)
class Checkpoint:
    """The strategy's arrays, in its order, and the books of the round after which they stand."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """One safetensors file with the arrays and, as metadata, everything else."""
    temporary = path.with_name(path.name + ".tmp")
    data = {name: np.asarray(array, order="C") for name, array in checkpoint.arrays.items()}
    text = json.dumps({"names": list(data), **checkpoint.meta})  # a file has an order of its own
    with private_files():
        save_file(data, temporary, metadata={"json": text})
    sync(temporary)
    temporary.replace(path)


def load_checkpoint(path: Path) -> Checkpoint | None:
    """The state after the last finished round; None if there was none."""
    if not path.exists():
        return None
    with safe_open(path, framework="numpy") as file:
        meta = json.loads(file.metadata()["json"])
        return Checkpoint({name: file.get_tensor(name) for name in meta.pop("names")}, meta)
