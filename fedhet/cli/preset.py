"""``fedhet init``: what is understood of a file, and a preset that runs it."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import typer

from fedhet.cli.common import show_table
from fedhet.config.load import build_config
from fedhet.config.schema import RunConfig
from fedhet.data import describe, formats, rows
from fedhet.data.cache import Dataset
from fedhet.data.images import image_column, images_below
from fedhet.data.inputs import GAPS, IMAGE, TABLE, TOKENS, Reading, counted, listed, noun
from fedhet.data.partition import about_classes
from fedhet.data.table import Npz
from fedhet.errors import UserError, one_line
from fedhet.files import near
from fedhet.models.names import DEFAULT_GROUP
from fedhet.records.summary import COMMONEST
from fedhet.site.local_data import load_dataset, reading_of

_SHOWN = 40  # columns that are listed
RARE = 0.25  # of an equal share: a class that is rarer hardly moves the accuracy
# Learning rates, others 0.01; so are all where `class-weights` are offered: rare rows diverge.
_RATES = {TABLE: 0.05, TOKENS: 0.1}
_WEIGHTS = "in training a rare class counts as a common one; its probabilities are then too high"
_ROWS = ("", "table", "texts", "signals")
_ARRAYS = (*formats.NPZ_SUFFIXES, ".npy")

Keys = dict[str, Any]


def initialise(path: str, given: Keys, out: Path | None) -> Iterator[str]:
    """Write a commented preset for what is at ``path``, with the keys that somebody gave.

    Yield lines of what was understood, and the command that runs the preset. A person at a terminal
    is asked for what is unclear. Raise UserError for that, and for what cannot be used or written.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise UserError(f"'{path}' does not exist{near(place)}")
    target = out or Path(f"{place.name.split('.')[0] or 'data'}.yaml")
    if target.exists():
        raise UserError(f"'{target}' already exists: delete it, or give --out NAME.yaml")
    place, dataset = _dataset(place, given)
    base = {"dataset": dataset, "data-path": str(place)}
    keys, lines = base | given | base, list[str]()
    if dataset == "signals" and formats.holds(place, _ARRAYS):
        lines = _of_windows(keys, place)
    elif dataset in _ROWS or (place.is_file() and place.suffix != ".zip"):
        words = (f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in given.items())
        lines = _of_rows(keys, ["fedhet", "init", path, *words])
    data = load_dataset(build_config(keys))
    if data.inputs.kind == IMAGE:
        each = counted(data.classes, data.labels)
        lines.append(f"{len(data.labels):,} images; {len(data.classes)} classes: {each}")
    about = (*data.warnings, *about_classes(data, noun(keys["dataset"])))
    _add_training(keys, data)
    _write(target, keys, data)
    # A name may have several lines.
    for line in dict.fromkeys((*lines, *data.notes, *(f"warning: {one}" for one in about))):
        yield one_line(line, None)
    yield from (f"wrote {target}; it runs with:", f"fedhet run {target}")


def _write(target: Path, keys: Keys, dataset: Dataset) -> None:
    preset = [f"# fedhet run {target}", "# Written by `fedhet init`; `fedhet keys` lists all keys."]
    for key, value in keys.items():
        text = json.dumps(value, ensure_ascii=False)
        field = RunConfig.model_fields.get(key.replace("-", "_"))  # none: a method's own
        comment = (field and field.description or "").partition(";")[0]
        preset.append(f"{key}: {text}" + (f"  # {comment}" if comment else ""))
    if _is_uneven(dataset) and "class-weights" not in keys:
        preset.append(f"# class-weights: balanced  # {_WEIGHTS}")
    target.write_text("\n".join(preset) + "\n", encoding="utf-8")


def _dataset(path: Path, given: Keys) -> tuple[Path, str]:
    """Return the path to read and the dataset that it is; empty where its rows must say."""
    if given.get("dataset"):
        return path, given["dataset"]
    if path.is_dir() and formats.holds(path, formats.ROW_SUFFIXES):
        tables = formats.find_files("table", str(path), formats.ROW_SUFFIXES)
        for table in tables if images_below(path) else ():
            if image_column(rows.open_rows([table]), table.parent, Reading())[0]:
                return table, "image-folder"
        return path, ""
    if formats.holds(path, _ARRAYS):
        return path, "signals"
    images = path.is_dir() or path.suffix.lower() == ".zip" or given.get("image")
    return path, "image-folder" if images else ""


def _of_windows(keys: Keys, place: Path) -> list[str]:
    """Add axes, sites and group of an NPZ; return lines about its arrays."""
    reading = reading_of(build_config(keys))
    first = formats.find_files("signals", str(place), formats.NPZ_SUFFIXES)[0]
    arrays = Npz(first, reading.axes)
    keys["axes"], taken = arrays.axes, {*arrays.used, *reading.site, *reading.group}
    likely = [*filter(describe.site_like, arrays.columns)]
    if likely and "site" not in keys and place.is_file():  # in a folder each is a site
        keys["site"] = likely
        taken.update(likely)
    for name in filter(describe.is_person, arrays.columns):
        again = name not in taken and arrays.has_column(name) and "group" not in keys
        if again and arrays.rows([name])[name].duplicated().mean() >= 0.5:  # noqa: PLR2004
            keys["group"] = [name]
            taken.add(name)
    other = [name for name in arrays.columns if name not in taken]
    return [*arrays.found, *([f"arrays that are not read: {listed(other)}"] if other else [])]


def _of_rows(keys: Keys, command: Sequence[str]) -> list[str]:
    """Add what is proposed for a file of rows; if unclear ask a person, or name the ``command``."""
    asked, lines, description = False, list[str](), None
    person = sys.stdin is not None and sys.stdin.isatty()
    while True:
        try:
            description = _describe(keys)
            description.need_target()
            likely = description.likely_sites()
            if likely and person:
                question = "does one of these columns name whose a row is?"
                raise rows.Unclear("site", question, [*likely, ""])
            if not (gaps := description.gap_words()):
                break
            keys["gaps"] = sorted({*filter(None, description.reading.gaps or GAPS), *gaps})
            lines.append(f"missing values (gaps): {listed(gaps)}")
        except rows.Unclear as error:
            if error.key == "columns":
                keys["columns"] = error.choices
                continue
            if description is not None and not asked:
                _show(keys, description)
            if error.key == "image" or not person:
                line = shlex.join([*command, f"{error.key}={error.choices[0]}"])
                raise UserError(f"{error}; for example: {line}") from error
            print(one_line(error, None))
            for number, choice in enumerate(error.choices, start=1):
                print(f"  {number}  {one_line(choice, None) or 'none of them'}")
            number = typer.prompt("number", type=click.IntRange(1, len(error.choices)))
            answer, asked = error.choices[number - 1], True
            keys[error.key] = [*filter(None, [answer])] if error.key == "site" else answer
    lines += [*_choose(keys, description), *map(describe.about_site, likely[:1])]
    _show(keys, description)
    return lines


def _describe(keys: Keys) -> describe.Description:
    """Return what a file of rows holds; add to the keys which column lists images, if any."""
    reading = reading_of(build_config(keys | {"dataset": keys["dataset"] or "table"}))
    paths = formats.find_files("table", keys["data-path"], formats.ROW_SUFFIXES)
    file = rows.open_rows(paths, reading)
    listing = keys["dataset"] in {"", "image-folder"}
    if listing and (image := image_column(file, paths[0].parent, reading)[0]):
        keys |= {"dataset": "image-folder", "image": image}
        reading = reading.changed(image=image)
    settled = {*keys} | ({"site"} if file.site or keys["dataset"] == "signals" else set())
    return describe.describe(file, reading, {"group", "site"} - settled)


def _choose(keys: Keys, description: describe.Description) -> list[str]:
    """Choose what the file is read as, and add the columns' keys; return lines about it."""
    reading, texts = description.reading, description.of(describe.TEXT)
    only = texts and not description.features
    keys["dataset"] = dataset = keys["dataset"] or ("texts" if only else "table")
    keys["target"] = reading.target
    keys |= {k: list(value) for k in ("site", "group") if (value := getattr(reading, k))}
    if dataset == "texts" and texts:
        keys["text"] = keys.get("text") or max(texts, key=lambda n: description.columns[n].length)
    if dataset == "signals":
        return []
    if dataset != "table":
        unused = describe.UNUSED, f"dataset={dataset} reads no other column"
        features = description.of(describe.NUMBER, describe.CATEGORY, *describe.LEFT[:-1])
        description.roles |= {name: unused for name in features if name != keys.get("text")}
        return []
    lines = [f"not used: {one}" for one in description.unusable()]
    if texts:
        lines.append(f"dataset=texts text={texts[0]} reads the texts of '{texts[0]}' alone")
    if not description.features:
        raise UserError(f"{keys['data-path']}: no column is left that models can see")
    columns = {
        "numbers": description.of(describe.NUMBER), "ignore": description.of(*describe.LEFT),
        "categories": {name: list(values) for name, values in description.categories.items()},
    }  # fmt: skip
    keys |= {key: names for key, names in columns.items() if names}
    if description.is_recording():
        lines.append(
            "warning: rows that follow each other are nearly alike, as steps of a recording: "
            "with such rows in train and in test any figure is too good; dataset=signals "
            "time=COLUMN length=STEPS cuts windows, group=COLUMN keeps recordings whole"
        )
    if later := description.later():
        known = f"by their names known only after '{reading.target}': {listed(later)}"
        lines.append(f"warning: {known}: ignore={','.join(later)} leaves them out")
    return lines


def _show(keys: Keys, description: describe.Description) -> None:
    """Print a line for each column, but not for hundreds of numbers alike."""
    every = [*description.columns.values()]
    many = {*description.of(describe.NUMBER)[_SHOWN // 2 :]} if len(every) > _SHOWN else ()
    columns = [one for one in every if one.name not in many][:_SHOWN]
    lines: list[list[object]] = []
    for one in columns:
        examples = ", ".join(one_line(value, 24) for value in one.examples)
        cells = [one.name, one.kind, f"{one.values:,}", one.rows - one.known, examples]
        lines.append([*cells, *description.roles[one.name]])
    if len(columns) < len(every):
        lines.append([f"and {len(every) - len(columns):,} more", *[""] * 6])
    title = f"{keys['data-path']}: {max((one.rows for one in every), default=0):,} rows"
    heads = ("column", "kind", "values", "gaps", "examples", "is", "why")
    show_table(f"{title}, {len(every)} columns", heads, lines)


def _is_uneven(dataset: Dataset) -> bool:
    """Return whether a class is so common, or so rare, that accuracy says little."""
    counts = np.bincount(dataset.labels, minlength=len(dataset.classes))
    share = counts[counts > 0] / counts.sum()
    return bool(share.max() > COMMONEST or share.min() * len(share) < RARE)


def _add_training(keys: Keys, dataset: Dataset) -> None:
    """Add classes, partition and training to the keys."""
    kind, uneven = dataset.inputs.kind, _is_uneven(dataset)
    if "labels" not in keys:
        keys["classes"] = list(dataset.classes)
    if uneven:
        keys.setdefault("metric", "balanced_accuracy")
    natural = np.sum(np.bincount(dataset.sites) >= 10) > 1  # noqa: PLR2004
    if keys.setdefault("partition", "natural" if natural else "iid") == "natural":
        keys["clients"] = 0
    rest = {
        "clients": int(max(2, min(5, len(dataset.labels) // 30))), "models": [DEFAULT_GROUP[kind]],
        "method": "fedssa", "rounds": 20, "local-epochs": 2, "batch-size": 16,
        "lr": 0.01 if uneven else _RATES.get(kind, 0.01),
    }  # fmt: skip
    keys |= rest | keys
