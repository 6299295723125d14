"""The cells of a sweep: every combination of a preset's grid as one resolved configuration.

``grid`` maps keys to lists of values; a list of such maps is the union of theirs. Keys named in
``paired`` move together (their lists are zipped), as the blocks that all methods share; a list of
lists names several such groups. A cell's name is its method and the SHA-256 of its resolved
configuration, so that equal cells of different sweeps are one run.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedhet.config.load import build_config, read_overrides
from fedhet.config.registry import folder_name, method_keys
from fedhet.config.schema import RunConfig, as_yaml, kebab
from fedhet.errors import UserError
from fedhet.files import read_yaml

# What changes neither a bit of the result nor what is recorded of it.
INERT = {"out", "name", "actors", "engine", "keep-state", "state-dir", "tracker", "start-timeout"}
PATHS = ("data-path", "partition-file")
SWEEP_KEYS = {"grid", "paired", "title"}  # of a preset, not of its cells
PROFILES = {"full": (1.0, 1.0), "quick": (0.1, 0.2)}  # shares of the rounds and of the epochs


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its values of the grid, and its whole configuration."""

    values: Mapping[str, Any]
    config: RunConfig

    @property
    def name(self) -> str:
        """Return the name of its folder: the method, 16 digits of the configuration's SHA-256."""
        return f"{folder_name(self.config.method)}-{digest(self.config)[:16]}"

    @property
    def label(self) -> str:
        """Return its values, for people."""
        return " ".join(f"{key}={_short(value)}" for key, value in self.values.items())


def digest(config: RunConfig) -> str:
    """Return the SHA-256 of what decides the result, without keys at their defaults.

    So a new key renames no cell.
    """
    usual = {
        kebab(name): as_yaml(f.default) for name, f in type(config.params).model_fields.items()
    }
    usual |= deciding(RunConfig().flat())
    chosen = {k: v for k, v in deciding(config.flat()).items() if k not in usual or v != usual[k]}
    text = json.dumps(chosen | {"method": config.method}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def deciding(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that decide its result; of paths the last name."""
    names = {
        key: Path(str(flat[key])).name for key in PATHS if key in flat
    }  # they may lie elsewhere
    return {key: value for key, value in {**flat, **names}.items() if key not in INERT}


def read_cells(path: Path, overrides: Sequence[str], profile: str = "full") -> list[Cell]:
    """Return the cells of a preset, each once, in the grid's order.

    ``profile`` "quick" takes a tenth of the rounds and a fifth of the epochs, at least two rounds
    and one epoch. Raise UserError for the first mistake in any cell.
    """
    preset = read_yaml(path)
    changes: dict[str, Any] = dict(read_overrides(overrides))
    if "grid" not in preset:
        build_config({k: v for k, v in (preset | changes).items() if k not in SWEEP_KEYS})
        raise UserError(
            f"config '{path}': a sweep needs the key `grid`, such as grid: {{method: [fedssa, "
            "standalone], seed: [0, 1, 2]}; `fedhet run` runs a single configuration"
        )
    grids, paired = grids_of(preset)
    for key in sorted(changes.keys() & (SWEEP_KEYS | {"out", "name"})):
        what = f"is set by the preset '{path}'" if key in SWEEP_KEYS else "differs by cell"
        where = "edit the preset" if key in SWEEP_KEYS else "--out names the folder of all cells"
        raise UserError(f"{key}: not allowed here, since it {what}: {where}")
    common = {"engine": "inline"} | {k: v for k, v in preset.items() if k not in SWEEP_KEYS}
    every = [values for grid in grids for values in combinations(grid, paired)]
    chosen = [values | {key: changes[key] for key in values.keys() & changes} for values in every]
    return once(Cell(one, _scaled(resolve(common | changes, one), profile)) for one in chosen)


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
    grids, paired = preset["grid"], _groups(preset.get("paired", []))
    grids = grids if isinstance(grids, list) and grids else [grids]
    _check_grids(grids, paired)
    return grids, paired


def title_of(path: Path) -> str:
    """Return a preset's title; empty if it has none."""
    title = read_yaml(path).get("title", "")
    if not isinstance(title, str):
        raise UserError(f"title: '{title}' is not allowed: a text, such as \"Digits, 10 clients\"")
    return title


def _check_grids(grids: Sequence[Any], paired: Sequence[Sequence[str]]) -> None:
    for grid in grids:
        if not isinstance(grid, dict) or not grid:
            raise UserError(f"grid: '{grid}' is not allowed: a map of keys to lists, or several")
        for key, values in grid.items():
            if key in INERT:
                raise UserError(f"grid: '{key}' changes no result: give one value, outside `grid`")
            if not isinstance(values, list) or not values:
                raise UserError(f"grid: '{key}: {values}' is not allowed: give a list of values")
    named: set[str] = set()
    for key in (key for group in paired for key in group):
        if not any(key in grid for grid in grids):
            raise UserError(f"paired: '{key}' is not a key of the grid")
        if key in named:
            raise UserError(f"paired: '{key}' is in two groups: leave it in one")
        named.add(key)


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
    axes: list[list[dict[str, Any]]] = []
    for key, together in groups.items():
        if key == together[0]:
            rows = zip(*(grid[name] for name in together), strict=True)
            axes.append([dict(zip(together, row, strict=True)) for row in rows])
    for choice in product(*axes):
        yield {key: value for part in choice for key, value in part.items()}


def resolve(common: Mapping[str, Any], values: Mapping[str, Any]) -> RunConfig:
    """Return a cell's configuration, without the preset's keys of other methods."""
    merged = {**common, **values}
    own = method_keys(str(merged.get("method", "fedssa")))
    foreign: set[str] = set()
    if "method" in values:
        foreign = method_keys(str(common.get("method", "fedssa"))) - own - set(values)
    return build_config({key: value for key, value in merged.items() if key not in foreign})


def _scaled(config: RunConfig, profile: str) -> RunConfig:
    if profile not in PROFILES:
        raise UserError(f"profile: '{profile}' is not allowed: {' or '.join(PROFILES)}")
    rounds, epochs = PROFILES[profile]
    return config.model_copy(
        update={
            "rounds": min(config.rounds, max(2, round(rounds * config.rounds))),
            "local_epochs": max(1, round(epochs * config.local_epochs)),
            "local_steps": min(config.local_steps, max(1, round(epochs * config.local_steps))),
        }
    )


def _groups(value: Any) -> list[list[str]]:
    """Return ``[a, b]`` or ``[[a, b], [c, d]]`` as groups of keys."""
    groups = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    for group in groups:
        if not isinstance(group, list) or not all(isinstance(key, str) for key in group):
            raise UserError(
                f"paired: '{value}' is not allowed: give a list of keys, or of such lists"
            )
    return groups


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) if len(value) <= 2 else f"{value[0]},...({len(value)})"
    return str(value)
