"""Sort runs into settings, variants and blocks, and name them.

A *setting* is everything in a configuration except the method, its own keys and the seeds: the
conditions under which methods are compared. A *variant* is a method with those of its own keys
that are not at their defaults. A *block* is a pair of partition seed and seed, which all variants
of a setting share. Runs in several precisions belong to one setting.

No code that a record names is imported: a method ``module:NAME`` is known by that name alone.
"""

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedhet.config.registry import METHODS, SPELT, find_method
from fedhet.config.registry import method_name as known_as
from fedhet.config.schema import TUNABLE, RunConfig, as_yaml, kebab
from fedhet.data.inputs import DATASETS
from fedhet.errors import UserError, one_line
from fedhet.reports.reading import FILES, LeftOut, RunRecord

Block = tuple[int, int]  # partition seed, seed

SEARCHED = "tuned"  # value of a key that was searched for each method
_DATA = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fashion-mnist": "Fashion-MNIST",
    "office_caltech": "Office-Caltech", "ag_news": "AG News", "har": "HAR",
}  # fmt: skip
# Seeds, and keys that say where and how a run was carried out or told of, not what it computed.
IN_NO_SETTING = {
    "seed", "partition-seed",
    "out", "name", "state-dir", "keep-state", "keep-best", "keep-predictions",
    "state-backend", "hide-classes",  # of older records
    "metric", "tensorboard", "tracker", "device", "actors", "threads", "engine", "round-timeout",
    "start-timeout", "evaluate-every",
}  # fmt: skip
_COMMON = {
    kebab(name): field.default for name, field in RunConfig.model_fields.items() if name != "params"
}
_SYMBOLS = {  # the papers' symbols, and keys that a setting's conditions always name
    "N": "clients", "C": "fraction", "models": "models", "E": "local-epochs", "B": "batch-size",
    "lr": "lr", "T": "rounds",
}  # fmt: skip
_SAID = {*_SYMBOLS.values(), "dataset", "data-path", "classes-per-client", "alpha"}
_BRACES = re.compile(r"\{([a-z0-9-]+)\}")
_COUNTED = re.compile(r"\b(\d+) clients\b")
LETTERS = 80  # of a title


@dataclass
class Setting:
    """The conditions of a comparison; ``keys`` are all shared keys with their values."""

    keys: Mapping[str, Any]
    title: str = ""  # short; no other setting of the report has it

    @cached_property
    def data(self) -> str:
        """The data set by its own name, a folder or file by its own name."""
        if self.keys["dataset"] not in ("image-folder", *DATASETS):
            return str(self.keys["dataset"]).partition(":")[0]
        return Path(str(self.keys["data-path"])).stem.lower() or str(self.keys["dataset"])

    @cached_property
    def slug(self) -> str:
        """Return a name that depends on the setting alone, for anchors and files.

        Keys at their defaults are left out, so that a new key of fedhet changes no name.
        """
        off = {key: value for key, value in self.off_default().items() if key != "precision"}
        digest = hashlib.sha256(json.dumps(off, sort_keys=True, default=str).encode()).hexdigest()
        share = f"{100 * self.keys['fraction']:g}"
        name = f"{self.data[:60]}-n{self.keys['clients']}-c{share}-{digest[:6]}"
        return re.sub(r"[^a-zA-Z0-9_-]+", "_", name)

    def off_default(self) -> dict[str, Any]:
        """Return the keys that are not at their defaults."""
        return {key: value for key, value in self.keys.items() if value != at_default(key)}

    def command(self, method: str, block: str) -> str:
        """Return the command that makes one run of the setting, without what was searched."""
        given = [
            shlex.quote(one_line(f"{key}={plain(value)}", None))
            for key, value in self.off_default().items()
            if value != SEARCHED and key != "tuned"
        ]
        name = method if method in METHODS else f"fedssa method={method}"
        partition, _, seed = block.partition("/")
        return " ".join([f"fedhet run {name}", *given, f"partition-seed={partition} seed={seed}"])

    @cached_property
    def conditions(self) -> str:
        """One line with all that the setting fixes and a reader must know."""
        keys, off = self.keys, self.off_default()
        said = {name: plain(keys[key]) for name, key in _SYMBOLS.items()}
        said["C"] = f"{100 * keys['fraction']:g} %"
        said |= {key: plain(off[key]) for key in off if key not in _SAID}
        if str(keys["partition"]).startswith(("dirichlet", "quantity")):
            said["alpha"] = plain(keys["alpha"])
        elif keys["partition"] == "classes-per-client":
            said["classes per client"] = plain(keys["classes-per-client"])
        return ", ".join([self.data, *(f"{name} = {value}" for name, value in said.items())])

    @cached_property
    def whole(self) -> str:
        """A text that is equal for settings that differ only in the number of rounds.

        The shorter of them is the beginning of the longer, unless a schedule of the learning rate
        or the noise of a privacy budget is spread over all rounds.
        """
        keys = {k: v for k, v in self.keys.items() if k != "precision"}
        if keys["lr-schedule"] == at_default("lr-schedule") and not keys["dp-epsilon"]:
            del keys["rounds"]
        return json.dumps(keys, sort_keys=True, default=str)


@dataclass
class Placed:
    """A run with its place: setting, method, own keys off default, block, precision."""

    run: RunRecord
    setting: Setting
    method: str
    keys: dict[str, Any]
    main: bool = True  # False: another precision than the one that the comparison is in

    @property
    def variant(self) -> str:
        """The name in tables; no two variants of a setting share one."""
        own = ", ".join(f"{key}={plain(value)}" for key, value in sorted(self.keys.items()))
        return method_name(self.method) + (f" ({own})" if own else "")

    @property
    def block(self) -> Block:
        """Partition seed and seed."""
        seed = int(self.run.config.get("seed", 0))
        partition = int(self.run.config.get("partition-seed", -1))
        return (seed if partition < 0 else partition), seed

    @property
    def precision(self) -> str:
        """The precision that the run was made in."""
        return str(self.run.config.get("precision", at_default("precision")))

    @property
    def order(self) -> tuple[Any, ...]:
        """Settings by data and size, the papers' order of methods, defaults before ablations."""
        keys = self.setting.keys
        place = list(SPELT).index(self.method) if self.method in SPELT else len(SPELT)
        own = len(self.keys), json.dumps(self.keys, sort_keys=True)
        return (self.setting.data, keys["clients"], keys["fraction"], self.setting.conditions,
                place, self.method, own, self.block)  # fmt: skip


def arrange(runs: Sequence[RunRecord], left_out: list[LeftOut]) -> list[Placed]:
    """Place every run; a second one of its setting, variant and block is added to ``left_out``."""
    found = [_place(run) for run in runs]
    _drop_constant(found)
    first: dict[tuple[str, str, Block, str], Placed] = {}
    for one in found:
        cell = one.setting.slug, one.variant, one.block, one.precision
        other = first.setdefault(cell, one)
        if other is not one:
            same = other.run.summary.get("run_sha256") == one.run.summary.get("run_sha256")
            what = "the same result as" if same else "ANOTHER result than"
            reason = f"a second run of one cell, with {what} '{other.run.name}'"
            left_out.append(LeftOut(one.run.name, reason))
    left_out.sort()
    placed = list(first.values())
    slugs = dict.fromkeys(one.setting.slug for one in placed)
    together = [[one for one in placed if one.setting.slug == slug] for slug in slugs]
    for own in together:
        _choose_precision(own)
        _name(own)
    _tell_titles_apart([own[0].setting for own in together])
    return sorted(placed, key=lambda one: one.order)


def _place(run: RunRecord) -> Placed:
    """Split a flat configuration into the setting's keys and the method's own that are not default.

    What is missing in a record of another version has its default; a key that this version lacks
    counts as absent if it is off (false, 0, empty). What was searched for each
    method belongs to neither; the setting says that it was searched.
    """
    config = run.config
    told = config.get("tuned")
    searched = {k for k in told if isinstance(k, str)} if isinstance(told, list) else set()
    shared = {
        key: config.get(key, at_default(key))
        for key in _COMMON
        if key not in IN_NO_SETTING | {"method"}
    }
    shared |= {key: Path(str(shared[key])).name for key in FILES}
    shared |= dict.fromkeys(TUNABLE & searched, SEARCHED)
    shared["tuned"] = sorted(TUNABLE & searched)
    method = known_as(str(config.get("method", "fedssa")))
    defaults = own_defaults(method)
    own = {
        key: value
        for key, value in config.items()
        if key not in _COMMON
        and key not in IN_NO_SETTING | searched
        and (value != defaults[key] if key in defaults else value or ":" in method)
    }
    return Placed(run, Setting(shared), method, own)


def _drop_constant(found: Sequence[Placed]) -> None:
    """Of a method whose defaults are unknown, keep the keys in which its runs differ."""
    unknown: dict[str, list[Placed]] = {}
    for one in found:
        if not own_defaults(one.method) and one.keys:
            unknown.setdefault(one.method, []).append(one)
    for group in unknown.values():
        for key in {key for one in group for key in one.keys}:
            if len({json.dumps(one.keys.get(key)) for one in group}) == 1:
                for one in group:
                    del one.keys[key]


def _choose_precision(own: Sequence[Placed]) -> None:
    """Compare a setting's runs in the precision that has most of them, fp32 at a tie.

    A variant that was run only in other precisions is compared in one of those.
    """
    runs = Counter(one.precision for one in own)
    ranked = sorted(runs, key=lambda p: (-runs[p], p != at_default("precision"), p))
    main = next(one.setting for one in own if one.precision == ranked[0])
    for one in own:
        made = {other.precision for other in own if other.variant == one.variant}
        one.setting = main
        one.main = one.precision == next(p for p in ranked if p in made)


def _name(own: Sequence[Placed]) -> None:
    """Give a setting the title of its runs' preset, if that fits, or one made from its keys."""
    setting = own[0].setting
    count = str(setting.keys["clients"])
    titles = [
        one.run.title for one in own
        if one.run.title and ((told := _COUNTED.search(one.run.title)) is None or told[1] == count)
    ]  # fmt: skip
    setting.title = _filled(setting, [*titles, "{data}, N = {clients}, C = {fraction}"][0])
    if setting.keys["tuned"] and SEARCHED not in setting.title:
        setting.title += f", {SEARCHED}"


def _tell_titles_apart(settings: Sequence[Setting]) -> None:
    """Add to equal titles the keys in which their settings differ."""
    symbols = {key: symbol for symbol, key in _SYMBOLS.items()}
    for title, count in Counter(one.title for one in settings).items():
        same = [one for one in settings if one.title == title]
        differing = [
            key for key in same[0].keys
            if key != "precision" and len({plain(one.keys[key]) for one in same}) > 1
        ]  # fmt: skip
        for setting in same if count > 1 else []:
            said = [f"{symbols.get(k, k)} = {cut(plain(setting.keys[k]))}" for k in differing[:3]]
            setting.title = ", ".join([title, *said])
    told = Counter[str]()
    for setting in settings:  # they may differ in a fourth key alone
        told[setting.title] += 1
        if (number := told[setting.title]) > 1:
            setting.title += f" ({number})"


def _filled(setting: Setting, pattern: str) -> str:
    """Fill in keys in braces. No ``str.format``: a stranger's title could ask for any width."""
    keys = {key: plain(value) for key, value in setting.keys.items()}
    data = _DATA.get(setting.data, setting.data[:1].upper() + setting.data[1:])
    keys |= {"data": data, "fraction": f"{100 * setting.keys['fraction']:g} %"}
    shown = _BRACES.sub(lambda key: cut(keys.get(key[1], key[0])), pattern[:LETTERS])
    return cut(one_line(shown, None))


# --- names ---------------------------------------------------------------------------------------


def method_name(method: str) -> str:
    """Return a method's spelling: its authors', or the name that it is run by."""
    if method in SPELT:
        return SPELT[method]
    module, _, name = method.partition(":")
    shown = module if name == "METHOD" and module not in SPELT else method
    return shown if re.fullmatch(r"[^\W_][\w.:-]*", shown) else repr(shown)


@lru_cache
def own_defaults(method: str) -> dict[str, Any]:
    """Return a method's own keys with their defaults; none of ``module:NAME`` and unknown ones."""
    try:
        fields = {} if ":" in method else find_method(method).params.model_fields
    except UserError:
        return {}
    return {kebab(name): as_yaml(one.default) for name, one in fields.items()}


def at_default(key: str) -> Any:
    """Return the default of a key of every run, as a record has it."""
    return as_yaml(_COMMON[key])


def plain(value: Any) -> str:
    """Return a value as it is written on the command line; a mapping as JSON, which YAML reads."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def cut(text: str, letters: int = LETTERS) -> str:
    """Shorten a text that is too long for its place."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
