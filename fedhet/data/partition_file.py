"""Partition ``file``: a CSV ``path,client,split`` with natural clients or somebody's partition."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedhet.data.split import ClientSplit
from fedhet.errors import ReadError, UserError
from fedhet.files import is_id
from fedhet.reading.tables import read_rows

HEADER = ["path", "client", "split"]
SPLITS = ("train", "val", "test")


def read_partition_file(
    file: str, paths: Sequence[str], clients: int
) -> tuple[tuple[str, ...], tuple[ClientSplit, ...]]:
    """Client ids and splits; ``paths`` are the data set's, ``clients`` 0 or the number expected.

    Ids that are all numbers are sorted as numbers, others as text.

    Raises:
        UserError: with the file, the line and the value.

    """
    if not file:
        raise UserError("partition-file is empty: partition file needs a CSV path,client,split")
    index_of = {path: index for index, path in enumerate(paths)}
    held: dict[str, dict[str, list[int]]] = {}
    seen_in: dict[int, int] = {}
    for line, row in _rows(file):
        path, client, split = _checked(file, line, row)
        index = _index(file, line, path, index_of)
        if seen_in.setdefault(index, line) != line:
            raise _error(file, line, f"path {path!r} is already in line {seen_in[index]}")
        if client not in held:
            if not is_id(client):
                raise _error(
                    file, line, f"client {client!r} is not allowed (1 to 64 of A-Z a-z 0-9 . _ -)"
                )
            held[client] = {name: [] for name in SPLITS}
        held[client][split].append(index)
    ids = _sorted_ids(held)
    if not ids:
        raise UserError(f"partition-file {file}: no image in it")
    if clients not in (0, len(ids)):
        raise UserError(
            f"clients {clients} is not allowed: partition-file {file} has {len(ids)} (or say 0)"
        )
    for client in ids:
        if not held[client]["train"]:
            raise UserError(f"partition-file {file}: client {client!r} has no train image")
    return ids, tuple(
        ClientSplit(*(np.array(sorted(held[c][name]), dtype=np.int64) for name in SPLITS))
        for c in ids
    )


def count_clients(file: str) -> int:
    """How many clients a partition file names; UserError if it is none."""
    return len({row[1] for _, row in _rows(file) if len(row) == len(HEADER)})


def _error(file: str, line: int, text: str) -> UserError:
    return UserError(f"partition-file {file} line {line}: {text}")


def _rows(file: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every row after the header; empty lines are skipped."""
    try:
        found = read_rows(Path(file).expanduser())
        line, header = next(found, (1, []))
        if header != HEADER:
            raise _error(file, line, f"header {','.join(header)!r} must be {','.join(HEADER)!r}")
        yield from found
    except OSError as error:
        raise UserError(f"partition-file {file}: {error.strerror}") from error
    except ReadError as error:
        raise UserError(
            f"partition-file {file}: not a CSV text file ({error.place}: {error.what})"
        ) from error


def _checked(file: str, line: int, row: list[str]) -> tuple[str, str, str]:
    if len(row) != len(HEADER):
        raise _error(file, line, f"{len(row)} fields in {','.join(row)!r}, expected 3")
    path, client, split = row
    if split not in SPLITS:
        raise _error(file, line, f"split {split!r} is not one of {', '.join(SPLITS)}")
    return path, client, split


def _index(file: str, line: int, path: str, index_of: Mapping[str, int]) -> int:
    index = index_of.get(path)
    if index is None:
        example = next(iter(index_of), "")
        raise _error(
            file, line, f"path {path!r} is no image of the data set (they look like {example!r})"
        )
    return index


def _sorted_ids(ids: Mapping[str, object]) -> tuple[str, ...]:
    if all(client.isdigit() for client in ids):
        return tuple(sorted(ids, key=lambda client: (int(client), client)))
    return tuple(sorted(ids))
