"""How an honest run folder, model or record is changed into one that somebody might send.

Every change is a seeded draw: a field, a line, bytes, a whole file. Who makes such folders can
compute every digest, and so does this: of every second one the marks and digests fit.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedhet.errors import RunFailedError, UserError
from fedhet.reading.bounds import read_bytes
from fedhet.records.checkpoint import Checkpoint, save_checkpoint
from fedhet.records.run_folder import RunFolder, digest

# Keys by which a run asks for work: whoever resumes a run does the work that it asks for.
WORK = {"rounds", "local-epochs", "clients", "dataset", "models", "image-size", "evaluate-every"}
DEEP = 60
FAILURES = (UserError, RunFailedError)
BROKEN = (OSError, ValueError, LookupError, TypeError, RecursionError, SafetensorError)

NASTY: tuple[Callable[[random.Random], Any], ...] = (
    lambda _: None,
    lambda _: "",
    lambda _: "=cmd|'/c calc'!A1",
    lambda _: "../../.ssh",
    lambda _: "/etc/passwd",
    lambda _: "a\0b",
    lambda _: "two\nlines\x1b[31m",
    lambda _: "x" * 300_000,
    lambda _: "evil_module:METHOD",
    lambda _: -1,
    lambda _: 0,
    lambda _: 2**63,
    lambda _: 2**70,
    lambda _: -(2**64),
    lambda _: 1e308,
    lambda _: float("nan"),
    lambda _: float("inf"),
    lambda _: True,
    lambda _: [],
    lambda _: {},
    lambda _: [None],
    lambda _: {"a": None},
    lambda _: [[]] * 1000,
    lambda _: "\ud800",
    lambda rng: rng.random() * 200 - 100,
    lambda rng: rng.randrange(-5, 500),
)


def content(path: Path) -> bytes:
    """The bytes of a file; ValueError or OSError where it is none any more, or a long one."""
    return read_bytes(path, 2**26)


def put(path: Path, data: bytes) -> None:
    """Another content; whatever was there, a link too, is not written through."""
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def sparse(path: Path, data: bytes = b"", size: int = 2**31) -> None:
    """A file that is long and takes no room."""
    path.write_bytes(data)
    os.truncate(path, size)


def remove(path: Path) -> None:
    """A file, a link or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def bytes_changed(rng: random.Random, path: Path) -> str:
    """Something that no format allows for, or another kind of entry."""
    small = path.is_file() and path.stat().st_size < 2**26
    data = content(path) if small else b""
    place = rng.randrange(len(data) + 1)
    contents: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "cut": lambda: data[:place],
        "flipped": lambda: data[:place] + rng.randbytes(1) + data[place + 1 :],
        "no text": lambda: data[:place] + b"\xff\xfe\x80" + data[place:],
        "nulls": lambda: data[:place] + b"\0" * 3000 + data[place:],
        "digits": lambda: data[:place] + b"9" * 10_000 + data[place:],
        "brackets": lambda: b"[" * 200_000,
        "braces": lambda: b'{"a":' * 50_000,
        "blocks": lambda: b"".join(b" " * i + b"a:\n" for i in range(1000)),
        "twice": lambda: data + data,
        "quotes": lambda: data[:place] + b'"' + data[place:],
        "long": lambda: b"x" * 3_000_000,
    }
    others: dict[str, Callable[[], object]] = {
        "gone": lambda: None,
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a link": lambda: path.symlink_to("../../home/dear"),
        "a link to nowhere": lambda: path.symlink_to("../../home/new"),
        "endless": lambda: path.symlink_to("/dev/zero"),
        "sparse": lambda: sparse(path, data),
    }
    kind = rng.choice(sorted([*contents, *others]))
    if kind in contents:
        put(path, contents[kind]())
    else:
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        others[kind]()
    return f"{path.name}: {kind}"


def value_changed(rng: random.Random, document: Any) -> str:
    """Change one place in a mapping or list, however deep; returns where."""
    inner, where = document, ""
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if not keys:
            break
        key = rng.choice(keys)
        where += f".{key}"
        child = inner[key]
        if isinstance(child, dict | list) and child and rng.random() < 0.8:
            inner = child
            continue
        break
    what = rng.choice(("value", "value", "value", "gone", "new", "deep"))
    if what == "gone" and keys:
        del inner[key]
    elif what == "new" and isinstance(inner, dict):
        inner[rng.choice(("unknown", "", "__proto__", "round", "a\nb"))] = rng.choice(NASTY)(rng)
    elif keys:
        value = rng.choice(NASTY)(rng)
        for _ in range(DEEP if what == "deep" else 0):
            value = [value]
        inner[key] = value
    return f"{where} {what}"


def json_changed(rng: random.Random, path: Path) -> str:
    """One value of a JSON file, or of one line of a file of lines."""
    lines = content(path).splitlines() if path.suffix == ".jsonl" else [content(path)]
    number = rng.randrange(len(lines))
    document = json.loads(lines[number])
    what = value_changed(rng, document)
    lines[number] = _dumped(document)
    put(path, b"\n".join(lines) + b"\n")
    return f"{path.name}: {what}"


def _dumped(document: Any) -> bytes:
    """JSON as a stranger may write it: with NaN, infinity and half characters."""
    return json.dumps(document).encode()


def table_changed(rng: random.Random, path: Path) -> str:
    """One field of a CSV, or its rows."""
    rows = [line.split(b",") for line in content(path).splitlines()]
    row = rng.randrange(len(rows))
    kind = rng.choice(("field", "field", "field", "row gone", "row twice", "field more", "no head"))
    if kind == "field":
        column = rng.randrange(len(rows[row]))
        value = rng.choice(NASTY)(rng)
        text = value if isinstance(value, str) else repr(value)
        rows[row][column] = text.encode("utf-8", "surrogatepass")
    elif kind == "row gone":
        del rows[row]
    elif kind == "row twice":
        rows.insert(row, rows[row])
    elif kind == "field more":
        rows[row].append(b"1")
    else:
        del rows[0]
    put(path, b"".join(b",".join(one) + b"\n" for one in rows))
    return f"{path.name}: {kind}"


BOMBS = (
    "a0: &a0 [x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 12)),
    "method: &m fedssa\ndataset: *m\n",
    "method: !!python/object/apply:os.system [touch ../home/new]\n",
    "rounds: " + "9" * 20_000 + "\n",
    "rounds: 0x" + "f" * 20_000 + "\n",
    "lr: 1" + ":59" * 5_000 + "\n",
    "method: " + "[" * 20_000 + "\n",
    "name: 2024-99-99\n",
    "name: 2024-01-01\n",
    "name: !!binary x\n",
    "<<: [1]\n",
    "? {a: 1}\n: 2\n",
    "1: 2\n",
    "null\n",
    "- a\n",
)


def config_changed(rng: random.Random, run: Path) -> tuple[str, bool]:
    """``config.yaml`` and, so that they agree, ``run.json``; and whether it asks for more work."""
    if rng.random() < 0.25:
        number = rng.randrange(len(BOMBS))
        old = content(run / "config.yaml") if rng.random() < 0.5 else b""
        put(run / "config.yaml", old + BOMBS[number].encode())
        return f"config.yaml: bomb {number}", False
    identity = json.loads(content(run / "checkpoint" / "run.json"))
    config = identity["config"]
    key = rng.choice(sorted(config))
    value = rng.choice(NASTY)(rng)
    ways = {"state-dir": ("..", "evil/../..", str(run.parent)), "out": ("..",),
            "tracker": ("mlflow", "wandb"), "method": ("evil_module:METHOD", "synthetic:METHOD"),
            "dataset": ("evil_module:load", "cifar10"), "models": (["evil_module:make"],),
            "data-path": ("..", "/dev/zero"), "keep-state": (False,)}  # fmt: skip
    if key in ways and rng.random() < 0.7:
        value = rng.choice(ways[key])
    config[key] = value
    if rng.random() < 0.2:
        identity["experiment"] = rng.choice((".ssh", "..", "home", "a/b", None, 3))
    with contextlib.suppress(UnicodeEncodeError, ValueError):
        put(run / "config.yaml", yaml.safe_dump(config, sort_keys=False).encode())
    put(run / "checkpoint" / "run.json", _dumped(identity))
    return f"config {key}={value!r:.60}", key in WORK


def checkpoint_changed(rng: random.Random, run: Path) -> str:
    """Books or arrays of the checkpoint, with a digest that fits."""
    path = run / "checkpoint" / "server.safetensors"
    arrays, meta = _checkpoint(path)
    if rng.random() < 0.7:
        what = value_changed(rng, meta)
    else:
        name = rng.choice(sorted(arrays))
        kind = rng.choice(("nan", "shape", "dtype", "gone", "name", "huge"))
        array = arrays.pop(name)
        changed: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
            "nan": lambda: array * np.nan,
            "shape": lambda: array.reshape(-1)[:1],
            "dtype": lambda: array.astype(np.int64),
            "huge": lambda: array + 1e38,
        }
        if kind in changed:
            arrays[name] = changed[kind]()
        elif kind == "name":
            arrays["../x"] = array
        what = f"array {name} {kind}"
    _write_checkpoint(path, arrays, meta)
    return f"checkpoint: {what}"


def _checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    data = content(path)
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return load_file(path), json.loads(head["__metadata__"]["json"])


def _write_checkpoint(path: Path, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
    names = meta.pop("names", None)
    remove(path)
    if isinstance(names, list) and sorted(map(str, names)) == sorted(arrays):
        arrays = {name: arrays[name] for name in names}
        names = None
    extra = {} if names is None else {"names": names}
    save_checkpoint(path, Checkpoint(arrays, {**meta, **extra}))


def marks_fitted(run: Path) -> None:
    """The checkpoint's marks and digests made those of the files as they are now."""
    path = run / "checkpoint" / "server.safetensors"
    try:
        arrays, meta = _checkpoint(path)
        for key, name in (("rounds", "rounds.jsonl"), ("clients", "clients.csv")):
            data = content(run / name)
            meta[key] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        meta["environment"] = digest(run / "environment.json")
        meta["experiment"] = RunFolder(run).experiment
    except (*BROKEN, *FAILURES):
        return  # then it is seen at once
    _write_checkpoint(path, arrays, meta)


def state_changed(rng: random.Random, run: Path) -> str:
    """A client's state or what it says of itself."""
    client = rng.choice(sorted((run / "state").glob("*/*")))
    if rng.random() < 0.5:
        return json_changed(rng, client / "client.json")
    path = rng.choice(sorted(client.glob("*.safetensors")))
    if rng.random() < 0.5:
        return bytes_changed(rng, path)
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    tensors[name] = tensors[name].reshape(-1)[:1]
    remove(path)
    save_file(tensors, path, metadata={"client": "0", "digest": "0"})
    return f"{path.name}: {name} of another shape"


def craft(rng: random.Random, run: Path) -> tuple[str, bool]:
    """Change a copy of a run folder; what was done, and whether it asks for more work."""
    said: list[str] = []
    more = False
    if rng.random() < 0.3:  # as one that was killed
        (run / "summary.json").unlink()
        said.append("killed")
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        kind = rng.choice(("config", "checkpoint", "state", "json", "json", "table", "bytes"))
        texts = [run / name for name in ("rounds.jsonl", "summary.json", "environment.json",
                                         "checkpoint/run.json")]  # fmt: skip
        tables = [run / "partition.csv", run / "clients.csv"]
        files = [*texts, *tables, run / "config.yaml", run / ".lock", run / "log.txt",
                 run / "flwr", run / "checkpoint/server.safetensors"]  # fmt: skip
        with contextlib.suppress(*BROKEN):
            if kind == "config":
                what, work = config_changed(rng, run)
                said.append(what)
                more |= work
            elif kind == "checkpoint":
                said.append(checkpoint_changed(rng, run))
            elif kind == "state":
                said.append(state_changed(rng, run))
            elif kind == "json":
                said.append(json_changed(rng, rng.choice([t for t in texts if t.is_file()])))
            elif kind == "table":
                said.append(table_changed(rng, rng.choice(tables)))
            else:
                said.append(bytes_changed(rng, rng.choice(files)))
    if rng.random() < 0.5:
        marks_fitted(run)
        said.append("marks fitted")
    more |= any(".config." in one and "run.json" in one for one in said)
    return "; ".join(said), more


def craft_model(rng: random.Random, model: Path) -> str:
    """Change a copy of an exported model: its card, or its weights with a digest that fits."""
    card = model / "card.yaml"
    kind = rng.choice(("card", "card", "bytes", "weights", "bomb"))
    if kind == "card":
        said = yaml.safe_load(card.read_text(encoding="utf-8"))
        what = value_changed(rng, said)
        with contextlib.suppress(UnicodeEncodeError, ValueError):
            put(card, yaml.safe_dump(said).encode())
        return f"card: {what}"
    if kind == "bomb":
        put(card, content(card) + rng.choice(BOMBS).encode())
        return "card: bomb"
    if kind == "bytes":
        return bytes_changed(rng, rng.choice([card, model / "model.safetensors"]))
    what = bytes_changed(rng, model / "model.safetensors")
    with contextlib.suppress(OSError, ValueError):
        if (model / "model.safetensors").is_file() and "endless" not in what:
            said = yaml.safe_load(card.read_text(encoding="utf-8"))
            put(
                card,
                yaml.safe_dump(said | {"sha256": digest(model / "model.safetensors")}).encode(),
            )
    return f"{what}, digest fitted"


def craft_record(rng: random.Random, record: Path) -> str:
    """Change a copy of a packed record."""
    if rng.random() < 0.3:
        return bytes_changed(rng, record)
    said = json.loads(content(record))
    what = value_changed(rng, said)
    put(record, _dumped(said))
    return f"record: {what}"
