"""Private state in Flower's own context: the backend for clients without a disk of their own."""

import contextlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedhet.reading.structured import parse_object
from fedhet.site.state import Bundle, Generations, StateLostError, digest_of

_ASIDE = "-aside"  # end of a record's name


class ContextStore(Generations):
    """Generations as records of Flower's ``context.state``: no shared disk, no resume."""

    def __init__(self, records: RecordDict, client: str) -> None:
        self.records = records
        self.client = client

    @property
    def owner(self) -> str:
        """The client that it was made for."""
        return self.client

    def load(self, generation: int, digest: str = "") -> Bundle:
        """See :class:`StateStore`."""
        names = [str(generation), f"{generation}{_ASIDE}" if digest else ""]
        held = [name for name in names if name in self.records.array_records]
        if not held:
            raise StateLostError(f"state in context: generation {generation} is not there")
        for name in held:
            bundle = self._bundle(name)
            if not digest or digest == digest_of(self.client, generation, bundle):
                self._source_aside = -1 if name == str(generation) else generation
                return bundle
        raise StateLostError(
            f"state in context: generation {generation} is not the one that the server means"
        )

    def generations(self) -> list[int]:
        """See :class:`FileStore`."""
        return sorted(int(name) for name in self.records.array_records if name.isdigit())

    def _bundle(self, name: str) -> Bundle:
        record = self.records.array_records[name]
        return {key: torch.from_numpy(array.numpy().copy()) for key, array in record.items()}

    def _set_aside(self) -> list[int]:
        names = self.records.array_records
        return sorted(int(n.removesuffix(_ASIDE)) for n in names if n.endswith(_ASIDE))

    def _digest(self, generation: int) -> str:
        return digest_of(self.client, generation, self._bundle(str(generation)))

    def _move(self, generation: int, *, aside: bool) -> None:
        names = str(generation), f"{generation}{_ASIDE}"
        self.records[names[aside]] = self.records.array_records[names[not aside]]
        del self.records[names[not aside]]

    def _put(self, generation: int, digest: str, bundle: Mapping[str, Tensor]) -> None:
        self.records[str(generation)] = ArrayRecord(
            {name: tensor.contiguous() for name, tensor in bundle.items()}
        )

    def _drop(self, generation: int, *, aside: bool) -> None:
        self.records.pop(f"{generation}{_ASIDE}" if aside else str(generation), None)

    def describe(self, description: Mapping[str, Any]) -> None:
        """Nothing: this state lives and ends with Flower's run."""

    def read_note(self, name: str) -> dict[str, Any] | None:
        """See :class:`StateStore`."""
        record = self.records.config_records.get(f"note-{name}")
        return (
            None if record is None else parse_object(str(record["json"]), "state in context", name)
        )

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """See :class:`StateStore`."""
        self.records[f"note-{name}"] = ConfigRecord({"json": json.dumps(note)})

    def alone(self) -> AbstractContextManager[None]:
        """See :class:`StateStore`: nobody else has these records."""
        return contextlib.nullcontext()
