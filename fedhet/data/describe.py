"""``fedhet init``: say what a file holds, and write a preset that runs it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhet.data.cache import Dataset
from fedhet.data.inputs import DATASETS, IMAGE, SIGNAL, TABLE, TOKENS
from fedhet.data.labels import GAPS, Reading, listed
from fedhet.data.rows import (
    NPZ_SUFFIXES,
    ROW_SUFFIXES,
    NoHeader,
    find_files,
    holds,
    open_rows,
)
from fedhet.data.signals import Npz
from fedhet.data.table import Column, guess, guess_text, is_site, look, named_columns, plan
from fedhet.errors import UserError

_SHOWN = 40  # columns that are listed
COMMONEST = 0.6  # share of one class from which on accuracy says little
RARE = 0.25  # of an equal share: a class that is rarer hardly moves the accuracy
_TRAINING = {  # group of models, epochs, batch size, learning rate
    IMAGE: (["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"], 2, 16, 0.01),
    SIGNAL: (["@signal-5"], 2, 16, 0.01), TABLE: (["@table-5"], 2, 16, 0.05),
    TOKENS: (["@tokens-5"], 2, 16, 0.1),
}  # fmt: skip
_ABOUT = {
    "dataset": "kind of data", "data-path": "the file", "target": "column of the class",
    "site": "column that names the client; no model sees it", "text": "column of the text",
    "categories": "columns that are not numbers, with their values, which a network needs",
    "ignore": "columns that no model sees", "classes": "class names in label order",
    "columns": "names of the columns: the file has no header",
    "gaps": "what counts as a gap", "partition": "how examples are assigned to clients",
    "clients": "number of clients; 0: as many as the data names",
    "metric": "mean recall of the classes; accuracy says little of a rare class",
    "models": "dealt to the clients in turn",
    "method": "`fedhet methods` lists all", "rounds": "communication rounds",
    "local-epochs": "epochs of local training per round", "batch-size": "examples per step",
    "lr": "learning rate of SGD", "image-size": "side of the images, pixels",
}  # fmt: skip


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
    if target.exists():
        raise UserError(f"'{target}' already exists: give another name with --out NAME.yaml")
    keys: dict[str, Any] = {"dataset": given.get("dataset") or _dataset(Path(path).expanduser())}
    keys["data-path"] = path
    keys |= {key: value for key, value in given.items() if key not in keys}
    windows = keys["dataset"] == "signals" and _is_npz(path)
    lines: list[str] = []
    if keys["dataset"] in DATASETS and not windows:
        lines = _of_rows(keys, given, checked)
    if windows and "site" not in given:
        names = [name for name in Npz(Path(path).expanduser()).names if is_site(name)]
        keys |= {"site": names} if names else {}
    dataset = checked(keys)[1]()
    keys = _training(keys, given, dataset)
    preset = [
        f"# fedhet run {target}",
        "# Written by `fedhet init`; `fedhet keys` lists all keys.",
    ]
    for key, value in keys.items():
        text = value if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)
        preset.append(f"{key}: {text}" + (f"  # {_ABOUT[key]}" if key in _ABOUT else ""))
    try:
        target.write_text("\n".join(preset) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"'{target}' cannot be written: {error.strerror}") from error
    warnings = (f"warning: {one}" for one in dataset.warnings)
    yield from (*lines, *dataset.notes, *warnings)
    yield from (f"wrote {target}; it runs with:", f"fedhet run {target}")


def _is_npz(path: str) -> bool:
    return holds(Path(path).expanduser(), (*NPZ_SUFFIXES, ".npy"))


def _dataset(path: Path) -> str:
    if not path.exists():
        raise UserError(f"'{path}' does not exist")
    if holds(path, (*NPZ_SUFFIXES, ".npy")):
        return "signals"
    if path.name.lower().endswith(tuple(f"{one}.zip" for one in ROW_SUFFIXES)):
        raise UserError(f"'{path}': a table inside a zip: unpack it and give the file")
    if path.suffix.lower() == ".zip" or path.is_dir() and not holds(path, ROW_SUFFIXES):
        return "image-folder"
    return "table"


def _of_rows(keys: dict[str, Any], given: Mapping[str, Any], checked: Checked) -> list[str]:
    """Add what is guessed of a file of rows to the keys; return lines about its columns."""
    reading, _ = checked(keys)
    paths = find_files(keys["dataset"], keys["data-path"], ROW_SUFFIXES)
    try:
        file = open_rows(paths, reading.form)
    except NoHeader as error:
        keys["columns"] = [f"c{k}" for k in range(1, error.width + 1)]
        return _of_rows(keys, given, checked)
    signals = keys["dataset"] == "signals"
    asked = not reading.site and len(paths) == 1 and not signals
    reading, columns, lines = guess(file, reading, site=asked, text=keys["dataset"] == "texts")
    columns = columns or look(file, named_columns(file, reading))
    if "dataset" not in given and (text := guess_text(columns, reading, alone=True)):
        keys["dataset"], reading = "texts", replace(reading, text=text)
    rows = max((column.rows for column in columns.values()), default=0)
    where = file.where.removeprefix("data-path ")
    lines.insert(0, f"{where}: {rows:,} rows, {len(columns)} columns")
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
    keys: dict[str, Any], features: Mapping[str, Column], reading: Reading
) -> Iterator[str]:
    """Add categories with their values, and what is ignored; yield a line for each column."""
    found = plan(dict(features), reading)
    once = [  # numbers and one word, which then means a gap
        name for name in found.mixed
        if features[name].words == (features[name].counts or {}).get(features[name].word.strip(), 0)
    ]  # fmt: skip
    if once:
        keys["gaps"] = sorted({*(one for one in GAPS if one), *(features[n].word for n in once)})
    mixed = [name for name in found.mixed if name not in once]
    if left := [*found.left_out, *found.dates, *found.many, *mixed]:
        keys["ignore"] = [*reading.ignore, *left]
    coded = dict(found.categories)
    if coded:
        keys["categories"] = {name: list(values) for name, values in coded.items()}
    why = {
        **dict.fromkeys(found.left_out, "left out: a different value in every row"),
        **dict.fromkeys(found.dates, "left out: dates"),
        **dict.fromkeys(found.many, "left out: sentences, or too many values for categories"),
        **dict.fromkeys(mixed, "left out: numbers and words"),
        **{name: f"{len(some)} categories: {listed(some, 5)}" for name, some in coded.items()},
    }
    for name, column in list(features.items())[:_SHOWN]:
        kind = why.get(name) or f"numbers {column.low:g} to {column.high:g}"
        yield f"  {name}: {kind}" + (f", {column.gaps:,} gaps" if column.gaps else "")
    if len(features) > _SHOWN:
        yield f"  ... and {len(features) - _SHOWN} more columns"


def _training(keys: dict[str, Any], given: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return the keys with classes, partition and training."""
    models, epochs, batch, rate = _TRAINING[dataset.inputs.kind]
    if dataset.inputs.kind != IMAGE and "labels" not in keys:
        keys["classes"] = list(dataset.classes)
    counts = np.bincount(dataset.labels, minlength=len(dataset.classes))
    share = counts[counts > 0] / counts.sum()
    if share.max() > COMMONEST or share.min() * len(share) < RARE:
        keys.setdefault("metric", "balanced_accuracy")
    sites = np.bincount(dataset.sites, minlength=len(dataset.site_names))
    if "partition" not in given:
        natural = len(sites) > 1 and np.sum(sites >= 10) > 1
        keys["partition"] = "natural" if natural else "iid"
    if keys["partition"] == "natural":
        keys["clients"] = 0
    else:
        keys.setdefault("clients", int(max(2, min(5, len(dataset.labels) // 30))))
    rest = {"models": models, "method": "fedssa", "rounds": 20, "local-epochs": epochs,
            "batch-size": batch, "lr": rate}  # fmt: skip
    return keys | {key: value for key, value in rest.items() if key not in keys}
