"""flwr-datasets: its data sets as ``hf:NAME``, and its partitioners as ``flwr:CLASS``.

``hf:NAME subset=S split=train+test`` is loaded by flwr-datasets; the split is ``train`` unless
another is named. With ``data-path`` the data comes from that folder instead: one that
``save_to_disk`` wrote, or any that ``datasets.load_dataset`` reads; then nothing is downloaded.
``target`` names the class (needed unless one column alone is a ``ClassLabel``), ``site`` the
client. With ``text`` these are texts, with a column of images they are images, and else rows.
"""

import shlex
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from fedhet.data.images import Listing, Losses, Pixels, Shape, Unread, losses, to_pixels
from fedhet.data.inputs import HUB, Indices, Inputs
from fedhet.data.labels import Form, Keys, Reading, Source, Stream, file_stats, listed, need
from fedhet.data.partition import PREFIX, Owners, PartitionSpec
from fedhet.data.rows import ArrowFile
from fedhet.data.table import of_rows, of_texts
from fedhet.errors import Damaged, UserError, brief, nearest
from fedhet.files import parse_yaml

_HUB_WORDS = ("subset", "split")


def source(dataset: str, data_path: str, reading: Reading) -> Source:
    """Return a data set of Hugging Face's ``datasets``: texts, images or rows.

    Its key has size and time of the local copy's files; the hub's are taken as fixed.
    """
    files: list[object] = []
    if data_path:
        root = Path(data_path).expanduser()
        files = file_stats(sorted(path for path in root.rglob("*") if path.is_file()))

    def listing(image: Inputs, classes: tuple[str, ...]) -> Stream:
        data, where = _load(dataset, data_path), f"dataset '{dataset}'"
        file = _file(data, where)
        own = replace(reading, target=reading.target or _class_label(data, where))
        if own.text:
            return of_texts(file, own, classes)
        pictures = [name for name, kind in data.features.items() if type(kind).__name__ == "Image"]
        if pictures:
            return _images(data.select_columns(pictures[:1]), file, own, image, classes)
        return of_rows(file, own, classes)

    return Source(["hub", dataset, data_path, files, repr(reading)], listing)


def _load(dataset: str, data_path: str) -> Any:
    name, *words = dataset.removeprefix(HUB).split() or [""]
    given = dict(word.partition("=")[::2] for word in words)
    if not name or set(given) - set(_HUB_WORDS) or not all(given.values()):
        raise UserError(
            f"dataset '{dataset}' must be written hf:NAME, and then subset=... or split=..."
        )
    try:
        datasets: Any = import_module("datasets")
        flower: Any = import_module("flwr_datasets")
    except ImportError as error:
        raise UserError(
            f"dataset '{dataset}' needs flwr-datasets: pip install 'fedhet[hf]' ({brief(error)})"
        ) from error
    datasets.disable_progress_bars()
    splits = given.get("split", "train").split("+")
    try:
        if data_path:
            path = Path(data_path).expanduser()
            if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
                found = datasets.load_from_disk(str(path))
                if isinstance(found, datasets.Dataset):  # of one split, which has no name
                    return found
                return datasets.concatenate_datasets([found[split] for split in splits])
            name = str(path)
        whole = flower.FederatedDataset(
            dataset=name, subset=given.get("subset"), partitioners={}, shuffle=False
        )
        return datasets.concatenate_datasets([whole.load_split(split) for split in splits])
    except Exception as error:  # of the hub, the network, the files: nearly every kind
        where = data_path or "the hub"
        raise UserError(
            f"dataset '{dataset}' cannot be loaded from {where}: {brief(error)}; data-path="
            "FOLDER names a local copy"
        ) from error


def _file(data: Any, where: str) -> ArrowFile:
    """Return the columns and rows of a ``datasets.Dataset``; class labels are their names."""
    import pyarrow as pa

    known = {name: one.names for name, one in data.features.items() if hasattr(one, "int2str")}

    def batches(names: list[str], size: int) -> Iterator[Any]:
        part = data.select_columns(names).with_format("arrow")
        for start in range(0, len(part), size):
            table = part[start : start + size].combine_chunks()
            for name in known.keys() & set(names):
                codes = table.column(name).to_pylist()
                values = [None if v is None or v < 0 else known[name][v] for v in codes]
                place = table.schema.names.index(name)
                table = table.set_column(place, name, pa.array(values, pa.string()))
            yield table.to_batches()[0]

    return ArrowFile(where, Form(), data.column_names, (), batches)


def _class_label(data: Any, where: str) -> str:
    """Return the one column that is a ClassLabel; raise UserError if there are several or none."""
    found = [name for name, kind in data.features.items() if hasattr(kind, "int2str")]
    if len(found) != 1:
        raise UserError(
            f"target: '' is not allowed: {where} has {len(found)} columns of class labels; name "
            f"one of {listed(data.column_names)}"
        )
    return str(found[0])


def _images(
    data: Any, file: ArrowFile, reading: Reading, image: Inputs, classes: tuple[str, ...]
) -> Stream:
    """Return images, decoded one by one; labels and sites are read at once."""
    need(file.columns, [reading.target], "target", file.where)
    need(file.columns, reading.site, "site", file.where)
    keys = Keys(reading, classes)
    kept = [keys.add(chunk) for chunk in file.chunks(keys.columns(), ())]
    found, places = keys.content(image), np.flatnonzero(np.concatenate(kept))
    lost = Losses()
    return Listing(
        image, found.classes, tuple(map(str, places)), found.labels,
        _decoded(data.select(places), image.image_shape, lost), sites=found.sites,
        site_names=found.site_names, losses=lost, notes=found.notes,
    ).stream()  # fmt: skip


def _decoded(data: Any, shape: Shape, lost: Losses) -> Generator[Pixels | Unread, None, None]:
    for index in range(len(data)):
        try:
            (found,) = data[index].values()
            less = losses(found, shape)
            pixels = to_pixels(found, shape)
            lost.flags.append(less)
            yield pixels
        except Exception as error:  # decoders raise nearly every kind
            yield Unread(brief(error))


# --- partitioners ----------------------------------------------------------------

_COLUMNS = "Vertical"  # such partitioners deal columns, not examples


def flower_owner(labels: Indices, spec: PartitionSpec, sites: Owners | None) -> tuple[Indices, int]:
    """Return the client (n,) int64 of every example, -1 for none, and the number of clients.

    ``spec.kind`` is ``flwr:CLASS keyword=value ...``. Keywords are checked against the class; those
    that it takes and nobody gives are ``num_partitions`` (``clients``), ``partition_by``
    (``label``) and ``seed``. Raise UserError for what the class does not take, lacks or refuses,
    and where somebody would have nothing to train on.
    """
    kind, clients = spec.kind, spec.clients
    name, *words = _words(kind)
    make = _class(name)
    given = _arguments(name, words, make, clients=clients, seed=spec.seed)
    columns = {"label": labels.tolist(), "index": list(range(len(labels)))}
    if sites is not None and sites.names:
        columns["site"] = np.array(sites.names)[sites.owner].tolist()
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
        raise UserError(f"clients {clients} is not allowed: '{kind}' makes {found} (0 takes all)")
    owner = np.full(len(labels), -1, dtype=np.int64)
    for k, mine in enumerate(held):
        owner[mine] = k
        if not len(mine):
            raise UserError(
                f"partition: '{kind}' leaves client {k} without {spec.noun}: use fewer clients"
            )
    if sum(map(len, held)) != (owner >= 0).sum():
        raise UserError(f"partition: '{kind}' gives some examples to several clients")
    return owner, found


def flower_says_clients(kind: str) -> bool:
    """Return whether a partitioner says itself how many clients there are."""
    return "num_partitions" not in signature(_class(_words(kind)[0])).parameters


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
            f"partition: flwr-datasets has no '{name}' that deals examples{hint}; allowed: "
            f"{', '.join(known)}"
        )
    found: Callable[..., Any] = getattr(module, name)
    return found


def _arguments(
    name: str, words: Sequence[str], make: Callable[..., Any], *, clients: int, seed: int
) -> dict[str, Any]:
    parameters = signature(make).parameters
    ours = {"num_partitions": clients, "partition_by": "label", "seed": seed}
    given = {key: value for key, value in ours.items() if key in parameters}
    for word in words:
        key, _, text = word.partition("=")
        if key not in parameters:
            raise UserError(
                f"partition: {name} has no '{key}'{nearest(key, parameters)}; allowed: "
                f"{', '.join(parameters)}"
            )
        if key == "num_partitions":
            raise UserError(f"partition: num_partitions={text}: write clients={text} instead")
        try:
            given[key] = parse_yaml(text)
        except Damaged as error:
            raise UserError(f"partition: {key}={text}: {error.what}") from error
        if isinstance(parameters[key].default, bool) and not isinstance(given[key], bool):
            raise UserError(f"partition: {key}={text} is not allowed: true or false")
    needed = [
        key for key, one in parameters.items() if one.default is one.empty and key not in given
    ]
    if needed:
        raise UserError(f"partition: {name} needs {', '.join(f'{key}=...' for key in needed)}")
    return given
