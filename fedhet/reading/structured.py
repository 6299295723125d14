"""JSON, JSON lines, YAML and TOML.

No aliases and no tags in YAML, no key twice, no number that is not finite; bounds as in
:mod:`fedhet.reading.bounds`.
"""

import io
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from fedhet.errors import ReadError, UserError, one_line
from fedhet.reading.bounds import DEPTH, MEBI, check_values, decoded, read_bytes

MOST_JSON = 64 * MEBI  # bytes of a document
MOST_LINES = 256 * MEBI  # bytes of a file of lines
LINE_VALUES = 16_000_000
LINES = 1_000_000  # as many as a run can have rounds
MOST_YAML = MEBI  # what a person writes
MOST_VALUES = 4_000_000  # of a document: a few bytes of each become a hundred
DIGITS = 100  # characters of a number in YAML
_INT, _FLOAT, _BOOL, _TEXT = (
    f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "str")
)
Shape = TypeVar("Shape", bound=BaseModel)


def parse_json(data: str | bytes, source: str = "JSON", place: str = "") -> Any:
    """What JSON says, in plain values; ReadError for anything else."""
    if len(data) > MOST_JSON:
        raise ReadError(source, place, f"longer than {MOST_JSON} bytes")
    if _values(data) > MOST_VALUES:
        raise ReadError(source, place, f"more than {MOST_VALUES} values")
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ReadError(source, place, f"not JSON: {one_line(error)}") from error
    check_values(value, source, place)
    return value


def _values(data: str | bytes) -> int:
    """No fewer values than JSON holds: what stands before each of them, counted."""
    signs: Any = (b"[", b"{", b",") if isinstance(data, bytes) else ("[", "{", ",")
    return sum(data.count(sign) for sign in signs)


def parse_object(data: str | bytes, source: str = "JSON", place: str = "") -> dict[str, Any]:
    """A JSON object."""
    value = parse_json(data, source, place)
    if not isinstance(value, dict):
        raise ReadError(source, place, "not a JSON object")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ReadError if the file holds anything else, OSError if there is none."""
    return parse_object(read_bytes(path, MOST_JSON), f"'{path}'")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; none if it is not there."""
    if not path.exists():
        return []
    return parse_jsonl(path, read_bytes(path, MOST_LINES))


def parse_jsonl(path: Path, data: bytes) -> list[dict[str, Any]]:
    """The complete lines in ``data``, which was read from ``path``, each a JSON object."""
    return list(each_jsonl(path, data))


def each_jsonl(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    """The same one after the other, so that what is before damage can be had."""
    if _values(data) > LINE_VALUES:
        raise ReadError(f"'{path}'", "", f"more than {LINE_VALUES} values")
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.endswith(b"\n"):
            break
        if number > LINES:
            raise ReadError(f"'{path}'", f"line {number}", f"more than {LINES} lines")
        yield parse_object(line, f"'{path}'", f"line {number}")


def shaped(kind: type[Shape], value: Mapping[str, Any], source: str, place: str = "") -> Shape:
    """A value as pydantic's ``kind``; ReadError with the field that is not of it."""
    try:
        return kind.model_validate(value)
    except ValidationError as errors:
        error = errors.errors(include_url=False, include_input=False)[0]
        where = ".".join(one_line(part, 80) for part in error["loc"])
        place = ": ".join(filter(None, (place, where)))
        raise ReadError(source, place, one_line(error["msg"])) from None


class _Loader(yaml.SafeLoader):
    """What a person may write: mappings, lists and plain values, each written out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As the base class, but for aliases, anchors, tags and what is nested too deep."""
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Refused("anchors and aliases (&, *) are not allowed: write it out", line)
        if getattr(event, "tag", None) not in {None, "!"}:
            raise _Refused("tags (!) are not allowed", line)
        self.depth += 1
        if self.depth > DEPTH:
            raise _Refused(f"nested deeper than {DEPTH}", line)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        """As the base class, but a key given twice would be taken the last time without a word."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if isinstance(key, str) and key in seen:
                raise _Refused(f"{key}: given twice, the second time", line)
            seen.add(str(key))
        return dict(super().construct_mapping(node, deep))

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """As in YAML 1.2: `6:2:2` is a text; to YAML 1.1 it is 21,722, counted by sixties."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return _TEXT if tag in {_INT, _FLOAT} and ":" in value else tag

    def short_number(self, node: yaml.ScalarNode) -> Any:
        """As the base class, but for more digits than anybody means."""
        if len(node.value) > DIGITS:
            line = node.start_mark.line + 1
            raise _Refused(f"a number of more than {DIGITS} digits", line)
        whole = node.tag == _INT
        make = yaml.SafeLoader.construct_yaml_int if whole else yaml.SafeLoader.construct_yaml_float
        return make(self, node)


for _tag in (_INT, _FLOAT):
    _Loader.add_constructor(_tag, _Loader.short_number)


# As in YAML 1.2: `no`, `on` and their like are texts, such as a category's; where a key wants true
# or false, those texts mean it.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag != _BOOL]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_TRUTH = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_Loader.add_implicit_resolver(_BOOL, _TRUTH, list("tTfF"))


class _Refused(Exception):
    """Something in YAML that is not allowed, and its line."""


def parse_yaml(text: str, source: str = "YAML") -> Any:
    """What YAML says, in plain values; ReadError for anything else."""
    try:
        value = yaml.load(text, _Loader)
    except _Refused as error:
        what, line = error.args
        raise ReadError(source, "", f"{what} in line {line}") from None
    except yaml.YAMLError as error:
        raise ReadError(source, "", f"not valid YAML: {one_line(error)}") from error
    # A date of no calendar, a number of ten thousand digits: PyYAML lets Python's errors through.
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ReadError(source, "", f"not valid YAML: {one_line(error)}") from error
    check_values(value, source)
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; UserError if the file is missing, empty, broken or not a mapping."""
    source = f"config '{path}'"
    try:
        loaded = parse_yaml(decoded(read_bytes(path, MOST_YAML), source), source)
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from error
    except ReadError as error:
        place = f"{error.place}: " if error.place else ""
        raise UserError(f"{source}: {place}{error.what}") from error
    if loaded is None:
        raise UserError(f"{source}: is empty; `fedhet keys` lists what it may say")
    if not isinstance(loaded, dict):
        raise UserError(f"{source}: must be a mapping of keys to values")
    return loaded


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file; ReadError if it is none, OSError if there is no file."""
    source = f"'{path}'"
    text = decoded(read_bytes(path, MOST_YAML), source)
    try:
        value = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReadError(source, "", f"not TOML: {one_line(error)}") from error
    return value
