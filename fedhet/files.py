"""Files: read and checked, made or replaced in one step; ids that become names of files.

What is read is plain data: JSON, JSON lines, YAML and safetensors. Nothing is unpickled.
"""

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from fedhet import HERE, TOP
from fedhet.errors import Damaged, UserError, nearest, one_line

CLIENT_ID = r"[A-Za-z0-9._-]{1,64}"
NOBODY = "the round"  # in a list of failures: no client's id
_ID_HINT = "up to 64 of A-Z a-z 0-9 . _ -"
HOMELESS = "this machine knows no such home directory: set HOME, or write paths without ~"
# What a spreadsheet takes for a formula; a number, or an interval, is none for all its signs.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NUMBER = re.compile(r"[-+]?[0-9.,]*%?( \[[-+0-9., ]+\])?")


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone (0700)."""
    for folder in reversed([place for place in (path, *path.parents) if not place.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)


def plain_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path, ``~`` and ``..`` resolved; links stay without ``..``.

    UserError for what can be no path, or is no UTF-8, and for an unknown user's home.
    """
    if "\0" in os.fspath(path):
        raise UserError(f"'{path}' is not allowed: a path cannot hold a null character")
    try:
        plain = Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise UserError(f"'{path}': {HOMELESS}") from error
    try:
        str(plain).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"'{path}' is not allowed: '{plain}' is not UTF-8, or this locale is not "
            "(LC_ALL=C.UTF-8 or PYTHONUTF8=1 makes it so): rename the file or folder"
        ) from error
    return plain.resolve() if ".." in plain.parts else plain


def near(path: str | os.PathLike[str]) -> str:
    """Return a hint that names the most similar file in a missing file's folder, or nothing."""
    missing = Path(path).expanduser()
    with contextlib.suppress(OSError):
        return nearest(missing.name, [one.name for one in missing.parent.iterdir()], 0.8)
    return ""


def check_folder(path: Path, what: str) -> int:
    """Return the free bytes of a folder, or of where it would be; UserError if it is read-only."""
    try:
        there = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
        with tempfile.TemporaryFile(dir=there):
            return shutil.disk_usage(there).free
    except OSError as error:
        raise UserError(f"{what}: '{path}' cannot be written: {error.strerror}") from error


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; files that vanish meanwhile count nothing."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def check_entries(folder: Path) -> None:
    """Raise Damaged if something in the run folder leads out of it; call it before all else."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            what = "is a link or something else that a run does not make: remove it"
            raise Damaged(f"'{path}' {what}")


def finite(value: Any) -> Any:
    """Return the value with NaN and infinity replaced by None, all through."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


@contextmanager
def replacing(
    path: Path, *, private: bool = False, synced: bool = False, shared: bool = False
) -> Iterator[Path]:
    """Yield a name beside ``path``; the file there takes its place if the body succeeds.

    If not, the old file stays as it was and no other is left. ``private``: its owner alone can read
    it. ``synced``: it is on the disk before it has the name, and then the name is. ``shared``:
    several processes may write it at a time. No link is followed; OSError for a device or a pipe.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a regular file", str(path))
    owner = f".{os.getpid()}" if shared else ""
    temporary = path.with_name(f".{path.name}{owner}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        mode = 0o600 if private else 0o666
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield temporary
        if synced:
            sync(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is reported
            temporary.unlink(missing_ok=True)
        raise
    if synced:  # a file whose name is not on the disk is lost as well
        sync(path.parent)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; it becomes ``path`` if the body succeeds and vanishes if not.

    Its owner alone can read it, and its files are on the disk before it has the name. OSError if
    there is something at ``path`` by then.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(mode=0o700)
        yield temporary
        for file in (*temporary.rglob("*"), temporary):
            file.chmod(0o700 if file.is_dir() else 0o600)
            sync(file)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(path.parent)


def write_text(path: Path, text: str, **how: bool) -> None:
    """Replace a file in one step, as :func:`replacing` does."""
    with replacing(path, **how) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, **how: bool) -> None:
    """Replace a JSON file in one step; not-a-number becomes null."""
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n", **how)


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV with Unix line ends; no text in it is a formula or moves a terminal's cursor."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [quoted(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return text.getvalue()


def quoted(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, and no terminal for a command."""
    text = _CONTROL.sub("?", text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unquoted(text: str) -> str:
    """Inverse of :func:`quoted`."""
    return text[1:] if text[:1] == "'" and _FORMULA.match(text) else text


def sync(path: Path) -> None:
    """Wait until the file, or the entries of a folder, have reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sources() -> Iterator[tuple[str, Path]]:
    """Yield our Python files by their names in a checkout (``clients/base.py``), in their order."""
    beside = ("strategies", "clients")
    files = {f"fedhet/{p.relative_to(HERE).as_posix()}": p for p in HERE.rglob("*.py")}
    files = {name: p for name, p in files.items() if name.split("/")[1] not in beside}
    for name in beside:
        files |= {p.relative_to(TOP).as_posix(): p for p in (TOP / name).rglob("*.py")}
    yield from sorted(files.items())


# --- names of clients and experiments, which are names of folders -----------------------------


def is_id(name: str) -> bool:
    """Return whether a text may name a client or an experiment, and so a folder."""
    return re.fullmatch(CLIENT_ID, name) is not None and name not in {".", ".."}


def valid_id(name: str) -> str:
    """Return the name; raise ValueError unless :func:`is_id` holds."""
    if not is_id(name):
        raise ValueError(f"not an id of {_ID_HINT}")
    return name


def check_id(name: str, what: str = "id") -> str:
    """Return the name; raise UserError, which calls it ``what``, unless :func:`is_id` holds."""
    if not is_id(name):
        raise UserError(f"{what}: '{name[:80]}' is not allowed: {_ID_HINT}")
    return name


def client_order(client: str) -> tuple[int, int, str]:
    """Return the sort key of a client id: numbers by value, then texts; "7" and "07" differ."""
    number = client.isascii() and client.isdigit()  # int() also takes digits of other scripts
    return (0, int(client), client) if number else (1, 0, client)


def cpus() -> int:
    """Return the number of CPUs that this process may use, by affinity and cgroup quota."""
    from joblib.externals.loky import cpu_count  # noqa: PLC0415  (only a run asks)

    return int(cpu_count())


# --- reading ------------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"
_DEPTH = 100  # levels of a YAML file
Shape = TypeVar("Shape", bound=BaseModel)


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise Damaged.at(f"'{path}'", "", "no regular file")


def read_bytes(path: Path) -> bytes:
    """Return a whole file; raise FileNotFoundError, or Damaged if it cannot be read."""
    try:
        _check_regular(path)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except OSError as error:
        raise Damaged.at(f"'{path}'", "", f"cannot be read: {error.strerror}") from error


def decoded(data: bytes, source: str) -> str:
    """Return UTF-8 as text; raise Damaged with the line of the first byte that is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Damaged.at(source, f"line {line}", "not UTF-8") from error


def parse_object(data: str | bytes, source: str = "JSON", place: str = "") -> dict[str, Any]:
    """Return a JSON object; raise Damaged for anything else, and for NaN and infinity in it."""
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise Damaged.at(source, place, f"not JSON: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise Damaged.at(source, place, "not a JSON object")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise Damaged, or OSError if there is no file."""
    return parse_object(read_bytes(path), f"'{path}'")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a JSON-lines file; none if it is not there."""
    if not path.exists():
        return []
    lines = read_bytes(path).split(b"\n")[:-1]  # what a crash cut short is left out
    return [parse_object(one, f"'{path}'", f"line {n}") for n, one in enumerate(lines, 1)]


def shaped(kind: type[Shape], value: Mapping[str, Any], source: str, place: str = "") -> Shape:
    """Return a value as pydantic's ``kind``; raise Damaged with the field that is not of it."""
    try:
        return kind.model_validate(value)
    except ValidationError as errors:
        error = errors.errors(include_url=False, include_input=False)[0]
        where = ".".join(one_line(part, 80) for part in error["loc"])
        place = ": ".join(filter(None, (place, where)))
        raise Damaged.at(source, place, one_line(error["msg"])) from None


class _Loader(yaml.CSafeLoader):
    """As in YAML 1.2: `no`, `6:2:2` and dates are texts, and no key is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        """As the base class, but a key given twice would be taken the last time without a word."""
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        keys = [key.value for key, _ in node.value]
        if twice := [key for key in values if keys.count(key) > 1]:
            raise ValueError(f"{twice[0]}: given twice in line {node.start_mark.line + 1} or below")
        if odd := [key for key in values if not isinstance(key, str)]:
            raise ValueError(f"'{odd[0]}' is not allowed: a key is a text")
        return values


_Loader.yaml_implicit_resolvers = {  # the first form that fits decides
    first: [
        (_TAG + "str", re.compile(r"[-+]?[0-9][0-9_.]*:")),  # YAML 1.1 counts it by sixties
        *((tag, form) for tag, form in forms if not tag.endswith((":bool", ":timestamp"))),
    ]
    for first, forms in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)


def parse_yaml(text: str, source: str = "YAML") -> Any:
    """Return what YAML says, in plain values; raise Damaged for anything else."""
    try:
        depth = 0
        event: Any  # few aliases stand for gigabytes, many levels end the process in the parser
        for event in yaml.parse(text, yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _DEPTH:
                line = event.start_mark.line + 1
                raise ValueError(f"an alias (*), or more than {_DEPTH} levels, in line {line}")
        value = yaml.load(text, _Loader)
        json.dumps(value, allow_nan=False)
        return value
    except (yaml.YAMLError, ValueError, TypeError) as error:  # TypeError: a list as a key
        raise Damaged.at(source, "", f"not valid YAML: {one_line(error)}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML mapping; UserError if the file is missing, empty, broken or not a mapping."""
    source = f"config '{path}'"
    try:
        loaded = parse_yaml(decoded(read_bytes(path), source), source)
    except OSError as error:
        text = f"{source}: cannot be read: {error.strerror}{near(path)}"
        raise UserError(text) from error
    except Damaged as error:
        raise UserError(str(error).replace(" is damaged", "")) from error
    if loaded is None:
        raise UserError(f"{source}: is empty; `fedhet keys` lists its keys")
    if not isinstance(loaded, dict):
        raise UserError(f"{source}: must be a mapping of keys to values")
    return loaded


def read_tensors(path: Path, framework: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors of a safetensors file by name, and its metadata; memory-mapped.

    ``framework`` is ``numpy`` or ``pt``. Raise Damaged for another file, OSError for none.
    """
    from safetensors import safe_open  # noqa: PLC0415  (who reads no tensors waits for none)

    _check_regular(path)
    try:
        with safe_open(path, framework=framework) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except OSError:
        raise
    except Exception as error:  # what the library raises for a header that it cannot serve
        raise Damaged.at(f"'{path}'", "", f"cannot be read: {one_line(error)}") from error
