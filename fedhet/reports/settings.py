"""Runs sorted into settings, arms and blocks.

A *setting* is everything in a configuration except the method, its own keys and the seeds: what
methods are compared under. An *arm* is a method with its own keys. A *block* is a pair of
partition seed and seed, which all arms of a setting share. What was run in several precisions is
one setting, in the precision that has most runs; the others are its variants.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedhet.config.checks import GONE
from fedhet.config.load import method_name as known_as
from fedhet.config.registry import Method
from fedhet.config.schema import TUNABLE, RunConfig, kebab
from fedhet.data.inputs import DATASETS
from fedhet.reports import papers
from fedhet.reports.names import exact, known_method, method_name, model_range, plain
from fedhet.reports.runs import LeftOut, Run

Block = tuple[int, int]  # partition seed, seed

SEARCHED = "tuned"  # value of a key that was searched for each method
_SEEDS = {"seed", "partition-seed"}
# What says where and how a run was carried out, not what it computed.
_CARRIED_OUT = {
    "out", "name", "state-dir", "state-backend", "keep-state", "tensorboard", "tracker", "device",
    "actors", "threads", "engine", "round-timeout", "start-timeout", "evaluate-every",
}  # fmt: skip
_COMMON = {
    kebab(name): field.default for name, field in RunConfig.model_fields.items() if name != "params"
}
# Named in a setting's title in its own words; every other key only where it is not the default.
_TITLED = {
    "dataset", "data-path", "clients", "fraction", "partition", "partition-file", "legacy-pfedhn",
    "classes-per-client", "alpha", "models", "model-assignment", "rounds", "local-epochs",
    "batch-size", "lr",
}  # fmt: skip


@dataclass
class Arm:
    """A method with those of its own keys that differ from their defaults, in one setting."""

    method: str
    keys: Mapping[str, Any]
    runs: dict[Block, Run] = field(default_factory=dict)
    failed: list[LeftOut] = field(default_factory=list)
    precision: str = ""  # where it is not the setting's
    searched: Mapping[str, Any] = field(default_factory=dict)  # keys that were, as they were chosen

    @property
    def name(self) -> str:
        """As tables call it: no two arms have the same, of whatever methods."""
        own = ", ".join(f"{key}={exact(value)}" for key, value in sorted(self.keys.items()))
        return method_name(self.method) + (f" ({own})" if own else "")

    @property
    def order(self) -> tuple[int, str, int, str]:
        """The papers' order of methods, then names; a method's defaults before its ablations."""
        known = list(papers.method_names())
        place = known.index(self.method) if self.method in known else len(known)
        return (
            place,
            self.method,
            len(self.keys),
            json.dumps(self.keys, sort_keys=True, default=str),
        )

    @cached_property
    def blocks(self) -> list[Block]:
        """In order."""
        return sorted(self.runs)

    def ordered(self) -> list[Run]:
        """The runs in the order of their blocks."""
        return [self.runs[block] for block in self.blocks]


@dataclass
class Setting:
    """What methods are compared under, with the arms that were run."""

    keys: Mapping[str, Any]
    arms: list[Arm]
    variants: list["Setting"] = field(default_factory=list)  # the same in other precisions
    title: str = ""  # short, no other setting's of the report (:mod:`fedhet.reports.titles`)
    commands: list[str] = field(default_factory=list)  # what makes runs of it

    @cached_property
    def data(self) -> str:
        """The data set by its own name, a folder or file by its own name."""
        if self.keys["dataset"] not in ("image-folder", *DATASETS):
            return str(self.keys["dataset"]).partition(":")[0]
        return Path(str(self.keys["data-path"])).stem.lower() or str(self.keys["dataset"])

    @cached_property
    def slug(self) -> str:
        """A name that no other setting of any report has: it never depends on its neighbours.

        Keys at their defaults are left out of it, so that a key which fedhet gains changes none,
        and so is the precision.
        """
        off = {key: value for key, value in self.off_default().items() if key != "precision"}
        text = json.dumps(off, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:6]
        share = f"{100 * self.keys['fraction']:g}"
        name = f"{self.data}-n{self.keys['clients']}-c{share}-{digest}"
        return re.sub(r"[^a-zA-Z0-9_-]+", "_", name)

    @property
    def federation(self) -> int:
        """N, also where it is as many as there are."""
        return max((run.federation for arm in self.arms for run in arm.runs.values()), default=0)

    @cached_property
    def classes_per_client(self) -> int | None:
        """Classes that every client holds, where that is one number."""
        if self.keys["partition"] == "classes-per-client":
            return int(self.keys["classes-per-client"])
        run = next((run for arm in self.arms for run in arm.runs.values() if run.counts), None)
        if run is None or run.counts is None:
            return None
        held = {len(own) for own in run.counts.clients.values()}
        return held.pop() if len(held) == 1 else None

    @property
    def exact(self) -> bool:
        """In full precision."""
        return bool(self.keys["precision"] == at_default("precision"))

    def off_default(self) -> dict[str, Any]:
        """The keys that are not at their defaults."""
        return {key: value for key, value in self.keys.items() if value != at_default(key)}

    @cached_property
    def conditions(self) -> str:
        """One line that says all that the setting fixes and a reader must know."""
        keys = self.keys
        models = " ".join(model_range(keys["models"]))
        random = ", drawn at random" if keys["model-assignment"] == "random" else ""
        parts = [
            f"{self.data}, N = {keys['clients']}, C = {100 * keys['fraction']:g} %",
            self._dealt(),
            models + random,
            f"E = {keys['local-epochs']}, B = {keys['batch-size']}, lr = {plain(keys['lr'])}, "
            f"T = {keys['rounds']}",
        ]
        extra = [
            f"{key} = {plain(value)}"
            for key, value in self.off_default().items()
            if key not in _TITLED
        ]
        return "; ".join([*parts, *([", ".join(extra)] if extra else [])])

    def _dealt(self) -> str:
        kind = self.keys["partition"]
        if kind == "classes-per-client":
            return f"{self.keys['classes-per-client']} classes per client"
        if kind == "file":
            return f"partition {self.keys['partition-file']}"
        drawn = kind.startswith(("dirichlet", "quantity"))
        alpha = f" {plain(self.keys['alpha'])}" if drawn else ""
        return f"{kind.replace('-', ' ')}{alpha}"

    def blocks(self) -> list[Block]:
        """All blocks of any arm, in order."""
        return sorted({block for arm in self.arms for block in arm.runs})

    def variability(self) -> str:
        """Which variability an interval over the blocks covers, in words."""
        blocks = self.blocks()
        partitions, seeds = ({block[i] for block in blocks} for i in (0, 1))
        if self.keys["partition"] == "file":
            partitions = {0}
        if len(blocks) < 2:
            return "need two blocks: here is one, and nothing is known of other partitions or seeds"
        if len(partitions) > 1 and len(seeds) > 1:
            return f"over {len(blocks)} blocks, each with its own partition and its own seed"
        if len(partitions) > 1:
            return f"over {len(blocks)} partitions of the data, one seed"
        return f"over {len(blocks)} seeds (initialisation, sampling, order), one partition"


def arrange(runs: Sequence[Run], left_out: list[LeftOut]) -> list[Setting]:
    """Settings with their arms, by data, clients and conditions.

    A second run of the same cell is left out: adds it to ``left_out``. Runs that failed are
    noted with the arm that they belong to, if there is one.
    """
    settings: dict[str, Setting] = {}
    for run in runs:
        arm = _arm(settings, run.config, make=True)
        assert arm is not None
        block = _block(run.config)
        if block in arm.runs:
            same = arm.runs[block].summary.get("run_sha256") == run.summary.get("run_sha256")
            what = "the same result as" if same else "ANOTHER result than"
            reason = f"a second run of one cell, with {what} '{arm.runs[block].name}'"
            left_out.append(LeftOut(run.name, reason, run.config))
        else:
            arm.runs[block] = run
    for one in left_out:
        failed = one.config is not None and one.reason.startswith("failed")
        if failed and one.config is not None:
            found = _arm(settings, one.config, make=False)
            if found is not None:
                found.failed.append(one)
    for setting in settings.values():
        _tell_searches_apart(setting.arms)
        setting.arms.sort(key=lambda arm: arm.order)
    return sorted(_one_of_all_precisions(list(settings.values())), key=_natural)


def _tell_searches_apart(arms: Sequence[Arm]) -> None:
    """Arms of one method whose search chose otherwise are called by what it chose."""
    same = Counter((arm.method, json.dumps(arm.keys, default=str)) for arm in arms)
    for arm in arms:
        if same[arm.method, json.dumps(arm.keys, default=str)] > 1:
            arm.keys = {**arm.keys, **arm.searched}


def _one_of_all_precisions(settings: Sequence[Setting]) -> list[Setting]:
    """Of settings that differ in precision alone the one with most runs, fp32 at a tie.

    The others become its variants; an arm that only a variant has is taken from there, marked.
    """
    same: dict[str, list[Setting]] = {}
    for setting in settings:
        same.setdefault(setting.slug, []).append(setting)
    made = []
    for group in same.values():
        group.sort(key=lambda one: (-sum(len(arm.runs) for arm in one.arms), not one.exact))
        chosen, *others = group
        for other in others:
            for arm in other.arms:
                wanted, precision = (arm.method, arm.keys), str(other.keys["precision"])
                own = next((a for a in chosen.arms if (a.method, a.keys) == wanted), None)
                if own is None:
                    chosen.arms.append(replace(arm, precision=precision))
                elif arm.runs and not own.runs:  # there it only failed
                    own.runs, own.precision, own.searched = arm.runs, precision, arm.searched
                    own.failed = [*own.failed, *arm.failed]
        chosen.arms.sort(key=lambda arm: arm.order)
        chosen.variants = others
        made.append(chosen)
    return made


def _arm(settings: dict[str, Setting], config: Mapping[str, Any], *, make: bool) -> Arm | None:
    shared, method, own = split_config(config)
    name = json.dumps(shared, sort_keys=True, default=str)
    if name not in settings:
        if not make:
            return None
        settings[name] = Setting(shared, [])
    arms = settings[name].arms
    chosen = {key: config.get(key) for key in sorted(_searched(config))}
    wanted = (method, own, chosen)
    found = next((arm for arm in arms if (arm.method, arm.keys, arm.searched) == wanted), None)
    if found is None:
        found = Arm(method, own, searched=chosen)
        arms.append(found)
    return found


def split_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """A flat configuration as the setting's keys, the method, and its own keys off default.

    Keys of other versions of fedhet are taken as they come: what is missing has its default. What
    was searched for each method is no part of either; the setting says that it was.
    """
    searched = _searched(config)
    shared = {
        key: config.get(key, at_default(key))
        for key in _COMMON
        if key not in _CARRIED_OUT | _SEEDS | {"method"}
    }
    for key in ("data-path", "partition-file", "public-path"):
        shared[key] = Path(str(shared[key])).name
    shared |= dict.fromkeys(TUNABLE & searched, SEARCHED)
    shared["tuned"] = sorted(TUNABLE & searched)
    method = known_as(str(config.get("method", "fedssa")))
    defaults = own_defaults(method)
    own = {
        key: value
        for key, value in config.items()
        if key not in _COMMON
        and key not in _CARRIED_OUT | _SEEDS | searched
        and (key not in defaults or value != defaults[key])
    }
    return shared, method, own


def _searched(config: Mapping[str, Any]) -> set[str]:
    """The keys in ``tuned``, of somebody's record."""
    found = config.get("tuned")
    return {key for key in found if isinstance(key, str)} if isinstance(found, list) else set()


def own_defaults(method: str) -> dict[str, Any]:
    """A method's own keys with their defaults; none of a method that cannot be imported."""
    known = known_method(method)
    return {} if known is None else {**_defaults_of(known), **GONE.get(method, {})}


@lru_cache
def _defaults_of(known: Method) -> dict[str, Any]:
    fields = known.params.model_fields
    return {kebab(name): _plain(field.default) for name, field in fields.items()}


def _block(config: Mapping[str, Any]) -> Block:
    seed = int(config.get("seed", 0))
    partition = int(config.get("partition-seed", -1))
    return (seed if partition < 0 else partition), seed


def known_keys(key: str, method: str) -> bool:
    """Whether to pass a key on: one that this version has dropped must have been harmless."""
    known = known_method(method)
    own = known.params.model_fields if known is not None else {}
    return key in _COMMON or key in {kebab(name) for name in own} or key not in _CARRIED_OUT


def at_default(key: str) -> Any:
    """The default of a key of every run, as a record has it."""
    return _plain(_COMMON[key])


def _plain(value: Any) -> Any:
    """A default as YAML gives it: lists for tuples, ``8:1:1`` for the split."""
    if isinstance(value, tuple):
        numbers = value and all(isinstance(part, int) for part in value)
        return ":".join(map(str, value)) if numbers else list(value)
    return value


def _natural(setting: Setting) -> tuple[Any, ...]:
    keys = setting.keys
    return setting.data, keys["clients"], keys["fraction"], setting.conditions
