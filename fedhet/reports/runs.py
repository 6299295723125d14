"""Finished runs as a report sees them, and their packed records.

A packed record is one JSON file with everything of a run folder that the statistics use and, of
the machine, its processor: small enough to be committed, and read back to the same report.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedhet.files import write_text
from fedhet.reading.structured import read_json
from fedhet.reports.validity import LIMIT, LONGEST, check_types, check_whole

FORMAT = "fedhet run record 1"
SUFFIX = ".run"  # JSON inside; Flower packs every .json of a repository and sends it to all clients


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
    """Training images per client and class: ``{client: {index of the class: images}}``.

    Raises ValueError if it is none.
    """

    classes: tuple[str, ...]
    clients: Mapping[str, Mapping[int, int]]

    def __post_init__(self) -> None:
        held = [pair for own in self.clients.values() for pair in own.items()]
        named = self.classes and self.clients and all(isinstance(one, str) for one in self.classes)
        if not named or any(not (0 <= k < len(self.classes) and 0 <= n < LIMIT) for k, n in held):
            raise ValueError("the partition is damaged")


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
    title: str = ""  # what the preset of its sweep calls its setting

    @property
    def evaluated(self) -> list[Mapping[str, Any]]:
        """The rounds that have an accuracy."""
        return [r for r in self.rounds if r.get("test_accuracy_mean") is not None]

    @property
    def federation(self) -> int:
        """N: also the clients that were never sampled, where those are not evaluated."""
        return int(self.summary.get("clients") or len(self.clients))


@dataclass(frozen=True)
class LeftOut:
    """A run that says nothing about accuracy, and why; ``config`` as far as it could be read."""

    name: str
    reason: str
    config: Mapping[str, Any] | None = None


def unrepeated(rounds: list[dict[str, Any]], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Without the accuracies of rounds between evaluations, which repeat the last ones."""
    every = int(config.get("evaluate-every", 1))
    return [
        r if r["round"] % every == 0 or r is rounds[-1]
        else {key: None if "accuracy" in key else value for key, value in r.items()}
        for r in rounds
    ]  # fmt: skip


def numbered(runs: Sequence[Run]) -> list[Run]:
    """The runs, further ones of one name with a number, so that each is a record of its own."""
    taken = {run.name for run in runs}
    made: list[Run] = []
    seen: set[str] = set()
    for run in runs:
        name, count = run.name, 1
        while name in seen or (count > 1 and name in taken):
            count += 1
            name = f"{run.name}-{count}"
        seen.add(name)
        made.append(run if name == run.name else replace(run, name=name))
    return made


def pack(run: Run, folder: Path) -> Path:
    """Write a run as one small JSON file; returns its path."""
    columns = dict.fromkeys(key for record in run.rounds for key in record)
    environment = {k: v for k, v in run.environment.items() if k not in {"started", "device"}}
    content = {
        "format": FORMAT,
        "name": run.name,
        **({"title": run.title} if run.title else {}),
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


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def unpack(path: Path) -> Run:
    """Inverse of :func:`pack`."""
    content = read_json(path)
    counts = content["partition"]
    rounds, clients = (_rows(content[key]) for key in ("rounds", "clients"))
    parts = {key: content[key] for key in ("config", "summary", "environment")}
    check_types(**parts, rounds=rounds, clients=clients)
    run = Run(
        path.stem,  # not what it calls itself: files are named by it
        content["config"],
        content["summary"],
        content["environment"],
        unrepeated(rounds, content["config"]),
        [ClientScore(**score) for score in clients],
        counts
        and Counts(
            tuple(counts["classes"]),
            {
                client: {int(k): int(n) for k, n in (pair.split(":") for pair in own.split())}
                for client, own in counts["clients"].items()
            },
        ),
        title=content.get("title", ""),
    )
    if not isinstance(run.title, str) or len(run.title) > LONGEST:
        raise ValueError(f"title: no text of at most {LONGEST} characters")
    if not run.evaluated:
        raise ValueError("no round was evaluated")
    check_whole(run.summary, rounds, [score.test for score in run.clients])
    return run
