"""``fedhet init``: what is understood of a file, and a preset that runs it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhet.config.schema import RunConfig
from fedhet.data import rows, table
from fedhet.data.cache import Dataset
from fedhet.data.inputs import (
    DATASETS,
    GAPS,
    IMAGE,
    SIGNAL,
    TABLE,
    TOKENS,
    Reading,
    counted,
    listed,
    noun,
)
from fedhet.data.partition import about_classes
from fedhet.data.rows import ROW_SUFFIXES, holds
from fedhet.data.signals import Npz
from fedhet.data.table import LEFT_OUT
from fedhet.errors import UserError, one_line
from fedhet.files import near

_SHOWN = 40  # columns that are listed
COMMONEST = 0.6  # share of one class from which on accuracy says little
RARE = 0.25  # of an equal share: a class that is rarer hardly moves the accuracy
_MODELS = {  # and the learning rate
    IMAGE: (["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"], 0.01), SIGNAL: (["@signal-5"], 0.01),
    TABLE: (["@table-5"], 0.05), TOKENS: (["@tokens-5"], 0.1),
}  # fmt: skip
_RATE = 0.01  # highest where `class-weights` are offered: with larger ones rare rows diverge
_CODES = 20  # different values up to which a column is looked at alone
_TOLD = 0.02  # of the errors of always naming the commonest class: a column with fewer tells it
_WEIGHTS = (
    "in training a rare class counts as much as a common one; its probabilities are then too high"
)


Checked = Callable[[Mapping[str, Any]], tuple[Reading, Callable[[], Dataset]]]


def initialise(
    path: str, given: Mapping[str, Any], out: Path | None, checked: Checked
) -> Iterator[str]:
    """Write a commented preset for what is at ``path``, with the keys that somebody gave.

    ``checked`` checks keys; it gives the reading that they mean, and what opens their data. Yield
    lines of what was understood, and the command that runs the preset. Raise UserError for what
    cannot be used, and for a preset that is there already.
    """
    target = out or Path(f"{Path(path).name.split('.')[0] or 'data'}.yaml")
    place = Path(path).expanduser()
    keys: dict[str, Any] = {"dataset": given.get("dataset") or _dataset(place), "data-path": path}
    if target.exists():
        raise UserError(
            f"'{target}' already exists: delete it, or give another name with --out NAME.yaml"
        )
    keys |= {key: value for key, value in given.items() if key not in keys}
    lines: list[str] = []
    if keys["dataset"] == "signals" and _is_npz(place):
        first = rows.find_files("signals", path, rows.NPZ_SUFFIXES)[0]
        arrays = Npz(first, keys.get("axes", ""))
        lines, keys["axes"] = arrays.found, arrays.axes
        names = [name for name in arrays.columns if table.site_words(name)]
        if names and "site" not in given and place.is_file():  # in a folder each is a site
            keys["site"] = names
    elif keys["dataset"] in DATASETS:
        lines = _of_rows(keys, given, checked)
    dataset = checked(keys)[1]()
    about = about_classes(dataset, noun(keys["dataset"]))
    if dataset.inputs.kind == IMAGE:
        found = counted(dataset.classes, dataset.labels)
        lines.append(f"{len(dataset.labels):,} images; {len(dataset.classes)} classes: {found}")
    keys = _training(keys, given, dataset)
    preset = [
        f"# fedhet run {target}",
        "# Written by `fedhet init`; `fedhet keys` lists all keys.",
    ]
    for key, value in keys.items():
        text = value if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)
        field = RunConfig.model_fields.get(key.replace("-", "_"))  # none: a method's own
        comment = (field and field.description or "").partition(";")[0]
        preset.append(f"{key}: {text}" + (f"  # {comment}" if comment else ""))
    if _is_uneven(dataset) and "class-weights" not in keys:
        preset.append(f"# class-weights: balanced  # {_WEIGHTS}")
    try:
        target.write_text("\n".join(preset) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"'{target}' cannot be written: {error.strerror}") from error
    told = _telling(dataset, keys["target"]) if dataset.inputs.kind == TABLE else ()
    warnings = (f"warning: {one}" for one in (*dataset.warnings, *about, *told))
    for line in (*lines, *dataset.notes, *warnings):  # a column's name may have several
        yield "  " * line.startswith("  ") + one_line(line, None)
    yield from (f"wrote {target}; it runs with:", f"fedhet run {target}")


def _is_npz(path: Path) -> bool:
    return holds(path, (*rows.NPZ_SUFFIXES, ".npy"))


def _dataset(path: Path) -> str:
    if not path.exists():
        raise UserError(f"'{path}' does not exist{near(path)}")
    if _is_npz(path):
        return "signals"
    if path.name.lower().endswith(tuple(f"{one}.zip" for one in ROW_SUFFIXES)):
        raise UserError(f"'{path}': a table inside a zip: unpack it and give the file")
    if path.suffix.lower() == ".zip" or path.is_dir() and not holds(path, ROW_SUFFIXES):
        return "image-folder"
    return "table"


def _of_rows(keys: dict[str, Any], given: Mapping[str, Any], checked: Checked) -> list[str]:
    """Add what is guessed of a file of rows to the keys; return lines about its columns."""
    reading, _ = checked(keys)
    paths = rows.find_files(keys["dataset"], keys["data-path"], ROW_SUFFIXES)
    try:
        file = rows.open_rows(paths, reading.form)
    except rows.NoHeader as error:
        keys["columns"] = [f"c{k}" for k in range(1, error.width + 1)]
        return _of_rows(keys, given, checked)
    signals = keys["dataset"] == "signals"
    asked = "site" not in given and len(paths) == 1 and not signals
    reading, columns, lines = table.guess(
        file, reading, site=asked, text=keys["dataset"] == "texts"
    )
    columns = columns or table.look(file, table.named_columns(file, reading))
    if "dataset" not in given and (text := table.guess_text(columns, reading, alone=True)):
        keys["dataset"], reading = "texts", replace(reading, text=text)
    count = max((column.rows for column in columns.values()), default=0)
    where = file.where.removeprefix("data-path ")
    lines.insert(0, f"{where}: {count:,} rows, {len(columns)} columns")
    keys["target"] = reading.target
    if reading.site:
        keys["site"] = list(reading.site)
    if keys["dataset"] == "texts":
        keys["text"] = reading.text
    if keys["dataset"] == "table":
        taken = {reading.target, *reading.site, *reading.ignore}
        features = {name: one for name, one in columns.items() if name not in taken}
        lines += _features(keys, features, reading)
    return lines


def _features(
    keys: dict[str, Any], features: Mapping[str, table.Column], reading: Reading
) -> Iterator[str]:
    """Add categories with their values, and what is ignored; yield a line for each column."""
    plan = table.Plan(features, reading)
    mixed = {name: features[name] for name in plan.of("mixed")}
    once = {  # numbers and one word, which then means a gap
        name: column.word for name, column in mixed.items()
        if column.words == (column.counts or {}).get(column.word.strip(), 0)
    }  # fmt: skip
    if once:
        keys["gaps"] = sorted({*filter(None, GAPS), *once.values()})
    if left := [name for name in plan.of(*LEFT_OUT) if name not in once]:
        keys["ignore"] = [*reading.ignore, *left]
    if plan.categories:
        keys["categories"] = {name: list(values) for name, values in plan.categories.items()}
    for name, column in list(features.items())[:_SHOWN]:
        kind = f"numbers {column.low:g} to {column.high:g}"
        if name in plan.categories:
            values = plan.categories[name]
            kind = f"{len(values)} categories: {listed(values, 5)}"
        elif name in left:
            kind = f"left out: {LEFT_OUT[plan.fates[name]]}"
        gaps = column.gaps + (column.words if name in once else 0)
        told = f" with '{column.word}'" if name in once else ""
        yield f"  {name}: {kind}" + (f", {gaps:,} gaps{told}" if gaps else "")
    if len(features) > _SHOWN:
        yield f"  ... and {len(features) - _SHOWN} more columns"


def _is_uneven(dataset: Dataset) -> bool:
    """Return whether a class is so common, or so rare, that accuracy says little."""
    counts = np.bincount(dataset.labels, minlength=len(dataset.classes))
    share = counts[counts > 0] / counts.sum()
    return bool(share.max() > COMMONEST or share.min() * len(share) < RARE)


def _telling(dataset: Dataset, target: str) -> Iterator[str]:
    """Yield a line for each column of few values that nearly gives the class, as a copy would."""
    step = len(dataset.labels) // 10_000 + 1
    labels = dataset.labels[::step]
    errors = len(labels) - np.bincount(labels).max()
    for name, values in zip(dataset.inputs.columns, dataset.examples[::step].T, strict=True):
        different, places = np.unique(values, return_inverse=True)
        if len(different) > _CODES:
            continue
        counts = np.zeros((len(different), len(dataset.classes)), dtype=np.int64)
        np.add.at(counts, (places, labels), 1)
        wrong = len(labels) - counts.max(axis=1).sum()
        if wrong < _TOLD * errors:
            yield (
                f"column '{name}' alone gives '{target}' in {1 - wrong / len(labels):.1%} of the "
                f"rows: if it is known only after '{target}', add it to ignore"
            )


def _training(keys: dict[str, Any], given: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return the keys with classes, partition and training."""
    models, rate = _MODELS[dataset.inputs.kind]
    # A preset that named classes would refuse the folders of those that were dropped.
    dropped = any(one.startswith("dropped ") for one in dataset.warnings)
    if "labels" not in keys and not dropped:
        keys["classes"] = list(dataset.classes)
    if _is_uneven(dataset):
        keys.setdefault("metric", "balanced_accuracy")
        rate = min(rate, _RATE)
    sites = np.bincount(dataset.sites, minlength=len(dataset.site_names))
    if "partition" not in given:
        natural = len(sites) > 1 and np.sum(sites >= 10) > 1
        keys["partition"] = "natural" if natural else "iid"
    if keys["partition"] == "natural":
        keys["clients"] = 0
    else:
        keys.setdefault("clients", int(max(2, min(5, len(dataset.labels) // 30))))
    rest = {"models": models, "method": "fedssa", "rounds": 20, "local-epochs": 2,
            "batch-size": 16, "lr": rate}  # fmt: skip
    return keys | {key: value for key, value in rest.items() if key not in keys}
