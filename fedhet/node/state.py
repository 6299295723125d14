"""Private state of a client: one named-tensor bundle per generation, two backends.

Beside the generations lie notes, small mappings that no generation takes back: ``client`` says
what the tensors belong to (file store only), ``privacy`` what uploads have cost.

Generation r is the state after round r; generation 0 is the initialisation and is never stored.
A round starts from exactly the generation that the server names, so a repeated, late or lost
message changes nothing. Saving r deletes what is newer and keeps r and the one it came from.

A state's digest covers whose it is, its generation and its tensors. It lies in the file, and goes
to the server, which names it when it asks for the generation: damage, another client's state or an
older one under this name is an error, never another result.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fedhet.errors import ReadError
from fedhet.files import private_files, replacing, sync
from fedhet.reading.structured import parse_object, read_json
from fedhet.reading.tensors import read_tensors

Bundle = dict[str, Tensor]

DESCRIPTION = "client.json"  # the note that says what the generations belong to


class StateError(Exception):
    """A state that cannot be written; names the client's folder and the generation."""


class StateLostError(StateError):
    """A state that is not there, is damaged, or is not the one that is meant."""


class StateStore(Protocol):
    """Where the generations of one client live."""

    def load(self, generation: int, digest: str = "") -> Bundle:
        """Tensors (CPU) of that generation; ``digest`` is the server's, where one asks.

        StateLostError if it is missing, damaged or another one.
        """

    def save(self, generation: int, source: int, bundle: Mapping[str, Tensor]) -> str:
        """Store ``bundle``; keep only it and ``source``, the generation it came from.

        Returns its digest; StateError if it cannot be written.
        """

    def describe(self, description: Mapping[str, Any]) -> None:
        """Say what the generations belong to, for who finds them without the run."""

    def read_note(self, name: str) -> dict[str, Any] | None:
        """What was last written under ``name``; None: nothing. StateError if it is damaged."""

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Keep ``note`` (what JSON can say) beside the generations, whichever of them are kept."""


def digest_of(client: str, generation: int, bundle: Mapping[str, Tensor]) -> str:
    """SHA-256 (hex) of a state: its owner, its generation, and every tensor with its name."""
    found = hashlib.sha256(f"{client}|{generation}".encode())
    for name in sorted(bundle):
        tensor = bundle[name].detach().cpu().contiguous()
        found.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


class FileStore:
    """``<folder>/<generation>.safetensors``: temporary name, synced, renamed.

    The folder is the client's, and named like it.
    """

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.folder = folder
        self.sync = sync

    def path(self, generation: int) -> Path:
        """File of one generation."""
        return self.folder / f"{generation:08d}.safetensors"

    def load(self, generation: int, digest: str = "") -> Bundle:
        """See :class:`StateStore`; the file is memory-mapped."""
        path = self.path(generation)
        try:
            bundle, said = read_tensors(path, "pt")
        except (OSError, ReadError) as error:
            why = error.what if isinstance(error, ReadError) else error
            raise StateLostError(
                f"state '{path}': generation {generation} cannot be read: {why}"
            ) from error
        client = said.get("client", "")
        own = digest_of(client, generation, bundle)
        if said.get("digest") != own:
            raise StateLostError(
                f"state '{path}': generation {generation} is damaged: not what was written"
            )
        if digest and digest != own:
            raise StateLostError(
                f"state '{path}': of client '{client}', but not the generation {generation} that "
                "the server means: another client's, an older one, or of another run"
            )
        return bundle

    def generations(self) -> list[int]:
        """The generations that are stored, ascending."""
        return sorted(int(p.stem) for p in self.folder.glob("*.safetensors") if p.stem.isdigit())

    def save(self, generation: int, source: int, bundle: Mapping[str, Tensor]) -> str:
        """See :class:`StateStore`; the good generations stay if the disk is full."""
        path, client = self.path(generation), self.folder.name
        digest = digest_of(client, generation, bundle)
        said = {"client": client, "generation": str(generation), "digest": digest}
        what = f"generation {generation}"
        self._write(path, lambda file: save_file(dict(bundle), file, metadata=said), what)
        keep = {path, self.path(source)}
        for old in self.folder.iterdir():
            if old not in keep and old.suffix in {".safetensors", ".tmp"}:
                old.unlink(missing_ok=True)
        return digest

    def describe(self, description: Mapping[str, Any]) -> None:
        """``client.json``, with the run's experiment id."""
        self._note(DESCRIPTION, {"run": self.folder.parent.name, **description})

    def read_note(self, name: str) -> dict[str, Any] | None:
        """See :class:`StateStore`."""
        path = self.folder / f"{name}.json"
        try:
            note = read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ReadError) as error:
            raise StateError(f"state '{path}': cannot be read: {error}") from error
        if not note:
            raise StateError(f"state '{path}': does not hold what was written")
        return note

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """See :class:`StateStore`."""
        self._note(f"{name}.json", note)

    def _note(self, name: str, note: Mapping[str, Any]) -> None:
        """Written only when it changes."""
        path = self.folder / name
        data = (json.dumps(note, indent=2) + "\n").encode()
        try:
            if path.read_bytes() == data:
                return
        except OSError:
            pass  # there is none yet
        self._write(path, lambda file: file.write_bytes(data), name)

    def _write(self, path: Path, write: Callable[[Path], object], what: str) -> None:
        try:
            made = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
            with private_files():
                self.folder.mkdir(parents=True, exist_ok=True)
            # A repeated message may be at work beside the first one.
            with replacing(path, private=True, synced=self.sync, shared=True) as temporary:
                write(temporary)
            for place in made if self.sync else []:
                sync(place.parent)
        except (OSError, SafetensorError) as error:
            raise StateError(
                f"state '{self.folder}': {what} cannot be written: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from error


class ContextStore:
    """Generations as records of Flower's ``context.state``: no shared disk, no resume."""

    def __init__(self, records: RecordDict, client: str) -> None:
        self.records = records
        self.client = client

    def load(self, generation: int, digest: str = "") -> Bundle:
        """See :class:`StateStore`."""
        record = self.records.array_records.get(str(generation))
        if record is None:
            raise StateLostError(f"state in context: generation {generation} is not there")
        bundle = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
        if digest and digest != digest_of(self.client, generation, bundle):
            raise StateLostError(
                f"state in context: generation {generation} is not the one that the server means"
            )
        return bundle

    def save(self, generation: int, source: int, bundle: Mapping[str, Tensor]) -> str:
        """See :class:`StateStore`."""
        self.records[str(generation)] = ArrayRecord(
            {name: tensor.contiguous() for name, tensor in bundle.items()}
        )
        for name in list(self.records.array_records):
            if name not in {str(generation), str(source)}:
                del self.records[name]
        return digest_of(self.client, generation, bundle)

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
