"""Read finished runs: run folders, sweeps, and packed records of either.

A packed record is one JSON file with everything of a run folder that a report uses and, of the
machine, its processor. It is small enough to be committed, and gives the same report.
"""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedhet.config.schema import kebab
from fedhet.errors import Damaged, UserError, one_line
from fedhet.files import (
    client_order,
    finite,
    read_json,
    read_jsonl,
    read_yaml,
    unquoted,
    write_text,
)
from fedhet.records.summary import diverged

Column = NDArray[Any]  # numbers, or texts as objects

FORMAT = "fedhet run record 1"
SUFFIX = ".run"  # JSON inside; Flower sends every .json of a repository to all clients
DEPTH = 2  # a sweep's folder holds run folders; a folder of sweeps may be given as well
LONGEST = 4096  # characters of a value in a record
_CLOSE = 1e-6  # points; packed records keep ten digits
_DIGITS = 10
_MACHINE = ("out", "name", "state-dir")  # keys of the configuration that a record leaves out
_FILES = ("data-path", "partition-file", "public-path")  # of these it keeps the last part
_ROUND = {
    "round", "train_loss", "sampled", "replied", "failed", "evaluated_clients", "uplink_floats",
    "uplink_bytes", "downlink_floats", "downlink_bytes", "train_flops",
}  # fmt: skip
_NEEDED = ("round", "replied", "train_flops", "uplink_floats", "downlink_floats")
_TEXTS = ("client", "model")
_PACKED = {"test": "test_accuracy", "val": "val_accuracy"}  # columns of clients in a record
# What reading a file that fedhet did not write can raise.
_DAMAGE = (
    OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
    UserError, Damaged,
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One completed run.

    ``rounds`` has columns as in ``rounds.jsonl``, an entry a round, accuracies only where clients
    were evaluated; ``clients`` has columns with an entry a client: its last evaluation; ``counts``
    has training examples by client and class, ``partition.csv`` without its first line; it is empty
    where that is missing.
    """

    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    rounds: Mapping[str, Column]
    clients: Mapping[str, Column]
    classes: Sequence[str] = ()
    counts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    folder: Path | None = None  # None: a packed record
    title: str = ""  # what the preset of its sweep calls its setting

    @property
    def means_alone(self) -> bool:
        """Whether the server learned sums only, and no client's own figures."""
        return bool((self.summary.get("secure_sum") or {}).get("absent"))


@dataclass(frozen=True)
class LeftOut:
    """A run that a report leaves out, and why; ``config`` as far as it could be read."""

    name: str
    reason: str
    config: Mapping[str, Any] | None = None


def read_runs(places: Iterable[Path]) -> tuple[list[Run], list[LeftOut]]:
    """Return all completed runs below ``places`` by name, and those that are left out.

    Raises UserError for a place that does not exist or holds no run at all.
    """
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for place in places:
        titles = {
            cell["name"]: index["title"]
            for index in sweep_indexes(place)
            for cell in index["cells"]
        }
        try:
            found = list(_find(place, DEPTH))
        except OSError as error:
            raise UserError(f"'{place}' cannot be read: {error.strerror or error}") from error
        if not found:
            raise UserError(
                f"'{place}': no run folder, sweep or packed record is there: a run folder has "
                "config.yaml and rounds.jsonl"
                if place.exists()
                else f"'{place}': no such file or folder"
            )
        for path in found:
            try:
                one = read_run(path)
            except Damaged as error:
                one = LeftOut(
                    path.stem if path.is_file() else path.name, f"cannot be read: {error}"
                )
            if isinstance(one, LeftOut):
                left_out.append(one)
            else:
                runs.append(replace(one, title=one.title or titles.get(one.name, "")))
    return sorted(runs, key=lambda run: run.name), sorted(left_out, key=lambda one: one.name)


def _find(place: Path, depth: int) -> Iterable[Path]:
    if place.is_file():
        if place.suffix == SUFFIX:
            yield place
    elif (place / "config.yaml").is_file():
        yield place
    elif place.is_dir() and depth:
        for child in sorted(place.iterdir()):
            yield from _find(child, depth - 1)


def sweep_indexes(place: Path) -> Iterable[dict[str, Any]]:
    """Yield what the sweeps below a folder say of themselves: title, note, cells."""
    for path in sorted([*place.glob("sweeps/*/sweep.json"), *place.glob("*/sweeps/*/sweep.json")]):
        try:
            index = _Index.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            continue  # being written, or none of ours
        yield index.model_dump()


def read_run(path: Path) -> Run | LeftOut:
    """Read a run folder or a packed record; raise Damaged if it is damaged."""
    try:
        return _unpack(path) if path.is_file() else _read_folder(path)
    except KeyError as error:
        raise Damaged(f"no {error}") from error
    except _DAMAGE as error:
        raise Damaged(one_line(str(error).replace(f"{path}/", ""), 200)) from error


def _read_folder(path: Path) -> Run | LeftOut:
    config = read_yaml(path / "config.yaml")
    if not (path / "summary.json").exists():
        written = (path / "rounds.jsonl").read_bytes() if (path / "rounds.jsonl").exists() else b""
        done, wanted = written.count(b"\n"), config.get("rounds", "?")
        return LeftOut(path.name, f"not finished: round {done} of {wanted}", config)
    summary = read_json(path / "summary.json")
    if summary["status"] != "completed":
        reason = f"{summary['status']}: {summary.get('reason') or 'no reason recorded'}"
        return LeftOut(path.name, one_line(reason), config)
    lines = read_jsonl(path / "rounds.jsonl")
    last = lines[-1]
    if diverged(last):
        return LeftOut(path.name, "failed: it diverged, in the last round no reply counted", config)
    if last.get("sha256", summary.get("run_sha256")) != summary.get("run_sha256"):
        raise ValueError("the last line of rounds.jsonl is not the round that summary.json is of")
    environment = path / "environment.json"
    run = _checked(
        path.name, {k: v for k, v in config.items() if k not in _MACHINE}, _short(summary),
        _short(read_json(environment)) if environment.exists() else {},
        _by_column([_kept(line) for line in lines]), _last_scores(path / "clients.csv"),
    )  # fmt: skip
    classes, counts = _partition(path / "partition.csv")
    return replace(run, classes=classes, counts=counts, folder=path)


def _unpack(path: Path) -> Run:
    """Inverse of :func:`pack`; a file's name is the run's, whatever it calls itself."""
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise ValueError(f"not a packed record: no format '{FORMAT}'")
    title, held = content.get("title", ""), content["partition"]
    if not isinstance(title, str) or len(title) > LONGEST:
        raise ValueError(f"title: not a text of at most {LONGEST} characters")
    clients = {_PACKED.get(name, name): column for name, column in content["clients"].items()}
    run = _checked(
        path.stem, content["config"], content["summary"], content["environment"],
        content["rounds"], clients,
    )  # fmt: skip
    if not held:
        return replace(run, title=title)
    pairs = {client: (p.split(":") for p in own.split()) for client, own in held["clients"].items()}
    counts = {client: {int(k): int(n) for k, n in own} for client, own in pairs.items()}
    return replace(run, title=title, classes=list(map(str, held["classes"])), counts=counts)


def pack(run: Run, folder: Path) -> Path:
    """Write a run as one small JSON file; return its path."""
    unpacked = {ours: packed for packed, ours in _PACKED.items()}
    held = {
        client: " ".join(f"{k}:{n}" for k, n in own.items()) for client, own in run.counts.items()
    }
    content = {
        "format": FORMAT, "name": run.name, **({"title": run.title} if run.title else {}),
        "config": dict(run.config), "summary": dict(run.summary),
        "environment": {k: v for k, v in run.environment.items() if k not in {"started", "device"}},
        "rounds": {name: _packed(column) for name, column in run.rounds.items()},
        "clients": {unpacked.get(k, k): _packed(column) for k, column in run.clients.items()},
        "partition": {"classes": list(run.classes), "clients": held} if held else None,
    }  # fmt: skip
    lines = (
        f'"{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in content.items()
    )
    path = folder / f"{run.name}{SUFFIX}"
    write_text(path, "{" + ",\n".join(lines) + "}\n")
    return path


def _packed(column: Column) -> list[Any]:
    """A column of a record: whole numbers as such, missing ones as null."""
    values = column.tolist()
    if all(isinstance(v, float) and (v.is_integer() or math.isnan(v)) for v in values):
        return [None if math.isnan(v) else int(v) for v in values]
    return [finite(value) for value in values]


# --- files ---------------------------------------------------------------------------------------


def _kept(line: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a line of ``rounds.jsonl`` that a report uses."""
    return {
        name: _short(value)
        for name, value in line.items()
        if name in _ROUND
        or (
            (name.startswith(("test_", "val_")) or name.endswith("norm"))
            and (value is None or (isinstance(value, int | float) and type(value) is not bool))
        )
    }


def _short(value: Any) -> Any:
    """Round floats to ten significant digits, all through."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def _by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {
        key: [row.get(key) for row in rows] for key in dict.fromkeys(k for r in rows for k in r)
    }


def _last_scores(path: Path) -> dict[str, list[Any]]:
    """The last line of every client in ``clients.csv``."""
    with path.open(newline="", encoding="utf-8") as file:
        last = {unquoted(row["client"]): row for row in csv.DictReader(file)}
    rows = [
        {"client": client, "model": unquoted(row["model"])}
        | {
            name: _short(float(value)) if value else None
            for name, value in row.items()
            if name not in {*_TEXTS, "round", "other"}
        }
        for client, row in sorted(last.items(), key=lambda pair: client_order(pair[0]))
    ]
    return _by_column(rows)


def _partition(path: Path) -> tuple[list[str], dict[str, dict[int, int]]]:
    if not path.exists():
        return [], {}
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    counts = {
        unquoted(row[0]): {k: int(n) for k, n in enumerate(row[1:]) if int(n)} for row in rows
    }
    return [unquoted(name) for name in head[1:]], counts


# --- checks --------------------------------------------------------------------------------------


class _Part(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, alias_generator=kebab
    )


class _Config(_Part):
    """The keys that settings, blocks and titles are made of; others are compared as they are."""

    method: str = "fedssa"
    dataset: str = ""
    data_path: str = ""
    partition: str = ""
    partition_file: str = ""
    public_path: str = ""
    seed: int = 0
    partition_seed: int = -1
    clients: int = 0
    fraction: float = 1.0
    classes_per_client: int = 1
    alpha: float = 1.0
    models: list[str] = Field(default_factory=list)
    rounds: int = 1
    local_epochs: float = 1
    batch_size: int = 1
    lr: float = 1.0
    evaluate_every: int = Field(default=1, ge=1)
    metric: str = "accuracy"
    precision: str = "fp32"
    lr_schedule: str = "constant"
    dp_epsilon: float = 0.0


class _Privacy(BaseModel):
    epsilon_spent_max: float | None = None
    noise_of: Literal["upload", "sum"] = "upload"


class _Summary(BaseModel):
    clients: int | None = None
    rounds: int | None = None
    run_sha256: str | None = None
    test_accuracy_mean: float | None = None
    best_validation_test_accuracy_mean: float | None = None
    wall_seconds: float | None = None
    failures: list[Any] | None = None
    privacy: _Privacy | None = None
    secure_sum: dict[str, Any] | None = None


class _Environment(BaseModel):
    versions: dict[str, Any] | None = None
    cuda: list[Any] | None = None


class _Cell(BaseModel):
    name: str


class _Index(BaseModel):
    title: str = Field(default="", max_length=LONGEST)
    note: str = ""
    sweep: str = ""
    cells: list[_Cell]


def _checked(
    name: str, config: dict[str, Any], summary: dict[str, Any], environment: dict[str, Any],
    rounds: Mapping[str, Sequence[Any]], clients: Mapping[str, Sequence[Any]],
) -> Run:  # fmt: skip
    """Build a run; raise ValueError for a value that is not of its kind or does not fit others."""
    for model, part in ((_Config, config), (_Summary, summary), (_Environment, environment)):
        try:
            model.model_validate(part)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for key, value in config.items():
        text = json.dumps(value, sort_keys=True)  # YAML knows kinds of values that no key has
        names = value if isinstance(value, list) else [text]
        if any(len(str(one)) > LONGEST for one in names):
            raise ValueError(f"config.{key}: longer than {LONGEST} characters")
    config = config | {key: Path(str(config[key])).name for key in _FILES if config.get(key)}
    course, scores = _numbers(rounds, "rounds"), _numbers(clients, "clients")
    if (course["round"] != np.arange(1, len(course["round"]) + 1)).any() or not len(
        course["round"]
    ):
        raise ValueError(f"rounds: {len(course['round'])} lines are not the rounds from 1 on")
    for column in _NEEDED:
        if not (course[column] >= 0).all():
            raise ValueError(f"rounds: {column} is missing or negative in a round")
    if twice := [one for one, n in Counter(scores["client"]).items() if n > 1]:
        raise ValueError(f"clients: '{twice[0]}' is there twice")
    if any(((scores[c] < 0) | (scores[c] > 100)).any() for c in ("test_accuracy", "val_accuracy")):
        raise ValueError("clients: an accuracy is not from 0 to 100")
    repeated = course["round"] % int(config.get("evaluate-every", 1)) != 0
    repeated[-1] = False
    for column, values in course.items():
        if column.startswith(("test_", "val_")):
            values[repeated] = math.nan
    run = Run(name, config, summary, environment, course, scores)
    if "test_accuracy_mean" not in course or np.isnan(course["test_accuracy_mean"]).all():
        raise ValueError("no round was evaluated")
    _check_whole(run)
    return run


def _numbers(table: Mapping[str, Sequence[Any]], what: str) -> dict[str, Column]:
    """Columns as arrays of one length: texts, or finite numbers and NaN for what is missing."""
    made: dict[str, Column] = {}
    for name, values in table.items():
        if name in _TEXTS:
            if not all(isinstance(value, str) for value in values):
                raise ValueError(f"{what}: {name} is not text")
            made[name] = np.array(values, dtype=object)
        else:
            made[name] = np.array(values, dtype=float)
            if np.isinf(made[name]).any():
                raise ValueError(f"{what}: {name}: a number is not finite")
    if len({one.shape for one in made.values()}) != 1:
        raise ValueError(f"{what}: columns of different lengths")
    return made


def _check_whole(run: Run) -> None:
    """Raise ValueError if rounds or clients are not those that the summary is of."""
    summary, tests = run.summary, run.clients["test_accuracy"]
    count = len(run.rounds["round"])
    if summary.get("rounds", count) != count:
        raise ValueError(f"rounds.jsonl has {count} of {summary['rounds']} rounds")
    ends = [(run.rounds["test_accuracy_mean"][-1], "rounds.jsonl")]
    if not run.means_alone:
        known = tests[~np.isnan(tests)]
        evaluated = run.rounds.get("evaluated_clients", np.zeros(1))[-1]
        if evaluated > 0 and evaluated != len(known):
            raise ValueError(f"clients.csv has {len(known)} of {evaluated:g} clients")
        ends.append((known.mean() if len(known) else math.nan, "clients.csv"))
    said = summary.get("test_accuracy_mean")
    if said is None:
        return
    for found, name in ends:
        if not math.isclose(found, said, rel_tol=0, abs_tol=_CLOSE):
            raise ValueError(f"{name} ends with {found:.2f} %, and summary.json with {said:.2f} %")


def numbered(runs: Sequence[Run]) -> list[Run]:
    """Return the runs; further ones of the same name get a number, so that no file is lost."""
    taken = {run.name for run in runs}
    made: list[Run] = []
    seen: set[str] = set()
    for run in runs:
        name, count = run.name, 1
        while name in seen or (count > 1 and name in taken):
            count += 1
            name = f"{run.name}-{count}"
        seen.add(name)
        made.append(replace(run, name=name))
    return made
