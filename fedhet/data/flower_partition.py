"""Partitions by flwr-datasets' partitioners, by name: ``flwr:DirichletPartitioner alpha=0.3``.

Who is used to them from Flower has them here on every kind of data: what they see of it is a
``datasets.Dataset`` with the columns ``label`` (whole numbers), ``site`` (where the data names its
clients) and ``index``. Ours stay the default: they are those of the papers.
"""

import inspect
import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhet.data.image_source import Indices
from fedhet.errors import ReadError, UserError, brief, nearest
from fedhet.reading.structured import parse_yaml

PREFIX = "flwr:"
_COLUMNS = "Vertical"  # such partitioners deal columns, not examples


def flower_owner(
    kind: str,
    labels: Indices,
    sites: npt.NDArray[np.str_] | None,
    *,
    clients: int,
    seed: int,
) -> tuple[Indices, int]:
    """The client (n,) int64 of every example, -1 for none, and the number of clients.

    ``kind`` is ``flwr:CLASS keyword=value ...``. Keywords are checked against the class; those that
    it takes and nobody gives are ``num_partitions`` (``clients``), ``partition_by`` (``label``) and
    ``seed``. Raises UserError for what the class does not take, lacks or refuses.
    """
    name, *words = _words(kind)
    make = _class(name)
    given = _arguments(name, words, make, clients=clients, seed=seed)
    columns = {"label": labels.tolist(), "index": list(range(len(labels)))}
    if sites is not None:
        columns["site"] = sites.tolist()
    try:
        partitioner = make(**given)
        datasets: Any = import_module("datasets")
        datasets.disable_progress_bars()
        partitioner.dataset = datasets.Dataset.from_dict(columns)
        found = int(partitioner.num_partitions)
        held = [np.array(partitioner.load_partition(k)["index"], np.int64) for k in range(found)]
    except Exception as error:  # whatever another's code raises for such values
        raise UserError(f"partition: '{kind}' cannot be made: {brief(error)}") from error
    if clients not in (0, found):
        raise UserError(f"clients {clients} is not allowed: '{kind}' makes {found} (or say 0)")
    owner = np.full(len(labels), -1, dtype=np.int64)
    for k, mine in enumerate(held):
        owner[mine] = k
    if sum(map(len, held)) != (owner >= 0).sum():
        raise UserError(f"partition: '{kind}' gives some examples to several clients")
    return owner, found


def says_clients(kind: str) -> bool:
    """Whether the partitioner itself says how many clients there are."""
    if not kind.startswith(PREFIX):
        return False
    name, *_ = _words(kind)
    return "num_partitions" not in _parameters(_class(name))


def _words(kind: str) -> list[str]:
    try:
        words = shlex.split(kind.removeprefix(PREFIX))
    except ValueError as error:
        raise UserError(f"partition: '{kind}': {error}") from error
    if not words or any("=" not in word for word in words[1:]):
        raise UserError(f"partition: '{kind}' must be written {PREFIX}CLASS keyword=value ...")
    return words


def _class(name: str) -> Callable[..., Any]:
    try:
        module: Any = import_module("flwr_datasets.partitioner")
    except ImportError as error:
        raise UserError(
            f"partition: '{PREFIX}{name}' needs flwr-datasets: pip install 'fedhet[hf]' "
            f"({brief(error)})"
        ) from error
    known = [one for one in module.__all__ if one != "Partitioner" and _COLUMNS not in one]
    if name not in known:
        hint = nearest(name, known)
        raise UserError(
            f"partition: flwr-datasets has no '{name}' that deals examples{hint} (allowed: "
            f"{', '.join(known)})"
        )
    found: Callable[..., Any] = getattr(module, name)
    return found


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(make).parameters)


def _arguments(
    name: str, words: Sequence[str], make: Callable[..., Any], *, clients: int, seed: int
) -> dict[str, Any]:
    parameters = _parameters(make)
    ours = {"num_partitions": clients, "partition_by": "label", "seed": seed}
    given = {key: value for key, value in ours.items() if key in parameters}
    for word in words:
        key, _, text = word.partition("=")
        if key not in parameters:
            raise UserError(
                f"partition: {name} has no '{key}'{nearest(key, parameters)} (allowed: "
                f"{', '.join(parameters)})"
            )
        if key == "num_partitions":
            raise UserError(f"partition: num_partitions={text}: write clients={text} instead")
        try:
            given[key] = parse_yaml(text)
        except ReadError as error:
            raise UserError(f"partition: {key}={text}: {error.what}") from error
        if isinstance(parameters[key].default, bool) and not isinstance(given[key], bool):
            raise UserError(f"partition: {key}={text}: true or false is needed")
    needed = [
        key for key, one in parameters.items() if one.default is one.empty and key not in given
    ]
    if needed:
        raise UserError(f"partition: {name} needs {', '.join(f'{key}=...' for key in needed)}")
    return given
