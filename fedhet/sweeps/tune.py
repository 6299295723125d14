"""Search keys of one or several methods, judged by the validation ``metric`` alone.

Every method gets the same number of trials, so that none wins by more tries. They are drawn with a
seed from its grid or its ranges. Seeds repeat a trial. Nothing here reads a test metric.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml

from fedhet.config.registry import find_method, method_keys, method_name
from fedhet.config.schema import TUNABLE, RunConfig, kebab
from fedhet.errors import UserError, nearest
from fedhet.files import read_jsonl, read_yaml
from fedhet.records.summary import diverged, gain
from fedhet.rng import generator
from fedhet.sweeps.grid import SWEEP_KEYS, Cell, combinations, grids_of, resolve, title_of

SEEDS = ("partition-seed", "seed")  # further values repeat a trial, and are not searched
RANDOM_TRIALS = 10  # of a search that has ranges, unless said otherwise
DRAWS = 1_000  # tries to draw a trial that was not drawn before
BLOCKS = 5  # of the comparison after it
_COMMON = {kebab(name) for name in RunConfig.model_fields}
_KINDS = {kebab(name): field.annotation for name, field in RunConfig.model_fields.items()}
LISTS = {key for key, kind in _KINDS.items() if ... in get_args(kind)}  # commas are no search
TEXTS = {key for key, kind in _KINDS.items() if kind is str}  # paths among them: no range
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})")


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, uniform in the logarithm if both are above 0."""

    low: float
    high: float
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """Return a number of three digits, or a whole one."""
        logarithmic, ends = self.low > 0, (self.low, self.high)
        number = rng.uniform(*map(math.log, ends) if logarithmic else ends)
        number = math.exp(number) if logarithmic else number
        if self.whole:
            return round(number)
        return min(self.high, max(self.low, float(f"{number:.3g}")))


@dataclass(frozen=True)
class Trial:
    """Values that are tried with a method, and its runs: one for every seed."""

    method: str
    values: Mapping[str, Any]
    cells: Sequence[Cell]

    @property
    def label(self) -> str:
        """Return the values, for people."""
        return " ".join(f"{key}={value}" for key, value in self.values.items())


@dataclass(frozen=True)
class Search:
    """The preset's keys with those that are fixed, and the keys that are searched."""

    base: Mapping[str, Any]
    methods: Sequence[str]
    repeats: Sequence[Mapping[str, Any]]
    axes: Mapping[str, Sequence[Any] | Range]
    title: str = ""  # of the preset

    @classmethod
    def read(cls, path: Path, words: Sequence[str]) -> "Search":
        """Read ``KEY=VALUE``, which fixes a key, and ``KEY=V1,V2`` or ``KEY=LOW..HIGH``.

        The methods are those of ``words``, else those of a sweep's preset.
        """
        preset = read_yaml(path)
        base = {key: v for key, v in preset.items() if key not in SWEEP_KEYS}
        axes: dict[str, Sequence[Any] | Range] = {}
        given: dict[str, Sequence[Any] | Range] = {}
        if "grid" in preset and (compared := _compared(path, preset)):
            axes["method"] = compared
        for word in words:
            key, equals, text = word.partition("=")
            if not equals or not key:
                raise UserError(f"'{word}': write key=value, key=v1,v2,... or key=low..high")
            if key in given:
                raise UserError(f"{key}: it is given twice: write {key}=V1,V2")
            values = given[key] = _values(key, text)
            if key == "method" or isinstance(values, Range) or len(values) > 1:
                axes[key] = values
            else:
                base[key] = values[0]
        named: Any = axes.pop("method", [base.get("method", "fedssa")])
        methods = [method_name(str(name)) for name in named]
        repeated = {key: axes.pop(key) for key in SEEDS if key in axes}
        for key, values in repeated.items():
            if isinstance(values, Range):
                raise UserError(f"{key}: a list of seeds is allowed, not a range")
        known = _COMMON.union(*map(method_keys, methods))
        for key in axes.keys() - known:
            hint = nearest(key, known)
            raise UserError(f"{key}: unknown key for {', '.join(methods)}{hint}")
        if not axes:
            raise UserError(
                "give at least one key several values, KEY=V1,V2, or a range, "
                "KEY=LOW..HIGH, such as lr=0.003,0.01,0.03"
            )
        repeats = list(combinations(repeated, []))  # type: ignore[arg-type]  # no range, as checked
        typed = {key: _typed(key, values, methods) for key, values in axes.items()}
        return cls(base, methods, repeats, typed, title_of(path))

    def trials(self, count: int, seed: int) -> list[Trial]:
        """Return ``count`` trials for each method (0: as many as the smallest grid has)."""
        spaces = {
            method: {key: v for key, v in self.axes.items() if key in method_keys(method) | _COMMON}
            for method in self.methods
        }
        sizes = {
            method: math.prod(math.inf if isinstance(v, Range) else len(v) for v in space.values())
            for method, space in spaces.items()
        }
        ranged = any(isinstance(v, Range) for v in self.axes.values())
        smallest = min(sizes, key=sizes.__getitem__)
        wanted = count or (RANDOM_TRIALS if ranged else int(sizes[smallest]))
        if wanted > sizes[smallest]:
            raise UserError(
                f"trials: {wanted} is more than the {sizes[smallest]:.0f} combinations of method "
                f"'{smallest}'; every method gets the same number: give it more values"
            )
        return [
            Trial(method, values, self._cells(method, values))
            for method, space in spaces.items()
            for values in _drawn(space, wanted, generator(seed, "tune", method))
        ]

    def preset(self, trial: Trial) -> dict[str, Any]:
        """Return the keys of a run with these values, as a preset holds them."""
        own = method_keys(trial.method) | _COMMON
        kept = {key: value for key, value in self.base.items() if key in own}
        for key in ("method", "out", "name"):
            kept.pop(key, None)
        return {"method": trial.method, **kept, **trial.values}

    def sweep(self, chosen: Sequence[Trial]) -> dict[str, Any]:
        """Return a sweep's preset that compares the methods in blocks whose seeds no trial had."""
        configs = [cell.config for trial in chosen for cell in trial.cells]
        used = {seed for config in configs for seed in (config.seed, config.data_seed)}
        fresh = [seed for seed in range(BLOCKS + len(used)) if seed not in used][:BLOCKS]
        grid = []
        for trial in chosen:
            tunable = TUNABLE | method_keys(trial.method)
            values = {key: [value] for key, value in trial.values.items()}
            searched = sorted(key for key in trial.values if key in tunable)
            row = {"method": [trial.method], **values, "tuned": [searched]}
            grid.append(row | {key: list(fresh) for key in SEEDS})
        fixed = {key: value for key, value in self.base.items() if key not in {"out", "name"}}
        title = {"title": self.title} if self.title else {}
        return {**title, **fixed, "paired": [list(SEEDS)], "grid": grid}

    def _cells(self, method: str, values: Mapping[str, Any]) -> list[Cell]:
        common = {"engine": "inline", **self.base}
        cells = []
        for repeat in self.repeats:
            chosen = {"method": method, **values, **repeat}
            config = resolve(common, chosen)
            if config.split[1] == 0:
                raise UserError("split: its validation share is 0, must be 1 or more for tuning")
            cells.append(Cell(chosen, config))
        return cells


def _compared(path: Path, preset: Mapping[str, Any]) -> list[str]:
    """Return the methods of a sweep's preset; its seeds are left for the comparison."""
    grids, _ = grids_of(preset)
    others = sorted({key for grid in grids for key in grid} - {"method", *SEEDS})
    if others:
        raise UserError(
            f"config '{path}': tune takes the methods of a grid, and this one has "
            f"{', '.join(others)}, too: copy the preset without them, and give what is searched "
            "as KEY=V1,V2 or KEY=LOW..HIGH"
        )
    return list(dict.fromkeys(str(name) for grid in grids for name in grid.get("method", ())))


def validation(folders: Sequence[Path], metric: str = "accuracy") -> float | None:
    """Return the runs' mean validation ``metric`` in the last round; None: one has none."""
    found, name = [], f"val_{metric}_mean"
    for folder in folders:
        records = list(read_jsonl(folder / "rounds.jsonl"))
        known = [r[name] for r in records if r.get(name) is not None]
        if not known or diverged(records[-1]):
            return None
        found.append(known[-1])
    return float(np.mean(found))


def best(trials: Sequence[Trial], scores: Sequence[float | None]) -> dict[str, int]:
    """Return the position of every method's best trial; of equal ones the first."""
    chosen: dict[str, tuple[float, int]] = {}
    for i, (trial, score) in enumerate(zip(trials, scores, strict=True)):
        if score is None:
            continue
        worth = gain(trial.cells[0].config, score)
        if worth > chosen.get(trial.method, (-math.inf, 0))[0]:
            chosen[trial.method] = worth, i
    return {method: i for method, (_, i) in chosen.items()}


def preset_text(keys: Mapping[str, Any], use: str, command: str, lines: Sequence[str]) -> str:
    """Return a preset headed by the command that uses it, the one that made it, and ``lines``."""
    head = "".join(f"# {line}\n" for line in (f"fedhet {use}", command, *lines))
    return head + "\n" + yaml.safe_dump(dict(keys), sort_keys=False, allow_unicode=True)


def _values(key: str, text: str) -> Sequence[Any] | Range:
    """Return the values that a word gives to a key."""
    if ".." in text and key not in LISTS | TEXTS:
        if not (ends := RANGE.fullmatch(text)):
            raise UserError(f"{key}: '{text}' is not a range of numbers, such as 0.001..0.1")
        low, high = float(ends[1]), float(ends[2])
        if not low < high or math.isinf(low) or math.isinf(high):
            why = "both numbers must be finite, and the second one larger"
            raise UserError(f"{key}: '{text}' is not a range: {why}")
        return Range(low, high)
    parts = [text] if key in LISTS else text.split(",")
    values = [_plain(part.strip()) for part in parts]
    for value, count in Counter(values).items():
        if count > 1:
            raise UserError(f"{key}: {value} is given twice in '{text}'")
    return values


def _plain(text: str) -> Any:
    """Return a number or truth value if the text is one; the configuration checks the rest."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)


def _typed(
    key: str, values: Sequence[Any] | Range, methods: Sequence[str]
) -> Sequence[Any] | Range:
    """Return a range as one of whole numbers where the key takes no others."""
    known = [RunConfig.model_fields, *(find_method(m).params.model_fields for m in methods)]
    kinds = [f.annotation for fields in known for name, f in fields.items() if kebab(name) == key]
    if not isinstance(values, Range) or int not in kinds:
        return values
    if not (values.low.is_integer() and values.high.is_integer()):
        raise UserError(f"{key}: whole numbers are needed, such as 1..{math.ceil(values.high)}")
    return replace(values, whole=True)


def _drawn(
    space: Mapping[str, Sequence[Any] | Range], count: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Return ``count`` different choices; those of a grid in its own order."""
    if not any(isinstance(v, Range) for v in space.values()):
        grid = list(product(*space.values()))  # type: ignore[arg-type]  # lists, as just checked
        chosen = sorted(rng.choice(len(grid), size=count, replace=False).tolist())
        return [dict(zip(space, grid[i], strict=True)) for i in chosen]
    rows: dict[tuple[Any, ...], None] = {}
    for _ in range(DRAWS * count):
        values = space.values()
        row = [v.draw(rng) if isinstance(v, Range) else v[rng.integers(len(v))] for v in values]
        rows[tuple(row)] = None
        if len(rows) == count:
            return [dict(zip(space, row, strict=True)) for row in rows]
    raise UserError(f"trials: {count} different values cannot be drawn from {', '.join(space)}")
