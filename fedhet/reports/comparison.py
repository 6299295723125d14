"""Compare the arms of a setting: means with intervals, paired differences, costs.

A block is a pair of partition and seed that all arms share: the unit of replication. Clients of
one block are not independent runs, so no interval takes them for such.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import stats

from fedhet.config.schema import LOWER, MAJORITY, METRICS
from fedhet.errors import UserError
from fedhet.reports.settings import Setting, at_default, method_name

BASELINE = "standalone"  # what others are compared with unless a method is named
LEVEL = 0.95
_EXACT = 50  # differences up to which the distribution is counted out
ENOUGH = 5  # blocks below which numbers are descriptive and nothing is tested


STATISTICS = ["count", "mean", "std"]


def intervals(found: pd.DataFrame) -> pd.DataFrame:
    """Return blocks, mean, low and high: Student's t at :data:`LEVEL`.

    ``found`` has the columns :data:`STATISTICS`. ``low`` and ``high`` are missing for a single
    block, which has no interval.
    """
    spare = found["count"] - 1
    half = stats.t.ppf((1 + LEVEL) / 2, spare.where(spare > 0)) * found["std"]
    half = half / np.sqrt(found["count"])
    low, high = found["mean"] - half, found["mean"] + half
    return pd.DataFrame({"blocks": found["count"], "mean": found["mean"], "low": low, "high": high})


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; NaN below :data:`ENOUGH` differences.

    Differences of zero are dropped; if all are zero, p is 1.
    """
    data = np.asarray(differences, dtype=float)
    if len(data) < ENOUGH:
        return math.nan
    data = data[data != 0]
    if not len(data):
        return 1.0
    if len(data) > _EXACT:
        return float(stats.wilcoxon(data).pvalue)
    ranks = np.rint(2 * stats.rankdata(np.abs(data))).astype(int)  # scipy takes seconds with ties
    ways = np.ones(1)  # of every sum of the ranks that have one sign
    for rank in ranks:
        ways = np.append(ways, np.zeros(rank)) + np.append(np.zeros(rank), ways)
    smaller = min(ranks[data < 0].sum(), ranks[data > 0].sum())
    return min(1.0, 2.0 * float(ways[: smaller + 1].sum() / ways.sum()))


def holm(values: pd.Series) -> pd.Series:
    """Holm's step-down adjustment of the p values that are there."""
    known = values.dropna().sort_values()
    factors = np.arange(len(known), 0, -1)
    adjusted = np.maximum.accumulate(np.minimum(1.0, known.to_numpy() * factors))
    return pd.Series(adjusted, index=known.index).reindex(values.index)


_NOTHING = pd.DataFrame(columns=STATISTICS, dtype=float)


class Comparison:
    """One setting: its arms beside each other and beside the baseline.

    ``runs``, ``rounds`` and ``clients`` are the frames of the runs that are compared; ``others``
    are runs in another precision. ``metric`` is the headline, ``second`` the figure beside it.
    """

    def __init__(
        self, setting: Setting, runs: pd.DataFrame, rounds: pd.DataFrame, clients: pd.DataFrame,
        baseline: str, failed: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.setting, self.failed = setting, failed
        self.counts: pd.DataFrame | None = None  # training examples by client and class
        self.every = runs, clients
        self.runs, self.rounds, self.clients = (
            frame[frame["compared"]] for frame in (runs, rounds, clients)
        )
        self.arms: list[str] = list(dict.fromkeys(self.runs["arm"]))
        own = [arm for arm in self.arms if self._method(arm) == baseline]
        self.baseline = min(
            own, key=lambda arm: (arm != method_name(baseline), len(arm)), default=""
        )
        asked = set(self.runs.get("metric", pd.Series(["accuracy"])).fillna("accuracy"))
        known = [
            name for name in METRICS if self.runs[name].notna().all() and f"test_{name}" in clients
        ]
        self.metric = next(iter(asked)) if len(asked) == 1 and asked <= set(known) else "accuracy"
        beside = [n for n in ("balanced_accuracy", "accuracy") if n in known and n != self.metric]
        self.second = beside[0] if beside else ""

    def _method(self, arm: str) -> str:
        return str(self.runs.loc[self.runs["arm"] == arm, "method"].iloc[0])

    @property
    def sign(self) -> int:
        """-1 where less of the metric is better, else 1."""
        return -1 if self.metric in LOWER else 1

    @cached_property
    def blocks(self) -> list[str]:
        """All blocks of any arm."""
        return sorted(self.runs["block"].unique())

    @cached_property
    def precision(self) -> dict[str, str]:
        """The precision of every arm."""
        if "precision" not in self.runs:
            return dict.fromkeys(self.arms, str(at_default("precision")))
        return dict(self.runs.groupby("arm")["precision"].first().fillna(at_default("precision")))

    @cached_property
    def shown(self) -> dict[str, str]:
        """Rows of what is said over settings, with their arm: one for a method.

        That is the arm with the method's defaults or its only one; its ablations are left to the
        details. Where neither is the case, every arm is a row of its own.
        """
        made: dict[str, str] = {}
        for method in dict.fromkeys(self.runs["method"]):
            own = list(dict.fromkeys(self.runs.loc[self.runs["method"] == method, "arm"]))
            plain = [arm for arm in own if arm == method_name(method)]
            chosen = plain or own
            made |= {method_name(method): chosen[0]} if len(chosen) == 1 else {a: a for a in own}
        return made

    @cached_property
    def levels(self) -> pd.DataFrame:
        """Per arm: mean with interval, and what is over clients that were ever sampled."""
        by_arm = self.runs.groupby("arm")
        made = intervals(by_arm[self.metric].agg(STATISTICS))
        best = "accuracy_best_validation" if self.metric == "accuracy" else "best_validation"
        made["best_validation"] = by_arm[best].mean()
        own = self.clients[self.clients["generation"] > 0]
        own = own if len(own) else self.clients
        over = own.groupby(["arm", "block"])[f"test_{self.metric}"]
        made["sampled"] = over.mean().groupby("arm").mean()
        made["std"] = over.std(ddof=0).groupby("arm").mean()
        made["p10"] = over.quantile(0.1).groupby("arm").mean()
        worst = over.max() if self.sign < 0 else over.min()
        made["worst"] = worst.groupby("arm").mean()
        made["never_sampled"] = by_arm["never_sampled"].mean()
        made[[*METRICS, MAJORITY]] = by_arm[[*METRICS, MAJORITY]].mean()
        return made.reindex(self.arms)

    @cached_property
    def wide(self) -> pd.DataFrame:
        """The headline of every client: rows are blocks and clients, columns arms."""
        known = self.clients.set_index(["block", "client", "arm"])[f"test_{self.metric}"]
        return known.unstack("arm").reindex(columns=self.arms)

    def gaps(self, base: str) -> pd.DataFrame:
        """Every arm less ``base``, client by client: those that both evaluated."""
        return self.wide.sub(self.wide[base], axis=0).drop(columns=base).dropna(axis=1, how="all")

    def differences(self, metric: str) -> pd.Series:
        """Per run, by its number: the mean difference to the baseline over shared clients."""
        column = f"test_{metric}"
        base = self.clients[self.clients["arm"] == self.baseline]
        joined = self.clients[self.clients["arm"] != self.baseline].merge(
            base[["block", "client", column]], on=["block", "client"], suffixes=("", "_base")
        )
        return (joined[column] - joined[f"{column}_base"]).groupby(joined["number"]).mean()

    @cached_property
    def paired(self) -> pd.DataFrame:
        """Per arm beside the baseline: interval over blocks, shares of clients, p.

        ``better`` and ``worse`` are percent of clients, all blocks together.
        """
        gaps = self.gaps(self.baseline) if self.baseline else self.wide.iloc[:, :0]
        blocks = gaps.groupby("block").mean()
        made = intervals(blocks.agg(STATISTICS).T if len(gaps.columns) else _NOTHING)
        improved, known = self.sign * gaps, gaps.count()
        made["better"] = 100 * (improved > 0).sum() / known
        made["worse"] = 100 * (improved < 0).sum() / known
        made["p"] = [signed_rank(blocks[arm].dropna()) for arm in made.index]
        made["values"] = [blocks[arm].dropna().tolist() for arm in made.index]
        made["clients"] = [gaps[arm].dropna().to_numpy() for arm in made.index]
        made["sign"] = self.sign * ((made["low"] > 0).astype(int) - (made["high"] < 0).astype(int))
        return made

    @cached_property
    def best(self) -> tuple[str, frozenset[str]]:
        """The row of ``shown`` with the best mean, and those not told from it.

        Not told: the interval of the paired difference holds zero. Empty where the best has a
        single block, of which nothing can be told.
        """
        means = {row: self.sign * self.levels["mean"][arm] for row, arm in self.shown.items()}
        top = max(means, key=lambda row: means[row])
        if self.levels["blocks"][self.shown[top]] < 2:
            return "", frozenset()
        blocks = self.gaps(self.shown[top]).groupby("block").mean()
        found = intervals(blocks.agg(STATISTICS).T if len(blocks.columns) else _NOTHING)
        undecided = found.index[(found["low"] <= 0) & (found["high"] >= 0)]
        return top, frozenset(row for row, arm in self.shown.items() if arm in undecided)

    @cached_property
    def course(self) -> pd.DataFrame:
        """The rounds with what was spent until then: ``floats`` and ``flops`` of all clients."""
        made = self.rounds.sort_values(["number", "round"])
        sent = made["uplink_floats"] + made["downlink_floats"]
        by_run = made["number"]
        spent = {
            "floats": sent.groupby(by_run).cumsum(),
            "flops": made["train_flops"].groupby(by_run).cumsum(),
        }
        return made.assign(**spent, figure=made[f"test_{self.metric}_mean"]).dropna(subset="figure")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Per arm: floats and GFLOPs of a client and round, and the figure at equal compute.

        Every arm gets the training FLOPs that the cheapest of the same block spent in all rounds.
        """
        by_arm = self.runs.groupby("arm")
        made = by_arm[["floats_up", "floats_down", "gflops"]].mean()
        made["floats"] = made["floats_up"] + made["floats_down"]
        base = self.runs[self.runs["arm"] == self.baseline].set_index("block")["gflops"]
        times = self.runs["gflops"] / self.runs["block"].map(base.replace(0, np.nan))
        made["relative"] = times.groupby(self.runs["arm"]).mean()
        total = self.rounds.groupby(["number", "block"])["train_flops"].sum()
        budget = total.groupby("block").min()
        course = self.course
        cheap = course[course["flops"] <= course["block"].map(budget) * (1 + 1e-9)]
        last = cheap.groupby("number")[["arm", "figure", "round"]].last().groupby("arm")
        made[["equal_figure", "equal_round"]] = last[["figure", "round"]].mean()
        return made.reindex(self.arms)

    def reached(self, target: float) -> pd.DataFrame:
        """Per arm: runs that reached a target; mean rounds, floats and FLOPs until then."""
        hit = self.course[self.sign * (self.course["figure"] - target) >= 0]
        first = hit.groupby("number")[["arm", "round", "floats", "flops"]].first().groupby("arm")
        made = first[["round", "floats", "flops"]].mean()
        made["blocks"] = first.size()
        return made.reindex(self.arms)

    @property
    def own_target(self) -> float | None:
        """What the baseline ends with in its worst block, in whole percent."""
        if not self.baseline or self.metric != "accuracy":
            return None
        return float(
            math.floor(self.runs.loc[self.runs["arm"] == self.baseline, self.metric].min())
        )


def both(left: pd.Series, right: pd.Series) -> pd.DataFrame:
    """Join two series of clients by block and client; ``difference`` is left less right."""
    made = pd.DataFrame({"left": left, "right": right}).dropna()
    return made.assign(difference=made["left"] - made["right"])


def compare(
    settings: Mapping[str, Setting], runs: pd.DataFrame, rounds: pd.DataFrame,
    clients: pd.DataFrame, failed: Mapping[tuple[str, str], int], baseline: str = "",
) -> list[Comparison]:  # fmt: skip
    """Compare the arms of every setting; raise UserError if no run has the method ``baseline``."""
    methods = sorted(set(runs["method"]))
    if baseline and baseline not in methods:
        raise UserError(f"baseline: no run has method '{baseline}'; methods: {', '.join(methods)}")
    runs_of, rounds_of, clients_of = (
        dict(iter(frame.groupby("setting_id"))) for frame in (runs, rounds, clients)
    )
    return [
        Comparison(
            setting, runs_of[slug], rounds_of[slug], clients_of[slug], baseline or BASELINE,
            {arm: n for (at, arm), n in failed.items() if at == slug},
        )
        for slug, setting in settings.items()
    ]  # fmt: skip


def adjust(comparisons: Sequence[Comparison]) -> None:
    """Add to every table of paired differences p values adjusted over all comparisons."""
    together = pd.concat({i: one.paired["p"] for i, one in enumerate(comparisons)})
    adjusted = holm(together.astype(float))
    for i, one in enumerate(comparisons):
        one.paired["adjusted"] = adjusted[i] if len(one.paired) else []


def longest(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Of settings that differ in rounds alone, and so share their first rounds, the longest."""
    kept: dict[str, Comparison] = {}
    for one in comparisons:
        other = kept.setdefault(one.setting.whole, one)
        if one.setting.keys["rounds"] > other.setting.keys["rounds"]:
            kept[one.setting.whole] = one
    return [one for one in comparisons if kept[one.setting.whole] is one]


def in_order(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the rows of all settings by their mean rank, 0 the best, 1 the last of a setting."""
    ranks: dict[str, list[float]] = {}
    counted = longest(comparisons)
    for one in [*counted, *(one for one in comparisons if one not in counted)]:
        means = {row: one.sign * one.levels["mean"][arm] for row, arm in one.shown.items()}
        for place, row in enumerate(sorted(means, key=lambda row: -means[row])):
            if one in counted or row not in ranks:
                ranks.setdefault(row, []).append(place / max(1, len(means) - 1))
    return sorted(ranks, key=lambda row: (float(np.mean(ranks[row])), row))


def across(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Per arm: in how many settings it is better, the mean difference, p over settings.

    One difference per setting: settings are the sample. Of settings that differ in rounds alone
    the longest that has the arm counts.
    """
    rows = {}
    arms = dict.fromkeys(arm for one in comparisons for arm in one.paired.index)
    for arm in arms:
        having = [one for one in comparisons if arm in one.paired.index]
        own = [one.sign * float(one.paired["mean"][arm]) for one in longest(having)]
        p = signed_rank(own)
        better = sum(value > 0 for value in own)
        rows[arm] = {"settings": len(own), "better": better, "mean": np.mean(own), "p": p}
    made = pd.DataFrame.from_dict(rows, orient="index", columns=["settings", "better", "mean", "p"])
    return made.assign(adjusted=holm(made["p"]))


def variability(setting: Setting, blocks: Sequence[str]) -> str:
    """Say which variability an interval over the blocks covers."""
    partitions, seeds = ({block.split("/")[i] for block in blocks} for i in (0, 1))
    if setting.keys["partition"] == "file":
        partitions = {"0"}
    if len(blocks) < 2:
        return "need two blocks: here is one, and nothing is known of other partitions or seeds"
    if len(partitions) > 1 and len(seeds) > 1:
        return f"over {len(blocks)} blocks, each with its own partition and its own seed"
    if len(partitions) > 1:
        return f"over {len(blocks)} partitions of the data, one seed"
    return f"over {len(blocks)} seeds (initialisation, sampling, order), one partition"


# --- the verdict ---------------------------------------------------------------------------------
# A method is called above or below the baseline only where the interval of its paired difference
# lies on one side of zero; none is called best. A setting of one block is in no count.

_NAMED = 3  # methods of which a sentence says where most; titles that it lists
_AGAINST = "lg_fedavg"  # the traffic of one header each way, to which traffic is compared
_LEVEL = f"{100 * LEVEL:g} %"


def sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the verdict, at most five sentences; without a baseline fewer."""
    counted = longest(comparisons)
    found = gains(counted)
    base = next((one.baseline for one in comparisons if one.baseline), "")
    told = f"{base} (each client alone)" if base == method_name("standalone") else base
    made = [_extent(comparisons, counted)]
    if base and len(found):
        made += [_winners(found, told), _losers(found, base), _traffic(found)]
    made.append(_limits(counted, len(found), base))
    return [sentence for sentence in made if sentence]


def gains(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every method beside the baseline in every setting that has both in two blocks or more.

    Columns: method, setting, points (better is positive), sign (1 or -1 where the interval excludes
    zero, else 0), traffic (a multiple of LG-FedAvg's in the setting).
    """
    rows = []
    for one in comparisons:
        floats = one.costs["floats"]
        against = floats.get(method_name(_AGAINST), 0.0)
        for row, arm in one.shown.items():
            pair = one.paired.loc[arm] if arm in one.paired.index else None
            if pair is not None and pair["blocks"] > 1:
                times = floats[arm] / against if against else None
                points = one.sign * pair["mean"]
                rows.append((row, one.setting.title, points, int(pair["sign"]), times))
    return pd.DataFrame(rows, columns=["method", "setting", "points", "sign", "traffic"])


def _extent(comparisons: Sequence[Comparison], counted: Sequence[Comparison]) -> str:
    runs = sum(len(one.every[0]) for one in comparisons)
    methods = {method for one in comparisons for method in one.runs["method"]}
    blocks = pd.concat([one.levels["blocks"] for one in comparisons])
    low, high = int(blocks.min()), int(blocks.max())
    span = f"{low} to {_many(high, 'block')}" if low < high else _many(high, "block")
    shorter = [one.setting.keys["rounds"] for one in comparisons if one not in counted]
    apart = ""
    if shorter:
        rounds = ", ".join(str(number) for number in sorted(set(shorter)))
        are = "is the first rounds of a longer one and is"
        if len(shorter) > 1:
            are = "are the first rounds of longer ones and are"
        apart = f"; {_many(len(shorter), 'setting')} (T = {rounds}) {are} not counted below"
    return (
        f"{_many(runs, 'run')} of {_many(len(methods), 'method')} in "
        f"{_many(len(comparisons), 'setting')}, {span} (partition and seed) a method{apart}."
    )


def _winners(found: pd.DataFrame, told: str) -> str:
    above = found[found["sign"] > 0]
    if above.empty:
        return f"No method is above {told} with a {_LEVEL} interval that excludes zero."
    without = [name for name in found["setting"].unique() if name not in set(above["setting"])]
    nobody = f"; nobody in {_some(without, 'or')}" if without else ""
    several = found["setting"].nunique() > 1
    reading = " (in brackets the largest difference, in points)" if several else ""
    return (
        f"Above {told}, with a {_LEVEL} interval that excludes zero{reading}: "
        f"{_listed(1, found)}{nobody}."
    )


def _losers(found: pd.DataFrame, base: str) -> str:
    undecided = found.groupby("method")["sign"].agg(lambda signs: not signs.any())
    names = sorted(undecided[undecided].index, key=str.casefold)
    below, neither = _listed(-1, found), ", ".join(names)
    if not below:
        return f"Not told from {base} anywhere: {neither}." if names else ""
    rest = f"; not told from it anywhere: {neither}" if names else ""
    return f"Below {base}, likewise: {below}{rest}."


def _traffic(found: pd.DataFrame) -> str:
    above = set(found.loc[found["sign"] > 0, "method"])
    times = found[found["method"].isin(above)].groupby("method")["traffic"].median().dropna()
    over = " (median over settings)" if found["setting"].nunique() > 1 else ""
    sent = ", ".join(
        f"{method} {value:.2g}" if value < 10 else f"{method} {value:,.0f}"
        for method, value in times.sort_values(kind="stable").items()
    )
    lg = method_name(_AGAINST)
    return f"Traffic a round of those above, {lg}'s = 1{over}: {sent}." if sent else ""


def _limits(comparisons: Sequence[Comparison], compared: int, base: str) -> str:
    single = [one.setting.title for one in comparisons if len(one.blocks) < 2]
    few = [one for one in comparisons if len(one.blocks) < ENOUGH]
    mixed = [one.setting.title for one in comparisons if len(set(one.precision.values())) > 1]
    made = []
    if not base:
        made.append("who gains is not known, since the baseline was not run")
    if single:
        has = "has" if len(single) == 1 else "have"
        made.append(f"{_some(single, 'and')} {has} one block and so no interval")
    if len(few) > len(single):
        having = f"{len(few)} of {len(comparisons)} settings have"
        if len(few) == len(comparisons):
            having = "all settings have" if len(few) > 1 else "there are"
        made.append(f"{having} fewer than {ENOUGH} blocks, too few for a rank test")
    if mixed:
        made.append(
            f"small differences in {_some(mixed, 'and')} may come from precision, which differs"
        )
    if luck := round((1 - LEVEL) * compared):
        made.append(f"about {luck} of the {compared} intervals would exclude zero by chance alone")
    return f"Limits: {'; '.join(made)}." if made else ""


def _listed(sign: int, found: pd.DataFrame) -> str:
    """``FD in 3 of 5 settings (+4.3; below in 1), FML in 1 of 4 (+9.0)``, most settings first."""
    told = found[found["sign"] == sign]
    several = found["setting"].nunique() > 1
    order = []
    for method, own in told.groupby("method"):
        most = own.loc[own["points"].abs().idxmax()]
        order.append((-len(own), -abs(most["points"]), method, most))
    said = []
    for place, (count, _, method, most) in enumerate(sorted(order, key=lambda one: one[:3])):
        points = f"{most['points']:+.1f}".replace("-", "−")
        if not several:
            said.append(f"{method} {points}")
            continue
        own = found[found["method"] == method]
        notes = [points]
        if other := int((own["sign"] == -sign).sum()):
            notes.append(f"{'below' if sign > 0 else 'above'} in {other}")
        settings = "" if place else " settings"
        said.append(f"{method} in {-count} of {len(own)}{settings} ({'; '.join(notes)})")
    return ", ".join(said)


def _some(names: Sequence[str], word: str) -> str:
    """``A``, ``A or B``, ``A; B or C``: titles have commas."""
    if len(names) > _NAMED:
        return f"{len(names)} of the settings"
    return f" {word} ".join(filter(None, ["; ".join(names[:-1]), names[-1]]))


def _many(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"
