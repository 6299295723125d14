"""The server's checkpoint and the hash chain of a run.

The checkpoint is one safetensors file, replaced in one step after every round. Every round's link
of the chain covers the link before it, the accepted uploads, the clients' metrics and the global
arrays after the round (names, dtypes, shapes, bytes; in client order). Durations are left out, and
so are the metrics beside accuracy: the chain covers what it covered before there were any.
Equal configuration, equal bytes, equal ``run_sha256``.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedhet.config.schema import BESIDE
from fedhet.errors import Damaged
from fedhet.files import (
    client_order,
    parse_object,
    read_bytes,
    read_tensors,
    replacing,
    shaped,
    write_text,
)
from fedhet.protocol.payload import Array
from fedhet.records.formats import Meta


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

    Raises Damaged if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        found, said = read_tensors(path, "numpy")
    except OSError as error:
        raise Damaged(f"'{path}' cannot be read: {error}") from error
    text = said.get("json", "")
    if said.get("sha256") != _digest(text, found):
        raise Damaged(f"'{path}' is damaged, or an older fedhet wrote it")
    source = f"'{path}'"
    meta = parse_object(text, source, "books")
    shaped(Meta, meta, source, "books")
    names = meta.pop("names")
    if sorted(names) != sorted(found):
        raise Damaged.at(source, "books: names", "not those of the arrays")
    return Checkpoint({name: found[name] for name in names}, meta)


def _digest(text: str, arrays: Mapping[str, Array]) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        hash_array(found, name, arrays[name])
    return found.hexdigest()


class Counter:
    """A number in a file that only grows: each is on the disk before it is given out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def next(self) -> int:
        """One more than ever before; Damaged if the file is damaged."""
        last = 0
        if self.path.exists():
            text = read_bytes(self.path).decode(errors="replace").strip()
            if not re.fullmatch(r"[0-9]{1,10}", text):
                raise Damaged(f"'{self.path}' is damaged: it holds no number")
            last = int(text)
        write_text(self.path, f"{last + 1}\n", synced=True, private=True)
        return last + 1


DURATIONS = {"seconds"}


class Chain:
    """Collects one round's material and closes it into the next link."""

    def __init__(self, digest: str = "") -> None:
        self.digest = digest
        self._parts: dict[tuple[str, str], tuple[Sequence[Array], Mapping[str, float]]] = {}

    def add(
        self, kind: str, client: str, metrics: Mapping[str, float], arrays: Sequence[Array] = ()
    ) -> None:
        """Something that a client contributed to the round; the order of calls is irrelevant."""
        self._parts[kind, client] = (arrays, metrics)

    def close(self, round_: int, arrays: Mapping[str, Array]) -> str:
        """The round's link, as a hex digest."""
        link = hashlib.sha256(f"{self.digest}|{round_}".encode())
        for kind, client in sorted(self._parts, key=lambda part: (part[0], client_order(part[1]))):
            uploaded, metrics = self._parts[kind, client]
            link.update(f"|{kind}|{client}".encode())
            for i, array in enumerate(uploaded):
                hash_array(link, str(i), array)
            for name in sorted(set(metrics) - DURATIONS - BESIDE):
                link.update(f"|{name}".encode() + np.float64(metrics[name]).tobytes())
        for name in sorted(arrays):
            hash_array(link, name, arrays[name])
        self._parts.clear()
        self.digest = link.hexdigest()
        return self.digest


def hash_array(link: "hashlib._Hash", name: str, array: Array) -> None:
    """Feed an array with its name, dtype and shape into a hash."""
    link.update(f"|{name}|{array.dtype.str}|{array.shape}".encode())
    link.update(np.ascontiguousarray(array).tobytes())
