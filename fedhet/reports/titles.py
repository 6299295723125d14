"""Short names of settings, and the command that makes runs of one.

A preset says in ``title:`` what its settings are called; what stands in braces there is filled in
from the setting (``{data}`` and any key). Records do not name their preset, so the title is that of
the shipped preset whose keys they have; rounds, epochs and the like may differ and are then said.
A setting of no preset is called by its data, N and C.
"""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedhet.errors import one_line
from fedhet.layout import folder
from fedhet.models.names import expand
from fedhet.reading.structured import read_yaml
from fedhet.reports.names import plain
from fedhet.reports.settings import SEARCHED, Setting, at_default
from fedhet.reports.svg import cut

DATA = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fashion-mnist": "Fashion-MNIST",
    "office_caltech": "Office-Caltech", "ag_news": "AG News", "har": "HAR",
}  # fmt: skip
_SHORT = {"rounds": "T", "local-epochs": "E", "batch-size": "B"}
# These may differ from the preset's: the setting is still the preset's, with a change.
_FREE = {
    "rounds", "local-epochs", "batch-size", "lr", "momentum", "weight-decay", "lr-schedule",
    "aggregation", "weighting", "evaluate-before", "client-keys", "dp-clip", "dp-epsilon",
    "dp-delta", "max-update-norm", "max-update-ratio", "precision", "optimizer", "augment", "tuned",
}  # fmt: skip
_FILES = {"data-path", "partition-file", "public-path"}  # given with the command
_BRACES = re.compile(r"\{([a-z0-9-]+)\}")
_LONGEST = 80  # letters of a title
_SWEEP = {"grid", "paired", "title"}


@dataclass(frozen=True)
class Preset:
    """A shipped preset: its title, and the values that each key may have."""

    name: str
    title: str
    values: Mapping[str, Sequence[Any]]
    methods: frozenset[str]


@lru_cache
def presets() -> list[Preset]:
    """The shipped presets that have a title, those of ``compare`` first."""
    made = []
    base = folder("configs")
    for path in sorted([*base.glob("compare/*.yaml"), *base.glob("paper/*.yaml")]):
        content = read_yaml(path)
        grids = content["grid"] if isinstance(content["grid"], list) else [content["grid"]]
        values = {key: [value] for key, value in content.items() if key not in _SWEEP}
        for grid in grids:
            for key, own in grid.items():
                values.setdefault(key, []).extend(own)
        if "models" in values:
            values["models"] = [list(expand(names)) for names in values["models"]]
        name = path.relative_to(base).with_suffix("").as_posix()
        if "title" in content:
            methods = frozenset(map(str, values.get("method", ())))
            made.append(Preset(name, str(content["title"]), values, methods))
    return made


def name_all(settings: Sequence[Setting]) -> None:
    """Give every setting its title, no two the same, and its command."""
    for setting in settings:
        found = _presets_of(setting)
        own = next((run.title for arm in setting.arms for run in arm.ordered() if run.title), "")
        if setting.keys["tuned"]:
            searched = " ".join(f"{key}=V1,V2" for key in setting.keys["tuned"])
            setting.commands = [
                f"fedhet tune PRESET method=M1,M2 {searched} --out tuned.yaml",
                "fedhet sweep tuned.yaml --out DIR",
            ]
        elif found:
            setting.commands = [_sweep(setting, *one) for one in found]
        else:
            setting.commands = [_run(setting)]
        if found and own in {"", found[0][0].title}:
            preset, changes = found[0]
            setting.title = _title(setting, preset.title, changes)
            continue
        if any(own == preset.title for preset in presets()):
            own = ""  # overrides have made another setting of it
        added = {"tuned": setting.keys["tuned"]} if setting.keys["tuned"] else {}
        setting.title = _title(setting, own or "{data}, N = {clients}, C = {fraction}", added)
    _tell_apart(settings)


def _presets_of(setting: Setting) -> list[tuple[Preset, dict[str, Any]]]:
    """The preset with fewest changes and most of the methods, then those of ablations.

    Each with the keys in which the setting differs from it.
    """
    methods = {arm.method for arm in setting.arms}
    own = {key for arm in setting.arms for key in arm.keys}
    found = [
        (preset, changes)
        for preset in presets()
        if (changes := _changes(setting, preset)) is not None and methods & preset.methods
    ]
    found.sort(key=lambda one: (len(one[1]), -len(methods & one[0].methods)))
    return [
        one for i, one in enumerate(found)
        if i == 0 or (len(one[1]) == len(found[0][1]) and own & one[0].values.keys())
    ]  # fmt: skip


def data_name(setting: Setting) -> str:
    """The data set as people write it."""
    return DATA.get(setting.data, setting.data[:1].upper() + setting.data[1:])


def _changes(setting: Setting, preset: Preset) -> dict[str, Any] | None:
    """The keys in which a setting differs from a preset; None if it is not the preset's."""
    filled = _title(setting, preset.title, {})
    if filled.partition(",")[0] != data_name(setting):  # a title begins with its data
        return None
    changes = {}
    for key, value in setting.keys.items():
        wanted = preset.values.get(key, [at_default(key)])
        if key in _FILES or value == SEARCHED or _same(key, value, wanted):
            continue
        folder_of_same = key == "dataset" and value == "image-folder" and setting.data in wanted
        if key not in _FREE and not folder_of_same:
            return None
        changes[key] = value
    return changes


def _same(key: str, value: Any, wanted: Sequence[Any]) -> bool:
    if key == "clients" and 0 in wanted:  # as many as there are
        return True
    if key == "labels" and isinstance(value, dict):
        return any(str(value).replace("'", "") == str(one).replace("'", "") for one in wanted)
    if key == "site":
        return any(
            ([one] if isinstance(one, str) else one) == value for one in wanted if one or not value
        )
    return value in wanted


def _title(setting: Setting, pattern: str, changes: Mapping[str, Any]) -> str:
    keys = {key: plain(value) for key, value in setting.keys.items()}
    keys |= {"data": data_name(setting), "fraction": f"{100 * setting.keys['fraction']:g} %"}
    # No str.format: a title may be a stranger's, and formats know widths of a billion.
    # Every value is cut before it stands there as often as the title asks for it.
    title = _BRACES.sub(
        lambda found: cut(keys.get(found[1], found[0]), _LONGEST), pattern, count=_LONGEST
    )
    return ", ".join([cut(title, _LONGEST), *_said(changes)])


def _said(changes: Mapping[str, Any]) -> list[str]:
    return [
        "tuned" if key == "tuned" else f"{_SHORT.get(key, key)} = {cut(plain(value), _LONGEST)}"
        for key, value in changes.items()
        if key not in {"precision", "dataset"}  # a mark of its own; the title begins with it
    ]


def _tell_apart(settings: Sequence[Setting]) -> None:
    """Settings of one title get the keys in which they differ, or else a number."""
    for title, count in Counter(one.title for one in settings).items():
        same = [one for one in settings if one.title == title]
        if count == 1:
            continue
        differing = [
            key for key in same[0].keys
            if key != "precision" and len({plain(one.keys[key]) for one in same}) > 1
        ]  # fmt: skip
        for one in same:
            said = {key: one.keys[key] for key in differing[:3]}
            one.title = ", ".join([title, *_said(said)])
    seen: Counter[str] = Counter()
    for one in settings:
        seen[one.title] += 1
        if seen[one.title] > 1:
            one.title += f" ({seen[one.title]})"


def _sweep(setting: Setting, preset: Preset, changes: Mapping[str, Any]) -> str:
    given = [_word(key, setting.keys[key]) for key in sorted(_FILES) if setting.keys[key]]
    given += [_word(key, value) for key, value in changes.items()]
    return " ".join([f"fedhet sweep {preset.name}", *given, "--out DIR"])


def _run(setting: Setting) -> str:
    given = [_word(key, value) for key, value in setting.off_default().items()]
    return " ".join(["fedhet run METHOD", *given, "partition-seed=P seed=S"])


def _word(key: str, value: Any) -> str:
    """``key=value`` as one word of a shell on one line: a record's values are anybody's."""
    return shlex.quote(one_line(f"{key}={plain(value)}", None))
