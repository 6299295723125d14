"""How methods, values and models are called in tables and pictures."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from fedhet.config.load import find_method
from fedhet.config.registry import METHODS, Method
from fedhet.errors import ReadError
from fedhet.reading.structured import parse_yaml
from fedhet.reports import papers

_FILE = re.compile(r"[a-zA-Z0-9_-]{1,200}")  # file systems take 255 bytes
_KEPT = 150  # letters of a longer name


def file_name(text: str) -> str:
    """The text as the name of a file and an anchor, without any path; no two texts share one.

    Names of columns, keys and methods are in it, and a record may be a stranger's.
    """
    if _FILE.fullmatch(text):
        return text
    kept = re.sub(r"[^a-zA-Z0-9_-]+", "_", text)[:_KEPT]
    return f"{kept}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def plain(value: Any) -> str:
    """A value as it is written on the command line; a mapping as JSON, which YAML reads."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    return str(value)


def exact(value: Any) -> str:
    """A value so that no other looks the same: as JSON where the short form could be another's."""
    short = plain(value)
    try:
        same = ", " not in short and parse_yaml(short) == value
    except ReadError:
        same = False
    return short if same else json.dumps(value, sort_keys=True, default=str)


def model_range(names: Sequence[str]) -> list[str]:
    """Models as a title says them: ``cnn-1 to cnn-5`` for numbered names in a row."""
    stems = {name.rpartition("-")[0] for name in names}
    numbers = [name.rpartition("-")[2] for name in names]
    if len(names) > 2 and len(stems) == 1 and numbers == [str(i + 1) for i in range(len(names))]:
        return [names[0], "to", names[-1]]
    return list(names)


def known_method(name: str) -> Method | None:
    """The method, or None if this installation has none that works: its runs can still be read."""
    try:
        found = find_method(name)
        return found if found.params and found.strategy else None
    except Exception:  # whatever another's module does when it is imported
        return None


def method_name(method: str) -> str:
    """The papers' spelling, that of the method's classes (``PFedX`` is pFedX), or its own name.

    No two methods share one: classes that are called otherwise than another package's method do
    not name it alone.
    """
    known = known_method(method)
    if known is None:
        return method if re.fullmatch(r"[^\W_][\w.:-]*", method) else repr(method)
    spelt = re.sub(r"^PF", "pF", known.strategy.__name__.removesuffix("Strategy"))
    if method in METHODS or spelt.lower() == method:
        return papers.method_names().get(method, spelt)
    return f"{spelt} ({method})"
