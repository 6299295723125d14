"""Data that a Python program gives as objects: arrays and tensors by client, frames, data sets.

They become examples as those of files do, through the same cache, from which workers map them. The
name of such a data set, ``kind:type:digest``, stands for its values; see :mod:`fedhet.plugins`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedhet import plugins
from fedhet.data import rows, table
from fedhet.data.inputs import IMAGE, PLURAL, SIGNAL, TABLE, TOKENS, Inputs, Reading, Stream
from fedhet.data.sources import Data, class_names, frames_of, kind_of_array, loaded
from fedhet.errors import UserError, brief

# First part of a name, by kind: that of data sets with the same keys.
_PREFIX = {IMAGE: "image-folder", SIGNAL: "signals", TABLE: "table", TOKENS: "texts"}
SITE = "client"  # the column that a frame gets where each client has its own
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Given:
    """Data that were given: a frame, or a :class:`Data`."""

    what: str
    kind: str
    data: Data | None = None
    frame: pd.DataFrame | None = None
    site: str = ""  # the frame's column of the client, where it was added here
    notes: tuple[str, ...] = ()  # lines of what was changed

    @property
    def name(self) -> str:
        """Return the name that stands for these values."""
        values: Any = [self.notes, self.data]  # other values that are stored alike: another line
        if self.frame is not None:
            hashed = pd.util.hash_pandas_object(self.frame, index=False).to_numpy()
            values = [list(map(str, self.frame)), list(map(str, self.frame.dtypes)), hashed]
        digest = plugins.name_of(values, _PREFIX[self.kind]).rpartition(":")[2]
        return f"{_PREFIX[self.kind]}:{self.what}:{digest}"

    def stream(self, reading: Reading, image: Inputs, classes: tuple[str, ...]) -> Stream:
        """Return the wanted examples; ``reading`` says which column of a frame is what."""
        if self.frame is not None:
            read = table.of_texts if reading.text else table.of_table
            return (yield from read(rows.of_frame(self.frame, reading), reading, classes))
        about = yield from loaded("data", lambda: cast("Data", self.data), image, classes)
        inputs, count = about.inputs, len(about.labels)
        size = inputs.zeros(1).nbytes * count / 2**20
        line = (
            f"data: {count:,} {PLURAL[inputs.kind]} {inputs.shape}, {len(about.classes)} classes, "
            f"{max(1, len(about.site_names))} clients; {size:,.1f} MiB in the cache, which all "
            "processes share"
        )
        return replace(about, notes=(*self.notes, line, *about.notes))


def understand(data: Any, clients: Sequence[str], *, text: bool = False) -> Given:
    """Return what ``data`` is; UserError, one line, for what cannot be examples with labels.

    Allowed: {client: (x, y[, x_test, y_test])}, (x, y), a DataFrame or one a client, a torch
    Dataset or one a client, a Dataset or DatasetDict of Hugging Face, a FederatedDataset of Flower,
    a :class:`Data`, or a function ``load(client, clients)``, which is called with ``clients``.
    """
    what = f"{type(data).__module__.partition('.')[0]}.{type(data).__qualname__}"
    if isinstance(data, str | Path):
        raise UserError(f"data: '{data}' is a path: files are read by dataset= and data_path=")
    if isinstance(data, Data):
        kind = data.kind or kind_of_array(np.asarray(data.examples))
        return Given(what, kind if kind in _PREFIX else IMAGE, data)  # else `loaded` refuses it
    if hasattr(data, "load_partition") and hasattr(data, "partitioners"):  # Flower Datasets
        (partitioner,) = data.partitioners.values()
        data = {str(k): data.load_partition(k) for k in range(int(partitioner.num_partitions))}
    elif callable(data) and not isinstance(data, type) and not _is_dataset(data):
        if not clients:
            raise UserError("clients: 0 is not allowed with data=FUNCTION: give N, or names")
        what, load, data = "function", data, {}
        for client in clients:
            try:
                data[client] = load(client, list(clients))
            except (Exception, SystemExit) as error:
                raise UserError(f"data: load('{client}', clients) fails: {brief(error)}") from error
    many = isinstance(data, Mapping) and not _is_hugging(data)
    values = {str(k): _plain(value) for k, value in (data if many else {"": data}).items()}
    if not values:
        raise UserError("data: there is no client in it")
    if all(isinstance(value, pd.DataFrame) for value in values.values()):
        return _frames(what, values, text=text)
    return _arrays(what, values)


def _is_dataset(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _is_hugging(data: Any) -> bool:  # whose library need not be here
    return type(data).__module__.partition(".")[0] == "datasets"


def _plain(data: Any) -> Any:  # noqa: PLR0911  (one for each library)
    """Return a frame or a tuple of arrays for one client's data of a library."""
    if isinstance(data, tuple | list) and all(hasattr(one, "batch_size") for one in data):
        return tuple(values for one in data for values in _plain(one))
    if hasattr(data, "batch_size"):  # a loader's data set: its batches' order changes
        return _plain(data.dataset)
    if _is_hugging(data):
        if isinstance(data, Mapping):
            frames = [_plain(one) for one in data.values()]
            return pd.concat(frames, ignore_index=True)
        data, names = data.with_format(None), class_names(data)  # as stored, before a transform
        pictures = [k for k, one in data.features.items() if type(one).__name__ == "Image"]
        if pictures:
            label = next(iter(names), "label")
            images = [np.asarray(one.convert("RGB")) for one in data[pictures[0]]]
            codes = dict(enumerate(names.get(label, ())))
            return np.stack(images), [codes.get(y, y) for y in data[label]]
        return next(frames_of(data, data.column_names, 1 + len(data)), pd.DataFrame())
    if isinstance(data, tuple | list | pd.DataFrame) or not _is_dataset(data):
        return data
    pairs = [_pair(data[index]) for index in range(len(data))]  # a torch Dataset, read once
    classes, labels = getattr(data, "classes", None), [pair[1] for pair in pairs]
    if classes and all(isinstance(y, int) and y < len(classes) for y in labels):
        labels = [str(classes[y]) for y in labels]
    return np.stack([_array(pair[0]) for pair in pairs]), labels


def _pair(item: Any) -> Sequence[Any]:
    """Return example and label of an item, which may be a dict with a label of a usual name."""
    if not isinstance(item, Mapping):
        if isinstance(item, Sequence):
            return item
        raise UserError(f"data: an item is {_shape_of(item)}, must be (x, y)")
    label = [name for name in ("label", "labels", "y", "target") if name in item][:1]
    rest = [name for name in item if name not in label]
    if not label or len(rest) != 1:
        raise UserError(f"data: an item has {', '.join(item)}: give one example and its 'label'")
    return item[rest[0]], item[label[0]]


def _array(values: Any) -> Array:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _frames(what: str, frames: Mapping[str, pd.DataFrame], *, text: bool) -> Given:
    kind = TOKENS if text else TABLE
    if list(frames) == [""]:
        return Given(what, kind, frame=frames[""])
    first = next(iter(frames))
    for client, frame in frames.items():
        if odd := sorted({*frame} ^ {*frames[first]}, key=str):
            has, lacks = (client, first) if odd[0] in frame else (first, client)
            raise UserError(f"data: client '{has}' has a column '{odd[0]}', '{lacks}' has none")
        if SITE in frame:
            raise UserError(f"data: client '{client}' has a column '{SITE}': rename it")
    whole = pd.concat([one.assign(**{SITE: name}) for name, one in frames.items()])
    return Given(what, kind, frame=whole.reset_index(drop=True), site=SITE)


def _arrays(what: str, values: Mapping[str, Any]) -> Given:
    """Return what tuples of arrays are; the classes are all values of all labels."""
    pieces: list[tuple[str, bool, Array, Array]] = []  # client, for testing, examples, labels
    for client, value in values.items():
        who = f"data: client '{client}'" if client else "data"
        if not isinstance(value, tuple | list) or len(value) not in {2, 4}:
            must = "must be (x, y[, x_test, y_test]), a DataFrame or a data set"
            raise UserError(f"{who}: {_shape_of(value)} {must}")
        for x, y, test in zip(map(_array, value[::2]), value[1::2], (False, True), strict=False):
            pieces.append((client, test, x, _checked(who, x, _array(y))))
    first, _, x, _ = pieces[0]
    for client, _, other, _ in pieces:
        mixed = (x.dtype.kind == "f") != (other.dtype.kind == "f") and x.ndim > 2  # noqa: PLR2004
        if mixed or other.shape[1:] != x.shape[1:]:  # rows of a table may be mixed
            one, two = (f"{a.dtype} of shape {a.shape[1:]}" for a in (x, other))
            both = f"x of client '{first}' is {one}, of '{client}' {two}"
            raise UserError(f"data: {both}: must be of one shape, and all floats or none")
    names, codes = np.unique(np.concatenate([y for *_, y in pieces]), return_inverse=True)
    if all(name.lstrip("-").isdigit() for name in names.tolist()):
        order = np.argsort(names.astype(np.int64))
        names, codes = names[order], np.argsort(order)[codes]
    clients, parts, stored, targets = zip(*pieces, strict=True)
    sizes, notes = [*map(len, targets)], tuple[str, ...]()
    owners, tests = np.repeat(clients, sizes), np.repeat(parts, sizes)
    examples, kind = np.concatenate(stored), kind_of_array(x) or TABLE * (x.ndim == 2)  # noqa: PLR2004
    if x.ndim == 4 and x.dtype.kind == "f":  # noqa: PLR2004  (n, c, h, w)
        examples, notes = _as_bytes(examples, owners)
    if not kind:
        raise UserError(f"data: {_shape_of(x)} is of no known kind: give a fedhet.Data with `kind`")
    whose, held = owners.tolist() if first else None, tests if tests.any() else None
    data = Data(examples, codes, names.tolist(), kind, clients=whose, tests=held)
    return Given(what, kind, data, notes=notes)


def _checked(who: str, x: Array, y: Array) -> Array:
    """Return the class of each example as text; UserError for arrays that are no such examples."""
    what, fraction = "", y.dtype.kind == "f" and y % 1 != 0
    if not x.ndim or x.dtype.kind not in "iufb":
        what = f"x is {_shape_of(x)}, must be numbers (n, ...); texts are a DataFrame with text="
    elif y.shape != x.shape[:1] or y.dtype.kind not in "iufbUO":
        what = f"y is {_shape_of(y)}, must be one class, a number or a text, of each of {len(x)}"
    elif not len(x):
        what = "there is no example"
    elif np.any(fraction):
        what = f"y has the value {y[fraction][0]:g}, which is no class"
    elif y.dtype.kind == "O" and (gaps := pd.isna(y)).any():
        what = f"y[{int(np.argmax(gaps))}] is missing"
    elif x.dtype.kind == "f" and (bad := np.isinf(x) if x.ndim <= 2 else ~np.isfinite(x)).any():  # noqa: PLR2004
        where = np.argwhere(bad)[0].tolist()
        what = f"x{where} is {x[tuple(where)]}, must be finite"
    if what:
        raise UserError(f"{who}: {what}")
    return (y.astype(np.int64) if y.dtype.kind == "f" else y).astype(str)


def _as_bytes(images: Array, owners: Array) -> tuple[Array, tuple[str, ...]]:
    """Return images of one range, to 1 or 255, or from -1, as bytes, and a line that says so."""
    least, most = images.min(axis=(1, 2, 3)), images.max(axis=(1, 2, 3))
    low, high = float(least.min()), float(most.max())
    if low >= 0 and 1 < high <= 255 and (images == np.rint(images)).all():  # noqa: PLR2004
        return images.astype(np.uint8), ()
    from_, to = (
        f"{value:g}" + f" (client '{who}')" * bool(who)
        for value, who in ((low, owners[least.argmin()]), (high, owners[most.argmax()]))
    )
    line = f"data: float images from {from_} to {to}"
    if low < -1 or high > 1:
        raise UserError(f"{line} must be from 0 or -1 to 1, or bytes: leave out a Normalize")
    shift, scale = (0.0, 255.0) if low >= 0 else (1.0, 127.5)
    note = f"{line} are taken as {0 - shift:g} to 1, stored as 8 bits"
    return np.rint((images + shift) * scale).astype(np.uint8), (note,)


def _shape_of(value: Any) -> str:
    typed = hasattr(value, "shape") and hasattr(value, "dtype")
    return f"{value.dtype} of shape {tuple(value.shape)}" if typed else f"a {type(value).__name__}"
