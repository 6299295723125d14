"""The server's checkpoint: one safetensors file, replaced in one step after every round."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedhet.errors import ReadError, VerifyError
from fedhet.files import replacing
from fedhet.protocol.payload import Array
from fedhet.reading.structured import parse_object, shaped
from fedhet.reading.tensors import read_tensors
from fedhet.records.hash_chain import hash_array
from fedhet.records.json_models import Meta


@dataclass(frozen=True)
class Checkpoint:
    """The strategy's arrays, in its order, and the books of the round after which they stand."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """One safetensors file with the arrays and, as metadata, everything else.

    A digest of both lies beside them.
    """
    data = {name: np.asarray(array, order="C") for name, array in checkpoint.arrays.items()}
    text = json.dumps({"names": list(data), **checkpoint.meta})  # a file has an order of its own
    with replacing(path, private=True, synced=True) as temporary:
        save_file(data, temporary, metadata={"json": text, "sha256": _digest(text, data)})


def load_checkpoint(path: Path) -> Checkpoint | None:
    """The state after the last finished round; None if no round was ever begun.

    Raises VerifyError if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        found, said = read_tensors(path, "numpy")
    except OSError as error:
        raise VerifyError(f"'{path}' cannot be read: {error}") from error
    text = said.get("json", "")
    if said.get("sha256") != _digest(text, found):
        raise VerifyError(f"'{path}' is damaged, or an older fedhet wrote it")
    source = f"'{path}'"
    meta = parse_object(text, source, "books")
    shaped(Meta, meta, source, "books")
    names = meta.pop("names")
    if sorted(names) != sorted(found):
        raise ReadError(source, "books: names", "not those of the arrays")
    return Checkpoint({name: found[name] for name in names}, meta)


def _digest(text: str, arrays: Mapping[str, Array]) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        hash_array(found, name, arrays[name])
    return found.hexdigest()
