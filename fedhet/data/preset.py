"""``fedhet init``: what is understood of a file, and a preset that runs it."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhet.config.schema import RunConfig
from fedhet.data import describe, formats, rows
from fedhet.data.cache import Dataset
from fedhet.data.describe import Description, Unclear
from fedhet.data.images import image_column, images_below, is_image
from fedhet.data.inputs import GAPS, IMAGE, SIGNAL, TABLE, TOKENS, Reading, counted, listed, noun
from fedhet.data.partition import about_classes
from fedhet.data.table import Npz
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
_WEIGHTS = "in training a rare class counts as a common one; its probabilities are then too high"
_ROWS = ("", "table", "texts", "signals")
_HEADS = ("column", "kind", "values", "gaps", "examples", "is", "why")

Keys = dict[str, Any]
Checked = Callable[[Mapping[str, Any]], tuple[Reading, Callable[[], Dataset]]]
Show = Callable[[str, Sequence[str], Sequence[Sequence[object]]], None]
Ask = Callable[[str, Sequence[str]], str]  # a question and its choices; the one that is chosen


def initialise(  # noqa: PLR0913, PLR0917  (what the command line is made of)
    path: str, given: Mapping[str, Any], out: Path | None, checked: Checked, show: Show,
    ask: Ask | None,
) -> Iterator[str]:  # fmt: skip
    """Write a commented preset for what is at ``path``, with the keys that somebody gave.

    ``checked`` checks keys; it gives the reading that they mean, and what opens their data.
    ``show`` prints a table; ``ask`` asks a person, None where nobody is there. Yield lines of what
    was understood, and the command that runs the preset. Raise UserError for what cannot be used,
    and for a preset that is there already; Unclear for a key that must be given.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise UserError(f"'{path}' does not exist{near(place)}")
    target = out or Path(f"{place.name.split('.')[0] or 'data'}.yaml")
    if target.exists():
        raise UserError(f"'{target}' already exists: delete it, or give --out NAME.yaml")
    place, dataset = _dataset(place, given)
    keys: Keys = {"dataset": dataset, "data-path": str(place)}
    keys |= {key: value for key, value in given.items() if key not in keys}
    lines: list[str] = []
    if dataset == "signals" and formats.holds(place, (*formats.NPZ_SUFFIXES, ".npy")):
        lines = _of_windows(keys, given, place)
    elif dataset in _ROWS or (place.is_file() and place.suffix != ".zip"):
        try:
            lines = _of_rows(keys, given, checked, show, ask)
        except Unclear as error:
            words = [*given.items(), (error.key, error.choices[0])]
            texts = (f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in words)
            command = shlex.join(["fedhet", "init", path, *texts])
            raise UserError(f"{error}; for example: {command}") from error
    data = checked(keys)[1]()
    if data.inputs.kind == IMAGE:
        each = counted(data.classes, data.labels)
        lines.append(f"{len(data.labels):,} images; {len(data.classes)} classes: {each}")
    about = (*data.warnings, *about_classes(data, noun(keys["dataset"])))
    _write(target, _training(keys, given, data), data)
    # A name may have several lines.
    for line in dict.fromkeys((*lines, *data.notes, *(f"warning: {one}" for one in about))):
        yield one_line(line, None)
    yield from (f"wrote {target}; it runs with:", f"fedhet run {target}")


def _write(target: Path, keys: Keys, dataset: Dataset) -> None:
    preset = [f"# fedhet run {target}", "# Written by `fedhet init`; `fedhet keys` lists all keys."]
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


def _dataset(path: Path, given: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the path to read and the dataset that it is; empty where its rows must say."""
    if given.get("dataset"):
        return path, given["dataset"]
    if path.is_dir() and formats.holds(path, formats.ROW_SUFFIXES):
        tables = formats.find_files("table", str(path), formats.ROW_SUFFIXES)
        for table in tables if images_below(path) else ():
            if image_column(rows.open_rows([table]), table.parent, Reading())[0]:
                return table, "image-folder"
        return path, ""
    if formats.holds(path, (*formats.NPZ_SUFFIXES, ".npy")):
        return path, "signals"
    if is_image(path.name) and not path.is_dir():
        raise UserError(f"'{path}' is one image: give the folder with a folder for each class")
    images = path.is_dir() or path.suffix.lower() == ".zip" or given.get("image")
    return path, "image-folder" if images else ""


def _of_windows(keys: Keys, given: Mapping[str, Any], place: Path) -> list[str]:
    """Add axes and sites of an NPZ; return lines about its arrays."""
    first = formats.find_files("signals", str(place), formats.NPZ_SUFFIXES)[0]
    arrays = Npz(first, keys.get("axes", ""))
    keys["axes"] = arrays.axes
    if "site" not in given and place.is_file():  # in a folder each is a site
        keys |= {"site": names} if (names := [*filter(describe.site_like, arrays.columns)]) else {}
    taken = {*arrays.used, *keys.get("site", ()), *given.get("group", ())}
    persons = [
        name for name in arrays.columns
        if name not in taken and describe.is_person(name) and arrays.has_column(name)
        and "group" not in given and arrays.rows([name])[name].duplicated().mean() >= 0.5  # noqa: PLR2004
    ][:1]  # fmt: skip
    keys |= {"group": persons} if persons else {}
    other = [name for name in arrays.columns if name not in {*taken, *persons}]
    return [*arrays.found, *([f"arrays that are not read: {listed(other)}"] if other else [])]


def _of_rows(
    keys: Keys, given: Mapping[str, Any], checked: Checked, show: Show, ask: Ask | None
) -> list[str]:
    """Add what is proposed for a file of rows to the keys; show its columns, return lines."""
    file, reading = _open(keys, checked)
    propose = {"group", "site"} - given.keys()
    if file.site is not None or keys["dataset"] == "signals":
        propose -= {"site"}
    description = describe.describe(file, reading, propose | {"group"})
    columns = description.columns
    count = max((one.rows for one in columns.values()), default=0)
    title = f"{keys['data-path']}: {count:,} rows, {len(columns)} columns"
    try:
        description.need_target()
        likely = description.likely_sites() if "site" in propose else []
        if likely and ask is not None and not description.reading.site:
            question = "does one of these columns name whose a row is?"
            raise Unclear("site", question, [*likely, ""])
    except Unclear as error:
        show(title, _HEADS, _table(description))
        if ask is None:
            raise
        answer = ask(str(error), error.choices)
        keys[error.key] = ([answer] if answer else []) if error.key == "site" else answer
        return _of_rows(keys, {**given, error.key: answer}, checked, lambda *_: None, ask)
    if words := description.gap_words():
        keys["gaps"] = sorted({*filter(None, GAPS), *words})
    lines = _choose(keys, description)
    if likely and not description.reading.site:
        lines.append(describe.about_site(likely[0]))
    show(title, _HEADS, _table(description))
    return lines


def _open(keys: Keys, checked: Checked) -> tuple[rows.RowFile, Reading]:
    """Return the file of rows and the keys' reading; name columns without header."""
    reading, _ = checked(keys | {"dataset": keys["dataset"] or "table"})
    paths = formats.find_files("table", keys["data-path"], formats.ROW_SUFFIXES)
    try:
        file = rows.open_rows(paths, reading.form)
    except rows.NoHeader as error:
        keys["columns"] = [f"c{k}" for k in range(1, error.width + 1)]
        return _open(keys, checked)
    listing = keys["dataset"] in {"", "image-folder"}
    if listing and (image := image_column(file, paths[0].parent, reading)[0]):
        keys["dataset"], reading = "image-folder", replace(reading, image=image)
    return file, reading


def _choose(keys: Keys, description: Description) -> list[str]:
    """Choose what the file is read as, and add the columns' keys; return lines about it."""
    texts, lines = description.of(describe.TEXT), []
    only = texts and not description.features
    keys["dataset"] = dataset = keys["dataset"] or ("texts" if only else "table")
    if dataset == "texts" and texts:
        longest = max(texts, key=lambda name: description.columns[name].length)
        keys["text"] = keys.get("text") or longest
        description.reading = replace(description.reading, text=keys["text"])
    reading = description.reading
    keys["target"] = reading.target
    keys |= {k: list(value) for k in ("site", "group") if (value := getattr(reading, k))}
    if dataset == "table":
        lines = [f"not used: {one}" for one in description.unusable()]
        if texts:
            lines.append(f"dataset=texts text={texts[0]} reads the texts of '{texts[0]}' alone")
        if not description.features:
            raise UserError(f"{keys['data-path']}: no column is left that models can see")
        columns = {
            "numbers": description.of(describe.NUMBER), "ignore": description.of(*describe.LEFT),
            "categories": {name: list(some) for name, some in description.categories.items()},
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
    elif dataset != "signals":
        unused = describe.UNUSED, f"dataset={dataset} reads no other column"
        own = description.of(describe.NUMBER, describe.CATEGORY, *describe.LEFT[:-1])
        description.roles |= {name: unused for name in own if name != reading.text}
    if reading.image:
        keys["image"] = reading.image
    return lines


def _table(description: Description) -> list[list[object]]:
    """Return a line for each column, but not for hundreds of numbers alike."""
    columns = [*description.columns.values()]
    if len(columns) > _SHOWN:
        plain = {*description.of(describe.NUMBER)[_SHOWN // 2 :]}
        columns = [one for one in columns if one.name not in plain][:_SHOWN]
    lines: list[list[object]] = []
    for one in columns:
        examples = ", ".join(one_line(value, 24) for value in one.examples)
        cells = [one.name, one.kind, f"{one.values:,}", one.gaps, examples]
        lines.append([*cells, *description.roles[one.name]])
    rest = len(description.columns) - len(columns)
    return [*lines, [f"and {rest:,} more", *[""] * 6]] if rest else lines


def _is_uneven(dataset: Dataset) -> bool:
    """Return whether a class is so common, or so rare, that accuracy says little."""
    counts = np.bincount(dataset.labels, minlength=len(dataset.classes))
    share = counts[counts > 0] / counts.sum()
    return bool(share.max() > COMMONEST or share.min() * len(share) < RARE)


def _training(keys: Keys, given: Mapping[str, Any], dataset: Dataset) -> Keys:
    """Return the keys with classes, partition and training."""
    models, rate = _MODELS[dataset.inputs.kind]
    if "labels" not in keys:
        keys["classes"] = list(dataset.classes)
    if _is_uneven(dataset):
        keys.setdefault("metric", "balanced_accuracy")
        rate = min(rate, _RATE)
    if "partition" not in given:
        natural = np.sum(np.bincount(dataset.sites) >= 10) > 1  # noqa: PLR2004
        keys["partition"] = "natural" if natural else "iid"
    if keys["partition"] == "natural":
        keys["clients"] = 0
    clients = int(max(2, min(5, len(dataset.labels) // 30)))
    rest = {"clients": clients, "models": models, "method": "fedssa", "rounds": 20,
            "local-epochs": 2, "batch-size": 16, "lr": rate}  # fmt: skip
    return keys | {key: value for key, value in rest.items() if key not in keys}
