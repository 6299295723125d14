"""What the JSON and CSV files of a run folder hold.

Every field that fedhet reads is of its kind. A file that does not fit is named with the field.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, create_model

from fedhet.config.schema import BESIDE_ACCURACY, kebab
from fedhet.errors import Damaged
from fedhet.files import decoded, parse_object, read_bytes, unquoted, valid_id

Count = Annotated[int, Field(ge=0, lt=2**63)]
Id = Annotated[str, AfterValidator(valid_id)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,64}$")]
Percent = float | None
GONE: Mapping[str, Mapping[str, Any]] = {  # keys of methods, with the value that is all there is
    "fedmrl": {"lr-global": 0.0, "lr-projector": 0.0},
    "pfedes": {"extractor-kernel": 3, "extractor-depth": 2, "lr-extractor": 0.0},
}


def without_gone(method: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a run or state of before without those of :data:`GONE`."""
    gone = GONE.get(method, {})
    return {key: value for key, value in keys.items() if gone.get(kebab(key), ...) != value}


class _Strict(BaseModel):
    """Nothing is converted; fields of another fedhet, which this one does not use, may be there."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Started(_Strict):
    """Of a run's configuration what commands use before, or without, checking all of it."""

    model_config = ConfigDict(alias_generator=kebab)

    method: str = "fedssa"
    dataset: str = ""
    rounds: Count = 1
    state_dir: str = ""
    seed: int = Field(0, lt=2**31)
    partition_seed: int = Field(-1, lt=2**31)
    clients: int = 0
    fraction: float = 1.0
    models: list[str] = Field(default_factory=list)
    evaluate_every: int = Field(1, ge=1)
    metric: str = "accuracy"
    tuned: list[str] = Field(default_factory=list)


class Environment(_Strict):
    """``environment.json``, as far as commands use it."""

    versions: dict[str, Any] | None = None
    cuda: list[Any] | None = None


class Identity(_Strict):
    """``checkpoint/run.json``."""

    experiment: Id
    config: Started
    mac: str = ""  # fedhet.plugins.sign


class Failure(_Strict):
    """Who was left out of a round, and why."""

    client: str
    reason: str


class LostClient(Failure):
    """Whose state is gone, since when, and why."""

    round: Count


class Summary(_Strict):
    """``summary.json``, as far as commands use it; every figure is computed again in a check."""

    status: str
    reason: str
    rounds: Count
    clients: Count = 0
    method: str = ""
    test_accuracy_mean: Percent = None
    test_accuracy_p10: Percent = None
    wall_seconds: float = 0.0
    failures: list[dict[str, Any]] = Field(default_factory=list)
    clients_lost: list[LostClient] = Field(default_factory=list)
    privacy: dict[str, Any] | None = None
    secure_sum: dict[str, Any] | None = None


COUNTS = (  # of a line of ``rounds.jsonl``, beside ``train_flops`` counted while the round goes on
    "sampled", "replied", "offline",
    *(f"{way}_{what}" for way in ("uplink", "downlink")
      for what in ("floats", "bytes", "message_bytes")),
)  # fmt: skip
_FIELDS: dict[str, Any] = dict.fromkeys(("round", *COUNTS), (Count, ...))
_FIELDS |= {f"test_accuracy_{kind}": (Percent, ...) for kind in ("mean", "std", "p10", "min")}
_FIELDS |= dict.fromkeys(("val_accuracy_mean", "train_loss"), (Percent, ...))
_FIELDS |= {"train_flops": (Annotated[float, Field(ge=0)] | None, ...), "seconds": (float, ...)}
_FIELDS |= {"failures": (list[Failure], ...), "lost": (list[LostClient], ...)}
_FIELDS |= {"sha256": (Digest, ...), "epsilon_spent": (dict[str, float], {})}
_FIELDS["participants_test_accuracy_mean"] = (Percent, None)
Line = create_model("Line", __base__=_Strict, **_FIELDS)


class Mark(_Strict):
    """Where a file was when the checkpoint was written."""

    bytes: Count
    sha256: Digest


class Meta(_Strict):
    """The metadata of a checkpoint, as far as a check of the folder reads them.

    The checkpoint's own digest covers all of them.
    """

    names: list[str]
    round: Count
    simulated: bool
    roster: dict[str, Any]
    sha256: Digest
    scores: dict[Id, Any]
    rounds: Mark
    clients: Mark
    experiment: Id
    environment: Digest


FIRST = ("round", "client", "model", "generation", "test_accuracy", "val_accuracy")
CLIENT_COLUMNS = (*FIRST, *sorted(BESIDE_ACCURACY))
OTHER = "other"  # further numbers of an evaluation, as JSON


def _figure(text: str) -> float | None:
    if not math.isfinite(number := float(text or 0)):
        raise ValueError(f"'{text}' is not finite")
    return number if text else None


_KINDS: dict[str, Callable[[str], Any]]
_KINDS = {"round": int, "client": valid_id, "model": str, "generation": int, OTHER: parse_object}


def read_evaluations(path: Path, *, last: bool = False) -> list[dict[str, Any]]:
    """Return the lines of a ``clients.csv`` with the figures that they have, accuracies in percent.

    ``last``: the last line of every client alone. The accuracies of a client without any are None.
    OSError where there is no file.
    """
    columns, *rows = _rows(path) or [list(FIRST)]
    if tuple(columns[: len(FIRST)]) != FIRST:
        raise Damaged.at(f"'{path}'", "line 1", f"other columns than {', '.join(FIRST)}")
    kinds = [(name, _KINDS.get(name, _figure), name in FIRST) for name in columns]
    numbered = list(enumerate(rows, 2))
    if last:
        numbered = list({row[1]: (number, row) for number, row in numbered}.values())
    lines = []
    for number, row in numbered:
        line: dict[str, Any] = {}
        for (name, kind, needed), text in zip(kinds, row, strict=True):
            if text or needed:
                try:
                    line[name] = kind(text)
                except ValueError as error:
                    raise Damaged.at(f"'{path}'", f"line {number}: {name}", str(error)) from error
        lines.append(line | line.pop(OTHER, {}))
    return lines


def read_partition(path: Path) -> tuple[list[str], dict[str, list[int]]]:
    """Return the classes of a ``partition.csv``, and every client's training examples of each.

    A run with sums tells none: then the list is empty. OSError where there is no file, Damaged for
    an empty one.
    """
    rows = _rows(path)
    try:
        (_, *classes), *rows = rows
        return classes, {
            valid_id(client): [*map(int, row)] if any(row) else [] for client, *row in rows
        }
    except ValueError as error:
        raise Damaged.at(f"'{path}'", "", str(error)) from error


def _rows(path: Path) -> list[list[str]]:
    """Return the lines of a CSV of ours, the head first; Damaged for others. No cell has two."""
    source = f"'{path}'"
    reader = csv.reader(io.StringIO(decoded(read_bytes(path), source), newline=""), strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if rows and len(row) != len(rows[0]):
                what = f"has {len(row)} fields, and {len(rows[0])} are needed"
                raise Damaged.at(source, f"line {reader.line_num}", what)
            rows.append([unquoted(one) for one in row])
    except csv.Error as error:
        raise Damaged.at(source, f"line {reader.line_num}", f"not CSV: {error}") from error
    return rows
