"""Sources by name: embedded and torchvision's sets, files, the hub, seeded ones, a function."""

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedhet import plugins
from fedhet.data import images
from fedhet.data import inputs as kinds
from fedhet.data.inputs import Content, Examples, Indices, Inputs, Reading, Source, Stream, listed
from fedhet.errors import UserError, brief, nearest
from fedhet.rng import generator

_OURS = frozenset({"fedhet", "strategies", "clients"})
TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion-mnist": "FashionMNIST"}


def find_source(  # noqa: PLR0911  (one for each form of a name)
    name: str, *, data_path: str, seed: int, downloads: Path, reading: Reading = Reading()
) -> Source:
    """Return the source called ``name``; ``downloads`` is torchvision's folder by default.

    Raise UserError for an unknown name, or a data path that does not exist.
    """
    if name == "digits":
        return Source(["digits"], partial(loaded, name, _digits))
    if name in TORCHVISION:  # which checks its files against their published hash
        root = Path(data_path).expanduser() if data_path else downloads
        return Source([name], partial(loaded, name, partial(_torchvision, name, root)))
    if name == "image-folder":
        is_table = Path(data_path).is_file() and not data_path.lower().endswith(".zip")
        if is_table or reading.image or reading.target:
            return _of_files(name, data_path, reading)
        return images.image_folder(data_path, reading.group)
    if name in kinds.DATASETS or name.startswith(kinds.HUB):
        return (_of_hub if name.startswith(kinds.HUB) else _of_files)(name, data_path, reading)
    if plugins.is_given(name):  # by a Python program; what is in the cache is not asked for
        key: list[object] = ["given", name, repr(reading)]
        return Source(key, lambda *of: plugins.load("dataset", name).stream(reading, *of))
    if name.partition(":")[0] == "synthetic":
        return _synthetic(name, seed)
    if plugins.is_own("dataset", name):
        return _own(name, data_path)
    known = [*kinds.IMAGE_SETS, *kinds.DATASETS, *plugins.installed("dataset")]
    allowed = f"{', '.join(known)}, hf:NAME or your own module:load"
    raise UserError(f"dataset {name!r} is unknown{nearest(name, known)}; allowed: {allowed}")


def _of_files(name: str, data_path: str, reading: Reading) -> Source:
    from fedhet.data import formats, rows, table  # pandas: a second

    npz = name == "signals" and formats.holds(Path(data_path).expanduser(), formats.NPZ_SUFFIXES)
    suffixes = formats.NPZ_SUFFIXES if npz else formats.ROW_SUFFIXES
    paths = formats.find_files(name, data_path, suffixes)
    root = paths[0].parent
    pictures = images.images_below(root) if name == "image-folder" else []
    folder = root.iterdir() if Path(data_path).expanduser().is_dir() and not pictures else ()
    beside = sorted(p.name + "/" * p.is_dir() for p in {*folder} - {*paths} if p.name[0] != ".")
    others = [f"in the folder and not read: {listed(beside)}"] if beside else []

    def stream(image: Inputs, classes: tuple[str, ...]) -> Stream:
        if name == "signals" and not formats.holds(paths[0], (*formats.ROW_SUFFIXES, ".txt")):
            return table.of_npz(paths, reading, classes, others)
        file = rows.open_rows(paths, reading)
        file.found += others
        if name == "image-folder":
            return images.images_of(file, root, reading, image, classes)
        readers = {"table": table.of_table, "texts": table.of_texts, "signals": table.of_windows}
        return readers[name](file, reading, classes)

    stats = kinds.file_stats([*paths, *(root / one for one in pictures)])
    return Source([name, "rows", *stats, repr(reading)], stream)


def _of_hub(dataset: str, data_path: str, reading: Reading) -> Source:
    """Return ``hf:NAME subset=S split=train+test``: a local copy, or the hub's, taken as fixed."""
    files = _stats_below(data_path)

    def stream(image: Inputs, classes: tuple[str, ...]) -> Stream:
        from fedhet.data import rows, table

        data, where = _load(dataset, data_path), f"dataset '{dataset}'"
        names = [*class_names(data)]
        if not reading.target and len(names) != 1:
            raise UserError(f"target: {where} needs it: one of {listed(data.column_names)}")
        file = rows.FrameFile(where, reading, data.column_names, (), partial(frames_of, data))
        with_target = reading.changed(target=reading.target or names[0])
        pictures = [name for name, kind in data.features.items() if type(kind).__name__ == "Image"]
        if pictures and not with_target.text:
            named = with_target.changed(image=with_target.image or pictures[0])
            return images.images_of(file, Path(data_path), named, image, classes)
        return (table.of_texts if with_target.text else table.of_table)(file, with_target, classes)

    return Source(["hub", dataset, data_path, files, repr(reading)], stream)


def class_names(data: Any) -> dict[str, list[str]]:
    """Return the columns of labels of a Dataset of Hugging Face, with the names of the classes."""
    return {name: one.names for name, one in data.features.items() if hasattr(one, "int2str")}


def frames_of(data: Any, columns: list[str], size: int) -> Iterator[Any]:
    """Yield columns of a Dataset of Hugging Face, ``size`` rows at a time, classes by name."""
    codes = {k: dict(enumerate(names)) for k, names in class_names(data).items() if k in columns}
    for frame in data.select_columns(columns).to_pandas(size, batched=True):
        yield frame.assign(**{name: frame[name].map(code) for name, code in codes.items()})


def _load(dataset: str, data_path: str) -> Any:
    name, *words = dataset.removeprefix(kinds.HUB).split() or [""]
    options = dict(word.partition("=")[::2] for word in words)
    if not name or set(options) - {"subset", "split"} or not all(options.values()):
        raise UserError(f"dataset '{dataset}' must be hf:NAME, then subset=... or split=...")
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise UserError(f"{dataset} needs pip install 'fedhet[hf]' ({brief(error)})") from error
    datasets.disable_progress_bars()
    path, split = Path(data_path).expanduser(), options.get("split", "train")
    try:
        if data_path and any((path / f"{n}.json").is_file() for n in ("state", "dataset_dict")):
            saved = datasets.load_from_disk(str(path))
            if isinstance(saved, datasets.Dataset):  # of one split, which has no name
                return saved
            return datasets.concatenate_datasets([saved[one] for one in split.split("+")])
        whole = str(path) if data_path else name
        return datasets.load_dataset(whole, options.get("subset"), split=split)
    except Exception as error:  # of the hub, the network, the files: nearly every kind
        why = f"cannot be loaded: {brief(error)}; data-path=FOLDER names a local copy"
        raise UserError(f"dataset '{dataset}' {why}") from error


def select(
    source: str, own: Sequence[str], labels: Indices, wanted: tuple[str, ...]
) -> tuple[Indices, Indices]:
    """Return indices (m,) and labels (m,) of the wanted classes; UserError for one not there."""
    place = {name: label for label, name in enumerate(wanted or own)}
    for name in place:
        if name not in own:
            raise UserError(f"classes: dataset {source} has no class {name!r}{nearest(name, own)}")
    new_label = np.array([place.get(name, -1) for name in own], dtype=np.int64)[labels]
    kept = np.flatnonzero(new_label >= 0)
    return kept, new_label[kept]


def _digits() -> "Data":
    """Return 1,797 scans of 8 x 8 (UCI "Optical Recognition", test part), 0..16 as 0..255."""
    # The file that `sklearn.datasets.load_digits` reads; to import that takes a second.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    images = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Data(images, table[:, -1].astype(np.int64), range(10))


def _torchvision(name: str, root: Path) -> "Data":
    """Pool train and test images, in this order; raise UserError if they cannot be downloaded."""
    from torchvision import datasets

    make = getattr(datasets, TORCHVISION[name])
    try:
        parts = [make(str(root), train=train, download=True) for train in (True, False)]
    except Exception as error:
        why = f"their download failed ({brief(error)}): copy torchvision's files there"
        raise UserError(f"dataset {name}: '{root}' lacks its files, and {why}") from error
    images = np.concatenate([np.asarray(part.data, dtype=np.uint8) for part in parts])
    labels = np.concatenate([np.asarray(part.targets, dtype=np.int64) for part in parts])
    return Data(images, labels, parts[0].classes)


_FORM = re.compile(r"synthetic(?::(\d{1,9})(?:x(\d{1,4}))?)?")
_CHUNK = 2048
_BLOBS = 4


def _synthetic(name: str, seed: int) -> Source:
    """Return images of which number i is of class i mod C: a fixed scene a class, and noise."""
    match = _FORM.fullmatch(name)
    examples, count = (int(match[1] or 6000), int(match[2] or 10)) if match else (0, 0)
    if not examples >= count >= 2:  # noqa: PLR2004
        forms = "synthetic, synthetic:EXAMPLES or synthetic:EXAMPLESxCLASSES, with 2 classes"
        raise UserError(f"dataset {name!r}: must be {forms} or more, and no fewer examples")
    labels = np.arange(examples, dtype=np.int64) % count

    def stream(image: Inputs, classes: tuple[str, ...]) -> Stream:
        names = tuple(f"class-{label}" for label in range(count))
        kept, new_labels = select("synthetic", names, labels, classes)
        about = Content(image, new_labels, classes or names, paths=tuple(map(str, kept)))
        patterns = _patterns(seed, count, image.shape)
        return images.image_stream(about, lambda _: _pictures(seed, patterns, labels[kept]))

    return Source(["synthetic", examples, count, seed], stream, examples)


def _patterns(seed: int, count: int, shape: tuple[int, ...]) -> Examples:
    """Return uint8 (C, h, w, c) in 0..135 for a ``shape`` (c, h, w), the same at every size."""
    rng, blobs = generator(seed, "synthetic-patterns"), (count, _BLOBS)
    centre, width = rng.uniform(0, 1, (*blobs, 2)), rng.uniform(0.08, 0.25, blobs)
    colour = rng.uniform(0, 1, (*blobs, 3))[..., : shape[0]]
    down, across = ((np.arange(side) + 0.5) / side for side in shape[1:])
    scale = -0.5 / width[..., None] ** 2
    rows = np.exp((down - centre[..., :1]) ** 2 * scale)
    columns = np.exp((across - centre[..., 1:]) ** 2 * scale)
    scene = np.einsum("kby,kbx,kbc->kyxc", rows, columns, colour, optimize=True)
    return np.asarray(135 * np.minimum(scene, 1), dtype=np.uint8)


def _pictures(seed: int, patterns: Examples, labels: Indices) -> Iterator[images.Decoded]:
    """Add pattern, brightness 0..40 per image and noise 0..80 per value: at most 255."""
    for chunk, start in enumerate(range(0, len(labels), _CHUNK)):
        rng = generator(seed, "synthetic-noise", round_=chunk)
        wanted = labels[start : start + _CHUNK]
        pixels = rng.integers(0, 81, (len(wanted), *patterns.shape[1:]), dtype=np.uint8)
        pixels += patterns[wanted]
        pixels += rng.integers(0, 41, (len(wanted), 1, 1, 1), dtype=np.uint8)
        yield from map(images.Decoded, pixels)


@dataclass(frozen=True)
class Data:
    """What a ``load`` function may return: examples of any kind, and whose they are.

    ``examples`` are images uint8 (n, h, w[, 3]), signals (n, c, t), rows (n, f) with NaN for gaps,
    or token ids (n, l) with 0 for padding; ``kind`` may be left out where dtype and shape say it.
    ``labels`` (n,) are whole numbers from 0 into ``classes``. ``clients`` (n,) name the owner of
    every example, for ``partition=natural``; ``groups`` (n,) the person or recording, whose
    examples stay together; ``tests`` (n,) say which are for testing. ``vocabulary`` is the number
    of token ids. ``columns`` name a table's, in order; ``categories`` list the values of those
    whose numbers are places in that list. ``scale`` is what a signal's numbers are divided by.
    """

    examples: npt.ArrayLike
    labels: npt.ArrayLike
    classes: Sequence[object]
    kind: str = ""
    clients: Sequence[object] | None = None
    vocabulary: int = 0
    columns: Sequence[str] = ()
    categories: Mapping[str, Sequence[object]] = field(default_factory=dict)
    scale: float = 1.0
    groups: Sequence[object] | None = None
    tests: npt.ArrayLike | None = None


def _own(dataset: str, data_path: str) -> Source:
    """Return what a user's function gives; its key is its code, and its files' sizes and times."""
    load: Callable[[str], Any] = plugins.load("dataset", dataset)
    if not inspect.isroutine(load):
        raise UserError(f"dataset {dataset!r} is {load!r:.40}, must be a function load(data_path)")

    def called() -> Data:
        try:
            answer = load(data_path)
            return answer if isinstance(answer, Data) else Data(*answer)
        except (Exception, SystemExit) as error:
            must = f"must return (x, y, classes) or a fedhet.Data: {brief(error)}"
            raise UserError(f"dataset {dataset!r}: load({data_path!r}) {must}") from error

    key = ["own", dataset, _code(load.__module__), data_path, *_stats_below(data_path)]
    return Source(key, partial(loaded, dataset, called))


def _stats_below(data_path: str) -> list[object]:
    """Return what changes with a file, or one of a folder; nothing for no path or none there."""
    path = Path(data_path).expanduser()
    files = [path, *sorted(one for one in path.rglob("*") if one.is_file())] if data_path else []
    return kinds.file_stats(files) if path.exists() else []


def _code(module: str) -> str:
    """Return the SHA-256 of a module and of those in the same place that it imports, as written."""
    file = getattr(sys.modules[module], "__file__", None)
    if not file:
        return ""
    root = Path(file).parents[module.count(".") + (Path(file).stem == "__init__")]
    package, todo, codes = module.partition(".")[0], [module], dict[Path, bytes]()
    while todo:
        parts = todo.pop().split(".")
        # An installed package is all that its author changes.
        if parts[0] != package and (root.name == "site-packages" or parts[0] in _OURS):
            continue
        for stem in (root.joinpath(*parts[: k + 1]) for k in range(len(parts))):
            for path in (stem.with_suffix(".py"), stem / "__init__.py"):
                if path not in codes and path.is_file():
                    codes[path] = path.read_bytes()
                    todo += _imports(codes[path], path.relative_to(root).parent.parts)
    return hashlib.sha256(b"".join(codes[path] for path in sorted(codes))).hexdigest()


def _imports(code: bytes, package: Sequence[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            parts = [*above, *filter(None, [node.module])]
            yield from (".".join([*parts, one.name]) for one in node.names)


def loaded(
    dataset: str, load: Callable[[], Data], image: Inputs, classes: tuple[str, ...]
) -> Stream:
    """Return the wanted examples of what a function loads; UserError, one line, if it is wrong."""
    data = load()
    try:
        examples, labels = np.asarray(data.examples), np.asarray(data.labels)
        class_names = tuple(map(str, data.classes))
        _check_labels(examples, labels, class_names)
        inputs, stored = _described(data, examples, image)
        beside = {"clients": data.clients, "groups": data.groups, "tests": data.tests}
        columns = [np.asarray([] if one is None else one) for one in beside.values()]
        for (key, value), column in zip(beside.items(), columns, strict=True):
            if value is not None and len(column) != len(labels):
                raise ValueError(f"{len(column)} {key}, {len(labels)} labels")
    except (ValueError, IndexError, TypeError) as error:
        what = error if type(error) is ValueError else brief(error)
        raise UserError(f"dataset {dataset!r}: {what}") from error
    kept, labels = select(dataset, class_names, labels.astype(np.int64), classes)
    owners = [kinds.canonical(str(name)) for name in columns[0].tolist()]
    places = {name: place for place, name in enumerate(dict.fromkeys(owners))}
    codes = np.array([places[one] for one in owners], dtype=np.int32)
    numbers = np.unique(columns[1].astype(str), return_inverse=True)[1].astype(np.int32)
    rows: list[Any] = [codes, numbers, columns[2].astype(bool)]
    sites, groups, tests = (one[kept if len(one) else []] for one in rows)
    about = Content(
        inputs, labels, classes or class_names, sites, kinds.safe_ids([*places]), groups,
        "groups" * bool(len(groups)), bool(len(groups)), tests=tests,
    )  # fmt: skip
    if inputs.kind != kinds.IMAGE:
        for start in range(0, len(kept), _CHUNK):
            yield stored[kept[start : start + _CHUNK]]
        return about

    def pictures(inputs: Inputs) -> Iterator[images.Decoded]:
        return (images.decoded(Image.fromarray(stored[k]), inputs) for k in kept)

    return (yield from images.image_stream(replace(about, paths=tuple(map(str, kept))), pictures))


def _check_labels(examples: Examples, labels: Examples, classes: tuple[str, ...]) -> None:
    if not examples.ndim or not len(examples):
        raise ValueError("there are no examples")
    if labels.shape != examples.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(f"labels are {_shown(labels)}, must be {len(examples)} whole numbers")
    if not classes or len(set(classes)) < len(classes) or not all(classes):
        raise ValueError("class names must be different texts")
    _check_range("labels", labels, len(classes), f"there are {len(classes)} class names")


def _check_range(what: str, numbers: Examples, end: int, why: str) -> None:
    low, high = numbers.min(), numbers.max()
    if low < 0 or high >= end:
        raise ValueError(f"{what} go from {low} to {high}, and {why}")


def _described(data: Data, examples: Examples, image: Inputs) -> tuple[Inputs, Examples]:
    """Return what the examples are, and the examples as they are stored; ValueError: neither."""
    kind, what = data.kind or kind_of_array(examples), _shown(examples)
    if kind not in kinds.KINDS:
        unclear = f"kind {kind!r} is unknown" if kind else f"the kind of {what} examples is unclear"
        known = ", ".join(kinds.KINDS)
        raise ValueError(f"{unclear}: return a fedhet.Data with `kind`, one of {known}")
    if kind == kinds.IMAGE:
        return image, as_pixels(examples)
    from fedhet.data.table import finite, small_numbers  # pandas: a second

    shape = examples.shape[1:]
    whole = "whole " * (kind == kinds.TOKENS)
    if examples.dtype.kind not in ("iu" if whole else "iufb"):
        raise ValueError(f"{kind} examples {what}: must be {whole}numbers")
    if kind == kinds.SIGNAL:
        inputs = Inputs(kinds.SIGNAL, shape, scale=float(data.scale))
        stored = small_numbers(examples)
        if not (good := finite(stored)).all():
            raise ValueError(f"signal {what}: example {int(np.argmin(good))} is not finite")
    elif kind == kinds.TOKENS:
        inputs = Inputs(kinds.TOKENS, shape, int(data.vocabulary))
        stored = examples.astype(np.int32)
        _check_range("token ids", examples, inputs.vocabulary, f"vocabulary is {inputs.vocabulary}")
    else:
        plain = data.columns or range(examples.shape[1])
        lists = tuple((str(n), tuple(map(str, vs))) for n, vs in data.categories.items())
        inputs = Inputs.table(tuple(map(str, plain)), lists)
        stored = examples.astype(np.float32)
        if shape != inputs.stored or np.isinf(stored).any():
            raise ValueError(f"table {what}: must be finite, or NaN, (n, {len(inputs.columns)})")
        for name, values in inputs.categories:
            codes = stored[:, inputs.columns.index(name)]
            if not np.isin(codes[~np.isnan(codes)], np.arange(len(values))).all():
                raise ValueError(f"column {name!r} must hold places in {len(values)} categories")
    return kinds.load_inputs(inputs.dump()), stored


def kind_of_array(examples: Examples) -> str:
    """Return the kind that dtype and shape say; empty where they do not."""
    by_axes = {4: kinds.IMAGE, 3: kinds.SIGNAL, 2: kinds.TABLE * (examples.dtype.kind == "f")}
    return kinds.IMAGE if examples.dtype == np.uint8 else by_axes.get(examples.ndim, "")


def _shown(array: Examples) -> str:
    return f"{array.dtype}{list(array.shape)}"


def as_pixels(images: Examples) -> Examples:
    """Return uint8 (n, h, w[, 3]) of whole numbers from 0 to 255, channels first or last."""
    if images.ndim == 4 and images.shape[3] not in (1, 3) and images.shape[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    good = images.ndim == 3 or images.shape[3:] == (3,)
    good = good and images.dtype.kind in "iu" and images.size > 0
    span = (images.min(), images.max()) if good else (0, 0)
    if not good or span[0] < 0 or span[1] > 255:
        what = f"{_shown(images)}" + f" from {span[0]} to {span[1]}" * bool(good)
        raise ValueError(f"images are {what}, must be uint8 (n, h, w, 3) or (n, h, w)")
    return images.astype(np.uint8, copy=False)
