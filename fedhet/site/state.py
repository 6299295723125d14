"""Private state of a client: one named-tensor bundle per generation, in a folder of its own.

The folder also holds notes, small mappings that stay when a generation is undone: ``client`` (what
the tensors belong to), ``data`` (what they were trained on), ``privacy`` (the budget spent),
``sum-...`` (:mod:`fedhet.sums.client`).

Generation r is the state after round r; generation 0 is the initialisation and is never stored.
A round starts from exactly the generation that the server names, so a repeated, late or lost
message changes nothing. Saving r keeps r and its source, the generation that the round started
from. Newer ones, which the server has not accepted, are set aside until a round starts from a later
generation; until then they replace each other. A state's digest covers whose it is, its generation
and its tensors, and the server names it: damage, another's state or an older one is an error.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from fedhet.errors import Code, Damaged, Refused, refusing
from fedhet.files import private_folder, read_json, read_tensors, replacing, sync
from fedhet.plugins import MAC, sign
from fedhet.training.loop import Fixed, Recent

Bundle = dict[str, Tensor]

BEST_FILE = "best.safetensors"
DESCRIPTION = "client.json"  # the note that says what the generations belong to
# Notes of keep-best: the newest score and the best one, each with its generation.
VALIDATION, BEST = "validation", "best"
PREDICTIONS = "predictions"  # tensors of keep-predictions: <part>/row, y and p
DATA = "data"  # note with the digest of a deployed client's data
SUM_KEY = "sum-key"  # note of a client whose run began with masked sums: see fedhet.sums.client


def digest_of(client: str, generation: int, bundle: Mapping[str, Tensor]) -> str:
    """Return SHA-256 (hex) of a state: owner, generation, and every tensor with its name."""
    found = hashlib.sha256(f"{client}|{generation}".encode())
    for name in sorted(bundle):
        tensor = bundle[name].detach().cpu().contiguous()
        found.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


class FileStore:
    """Stores one client's states, ``<generation>.safetensors`` in a folder with its name.

    One that is set aside ends in ``.aside``.
    """

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.folder, self.sync = folder, sync

    def path(self, generation: int) -> Path:
        """Return the file of one generation."""
        return self.folder / f"{generation:08d}.safetensors"

    def load(self, generation: int, digest: str = "") -> Bundle:
        """Return the tensors (CPU, memory-mapped) of that generation.

        ``digest`` is the server's, where one asks. Raises Refused if the generation is
        missing, damaged or another one.
        """
        try:
            return self._read(self.path(generation), generation, digest)
        except Refused:
            aside = self._aside(generation)
            if not (aside.exists() if digest else self.best() == generation):
                raise
            return self._read(aside if digest else self.folder / BEST_FILE, generation, digest)

    def best(self) -> int | None:
        """Return the generation that :meth:`keep_best` kept; None: there is none."""
        note = self.read_note(BEST) if (self.folder / BEST_FILE).exists() else None
        return None if note is None else int(note["generation"])

    def keep_best(self, generation: int) -> None:
        """Keep a copy of ``generation`` beside the others until another one is named."""
        path = self.path(generation)
        source = path if path.exists() else self._aside(generation)
        target = self.folder / BEST_FILE
        self._write(target, lambda file: shutil.copyfile(source, file), "the best state")

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Store ``tensors`` beside the generations under ``name``."""
        path = self.folder / f"{name}.safetensors"
        self._write(path, lambda file: save_file(dict(tensors), file), name)

    def kept(self, name: str) -> Bundle:
        """Return what :meth:`keep` stored under ``name``; nothing if it cannot be read."""
        with contextlib.suppress(OSError, Damaged):
            return read_tensors(self.folder / f"{name}.safetensors", "pt")[0]
        return {}

    def _read(self, path: Path, generation: int, digest: str) -> Bundle:
        try:
            bundle, metadata = read_tensors(path, "pt")
        except (OSError, Damaged) as error:
            why = error.what if isinstance(error, Damaged) else error
            text = f"state '{path}': generation {generation} cannot be read: {why}"
            raise Refused(text, Code.STATE_LOST) from error
        client = metadata.get("client", "")
        computed = digest_of(client, generation, bundle)
        if metadata.get("digest") != computed:
            text = f"state '{path}': generation {generation} is damaged: its digest differs"
            raise Refused(text, Code.STATE_LOST)
        if digest and digest != computed:
            text = f"state '{path}' of client '{client}' is not the generation {generation} that"
            other = "it is another client's, another run's, or older"
            raise Refused(f"{text} the server asks for: {other}", Code.STATE_LOST)
        return bundle

    def generations(self, suffix: str = ".safetensors") -> list[int]:
        """Return the generations that are stored, ascending; those aside by their suffix."""
        names = (re.fullmatch(r"[0-9]{8,18}", p.stem) for p in self.folder.glob(f"*{suffix}"))
        return sorted(int(name[0]) for name in names if name)

    def save(self, generation: int, source: int, bundle: Mapping[str, Tensor]) -> str:
        """Store ``bundle``, keep ``source``, the generation it came from, and set newer ones aside.

        Returns the digest. Raises Refused if it cannot be written; older generations then stay.
        """
        if source and not self.path(source).exists():  # it was loaded from aside
            with contextlib.suppress(FileNotFoundError):  # a repeated message has moved it already
                self._aside(source).replace(self.path(source))
        digest = digest_of(self.folder.name, generation, bundle)
        before, aside = self.generations(), self.generations(".aside")
        accepted = [g for g in aside if g < source]
        undone = [g for g in before if g > source]
        with contextlib.suppress(OSError, Damaged):  # a repeated message saves the same again
            if read_tensors(self.path(generation), "pt")[1].get("digest") == digest:
                undone = [g for g in undone if g != generation]
        for old in undone if accepted == aside else []:
            with contextlib.suppress(FileNotFoundError):
                self.path(old).replace(self._aside(old))
        metadata = {"client": self.folder.name, "generation": str(generation), "digest": digest}
        write = partial(save_file, dict(bundle), metadata=metadata)
        self._write(self.path(generation), write, f"generation {generation}")
        unneeded = [self.path(old) for old in set(before) - {generation, source}]
        unneeded += [*map(self._aside, accepted), *self.folder.glob("*.tmp")]  # of crashes
        for file in unneeded:
            file.unlink(missing_ok=True)
        return digest

    def _aside(self, generation: int) -> Path:
        return self.path(generation).with_suffix(".aside")

    def describe(self, description: Mapping[str, Any]) -> None:
        """Write ``client.json``, with the run's experiment id."""
        about = {"run": self.folder.parent.name, **description}
        self.write_note(Path(DESCRIPTION).stem, about | {MAC: sign(about)})

    def read_note(self, name: str) -> dict[str, Any] | None:
        """Return what was last written under ``name``; None: nothing. Refused: damaged."""
        path = self.folder / f"{name}.json"
        with refusing(Code.STATE, kinds=(OSError, Damaged)):  # which names the file
            note = read_json(path) if path.exists() else None
            if note == {}:
                raise Damaged.at(f"'{path}'", "", "empty")
            return note

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Keep ``note`` (JSON) beside the generations, whichever of them are kept."""
        path = self.folder / f"{name}.json"
        data = (json.dumps(note, indent=2) + "\n").encode()
        with contextlib.suppress(OSError):  # there is none yet
            if path.read_bytes() == data:
                return
        self._write(path, lambda file: file.write_bytes(data), path.name)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the client within this block, since a repeated message may run in parallel."""
        with refusing(Code.STATE, kinds=OSError):  # which names the file
            self._make()
            locked = FileLock(self.folder / ".lock", mode=0o600).acquire()
        with locked:
            yield

    def _write(self, path: Path, write: Callable[[Path], object], what: str) -> None:
        try:
            self._make()
            # A repeated message may be at work beside the first one.
            with replacing(path, private=True, synced=self.sync, shared=True) as temporary:
                write(temporary)
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or error
            text = f"state '{self.folder}': {what} cannot be written: {why}"
            raise Refused(text, Code.STATE) from error

    def _make(self) -> None:
        made = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
        private_folder(self.folder)
        for place in made if self.sync else []:
            sync(place.parent)


# --- a client's modules -----------------------------------------------------------------------

Modules = dict[str, nn.Module]


# Of 64 architectures: modules of this process, what their factories froze, and buffers that no
# state keeps; None if each client's are drawn for it.
_BUILT: Recent[Hashable, tuple[Modules, Fixed, Bundle | None]] = Recent(64)
_METRICS = "metrics"  # the part of a bundle that is no module


def instance(
    key: Hashable, build: Callable[[str], Modules], device: torch.device, *, fresh: bool
) -> tuple[Modules, Fixed]:
    """Return the modules of ``key`` on ``device``, and what ``build`` froze of them.

    ``build`` draws for the purpose that it is given. Weights are those of ``build`` if ``fresh``,
    else whatever the last client left there: :func:`fill` them. Buffers that no state keeps are as
    if they had just been built.
    """
    kept = _BUILT.get(key)
    built = build("init") if kept is None or fresh or kept[2] is None else {}
    if kept is None:
        unkept = {name: buffer.clone() for name, buffer in _unkept(built).items()}
        others = _unkept(build("other")) if unkept else {}
        same = all(torch.equal(unkept[name], others[name]) for name in unkept)
        for module in built.values():
            module.to(device).to(memory_format=torch.channels_last)
        fixed = Fixed(built.values())
        _BUILT.put(key, (built, fixed, unkept if same else None))
        return built, fixed
    modules, fixed, always = kept
    for name, module in modules.items() if fresh else ():
        module.load_state_dict(built[name].state_dict())
    unkept = _unkept(built) if always is None else always
    for name, buffer in _unkept(modules).items():
        buffer.copy_(unkept[name])
    return modules, fixed


def _unkept(modules: Modules) -> Bundle:
    """Return the non-persistent buffers of ``modules`` by name."""
    buffers: Bundle = {}
    for name, module in modules.items():
        states, named = module.state_dict().keys(), module.named_buffers()
        buffers |= {f"{name}/{k}": b.detach() for k, b in named if k not in states}
    return buffers


def forget() -> None:
    """Drop the modules that this process keeps."""
    _BUILT.clear()


def to_bundle(modules: Modules, accuracies: Iterable[tuple[str, float]]) -> Bundle:
    """Return all that a client keeps, on the CPU: modules and ``metrics/``."""
    bundle: Bundle = {}
    stored: set[int] = set()
    for name, module in modules.items():
        for key, tensor in module.state_dict().items():
            if key in getattr(module, "still", ()):
                continue  # a pretrained network's own weights, of which the digest is kept
            mine = tensor.detach().cpu().contiguous()
            if mine.numel() and mine.data_ptr() in stored:  # tied weights: a copy for each name
                mine = mine.clone()
            stored.add(mine.data_ptr())
            bundle[f"{name}/{key}"] = mine
    for name, value in accuracies:
        bundle[f"{_METRICS}/{name}"] = torch.tensor(value, dtype=torch.float64)
    return bundle


def not_finite(bundle: Bundle) -> str:
    """Return the name of a tensor that holds NaN or infinity, or nothing."""
    floating = ((n, t) for n, t in bundle.items() if t.is_floating_point() and t.numel())
    return next((name for name, t in floating if not torch.isfinite(t).all()), "")


def fill(modules: Mapping[str, nn.Module], bundle: Bundle) -> None:
    """Put a bundle's weights into the modules, strictly by name.

    Raise RuntimeError as well if pretrained weights beside the bundle are others than its round's.
    """
    for name, module in modules.items():
        parts = ((key.partition("/"), tensor) for key, tensor in bundle.items())
        tensors = {rest: tensor for (owner, _, rest), tensor in parts if owner == name}
        digest = getattr(module, "network_sha256", None)
        if digest is not None and not torch.equal(
            digest.cpu(), tensors.get("network_sha256", digest)
        ):
            raise RuntimeError("the pretrained weights are not those that the state was trained on")
        state = module.state_dict()
        still = {key: state[key] for key in getattr(module, "still", ())}
        module.load_state_dict({**tensors, **still}, strict=True)


def accuracies_of(bundle: Bundle) -> dict[str, float]:
    """Return the accuracies in percent that were kept with a state, by name."""
    parts = ((name.partition("/"), value) for name, value in bundle.items())
    return {name: float(value) for (owner, _, name), value in parts if owner == _METRICS}
