"""Which runs and models this user's fedhet has made, known outside of what it made.

Nothing in a run folder can say whose it is: whoever sends one writes all of it. So every run that
is begun here, and every model exported here, gets a small file in ``$XDG_STATE_HOME/fedhet/made``
(``~/.local/state``), mode 600, named by the run's random id: where the run folder is, where its
clients' states are, and from which files the code of others that it names was imported. Only what
stands there may be written or deleted outside the run folder, or have its code imported unasked.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedhet import plugins
from fedhet.data.inputs import HUB
from fedhet.errors import UserError, VerifyError
from fedhet.files import private_files, write_json
from fedhet.reading.structured import read_json, shaped


class Entry(BaseModel):
    """What is known of one run or exported model; paths are resolved."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    folder: str
    states: str = ""
    modules: dict[str, str] = {}


def place() -> Path:
    """The folder of the register."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "state") / "fedhet" / "made"


def note(key: str, folder: Path, names: Iterable[str], states: Path | None = None) -> None:
    """Remember what was made here; ``names`` are its methods, models and data set.

    Raises OSError where the register cannot be written.
    """
    modules = {module: plugins.origin(module) for module in plugins.modules(names)}
    entry = Entry(
        folder=str(folder.resolve()),
        states=str(states) if states is not None else "",
        modules=modules,
    )
    with private_files():
        place().mkdir(parents=True, exist_ok=True)
    write_json(place() / f"{key}.json", entry.model_dump(), private=True)


def find(key: str) -> Entry | None:
    """What is known of a run by its experiment's id, or of a model; None: it is not of here."""
    path = place() / f"{key}.json"
    with contextlib.suppress(OSError, VerifyError):
        return shaped(Entry, read_json(path), f"'{path}'")
    return None


def forget(key: str) -> None:
    """Take a run out that was given up before it began, or was only to be measured."""
    with contextlib.suppress(OSError):
        (place() / f"{key}.json").unlink(missing_ok=True)


def trusts(key: str, folder: Path, names: Iterable[str]) -> bool:
    """Whether code that ``folder`` names may be imported: it was made here, and with this code.

    ``folder`` is the run's or its states'.
    """
    entry = find(key)
    if entry is None or str(folder.resolve()) not in {entry.folder, entry.states}:
        return False
    return all(entry.modules.get(m) == plugins.origin(m) for m in plugins.modules(names))


def named(values: Mapping[str, Any]) -> list[str]:
    """The method, models and data set that a configuration or a card names."""
    models = values.get("models", ())
    models = models.split(",") if isinstance(models, str) else models
    one = [values.get("method"), values.get("architecture")]
    many = models if isinstance(models, list | tuple) else ()
    data = str(values.get("dataset", ""))
    # Of a model without its file of weights, which may have a colon too.
    names = [name.strip().partition(" ")[0] for name in (*one, *many) if isinstance(name, str)]
    ours = data.startswith(("synthetic", HUB))
    return names if ours else [*names, data.strip()]


def require_trust(what: str, names: Iterable[str], *, trusted: bool) -> None:
    """UserError if code of others is named that may not be imported."""
    own = sorted(name for name in set(names) if plugins.modules([name]))
    if own and not trusted:
        raise UserError(
            f"{what} names code that would run as you: {', '.join(own)[:300]}; it was not made by "
            "this fedhet with the code that is here now: --trust imports it, if you trust who made "
            "both"
        )
