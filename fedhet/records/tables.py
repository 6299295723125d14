"""``clients.csv`` and ``partition.csv``, read: every field is what its column says, or named."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhet.errors import ReadError
from fedhet.files import is_id
from fedhet.reading.bounds import read_bytes
from fedhet.reading.structured import parse_object
from fedhet.reading.tables import MOST_CSV, number, parse_table, whole

CLIENT_COLUMNS = ("round", "client", "model", "generation", "test_accuracy", "val_accuracy")
OTHER = "other"  # further numbers of an evaluation, as JSON


@dataclass(frozen=True)
class Evaluation:
    """A line of ``clients.csv``; accuracies in percent, None where there is none."""

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


def read_evaluations(path: Path) -> list[Evaluation]:
    """The lines of a ``clients.csv``; OSError where there is none."""
    return list(parse_evaluations(path, read_bytes(path, MOST_CSV)))


def parse_evaluations(path: Path, data: bytes) -> Iterator[Evaluation]:
    """The lines in ``data``, which was read from ``path``."""
    if not data:
        return
    source = f"'{path}'"
    columns, rows = parse_table(data, source)
    if tuple(columns[: len(CLIENT_COLUMNS)]) != CLIENT_COLUMNS:
        raise ReadError(source, "line 1", f"other columns than {', '.join(CLIENT_COLUMNS)}")
    for line, row in rows:
        place = f"line {line}"
        named = dict(zip(columns, row, strict=True))
        other = named.get(OTHER)
        yield Evaluation(
            whole(named["round"], source, f"{place}: round"),
            _client(named["client"], source, place),
            named["model"],
            whole(named["generation"], source, f"{place}: generation"),
            number(named["test_accuracy"], source, f"{place}: test_accuracy"),
            number(named["val_accuracy"], source, f"{place}: val_accuracy"),
            parse_object(other, source, f"{place}: {OTHER}") if other else {},
        )


def read_partition(path: Path) -> Dealt:
    """A ``partition.csv``; OSError where there is none."""
    source = f"'{path}'"
    (first, *classes), rows = parse_table(read_bytes(path, MOST_CSV), source)
    if first != "client":
        raise ReadError(source, "line 1", "the first column is not `client`")
    counts: dict[str, tuple[int, ...]] = {}
    for line, (client, *images) in rows:
        place = f"line {line}"
        if _client(client, source, place) in counts:
            raise ReadError(source, place, f"client '{client}' is there twice")
        counts[client] = tuple(_counts(images, source, place))
    return Dealt(tuple(classes), counts)


def _counts(images: Iterable[str], source: str, place: str) -> Iterator[int]:
    for text in images:
        count = whole(text, source, place)
        if count < 0:
            raise ReadError(source, place, f"'{text}' is no number of images")
        yield count


def _client(name: str, source: str, place: str) -> str:
    if not is_id(name):
        raise ReadError(source, f"{place}: client", f"'{name:.80}' is no client's id")
    return name
