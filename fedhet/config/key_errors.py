"""Messages about a key, a value or a name of a configuration that does not exist."""

import re
from collections.abc import Mapping
from typing import Any

from fedhet import layout
from fedhet.config.registry import METHODS
from fedhet.config.schema import RunConfig, Schema, kebab
from fedhet.errors import UserError, nearest

COMMON = {kebab(name) for name in RunConfig.model_fields if name != "params"}
SWEEPS = "several values are several runs: write `grid: {%s}` in a preset for `fedhet sweep`"
_SHOWN = 4  # keys of other methods that are named
_PLAIN = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
}
_EXAMPLES = {
    "split": "write train:val:test as whole numbers, such as 8:1:1",
    "device": "write auto, cpu, cuda or cuda:N",
    "name": "use up to 64 of A-Z a-z 0-9 . _ - and no spaces",
}
_TEXTS = {
    "data-path",
    "public-path",
    "labels",
    "target",
    "text",
    "partition-file",
    "out",
    "state-dir",
    "client-keys",
    "name",
}  # any commas


def method_keys(name: str) -> Mapping[str, str]:
    """Return the keys that only a method of ours accepts, each with its meaning."""
    fields = METHODS[name].params.model_fields
    return {kebab(field): what.description or "" for field, what in fields.items()}


def unknown_key(key: str, method: str, own: set[str]) -> str:
    """One line on a key that neither every run nor ``method``, with its ``own`` keys, has."""
    if key == "params":
        return f"params: a method's own keys stand beside the others, not below it: {sorted(own)}"
    if key in {"grid", "paired"}:
        return f"{key}: this is a preset of many runs: `fedhet sweep` runs them"
    plain, known = re.sub("[-_]+", "-", key.lower()).strip("-"), COMMON | own
    others = [name for name in METHODS if plain in method_keys(name)]
    if others and plain not in known:
        return f"{key}: only method {' or '.join(others)} has this key, and method is '{method}'"
    symbol = _of_symbol(key)
    if symbol:
        return f"{key}: unknown key; did you mean '{symbol}' ({key})?"
    whole = plain in known and key[-1] not in "-_"
    alike = {} if whole else _alike(plain, known)
    hint = nearest(plain, sorted(known), 0.8 if alike else 0.5)
    whose = [f"{k} is {' and '.join(names)}" for k, names in list(alike.items())[:_SHOWN]]
    return f"{key}: unknown key{hint}{'; ' if whose else ''}{', '.join(whose)}"


def _of_symbol(key: str) -> str:
    """Return the common key whose meaning begins with that symbol of the papers, or nothing."""
    fields = RunConfig.model_fields.items()
    found = (
        kebab(name) for name, field in fields if f"{field.description} ".startswith(f"{key},")
        or f"{field.description} ".startswith(f"{key};")
    )  # fmt: skip
    return next(found, "")


def _alike(word: str, known: set[str]) -> dict[str, list[str]]:
    """Keys of single methods that may have been meant, and whose they are: a beginning, a slip."""
    found: dict[str, list[str]] = {}
    for name in METHODS:
        for key in method_keys(name):
            begins = re.match(rf"{re.escape(word)}(-|\d)", key) is not None
            if key not in known and (begins or nearest(word, [key], 0.8)):
                found.setdefault(key, []).append(f"{name}'s")
    return found


def check_single(schema: type[Schema], key: str, value: Any) -> None:
    """UserError for several values where a key takes one."""
    field = schema.model_fields[key.replace("-", "_")]
    listed = isinstance(value, str) and "," in value and key not in _TEXTS
    listed = listed and not value.startswith("flwr:")  # whose arguments may be lists
    if isinstance(field.default, tuple) or not (listed or isinstance(value, list)):
        return
    values = value if isinstance(value, list) else [part.strip() for part in value.split(",")]
    shown = f"{key}: [{', '.join(map(str, values))}]"
    raise UserError(f"{key}: '{value}' is not allowed: one value is needed; {SWEEPS % shown}")


def wrong_value(schema: type[Schema], key: str, value: Any, error: Mapping[str, Any]) -> str:
    """One line on a value that does not fit: what is allowed, in words."""
    meaning = schema.model_fields[key.replace("-", "_")].description or key
    shown = f"{key}: '{value}' is not allowed"
    kind = error["type"]
    if kind in _PLAIN:
        return f"{shown}: {_PLAIN[kind]} is needed ({meaning})"
    if key in _EXAMPLES:
        return f"{shown}: {_EXAMPLES[key]}"
    reason = error["msg"][0].lower() + error["msg"][1:]
    return f"{shown}: {reason} ({meaning})"


KEYS = {  # what runs it, in its own folder
    "fedrep": "quickstart method=fedrep:METHOD models=cnn-5",
    "own_rows": "kinds/table data-path=FILE.csv models=own_rows:deep,own_rows:wide",
    "own_words": "kinds/texts data-path=FILE.csv models=own_words:make",
    "shapes": "quickstart dataset=shapes:load",
    "tiny_net": "quickstart models=tiny_net:make",
}


def example_hint(name: str) -> str:
    """How to run the example of that name; empty if it is none."""
    name = name.removesuffix(".py")
    if name in KEYS:
        folder = layout.HERE.parent / "examples"
        found = (folder / f"{name}.py").is_file()
        place = f"in '{folder}'" if found else f"with examples/{name}.py of fedhet's source beside"
        return f"an example: {place} give `fedhet run {KEYS[name]}`"
    return ""
