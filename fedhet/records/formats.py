"""What the JSON and CSV files of a run folder hold.

Every field that fedhet reads is of its kind. A file that does not fit is named with the field.
"""

import csv
import io
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from fedhet.config.schema import BESIDE_ACCURACY, kebab
from fedhet.errors import Damaged
from fedhet.files import decoded, is_id, parse_object, read_bytes, shaped, unquoted


def _id(name: str) -> str:
    if not is_id(name):
        raise ValueError(f"'{name:.80}' is no id")
    return name


Count = Annotated[int, Field(ge=0, lt=2**63)]
Id = Annotated[str, AfterValidator(_id)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,64}$")]
Percent = float | None


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


class Line(_Strict):
    """A line of ``rounds.jsonl``."""

    round: Count
    test_accuracy_mean: Percent
    test_accuracy_std: Percent
    test_accuracy_p10: Percent
    test_accuracy_min: Percent
    val_accuracy_mean: Percent
    participants_test_accuracy_mean: Percent = None
    train_loss: float | None
    sampled: Count
    replied: Count
    offline: Count
    uplink_floats: Count
    downlink_floats: Count
    uplink_bytes: Count
    downlink_bytes: Count
    uplink_message_bytes: Count
    downlink_message_bytes: Count
    train_flops: float | None
    seconds: float
    failures: list[Failure]
    lost: list[LostClient]
    sha256: Digest
    epsilon_spent: dict[str, float] = Field(default_factory=dict)


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


# --- tables: each line is read by the class that says what it holds ------------------------------


Figure = Annotated[float | None, BeforeValidator(lambda text: None if text == "" else text)]
Other = Annotated[dict[str, Any], BeforeValidator(lambda text: parse_object(text or "{}"))]


class _Row(BaseModel):
    """A line of a CSV, whose fields are texts."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)
    __pydantic_extra__: dict[str, Figure]


class ClientLine(_Row):
    """A line of ``clients.csv``; accuracies in percent, None where there is none."""

    round: Count
    client: Id
    model: str
    generation: Annotated[int, Field(lt=2**63)]
    test_accuracy: Figure
    val_accuracy: Figure
    more: Other = Field({}, alias="other")

    @property
    def other(self) -> dict[str, Any]:
        """The other metrics that the client has."""
        return {k: v for k, v in self.__pydantic_extra__.items() if v is not None} | self.more


FIRST = tuple(ClientLine.model_fields)[:-1]
CLIENT_COLUMNS = (*FIRST, *sorted(BESIDE_ACCURACY))
OTHER = "other"  # further numbers of an evaluation, as JSON


class Dealt(BaseModel):
    """``partition.csv``: training images per client, in the order of ``classes``."""

    classes: tuple[str, ...]
    counts: dict[Id, tuple[Count, ...]]


def read_evaluations(path: Path) -> list[ClientLine]:
    """Return the lines of a ``clients.csv``; OSError where there is none."""
    (_, columns), *rows = read_rows(path) or [(0, list(FIRST))]
    if tuple(columns[: len(FIRST)]) != FIRST:
        raise Damaged.at(f"'{path}'", "line 1", f"other columns than {', '.join(FIRST)}")
    return [
        shaped(ClientLine, dict(zip(columns, row, strict=True)), f"'{path}'", f"line {number}")
        for number, row in rows
    ]


def read_partition(path: Path) -> Dealt:
    """Return a ``partition.csv``; OSError where there is none, Damaged for an empty file."""
    rows = read_rows(path)
    if not rows:
        raise Damaged.at(f"'{path}'", "line 1", "no head of a table")
    fields = {"classes": rows[0][1][1:], "counts": {row[0]: row[1:] for _, row in rows[1:]}}
    return shaped(Dealt, fields, f"'{path}'")


def read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the lines of a CSV of ours with their numbers, the head first; Damaged for others."""
    source = f"'{path}'"
    reader = csv.reader(io.StringIO(decoded(read_bytes(path), source), newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        for row in reader:
            if rows and len(row) != (width := len(rows[0][1])):
                what = f"has {len(row)} fields, and {width} are needed"
                raise Damaged.at(source, f"line {reader.line_num}", what)
            rows.append((reader.line_num, [unquoted(one) for one in row]))
    except csv.Error as error:
        raise Damaged.at(source, f"line {reader.line_num}", f"not CSV: {error}") from error
    return rows
