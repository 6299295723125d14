"""What the JSON and CSV files of a run folder hold.

Every field that fedhet reads is of its kind. A file that does not fit is named with the field.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
)

from fedhet.config.schema import UNCHAINED
from fedhet.errors import Damaged
from fedhet.files import decoded, is_id, parse_object, read_bytes, unquoted


def _id(name: str) -> str:
    if not is_id(name):
        raise ValueError(f"'{name:.80}' is no id")
    return name


Count = Annotated[int, Field(ge=0, lt=2**63)]
Id = Annotated[str, AfterValidator(_id)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,64}$")]
Percent = float | None


class _Strict(BaseModel):
    """Nothing is converted, nothing unknown is passed over."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Open(BaseModel):
    """The same, but for figures that nobody acts on, which may be of another fedhet."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Started(_Open):
    """Of a run's configuration what commands show before they have checked all of it."""

    method: str = "fedssa"
    dataset: str = ""
    rounds: Count = 0
    state_dir: str = Field("", alias="state-dir")


class Identity(_Strict):
    """``checkpoint/run.json``."""

    experiment: Id
    config: Started
    mac: str = ""  # fedhet.plugins.sign


class Failure(_Open):
    """Who was left out of a round, and why."""

    client: str
    reason: str


class LostClient(_Strict):
    """Whose state is gone, since when, and why."""

    client: str
    round: Count
    reason: str


class Summary(_Open):
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


class Line(_Open):
    """A line of ``rounds.jsonl``."""

    round: Count
    test_accuracy_mean: Percent
    test_accuracy_std: Percent
    test_accuracy_p10: Percent
    test_accuracy_min: Percent
    val_accuracy_mean: Percent
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


class Meta(_Open):
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


_FIRST = ("round", "client", "model", "generation", "test_accuracy", "val_accuracy")
CLIENT_COLUMNS = (*_FIRST, *sorted(UNCHAINED))
OTHER = "other"  # further numbers of an evaluation, as JSON


@dataclass(frozen=True)
class ClientLine:
    """A line of ``clients.csv``; accuracies in percent, None where there is none.

    ``other`` are the other metrics that the client has.
    """

    round: int
    client: str
    model: str
    generation: int
    test_accuracy: float | None
    val_accuracy: float | None
    other: Mapping[str, Any]


@dataclass(frozen=True)
class Dealt:
    """``partition.csv``: training images per client, in the order of ``classes``."""

    classes: tuple[str, ...]
    counts: Mapping[str, tuple[int, ...]]


def read_evaluations(path: Path) -> list[ClientLine]:
    """Return the lines of a ``clients.csv``; OSError where there is none."""
    return list(parse_evaluations(path, read_bytes(path)))


def parse_evaluations(path: Path, data: bytes) -> Iterator[ClientLine]:
    """Return the lines in ``data``, which was read from ``path``."""
    if not data:
        return
    source = f"'{path}'"
    columns, rows = parse_table(data, source)
    if tuple(columns[: len(_FIRST)]) != _FIRST:
        raise Damaged.at(source, "line 1", f"other columns than {', '.join(_FIRST)}")
    for line, row in rows:
        place = f"line {line}"
        named = dict(zip(columns, row, strict=True))
        other = named.get(OTHER)
        beside = {
            name: number(named[name], source, f"{place}: {name}")
            for name in sorted(UNCHAINED.keys() & named.keys())
        }
        yield ClientLine(
            whole(named["round"], source, f"{place}: round"),
            _client(named["client"], source, place),
            named["model"],
            whole(named["generation"], source, f"{place}: generation"),
            number(named["test_accuracy"], source, f"{place}: test_accuracy"),
            number(named["val_accuracy"], source, f"{place}: val_accuracy"),
            {name: value for name, value in beside.items() if value is not None}
            | (parse_object(other, source, f"{place}: {OTHER}") if other else {}),
        )


def read_partition(path: Path) -> Dealt:
    """Return a ``partition.csv``; OSError where there is none."""
    source = f"'{path}'"
    (first, *classes), rows = parse_table(read_bytes(path), source)
    if first != "client":
        raise Damaged.at(source, "line 1", "the first column is not `client`")
    counts: dict[str, tuple[int, ...]] = {}
    for line, (client, *images) in rows:
        place = f"line {line}"
        if _client(client, source, place) in counts:
            raise Damaged.at(source, place, f"client '{client}' is there twice")
        counts[client] = tuple(_counts(images, source, place))
    return Dealt(tuple(classes), counts)


def _counts(images: Iterable[str], source: str, place: str) -> Iterator[int]:
    for text in images:
        count = whole(text, source, place)
        if count < 0:
            raise Damaged.at(source, place, f"'{text}' is no number of images")
        yield count


def _client(name: str, source: str, place: str) -> str:
    if not is_id(name):
        raise Damaged.at(source, f"{place}: client", f"'{name:.80}' is no client's id")
    return name


def parse_table(data: bytes, source: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the columns and the numbered rows of a CSV of ours; Damaged for another file."""
    reader = csv.reader(io.StringIO(decoded(data, source), newline=""), strict=True)
    head = [unquoted(one) for one in next(reader, [])]
    if not head:
        raise Damaged.at(source, "line 1", "no head of a table")

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for row in reader:
                if len(row) != len(head):
                    what = f"has {len(row)} fields, and {len(head)} are needed"
                    raise Damaged.at(source, f"line {reader.line_num}", what)
                yield reader.line_num, [unquoted(one) for one in row]
        except csv.Error as error:
            raise Damaged.at(source, f"line {reader.line_num}", f"not CSV: {error}") from error

    return head, rows()


def whole(text: str, source: str, place: str) -> int:
    """Return a whole number; Damaged for anything else."""
    if re.fullmatch(r"-?[0-9]{1,18}", text) is None:
        raise Damaged.at(source, place, f"'{text:.40}' is no whole number")
    return int(text)


def number(text: str, source: str, place: str) -> float | None:
    """Return a finite number, or None for an empty field; Damaged for anything else."""
    try:
        found = float(text) if text else 0.0
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise Damaged.at(source, place, f"'{text:.40}' is no number")
    return found if text else None
