"""Other people's methods, models and data sets, by name: of a module, an entry point, an object.

``package.module:NAME`` lies in the folder where the command is given, or is installed; an installed
package may also give it a name of its own in an entry-point group. Neither hides anything of ours.
An object of a Python program is named by its module if it can be imported from there, else
``module:NAME:digest``, which stands for it as long as the program gives it.
"""

import contextlib
import functools
import hashlib
import hmac
import json
import keyword
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from fedhet.errors import UserError, brief
from fedhet.files import private_folder, replacing

MAC = "mac"  # field of an identity: its MAC under the key of the user who made it
MODEL_KEYS = ("architecture", "small-model")  # beside `models`
APPS_DATA = "app:data"  # data set of a run of somebody's own app, which every node has for itself
_GIVEN = re.compile(r"[\w.-]+:[\w.]+:[0-9a-f]{16}", re.ASCII)
_objects: dict[str, Any] = {}  # given by a Python program, by name


@functools.cache
def installed(kind: str) -> dict[str, EntryPoint]:
    """Return what installed packages offer of a kind (``method``, ``model``, ...), by name."""
    return {entry.name: entry for entry in entry_points(group=f"fedhet.{kind}s")}


_here: list[str] = []  # where a user's own modules are looked for


def look_here() -> None:
    """Let modules in the working folder be found once one is to be imported, after all others.

    Until then nothing there, which may be a stranger's, can pass for somebody's missing package.
    """
    try:
        here = str(Path.cwd())
    except OSError as error:
        raise UserError("the working folder no longer exists: change to another") from error
    if here not in _here:
        _here.append(here)


def modules(names: Iterable[str]) -> set[str]:
    """Top-level modules of the names that are of the form ``package.module:NAME``."""
    return {re.split("[.:]", name)[0] for name in names if ":" in name and not is_given(name)}


# --- objects of a Python program ----------------------------------------------------------------


def is_given(name: str) -> bool:
    """Return whether a name stands for an object: ``module:NAME:digest``."""
    return _GIVEN.fullmatch(name) is not None


@contextlib.contextmanager
def giving(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let names stand for these objects within this block."""
    before = dict(_objects)
    _objects.update(objects)
    try:
        yield
    finally:
        _objects.clear()
        _objects.update(before)


def given(names: Iterable[str]) -> dict[str, Any]:
    """Return the objects that stand behind some of the names."""
    return {name: _objects[name] for name in names if name in _objects}


def check_given(names: Iterable[str]) -> None:
    """Raise UserError if one of the names stands for an object that is not given."""
    if missing := [name for name in names if is_given(name) and name not in _objects]:
        raise UserError(
            f"{', '.join(missing)}: was an object of a Python program: give it again, such as "
            "fedhet.resume(run, models=..., data=...), where it is refused if it is another"
        )


def name_of(thing: Any, prefix: str = "") -> str:
    """Return the name of an object: ``module:NAME`` if that is it, else with a digest.

    ``prefix`` replaces the module. The digest covers code, weights and plain values, so that
    another program that makes the same object gets the same name.
    """
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    module, name = str(kind.__module__), str(kind.__qualname__)
    importable = getattr(sys.modules.get(module), name, None) is thing and module != "__main__"
    if importable and not prefix:
        return f"{module}:{name}"
    plain = ".".join(re.findall(r"\w+", name, re.ASCII)) or "object"
    if prefix:
        module, plain = prefix, f"{module.partition('.')[0]}.{plain}"
    digest = hashlib.sha256()
    _feed(digest, thing, {})
    return f"{module}:{plain}:{digest.hexdigest()[:16]}"


def _feed(digest: "hashlib._Hash", thing: Any, seen: dict[int, Any]) -> None:
    """Feed what an object is made of: code, arrays, plain values, and all of that in its parts."""
    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
        digest.update(f"|{thing!r}".encode())
        return
    digest.update(f"|{type(thing).__qualname__}".encode())
    if id(thing) in seen:
        return
    seen[id(thing)] = thing  # alive: another part must not get its id
    if hasattr(thing, "__array__"):
        array = np.ascontiguousarray(thing.detach().cpu() if hasattr(thing, "detach") else thing)
        digest.update(f"|{array.dtype.str}|{array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.data)
    else:
        for part in _parts(thing):
            _feed(digest, part, seen)


_MADE_OF: dict[Any, str] = {  # what decides how it works; nothing of where it was written
    CodeType: "co_code co_names co_consts", functools.partial: "func args keywords",
    (staticmethod, classmethod): "__func__", property: "fget fset",
}  # fmt: skip


def _parts(thing: Any) -> Iterable[Any]:  # noqa: PLR0911  (one for each type)
    for kind, names in _MADE_OF.items():
        if isinstance(thing, kind):
            return [getattr(thing, name) for name in names.split()]
    if isinstance(thing, Mapping):
        return [part for pair in thing.items() for part in pair]
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing))
    if isinstance(thing, list | tuple):
        return thing
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        used = [thing.__globals__.get(name) for name in _names(thing.__code__)]
        near = [one for one in used if _is_near(one, thing.__module__)]
        return [thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells, near]
    if isinstance(thing, type):
        attributes = {
            k: v for k, v in vars(thing).items() if k == "__init__" or not k.startswith("__")
        }
        return [[b for b in thing.__bases__ if _is_near(b, thing.__module__)], attributes]
    if hasattr(thing, "state_dict"):
        return [type(thing), str(thing), thing.state_dict()]
    inside = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("__")}
    return [type(thing), inside] if inside else []


def _names(code: CodeType) -> list[str]:
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names(one)]
    return [*code.co_names, *inner]


def _is_near(thing: Any, module: str) -> bool:
    plain = isinstance(thing, bool | int | float | str | tuple)
    return plain or (isinstance(thing, type | FunctionType) and thing.__module__ == module)


# --- whose code a folder may name --------------------------------------------------------------


def _key() -> bytes:
    """Return this user's key of 32 bytes, made at first use; raise OSError where it cannot be."""
    base = os.environ.get("XDG_STATE_HOME", "")
    path = (Path(base) if base else Path.home() / ".local" / "state") / "fedhet" / "key"
    if not path.exists():
        private_folder(path.parent)
        with replacing(path, private=True, synced=True, shared=True) as temporary:
            temporary.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()


def sign(identity: Mapping[str, Any]) -> str:
    """Return the MAC of a run's or a model's identity; empty where this user can have no key."""
    text = json.dumps({k: v for k, v in identity.items() if k != MAC}, sort_keys=True)
    with contextlib.suppress(OSError, RuntimeError):  # a home that cannot be written, or none
        return hmac.new(_key(), text.encode(), "sha256").hexdigest()
    return ""


def made_here(identity: Mapping[str, Any]) -> bool:
    """Return whether ``identity`` carries the MAC that this user's key gives it."""
    mac = identity.get(MAC)
    return isinstance(mac, str) and bool(mac) and hmac.compare_digest(mac, sign(identity))


def named(values: Mapping[str, Any]) -> list[str]:
    """Return the method, models, metrics and data sets that a configuration or a card names."""
    models, metrics = values.get("models", ()), values.get("metrics")
    models = models.split(",") if isinstance(models, str) else models
    names = [values.get(key) for key in ("method", *MODEL_KEYS)]
    names += models if isinstance(models, list | tuple) else ()
    # Of a model without its file of weights, whose path may have a colon too.
    names = [name.strip().partition(" ")[0] for name in names if isinstance(name, str)]
    functions = metrics.values() if isinstance(metrics, Mapping) else ()
    names += [
        str(one) for entry in functions for one in ([entry] if isinstance(entry, str) else entry)
    ]
    data = str(values.get("dataset", "")).strip()
    return list(filter(None, [*names, "" if data.startswith(("synthetic", "hf:")) else data]))


def require_trust(what: str, values: Mapping[str, Any], *, trusted: bool) -> None:
    """Raise UserError if ``values`` name code of others and are not ``trusted``."""
    own = sorted(name for name in set(named(values)) if modules([name]))
    if own and not trusted:
        raise UserError(
            f"{what} names code that would run as you: {', '.join(own)[:300]}; you did not make "
            "it: give --trust to import the code if you trust its author"
        )


def is_own(kind: str, name: str) -> bool:
    """Whether a name can only be somebody else's; imports nothing.

    Raises UserError for one with a colon that is not ``package.module:NAME``, or is Python's own.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return name in installed(kind)
    if is_given(name):
        return True
    parts = [*module.split("."), attribute]
    if parts[0] in sys.stdlib_module_names:
        raise UserError(f"{kind} {name!r}: '{parts[0]}' is Python's own module, not a {kind}")
    if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        return True
    raise UserError(f"{kind} {name!r} is not of the form package.module:NAME")


def load(kind: str, name: str) -> Any:
    """Return the object of a name for which :func:`is_own` holds; UserError if it is not there."""
    if is_given(name):
        check_given([name])
        return _objects[name]
    if ":" in name:
        sys.path += [folder for folder in _here if folder not in sys.path]
    try:
        entry = EntryPoint(name, name, "") if ":" in name else installed(kind)[name]
        return entry.load()
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{kind} {name!r}: cannot be imported ({brief(error)}); it must be in the working "
            "folder, or installed (on a network at the server and on every node)"
        ) from error
