"""Finished runs as a report reads them: run folders, sweeps, and packed records of either.

A packed record is one JSON file with everything of a run folder that the statistics use and
nothing of the machine: small enough to be committed, and read back to the same report.
"""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhet.errors import UserError, VerifyError, one_line
from fedhet.files import read_json, read_jsonl, read_yaml, write_text
from fedhet.ids import client_order
from fedhet.records.run_folder import CLIENT_COLUMNS

FORMAT = "fedhet run record 1"
SUFFIX = ".run"  # JSON inside; Flower packs every .json of a repository and sends it to all clients
DEPTH = 2  # a sweep's folder holds run folders; a folder of sweeps may be given as well
_DIGITS = 10  # significant ones that are kept: far beyond what is shown, half the size
_MACHINE = ("out", "name", "state-dir")  # keys of the configuration that a record leaves out
_FILES = ("data-path", "partition-file")  # of these it keeps the last part
# How a client is left out whose numbers left the range in which there is anything to learn.
DIVERGENCE = re.compile(
    r"not finite|\bNaN\b|\bnan\b|\binf(inity)?\b|above max-update-norm"
    r"|'train_loss' is \S+, not within"
)
_ROUND = {
    "round", "train_loss", "sampled", "replied", "failed", "evaluated_clients", "uplink_floats",
    "uplink_bytes", "downlink_floats", "downlink_bytes", "train_flops",
}  # fmt: skip


@dataclass(frozen=True)
class ClientScore:
    """A client's last evaluation; ``generation`` 0: it was never sampled. Percent."""

    client: str
    model: str
    generation: int
    test: float | None
    val: float | None


@dataclass(frozen=True)
class Counts:
    """Training images per client and class: ``{client: {index of the class: images}}``."""

    classes: tuple[str, ...]
    clients: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class Run:
    """One run: its configuration (flat, kebab-case), figures, rounds and clients."""

    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    clients: Sequence[ClientScore]
    counts: Counts | None
    folder: Path | None = None  # where checkpoint and states may lie; None: a packed record

    @property
    def evaluated(self) -> list[Mapping[str, Any]]:
        """The rounds that have an accuracy."""
        return [r for r in self.rounds if r.get("test_accuracy_mean") is not None]


@dataclass(frozen=True)
class LeftOut:
    """A run that says nothing about accuracy, and why; ``config`` as far as it could be read."""

    name: str
    reason: str
    config: Mapping[str, Any] | None = None


def read_runs(places: Iterable[Path]) -> tuple[list[Run], list[LeftOut]]:
    """All finished runs below ``places`` (run folders, sweeps, packed records), by name.

    Raises UserError for a place that is not there or holds no run at all.
    """
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for place in places:
        found = list(_find(place, DEPTH))
        if not found:
            raise UserError(
                f"'{place}': no run folder, sweep or packed record is there: a run folder has "
                "config.yaml and rounds.jsonl"
                if place.exists()
                else f"'{place}': no such file or folder"
            )
        for path in found:
            one = _read(path)
            if isinstance(one, Run):
                runs.append(one)
            else:
                left_out.append(one)
    runs.sort(key=lambda run: run.name)
    left_out.sort(key=lambda one: one.name)
    return runs, left_out


def sweep_notes(places: Iterable[Path]) -> list[str]:
    """What the sweeps of these folders say of themselves, such as that they ran a short profile."""
    found: dict[str, None] = {}
    for place in places:
        for index in sorted(place.glob("sweeps/*/sweep.json")):
            try:
                content = json.loads(index.read_text(encoding="utf-8"))
                if content["note"]:
                    found[f"{content['sweep']}: {content['note']}"] = None
            except (OSError, ValueError, KeyError, TypeError):
                continue  # an index that is being written, or none of ours
    return list(found)


def _find(place: Path, depth: int) -> Iterable[Path]:
    if place.is_file():
        if place.suffix == SUFFIX and f'"{FORMAT}"' in place.read_text(encoding="utf-8")[:100]:
            yield place
    elif (place / "config.yaml").is_file():
        yield place
    elif place.is_dir() and depth:
        for child in sorted(place.iterdir()):
            yield from _find(child, depth - 1)


def _read(path: Path) -> Run | LeftOut:
    try:
        return unpack(path) if path.is_file() else _read_folder(path)
    except KeyError as error:
        what = f"no {error}"
    except (OSError, ValueError, TypeError, IndexError, UserError, VerifyError) as error:
        what = one_line(str(error).replace(f"{path}/", ""), 200)  # no path of this machine
    return LeftOut(path.stem if path.is_file() else path.name, f"cannot be read: {what}")


def _read_folder(path: Path) -> Run | LeftOut:
    """A run folder as it is today; of ``environment.json`` and ``partition.csv`` what is there."""
    config = read_yaml(path / "config.yaml")
    rounds = read_jsonl(path / "rounds.jsonl")
    if not (path / "summary.json").exists():
        done = rounds[-1]["round"] if rounds else 0
        reason = f"not finished: round {done} of {config.get('rounds', '?')}"
        return LeftOut(path.name, reason, config)
    summary = read_json(path / "summary.json")
    if summary["status"] != "completed":
        reason = f"{summary['status']}: {summary.get('reason') or 'no reason recorded'}"
        return LeftOut(path.name, one_line(reason), config)
    environment = {}
    if (path / "environment.json").exists():
        environment = read_json(path / "environment.json")
    run = Run(
        path.name, _without_machine(config), _short(summary), _short(environment),
        _unrepeated([_short({k: v for k, v in r.items() if _kept(k, v)}) for r in rounds], config),
        _last_scores(path / "clients.csv"), _counts(path / "partition.csv"), path,
    )  # fmt: skip
    if not run.evaluated:
        return LeftOut(path.name, "no round was evaluated", config)
    if diverged(rounds[-1]):
        return LeftOut(path.name, "failed: it diverged, in the last round no reply counted", config)
    return run


def _unrepeated(rounds: list[dict[str, Any]], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Without the accuracies of rounds between evaluations, which repeat the last ones."""
    every = int(config.get("evaluate-every", 1))
    return [
        r if r["round"] % every == 0 or r is rounds[-1]
        else {key: None if "accuracy" in key else value for key, value in r.items()}
        for r in rounds
    ]  # fmt: skip


def diverged(line: Mapping[str, Any]) -> bool:
    """Whether a line of ``rounds.jsonl`` has no valid reply, and one whose numbers overflowed."""
    reasons = (failure["reason"] for failure in line["failures"])
    return line["replied"] == 0 and any(map(DIVERGENCE.search, reasons))


def _kept(name: str, value: Any) -> bool:
    numeric = isinstance(value, int | float) or value is None
    return name in _ROUND or (numeric and ("accuracy" in name or "norm" in name))


def _without_machine(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in _MACHINE}
    return kept | {key: Path(str(kept[key])).name for key in _FILES if kept.get(key)}


def _short(value: Any) -> Any:
    """Floats with ten significant digits, all through."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def _last_scores(path: Path) -> list[ClientScore]:
    """The last line of every client in ``clients.csv``."""
    last: dict[str, dict[str, str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ())[: len(CLIENT_COLUMNS)] != CLIENT_COLUMNS:
            raise ValueError(f"{path.name} has other columns than {', '.join(CLIENT_COLUMNS)}")
        for row in reader:
            last[row["client"]] = row
    return [
        ClientScore(
            client, row["model"], int(row["generation"]),
            _number(row["test_accuracy"]), _number(row["val_accuracy"]),
        )
        for client, row in sorted(last.items(), key=lambda pair: client_order(pair[0]))
    ]  # fmt: skip


def _number(text: str) -> float | None:
    return _short(float(text)) if text else None


def _counts(path: Path) -> Counts | None:
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    if header[:1] != ["client"] or not rows or {len(row) for row in rows} != {len(header)}:
        raise ValueError(f"{path.name} is damaged")
    clients = {
        client: {i: int(n) for i, n in enumerate(numbers) if int(n)} for client, *numbers in rows
    }
    return Counts(tuple(header[1:]), clients)


def pack(run: Run, folder: Path) -> Path:
    """Write a run as one small JSON file; returns its path."""
    columns = dict.fromkeys(key for record in run.rounds for key in record)
    environment = {k: v for k, v in run.environment.items() if k not in {"started", "device"}}
    content = {
        "format": FORMAT,
        "name": run.name,
        "config": dict(run.config),
        "summary": dict(run.summary),
        "environment": environment,
        "rounds": {key: [record.get(key) for record in run.rounds] for key in columns},
        "clients": {
            key: [getattr(score, key) for score in run.clients]
            for key in ("client", "model", "generation", "test", "val")
        },
        "partition": run.counts
        and {
            "classes": run.counts.classes,
            "clients": {
                client: " ".join(f"{label}:{n}" for label, n in own.items())
                for client, own in run.counts.clients.items()
            },
        },
    }
    lines = (
        f'"{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in content.items()
    )
    path = folder / f"{run.name}{SUFFIX}"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, "{" + ",\n".join(lines) + "}\n")
    return path


def unpack(path: Path) -> Run:
    """Inverse of :func:`pack`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    columns, scores = content["rounds"], content["clients"]
    counts = content["partition"]
    rounds = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return Run(
        content["name"],
        content["config"],
        content["summary"],
        content["environment"],
        _unrepeated(rounds, content["config"]),
        [ClientScore(*values) for values in zip(*scores.values(), strict=True)],
        counts
        and Counts(
            tuple(counts["classes"]),
            {
                client: {int(k): int(n) for k, n in (pair.split(":") for pair in own.split())}
                for client, own in counts["clients"].items()
            },
        ),
    )
