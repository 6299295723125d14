"""The server's checkpoint: one safetensors file, replaced in one step after every round."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from fedhet.files import private_files, sync
from fedhet.protocol.payload import Array


def save_checkpoint(path: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    """One safetensors file with the server's arrays and, as metadata, everything else."""
    temporary = path.with_name(path.name + ".tmp")
    data = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with private_files():
        save_file(data, temporary, metadata={"json": json.dumps(meta)})
    sync(temporary)
    temporary.replace(path)


def load_checkpoint(path: Path) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """Arrays and metadata of the last finished round; None if there was none."""
    if not path.exists():
        return None
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays, json.loads(file.metadata()["json"])
