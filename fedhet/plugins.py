"""Other people's methods, models and data sets, by module or by the name of an entry point.

``package.module:NAME`` lies in the folder where the command is given, or is installed; an installed
package may also give it a name of its own in an entry-point group. Neither hides anything of ours,
nor do we: with our checkout or bundle ahead on ``sys.path``, ``clients`` is still theirs.
"""

import importlib
import importlib.machinery
import importlib.util
import keyword
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fedhet import layout
from fedhet.errors import UserError, brief, nearest

GROUPS = {"method": "fedhet.methods", "model": "fedhet.models", "dataset": "fedhet.datasets"}


class Theirs:
    """Finds ``clients``, ``strategies`` and ``configs`` of somebody else, if there are any.

    Ours have these names in ``fedhet`` only; but Flower, an editable install, or whoever works in
    a checkout puts its top folder on ``sys.path``, before others.
    """

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As Python would without that folder; None for every other name."""
        if name not in layout.BESIDE:
            return None
        places = [place for place in sys.path if not layout.is_top(place)]
        return importlib.machinery.PathFinder.find_spec(name, places)


@lru_cache(maxsize=len(GROUPS))
def installed(kind: str) -> dict[str, EntryPoint]:
    """What installed packages offer of a kind (``method``, ``model``, ``dataset``), by name."""
    return {entry.name: entry for entry in entry_points(group=GROUPS[kind])}


_here: list[str] = []  # where a user's own modules are looked for, once one is to be imported
_guard: list["Guard"] = []


@dataclass
class Guard:
    """Who may be imported while a stranger's folder is open; ``refused`` are the names that not."""

    allowed: Callable[[str], bool]
    refused: set[str] = field(default_factory=set)


@contextmanager
def guarded(allowed: Callable[[str], bool]) -> Iterator[Guard]:
    """Import a ``module:NAME`` meanwhile only if ``allowed`` says so; for the whole process."""
    guard = Guard(allowed)
    _guard.append(guard)
    try:
        yield guard
    finally:
        _guard.remove(guard)


def look_here() -> None:
    """Let modules in the working folder be found, after everything that is installed.

    Not before one of them is to be imported: until then nothing there, which may be a stranger's,
    takes the place of a package that somebody else's code tries to import.
    """
    here = str(Path.cwd())
    if here not in _here:
        _here.append(here)


def modules(names: Iterable[str]) -> set[str]:
    """Top-level modules of the names that are of the form ``package.module:NAME``."""
    found = {name.partition(":")[0] for name in names if ":" in name}
    return {module.partition(".")[0] for module in found}


def origin(module: str) -> str:
    """The file or folder of a top-level module, as it would be imported; empty if there is none."""
    try:
        spec = importlib.machinery.PathFinder.find_spec(module, [*sys.path, *_here])
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    places = list(spec.submodule_search_locations or ())
    return str(Path(spec.origin or (places[0] if places else "")).resolve())


def is_own(kind: str, name: str) -> bool:
    """Whether a name can only be somebody else's; imports nothing.

    Raises UserError for one with a colon that is not of the form ``package.module:NAME``.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return name in installed(kind)
    parts = [*module.split("."), attribute]
    if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        return True
    raise UserError(f"{kind} {name!r} is not of the form package.module:NAME")


def hint(kind: str, name: str, allowed: Iterable[str]) -> str:
    """What somebody may have meant who wrote ``name``; imports nothing.

    A module of theirs is named with what it holds; otherwise the nearest allowed name, if any.
    """
    try:
        found = name.isidentifier() and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    found = found or bool(name.isidentifier() and origin(name))
    what = {"method": "METHOD", "model": "make", "dataset": "load"}[kind]
    if found:
        return f"; '{name}' is a module: write {name}:NAME, such as {name}:{what}"
    return nearest(name.lower(), allowed)


def load(kind: str, name: str) -> Any:
    """The object of that name, for which :func:`is_own` holds.

    Raises UserError if it cannot be imported or is not there.
    """
    module, colon, attribute = name.partition(":")
    for guard in _guard:
        if colon and not guard.allowed(name):
            guard.refused.add(name)
            raise UserError(
                f"{kind} {name!r} is code that would run as you: --trust imports it, if you trust "
                "who made it"
            )
    if Theirs not in sys.meta_path:
        sys.meta_path.insert(0, Theirs)
    try:
        if not colon:
            return installed(kind)[name].load()
        sys.path += [path for path in _here if path not in sys.path]
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{kind} {name!r}: cannot import {module!r} ({brief(error)}{_instead(module, error)}); "
            "it must lie in the folder where the command is given or be installed, in a "
            "deployment on every node"
        ) from error
    if not hasattr(found, attribute):
        raise UserError(f"{kind} {name!r}: {attribute!r} does not exist in module {module!r}")
    return getattr(found, attribute)


def _instead(module: str, error: BaseException) -> str:
    """What was found under the first part of a name whose rest is missing there."""
    top = module.partition(".")[0]
    missing = str(getattr(error, "name", ""))
    found = sys.modules.get(top)
    if found is None or missing == top or not f"{module}.".startswith(f"{missing}."):
        return ""
    place = getattr(found, "__file__", None) or next(iter(found.__path__))
    return f"; {top!r} is '{place}'"
