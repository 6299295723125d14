"""Files: read whole, and made or replaced in one step."""

import contextlib
import json
import math
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fedhet.errors import UserError, VerifyError, one_line

_umask = threading.Lock()
_inside: list[int] = []  # the process's own umask while somebody makes private files


@contextmanager
def private_files() -> Iterator[None]:
    """What is made meanwhile can be read by its owner only: folders 0700, files 0600.

    The umask belongs to the whole process; whoever leaves last puts the old one back.
    """
    with _umask:
        before = os.umask(0o077)
        _inside.append(_inside[0] if _inside else before)
    try:
        yield
    finally:
        with _umask:
            before = _inside.pop()
            if not _inside:
                os.umask(before)


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice: YAML would take the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        """As the base class, after the check."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise UserError(f"{key}: given twice, the second time {_where(key_node)}")
            seen.add(str(key))
        return dict(super().construct_mapping(node, deep))


def _where(node: yaml.Node) -> str:
    return f"in line {node.start_mark.line + 1}"


def read_yaml(path: Path) -> dict[str, Any]:
    """A flat YAML mapping; UserError if the file is missing, empty, broken or not a mapping."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except UserError as error:
        raise UserError(f"config '{path}': {error}") from None
    except OSError as error:
        raise UserError(f"config '{path}': cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"config '{path}': not valid YAML: {one_line(error)}") from error
    if loaded is None:
        raise UserError(f"config '{path}': is empty; `fedhet keys` lists what it may say")
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise UserError(f"config '{path}': must be a mapping of keys to values")
    return loaded


def finite(value: Any) -> Any:
    """The value with NaN and infinity replaced by None, all through."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def parse_json(text: str | bytes) -> Any:
    """What JSON says; ValueError if it is none, also for a nesting that is too deep to follow."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; none if it is not there.

    Raises VerifyError naming the file and the line that is no JSON object.
    """
    if not path.exists():
        return []
    return parse_jsonl(path, path.read_bytes())


def parse_jsonl(path: Path, data: bytes) -> list[dict[str, Any]]:
    """The complete lines in ``data``, which was read from ``path``."""
    records = []
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = parse_json(line)
        except ValueError as error:
            raise VerifyError(f"'{path}': line {number} is damaged: {error}") from error
        if not isinstance(record, dict):
            raise VerifyError(f"'{path}': line {number} is damaged: not a JSON object")
        records.append(record)
    return records


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; VerifyError if the file holds anything else, OSError if there is none."""
    try:
        value = parse_json(path.read_bytes())
    except ValueError as error:
        raise VerifyError(f"'{path}' is damaged: {error}") from error
    if not isinstance(value, dict):
        raise VerifyError(f"'{path}' is damaged: not a JSON object")
    return value


@contextmanager
def replacing(
    path: Path, *, private: bool = False, synced: bool = False, shared: bool = False
) -> Iterator[Path]:
    """A name beside ``path`` to write to; the file takes its place if the body succeeds.

    Whatever fails, the old file stays as it was and no other is left. ``private``: only its owner
    can read it. ``synced``: it is on the disk before it has the name, and then the name is.
    ``shared``: several processes may write the same file at a time.
    """
    owner = f".{os.getpid()}" if shared else ""
    temporary = path.with_name(f".{path.name}{owner}.tmp")
    try:
        with private_files() if private else contextlib.nullcontext():
            yield temporary
        if synced:
            sync(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # clearing up may fail too; the first reason counts
            temporary.unlink(missing_ok=True)
        raise
    if synced:  # a file whose name is not on the disk is lost as well
        sync(path.parent)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A folder beside ``path`` to fill; it gets that name if the body succeeds and vanishes if not.

    Only its owner can read it, and its files are on the disk before it has the name. Nobody else
    may fill the same one meanwhile: what a killed process left of it is removed. Raises OSError if
    there is something at ``path`` by then.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with private_files():
            temporary.mkdir(parents=True)
            yield temporary
        for file in (*temporary.rglob("*"), temporary):
            sync(file)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(path.parent)


def write_text(path: Path, text: str, *, synced: bool = False) -> None:
    """Replace a file in one step, as :func:`replacing` does."""
    with replacing(path, synced=synced) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, synced: bool = False) -> None:
    """Replace a JSON file in one step; not-a-number becomes null."""
    text = json.dumps(finite(value), indent=2, allow_nan=False) + "\n"
    write_text(path, text, synced=synced)


def sync(path: Path) -> None:
    """Return when the file, or the entries of a folder, have reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
