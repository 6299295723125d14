"""The cells of a sweep: every combination of a preset's grid as one resolved configuration.

``grid`` maps keys to lists of values; a list of such maps is the union of theirs. Lists of keys in
``paired`` (one group, or a list of groups) are zipped, as the blocks that all methods share. A cell
is named by its method and the SHA-256 of its configuration: equal cells of two sweeps are one run.

A search tries keys of one or several methods, judged by the validation ``metric`` alone. Every
method gets the same number of trials, drawn with a seed from its grid. Seeds repeat a trial.
"""

import contextlib
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from fedhet.config.load import COMMON, build_config, read_overrides
from fedhet.config.registry import folder_name, method_keys, method_name
from fedhet.config.schema import TUNABLE, RunConfig, kebab
from fedhet.errors import UserError, nearest, one_line
from fedhet.files import read_yaml
from fedhet.records.run_folder import RunFolder
from fedhet.records.summary import diverged, gain
from fedhet.rng import generator

# What changes neither a bit of the result nor what is recorded of it.
INERT = {"out", "name", "actors", "engine", "keep-state", "state-dir", "tracker", "start-timeout"}
PATHS = ("data-path", "partition-file")
SWEEP_KEYS = {"grid", "paired"}  # of a preset, not of its cells
_Grid = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
_GRIDS: TypeAdapter[Any] = TypeAdapter(_Grid | Annotated[list[_Grid], Field(min_length=1)])
_GROUPS: TypeAdapter[Any] = TypeAdapter(list[str] | list[list[str]])
SEEDS = ("partition-seed", "seed")  # further values repeat a trial, and are not searched
BLOCKS = 5  # of the comparison after it
LISTS = {  # keys whose commas are no search
    kebab(name)
    for name, field in RunConfig.model_fields.items()
    if ... in get_args(field.annotation)
}


@dataclass(frozen=True)
class _Choice:
    values: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Return the values, for people."""
        return " ".join(f"{key}={_short(value)}" for key, value in self.values.items())


@dataclass(frozen=True)
class Cell(_Choice):
    """One run of a sweep: its values of the grid, and its whole configuration."""

    config: RunConfig

    @property
    def name(self) -> str:
        """Return the name of its folder: the method, 16 digits of the configuration's SHA-256."""
        return f"{folder_name(self.config.method)}-{digest(self.config)[:16]}"


def digest(config: RunConfig) -> str:
    """Return the SHA-256 of what decides the result; keys at their defaults rename no cell."""
    usual = type(config.params)().flat() | deciding(RunConfig().flat())
    chosen = {k: v for k, v in deciding(config.flat()).items() if k not in usual or v != usual[k]}
    text = json.dumps(chosen | {"method": config.method}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def deciding(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that decide a result; of paths, which may lie elsewhere, the last name."""
    names = {key: Path(str(flat[key])).name for key in PATHS if key in flat}
    return {key: value for key, value in {**flat, **names}.items() if key not in INERT}


def read_cells(path: Path, overrides: Sequence[str]) -> list[Cell]:
    """Return a preset's cells, each once, in the grid's order; UserError for a mistake in any."""
    preset, changes = read_yaml(path), dict[str, Any](read_overrides(overrides))
    common = {k: v for k, v in (preset | changes).items() if k not in SWEEP_KEYS}
    if "grid" not in preset:
        build_config(common)
        raise UserError(
            f"config '{path}': a sweep needs the key `grid`, such as grid: {{method: [fedssa, "
            "standalone], seed: [0, 1, 2]}; `fedhet run` runs a single configuration"
        )
    grids, paired = grids_of(preset)
    for key in sorted(changes.keys() & (SWEEP_KEYS | {"out", "name"})):
        why = "it differs by cell: --out names the folder of all cells"
        if key in SWEEP_KEYS:
            why = f"it is set by the preset '{path}': edit the preset"
        raise UserError(f"{key}: not allowed here, since {why}")
    every = [values for grid in grids for values in combinations(grid, paired)]
    chosen = [values | {key: changes[key] for key in values.keys() & changes} for values in every]
    return once(Cell(one, resolve(common, one)) for one in chosen)


def once(cells: Iterable[Cell]) -> list[Cell]:
    """Return every cell once. Raise UserError if cells of one name have different files."""
    by_name: dict[str, Cell] = {}
    for cell in cells:
        one, other = by_name.setdefault(cell.name, cell).config.flat(), cell.config.flat()
        for key in PATHS:
            if one.get(key) != other.get(key):
                raise UserError(
                    f"{key}: '{one.get(key)}' and '{other.get(key)}' have the same file name, "
                    "which names their cells: rename one of them"
                )
    return list(by_name.values())


def grids_of(preset: Mapping[str, Any]) -> tuple[list[dict[str, list[Any]]], list[list[str]]]:
    """Return the grids of a sweep's preset and its groups of paired keys."""
    grid, paired = preset["grid"], preset.get("paired", [])
    for key, value, form, allowed in (
        ("grid", grid, _GRIDS, "a list of values for each key, or a list of such maps"),
        ("paired", paired, _GROUPS, "a list of keys, or of such lists"),
    ):
        try:
            form.validate_python(value, strict=True)
        except ValidationError as error:
            text = f"{key}: '{one_line(value, 120)}' is not allowed: give {allowed}"
            raise UserError(text) from error
    grids = grid if isinstance(grid, list) else [grid]
    paired = [paired] if any(isinstance(one, str) for one in paired) else paired
    for key in {key for grid in grids for key in grid} & INERT:
        raise UserError(f"grid: '{key}' changes no result: give one value, outside `grid`")
    named = [key for group in paired for key in group]
    for key, times in Counter(named).items():
        if not any(key in grid for grid in grids):
            raise UserError(f"paired: '{key}' is not a key of the grid")
        if times > 1:
            raise UserError(f"paired: '{key}' is in two groups: leave it in one")
    return grids, paired


def combinations(
    grid: Mapping[str, list[Any]], paired: Sequence[Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """Yield every choice of one value per key; the lists of a ``paired`` group move together."""
    groups = {key: [key] for key in grid}
    for group in paired:
        together = [key for key in group if key in grid]
        lengths = {key: len(grid[key]) for key in together}
        if len(set(lengths.values())) > 1:
            named = ", ".join(f"{key} has {n}" for key, n in lengths.items())
            raise UserError(f"paired: the lists must be of one length, but {named}")
        groups |= dict.fromkeys(together, together)
    axes = [
        [dict(zip(names, row, strict=True)) for row in zip(*map(grid.get, names), strict=True)]
        for key, names in groups.items() if key == names[0]
    ]  # fmt: skip
    for choice in product(*axes):
        yield {key: value for part in choice for key, value in part.items()}


def resolve(common: Mapping[str, Any], values: Mapping[str, Any]) -> RunConfig:
    """Return a cell's configuration, inline unless they say so, without other methods' keys."""
    merged = {"engine": "inline", **common, **values}
    foreign: set[str] = set()
    if "method" in values:
        own = method_keys(str(values["method"])) | values.keys()
        foreign = method_keys(str(common.get("method", "fedssa"))) - own
    return build_config({key: value for key, value in merged.items() if key not in foreign})


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) if len(value) <= 2 else f"{value[0]},...({len(value)})"
    return str(value)


# --- search of keys ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial(_Choice):
    """Values that are tried with a method, and its runs: one for every seed."""

    method: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Search:
    """The preset's keys with those that are fixed, and the keys that are searched."""

    base: Mapping[str, Any]
    methods: Sequence[str]
    repeats: Sequence[Mapping[str, Any]]
    axes: Mapping[str, list[Any]]

    @classmethod
    def read(cls, path: Path, words: Sequence[str]) -> "Search":
        """Read ``KEY=V1,V2``, which are searched (also methods, else the preset's), KEY=VALUE."""
        preset = read_yaml(path)
        base = {key: v for key, v in preset.items() if key not in SWEEP_KEYS}
        keys: dict[str, list[Any]] = {}
        for word in words:
            key, equals, text = word.partition("=")
            if not equals or not key:
                raise UserError(f"'{word}': write key=value or key=v1,v2,...")
            if key in keys:
                raise UserError(f"{key}: it is given twice: write {key}=V1,V2")
            keys[key] = [_plain(one) for one in ([text] if key in LISTS else text.split(","))]
            for value, times in Counter(keys[key]).items():
                if times > 1:
                    raise UserError(f"{key}: {value} is given twice in '{text}'")
        named = keys.pop("method", None) or (_compared(path, preset) if "grid" in preset else [])
        methods = [method_name(str(one)) for one in named or [base.get("method", "fedssa")]]
        axes = {key: values for key, values in keys.items() if len(values) > 1}
        base |= {key: values[0] for key, values in keys.items() if key not in axes}
        repeats = list(combinations({key: axes.pop(key) for key in SEEDS if key in axes}, []))
        known = COMMON.union(*map(method_keys, methods))
        for key in axes.keys() - known:
            hint = nearest(key, known)
            raise UserError(f"{key}: unknown key for {', '.join(methods)}{hint}")
        if not axes:
            raise UserError(
                "give at least one key several values, KEY=V1,V2, such as lr=0.003,0.01,0.03"
            )
        return cls(base, methods, repeats, axes)

    def trials(self, count: int, seed: int) -> list[Trial]:
        """Draw ``count`` trials for each method, 0: as many as the smallest grid, in its order."""
        grids = {}
        for method in self.methods:
            known_keys = method_keys(method) | COMMON
            axes = {key: values for key, values in self.axes.items() if key in known_keys}
            grids[method] = list(combinations(axes, []))
        smallest = min(grids, key=lambda method: len(grids[method]))
        most = len(grids[smallest])
        if count > most:
            raise UserError(
                f"trials: {count} is more than the {most} combinations of method '{smallest}'; "
                "every method gets the same number: give it more values"
            )
        trials = []
        for method, grid in grids.items():
            drawn = generator(seed, "tune", method).choice(len(grid), count or most, replace=False)
            trials += [Trial(grid[i], method, self._cells(method, grid[i])) for i in sorted(drawn)]
        return trials

    def preset(self, chosen: Sequence[Trial]) -> dict[str, Any]:
        """Return a run's preset or, of several methods, a sweep's, with seeds that no trial had."""
        if len(chosen) == 1:
            kept_keys = {"method"} | method_keys(chosen[0].method) | COMMON - {"out", "name"}
            keys = {"method": chosen[0].method, **self.base, **chosen[0].values}
            return {key: value for key, value in keys.items() if key in kept_keys}
        configs = [cell.config for trial in chosen for cell in trial.cells]
        used = {seed for config in configs for seed in (config.seed, config.data_seed)}
        fresh = [seed for seed in range(BLOCKS + len(used)) if seed not in used][:BLOCKS]
        grid = []
        for trial in chosen:
            values = {key: [value] for key, value in trial.values.items()}
            tunable = TUNABLE | method_keys(trial.method)
            row = {"method": [trial.method], **values, "tuned": [sorted(tunable & values.keys())]}
            grid.append(row | {key: list(fresh) for key in SEEDS})
        fixed = {key: value for key, value in self.base.items() if key not in {"out", "name"}}
        return {**fixed, "paired": [list(SEEDS)], "grid": grid}

    def _cells(self, method: str, values: Mapping[str, Any]) -> list[Cell]:
        chosen = [{"method": method, **values, **repeat} for repeat in self.repeats]
        cells = [Cell(one, resolve(self.base, one)) for one in chosen]
        if any(cell.config.split[1] == 0 for cell in cells):
            raise UserError("split: its validation share is 0, must be 1 or more for tuning")
        return cells


def _compared(path: Path, preset: Mapping[str, Any]) -> list[str]:
    """Return the methods of a sweep's preset; its seeds are left for the comparison."""
    grids, _ = grids_of(preset)
    if others := sorted({key for grid in grids for key in grid} - {"method", *SEEDS}):
        raise UserError(
            f"config '{path}': tune takes the methods of a grid alone: copy the preset without "
            f"{', '.join(others)}, and give what is searched as KEY=V1,V2"
        )
    return list(dict.fromkeys(str(name) for grid in grids for name in grid.get("method", ())))


def validation(folders: Sequence[Path], metric: str = "accuracy") -> float | None:
    """Return the runs' mean validation ``metric`` in the last round; None: one has none."""
    last, name = [], f"val_{metric}_mean"
    for folder in folders:
        records = RunFolder(folder).read_rounds()
        known = [record[name] for record in records if record.get(name) is not None]
        if not known or diverged(records[-1]):
            return None
        last.append(known[-1])
    return float(np.mean(last))


def best(trials: Sequence[Trial], scores: Sequence[float | None]) -> list[Trial]:
    """Return every method's best trial; of equal ones the first."""
    chosen: dict[str, tuple[float, Trial]] = {}
    for trial, score in zip(trials, scores, strict=True):
        worth = -math.inf if score is None else gain(trial.cells[0].config, score)
        if worth > chosen.get(trial.method, (-math.inf,))[0]:
            chosen[trial.method] = worth, trial
    return [trial for _, trial in chosen.values()]


def _plain(text: str) -> Any:
    """Return a number or truth value if the text is one; the configuration checks the rest."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)
