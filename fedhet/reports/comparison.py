"""What the runs of one setting say: every arm beside the others and beside a baseline."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedhet.errors import UserError
from fedhet.records.summary import spread
from fedhet.reports import papers
from fedhet.reports.names import method_name
from fedhet.reports.runs import Run
from fedhet.reports.settings import Arm, Block, Setting, at_default
from fedhet.reports.statistics import (
    ENOUGH,
    Interval,
    Spent,
    at_compute,
    holm,
    shares,
    signed_rank,
    t_interval,
    to_target,
    two_level_bootstrap,
)
from fedhet.reports.validity import means_alone

BASELINE = "standalone"  # what others are compared with unless a method is named


@dataclass(frozen=True)
class Level:
    """How good an arm is: means over its blocks, percent; None where only means are known."""

    accuracy: Interval
    best_validation: float | None
    std: float | None  # this and the next two over clients ever sampled
    p10: float | None
    worst: float | None
    sampled: float | None  # mean over clients ever sampled
    never_sampled: float | None  # clients, mean over blocks


@dataclass
class Paired:
    """An arm beside the baseline, on the blocks and clients that both have."""

    interval: Interval  # of the difference: Student's t over the blocks
    improved: float
    lost: float
    blocks: list[float]
    clients: list[list[float]]
    accuracy: float  # of the arm and of the baseline, means over blocks of these clients' means
    baseline: float
    mixed: bool = False  # the two were run in different precisions
    p: float | None = None
    adjusted: float | None = None

    @cached_property
    def bootstrap(self) -> Interval:
        """The other interval of the difference: two-level bootstrap."""
        return two_level_bootstrap(self.clients)

    @property
    def descriptive(self) -> bool:
        """Too few blocks for a test."""
        return len(self.blocks) < ENOUGH

    @property
    def sign(self) -> int:
        """1 or -1 where the t interval lies above or below zero, else 0."""
        low, high = self.interval.low, self.interval.high
        if low is None or high is None:
            return 0
        return (low > 0) - (high < 0)


@dataclass(frozen=True)
class Cost:
    """Per client and round, and what the whole run's training took; means over blocks."""

    floats_up: float
    floats_down: float
    gflops: float
    relative: float | None  # the same, baseline = 1, on shared blocks
    equal_accuracy: float | None  # at the budget of the cheapest arm
    equal_round: float | None


@dataclass(frozen=True)
class Reached:
    """When a target was reached, means over the blocks that did."""

    blocks: int
    of: int
    rounds: float | None
    floats: float | None
    gflops: float | None


class Comparison:
    """One setting with its baseline."""

    def __init__(self, setting: Setting, baseline: Arm | None) -> None:
        self.setting = setting
        self.baseline = baseline
        self.arms = [arm for arm in setting.arms if arm.runs]
        self.levels = [level(arm) for arm in self.arms]
        self.paired = [
            None if baseline is None or arm is baseline else pair(arm, baseline)
            for arm in self.arms
        ]

    @cached_property
    def shown(self) -> dict[str, int]:
        """Rows of what is said over settings, as places in ``arms``: one for a method.

        A method's arm with its defaults, its ablations left to the details; where that was not run,
        its only arm, or else all of them by their own names.
        """
        made: dict[str, int] = {}
        for method in dict.fromkeys(arm.method for arm in self.arms):
            own = [i for i, arm in enumerate(self.arms) if arm.method == method]
            plain = [i for i in own if not self.arms[i].keys]
            if len(plain or own) == 1:
                made[method_name(method)] = (plain or own)[0]
            else:
                made |= {self.arms[i].name: i for i in own}
        return made

    @cached_property
    def best(self) -> tuple[str, frozenset[str]]:
        """The row of ``shown`` with the highest mean, and those not told from it.

        Not told: Student's t interval of the difference over shared blocks holds zero. Empty where
        the highest has a single block, of which nothing can be told.
        """
        rows = {name: self.arms[i] for name, i in self.shown.items()}
        top = max(self.shown, key=lambda name: self.levels[self.shown[name]].accuracy.mean)
        if len(rows[top].blocks) < 2:
            return "", frozenset()
        beside = {
            name: t_interval(found)
            for name, arm in rows.items()
            if name != top and (found := block_differences(arm, rows[top]))
        }
        return top, frozenset(name for name, found in beside.items() if found.holds(0.0))

    @cached_property
    def costs(self) -> list[Cost]:
        """Of every arm."""
        budgets = {
            block: min(_total(arm.runs[block]) for arm in self.arms if block in arm.runs)
            for block in self.setting.blocks()
        }
        return [_cost(arm, self.baseline, budgets) for arm in self.arms]

    def targets(self) -> list[float]:
        """The papers' targets, then what the baseline ends with, in whole percent."""
        found = {*papers.targets(self.setting.data, self.setting.keys["clients"]), self.own_target}
        return sorted({one for one in found if one is not None and one > 0}, reverse=True)

    @property
    def own_target(self) -> float | None:
        """What the baseline ends with in its worst block, in whole percent."""
        if self.baseline is None:
            return None
        return float(math.floor(min(final(run) for run in self.baseline.ordered())))

    def reached(self, arm: Arm, target: float) -> Reached:
        """Rounds, floats and FLOPs of all clients until the mean accuracy reached ``target``."""
        runs = arm.ordered()
        hits = [spent for run in runs if (spent := to_target(run.rounds, target)) is not None]
        return Reached(
            len(hits), len(runs), _mean([float(s.round) for s in hits]),
            _mean([s.floats for s in hits]), _mean([s.flops / 1e9 for s in hits]),
        )  # fmt: skip

    def printed(self, arm: Arm) -> papers.Printed | None:
        """The paper's number for an arm of this setting."""
        setting = self.setting
        where = {
            "data": setting.data,
            "clients": setting.keys["clients"],
            "fraction": setting.keys["fraction"],
            "classes-per-client": setting.classes_per_client,
        }
        return papers.printed(arm.method, arm.keys, where, list(setting.keys["models"]))


def compare(settings: Sequence[Setting], baseline: str = "") -> list[Comparison]:
    """Every setting beside the arm of method ``baseline`` with its default keys, where it has one.

    p values are adjusted over all comparisons of all settings. Without ``baseline`` it is
    :data:`BASELINE`, where it was run. Raises UserError if no setting knows the one asked for.
    """
    made = [Comparison(setting, _baseline(setting, baseline or BASELINE)) for setting in settings]
    made = [one for one in made if one.arms]
    methods = {arm.method for one in made for arm in one.arms}
    if baseline and baseline not in methods:
        raise UserError(
            f"baseline: no run has method '{baseline}'; methods: {', '.join(sorted(methods))}"
        )
    pairs = [pair for one in made for pair in one.paired if pair is not None]
    for one, adjusted in zip(pairs, holm([pair.p for pair in pairs]), strict=True):
        one.adjusted = adjusted
    return made


def longest(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Of settings that differ in rounds alone, and so share their first rounds, the longest.

    They share none where a schedule of the learning rate spans all rounds, or noise is chosen so
    that all rounds together keep to an epsilon.
    """
    found: dict[str, Comparison] = {}
    for one in comparisons:
        keys = {k: v for k, v in one.setting.keys.items() if k != "precision"}
        if keys["lr-schedule"] == at_default("lr-schedule") and not keys["dp-epsilon"]:
            del keys["rounds"]
        name = json.dumps(keys, sort_keys=True, default=str)
        kept = found.get(name)
        if kept is None or one.setting.keys["rounds"] > kept.setting.keys["rounds"]:
            found[name] = one
    return [one for one in comparisons if one in found.values()]


def _baseline(setting: Setting, method: str) -> Arm | None:
    arms = [arm for arm in setting.arms if arm.method == method and arm.runs]
    return min(arms, key=lambda arm: (len(arm.keys), arm.order), default=None)


def level(arm: Arm) -> Level:
    """How good an arm is."""
    runs = arm.ordered()
    told = [run for run in runs if not means_alone(run.summary)]
    spreads = [spread(trained(run)) for run in told]
    best = [run.summary.get("best_validation_test_accuracy_mean") for run in runs]
    never = [never_sampled(run) for run in told]
    return Level(
        t_interval([final(run) for run in runs]),
        _mean([value for value in best if value is not None]),
        _mean([one["std"] for one in spreads]),
        _mean([one["p10"] for one in spreads]),
        _mean([one["min"] for one in spreads]),
        _mean([value for run in runs if (value := _sampled(run)) is not None]),
        _mean(never),
    )


def final(run: Run) -> float:
    """Mean test accuracy over all clients after the last round, percent."""
    return float(run.evaluated[-1]["test_accuracy_mean"])


def _sampled(run: Run) -> float | None:
    return _mean([s.test for s in run.clients if s.generation > 0 and s.test is not None])


def never_sampled(run: Run) -> int:
    """Clients that never took part."""
    untrained = sum(score.generation == 0 for score in run.clients)
    if run.config.get("evaluate-all", True):
        return untrained
    return untrained + run.federation - len(run.clients)


def trained(run: Run) -> list[float]:
    """Accuracy of the clients that were ever sampled; of all where none was."""
    tests = [s.test for s in run.clients if s.generation > 0 and s.test is not None]
    return tests or [s.test for s in run.clients if s.test is not None]


def pair(arm: Arm, baseline: Arm) -> Paired | None:
    """An arm beside the baseline; None if they share no block."""
    shared = [block for block in arm.blocks if block in baseline.runs]
    both = [_both(arm.runs[block], baseline.runs[block]) for block in shared]
    both = [own for own in both if own]
    if not both:
        return None
    clients = [[ours - theirs for ours, theirs in own] for own in both]
    means = [float(np.mean(own)) for own in clients]
    improved, lost = shares([value for own in clients for value in own])
    own, base = (float(np.mean([np.mean(block, axis=0)[i] for block in both])) for i in (0, 1))
    return Paired(
        t_interval(means), improved, lost, means, clients, own, base,
        arm.precision != baseline.precision, signed_rank(means),
    )  # fmt: skip


def block_differences(arm: Arm, other: Arm) -> list[float]:
    """Points by which ``arm`` is better, per block that both have, on the clients of both."""
    both = [
        _both(arm.runs[block], other.runs[block]) for block in arm.blocks if block in other.runs
    ]
    return [float(np.mean([ours - theirs for ours, theirs in own])) for own in both if own]


def _both(run: Run, base: Run) -> list[tuple[float, float]]:
    """Accuracy of every client beside the baseline's, percent; clients that both evaluated."""
    other = {score.client: score.test for score in base.clients}
    pairs = [(score.test, other.get(score.client)) for score in run.clients]
    return [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]


def _total(run: Run) -> float:
    return sum(float(record["train_flops"] or 0.0) for record in run.rounds)


def per_reply(run: Run, key: str) -> float:
    """A count of the rounds' lines, such as ``uplink_floats``, per reply: client and round."""
    replied = sum(record["replied"] for record in run.rounds)
    total = sum(float(record[key] or 0.0) for record in run.rounds)
    return total / max(1.0, float(replied))


def _cost(arm: Arm, base: Arm | None, budgets: dict[Block, float]) -> Cost:
    runs = arm.ordered()
    equal: list[Spent] = []
    for block in arm.blocks:
        found = at_compute(arm.runs[block].rounds, budgets[block])
        if found is not None:
            equal.append(found)
    shared = [block for block in arm.blocks if base is not None and block in base.runs]
    flops = {block: per_reply(arm.runs[block], "train_flops") for block in arm.blocks}
    theirs = {block: per_reply(base.runs[block], "train_flops") for block in shared if base}
    return Cost(
        float(np.mean([per_reply(run, "uplink_floats") for run in runs])),
        float(np.mean([per_reply(run, "downlink_floats") for run in runs])),
        float(np.mean(list(flops.values()))) / 1e9,
        _mean([flops[block] / theirs[block] for block in shared if theirs[block]]),
        _mean([spent.accuracy for spent in equal]),
        _mean([float(spent.round) for spent in equal]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
