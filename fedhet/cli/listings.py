"""What can be listed: keys, methods, runs; as text for people, as JSON for programs."""

import inspect
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from fedhet import plugins
from fedhet.cli.display import show_table
from fedhet.config.load import find_method, method_name
from fedhet.config.registry import METHODS, Method
from fedhet.config.schema import RunConfig, Schema, kebab
from fedhet.errors import RunFailed, UserError, nearest
from fedhet.files import plain_path
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import percent
from fedhet.records.verification import DEEPEST

_SIGNS = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}
_SHOWN = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def keys(word: str | None, *, as_json: bool) -> None:
    """``fedhet keys``: everything that a configuration may say, or what speaks of ``word``."""
    known = [*METHODS, *plugins.installed("method")]
    method = word if word and (method_name(word) in known or ":" in word) else None
    if word is not None and method is None:
        _search(word, as_json=as_json)
        return
    table = schema_keys(RunConfig)
    if method is not None:
        table |= schema_keys(find_method(method).params)
    if as_json:
        print(json.dumps(table, indent=2))
        return
    for key, what in table.items():
        print(_key_line(key, what))
    if method is None:
        print("and each method's own: fedhet methods, fedhet keys METHOD")


def _search(word: str, *, as_json: bool) -> None:
    """Keys of every run and of every method that have the word in their name or meaning.

    UserError if none has.
    """
    table: dict[str, dict[str, Any]] = {}
    schemas: dict[str, type[Schema]] = {"": RunConfig}
    schemas |= {name: find_method(name).params for name in METHODS}
    for owner, schema in schemas.items():
        for key, what in schema_keys(schema).items():
            if word.lower() in f"{key} {what['meaning']} {what['allowed']}".lower():
                shown = f"method={owner}: {key}" if owner else key
                table[shown] = what | {"key": key, "method": owner or None}
    if not table:
        words = [*schema_keys(RunConfig), *METHODS]
        raise UserError(f"keys: no key speaks of '{word}'{nearest(word, words)}")
    if as_json:
        print(json.dumps(list(table.values()), indent=2))
        return
    for shown, what in table.items():
        print(_key_line(shown, what))


def schema_keys(schema: type[Schema]) -> dict[str, dict[str, Any]]:
    """Default, range and meaning by key, in the schema's order."""
    return {
        kebab(name): {
            "default": _plain(field.get_default(call_default_factory=True)),
            "allowed": _allowed(field),
            "meaning": field.description or "",
        }
        for name, field in schema.model_fields.items()
        if name != "params"
    }


def _plain(value: Any) -> Any:
    """A default as it is written in YAML."""
    if isinstance(value, tuple) and value and all(isinstance(part, int) for part in value):
        return ":".join(str(part) for part in value)
    return list(value) if isinstance(value, tuple) else value


def _allowed(field: FieldInfo) -> str:
    """Alternatives or bounds; empty where the meaning says it all."""
    options = getattr(field.annotation, "__args__", ())
    if options and all(isinstance(option, str) for option in options):
        return " | ".join(options)
    if field.annotation is bool:
        return "true | false"
    bounds = []
    for note in field.metadata:
        for kind, name in _SIGNS.items():
            if isinstance(note, kind):
                bounds.append(f"{_SHOWN[name]} {getattr(note, name):g}")
    return ", ".join(bounds)


def _key_line(key: str, what: Mapping[str, Any]) -> str:
    default = what["default"]
    shown = ",".join(default) if isinstance(default, list) else json.dumps(default).strip('"')
    allowed = f" [{what['allowed']}]" if what["allowed"] else ""
    return f"{key}={shown}  {what['meaning']}{allowed}"


def methods(name: str | None, *, as_json: bool) -> None:
    """``fedhet methods``: names and their own keys; with ``name`` one method in full."""
    if name is None:
        table = [_listed(own) for own in (*METHODS, *plugins.installed("method"))]
    else:
        found = find_method(name)
        table = [_method_row(method_name(name), found)]
        table[0]["text"] = inspect.getdoc(inspect.getmodule(found.strategy)) or ""
    if as_json:
        print(json.dumps(table if name is None else table[0], indent=2))
        return
    for row in table:
        print(f"{row['name']}: {row['about']}")
        for key, what in row["keys"].items():
            print(f"    {_key_line(key, what)}")
        if "text" in row:
            print(f"\n{row['text']}\n")
            print(f"fedhet run {_preset(row['name'])}  (all other keys: fedhet keys)")


def _preset(name: str) -> str:
    """What runs a method: only ours have a preset."""
    return name if name in METHODS else f"quickstart method={name}"


def _method_row(name: str, method: Method) -> dict[str, Any]:
    return {"name": name, "about": method.about, "keys": schema_keys(method.params)}


def _listed(name: str) -> dict[str, Any]:
    """A method in the list of all; what somebody installed and is broken must not hide the rest."""
    try:
        return _method_row(name, find_method(name))
    except UserError as error:
        return {"name": name, "about": str(error), "keys": {}}


def runs(folder: Path, *, as_json: bool) -> None:
    """``fedhet runs``: every run folder below ``folder``, the oldest first."""
    base = plain_path(folder)
    if not base.is_dir():
        raise UserError(f"'{base}' is not a folder: give the folder that your runs are in")
    found = sorted(path for path in _below(base) if (path / "checkpoint" / "run.json").exists())
    table = [_run_row(RunFolder(path)) for path in found]
    table.sort(key=lambda row: row["started"])
    if as_json:
        print(json.dumps(table, indent=2))
        return
    if not table:
        print(f"no runs in {base}")
        return
    rows = [
        (
            str(Path(row["folder"]).relative_to(base)),
            row["status"],
            row["method"] or "-",
            row["dataset"] or "-",
            f"{row['rounds'] or 0}/{row['rounds_wanted'] or '-'}",
            percent(row["test_accuracy_mean"]),
        )
        for row in table
    ]
    columns = ("run", "status", "method", "dataset", "rounds", "accuracy")
    show_table(str(base), columns, rows)


def _below(base: Path) -> Iterator[Path]:
    """The folder and all below it, but for links and for what lies deeper than runs do."""
    for root, folders, _ in os.walk(base):
        yield Path(root)
        if len(Path(root).relative_to(base).parts) >= DEEPEST:
            folders.clear()


def _run_row(folder: RunFolder) -> dict[str, Any]:
    """What the list shows of one run; it may be running, killed, or damaged."""
    identity = folder.path / "checkpoint" / "run.json"
    row: dict[str, Any] = {"folder": str(folder.path), "started": identity.stat().st_mtime}
    row |= dict.fromkeys(("method", "dataset", "rounds", "rounds_wanted"), None)
    try:
        config, rounds = folder.started_config(), folder.read_rounds()
        row |= {"method": config["method"], "dataset": config["dataset"]}
        row |= {"rounds": len(rounds), "rounds_wanted": config["rounds"]}
        row["test_accuracy_mean"] = rounds[-1]["test_accuracy_mean"] if rounds else None
        row["run_sha256"] = rounds[-1]["sha256"] if rounds else None
        row["status"] = folder.read_summary().get("status") or folder.unfinished()
    except (UserError, RunFailed, ValueError, KeyError) as error:
        row |= {"status": "damaged", "test_accuracy_mean": None, "reason": str(error)}
    return row
