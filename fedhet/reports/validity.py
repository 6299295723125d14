"""What the records of a finished run must be before anything is said of it."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedhet.config.schema import kebab

LIMIT = 2**63  # no count is as large
LONGEST = 4096  # characters of a text or value: it stands in headings and drawings
_CLOSE = 1e-6  # points; packed records keep ten digits


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Config(_Part):
    """The keys that settings, blocks and titles are made of; others are compared as they are."""

    model_config = ConfigDict(alias_generator=kebab)
    method: str = "fedssa"
    dataset: str = ""
    data_path: str = ""
    partition: str = ""
    partition_file: str = ""
    seed: int = 0
    partition_seed: int = -1
    clients: int = 0
    fraction: float = 1.0
    classes_per_client: int = 1
    alpha: float = 1.0
    models: list[str] = Field(default_factory=list)
    rounds: int = 1
    local_epochs: int = 1
    batch_size: int = 1
    lr: float = 1.0
    evaluate_every: int = Field(default=1, ge=1)


class _Privacy(_Part):
    epsilon_spent_max: float | None = None
    noise_of: Literal["upload", "sum"] = "upload"


class _Summary(_Part):
    clients: int | None = None
    rounds: int | None = None
    run_sha256: str | None = None
    test_accuracy_mean: float | None = None
    best_validation_test_accuracy_mean: float | None = None
    wall_seconds: float | None = None
    failures: list[Any] | None = None
    privacy: _Privacy | None = None
    secure_sum: dict[str, Any] | None = None


class _Environment(_Part):
    versions: dict[str, Any] | None = None
    cuda: list[Any] | None = None


class _Line(_Part):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None]
    round: int
    replied: int
    train_flops: float | None
    uplink_floats: float
    downlink_floats: float
    test_accuracy_mean: float | None = None


class _Client(_Part):
    client: str
    model: str
    generation: int = Field(ge=0)
    test: float | None = Field(ge=0, le=100)
    val: float | None = Field(ge=0, le=100)


class _Records(_Part):
    config: _Config
    summary: _Summary
    environment: _Environment
    rounds: list[_Line] = Field(min_length=1)
    clients: list[_Client]


def check_types(**records: Any) -> None:
    """ValueError, in one line, for the first value that is not of its kind.

    ``records``: all five of ``config``, ``summary``, ``environment``, ``rounds`` and ``clients``.
    """
    try:
        json.dumps(records["config"], sort_keys=True)  # YAML knows more than may be said there
        found = _Records.model_validate(records)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}") from None
    numbers = [line.round for line in found.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        raise ValueError(f"rounds: {len(numbers)} lines are not those of the rounds from 1 on")
    huge = [k for k, v in records["config"].items() if isinstance(v, int) and abs(v) >= LIMIT]
    if huge:
        raise ValueError(f"config.{huge[0]}: no number of fedhet's")
    for key, value in records["config"].items():
        names = isinstance(value, list) and all(isinstance(one, str) for one in value)
        if any(len(one) > LONGEST for one in (value if names else [json.dumps(value)])):
            raise ValueError(f"config.{key}: longer than {LONGEST} characters")
    twice = [name for name, n in Counter(one.client for one in found.clients).items() if n > 1]
    if twice:
        raise ValueError(f"clients: '{twice[0]}' is there twice")


def means_alone(summary: Mapping[str, Any]) -> bool:
    """Whether the server learned sums alone, and no client's own accuracy."""
    return bool((summary.get("secure_sum") or {}).get("absent"))


def check_whole(
    summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], tests: Sequence[float | None]
) -> None:
    """ValueError if the lines of a completed run, or its clients, are not those it ended with.

    ``tests`` are the clients' last accuracies. What an older ``summary`` does not say is not held
    against anything.
    """
    if summary.get("rounds", len(rounds)) != len(rounds):
        raise ValueError(f"rounds.jsonl has {len(rounds)} of {summary['rounds']} rounds")
    last = rounds[-1]
    link = summary.get("run_sha256")
    if "sha256" in last and link is not None and last["sha256"] != link:
        raise ValueError("the last line of rounds.jsonl is not the round that summary.json is of")
    ends = [(_mean([last.get("test_accuracy_mean")]), "rounds.jsonl")]
    if not means_alone(summary):
        known = sum(test is not None for test in tests)
        if (last.get("evaluated_clients") or known) != known:
            raise ValueError(f"clients.csv has {known} of {last['evaluated_clients']} clients")
        ends.append((_mean(tests), "clients.csv"))
    said = summary.get("test_accuracy_mean")
    if said is None:
        return
    for found, name in ends:
        if not math.isclose(found, said, rel_tol=0, abs_tol=_CLOSE):
            raise ValueError(f"{name} ends with {found:.2f} %, and summary.json with {said:.2f} %")


def _mean(values: Sequence[float | None]) -> float:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan
