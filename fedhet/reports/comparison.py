"""Compare the variants of a setting: means with intervals, paired differences, costs.

A block is a pair of partition and seed that all variants share: the unit of replication. Clients of
one block are not independent runs, so intervals are over blocks.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pandas as pd
import scipy  # `scipy.stats` takes a second: it is imported when an interval is asked for

from fedhet.config.schema import MAJORITY, METRICS, second_metric
from fedhet.errors import UserError
from fedhet.records.summary import RECENT
from fedhet.reports.reading import RunRecord, Setting, method_name

BASELINE = "standalone"  # what others are compared with unless a method is named
LEVEL = 0.95
PERCENT = f"{100 * LEVEL:g} %"
ENOUGH = 5  # blocks below which numbers are descriptive and nothing is tested
PARTICIPANTS = [  # columns of the frame of runs
    f"participants_{kind}" for kind in ("last", f"last_{RECENT}", "best", "best_round")
]


def intervals(values: pd.DataFrame) -> pd.DataFrame:
    """Return blocks, mean, low and high of each column: Student's t at :data:`LEVEL`.

    ``low`` and ``high`` are missing for a single block, which has no interval.
    """
    blocks, mean = values.count(), values.mean()
    spare = (blocks - 1).where(blocks > 1)
    half = scipy.stats.t.ppf((1 + LEVEL) / 2, spare) * values.std() / np.sqrt(blocks)
    return pd.DataFrame({"blocks": blocks, "mean": mean, "low": mean - half, "high": mean + half})


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; NaN below :data:`ENOUGH` differences.

    Differences of zero are dropped; if all are zero, p is 1.
    """
    data = [value for value in differences if value != 0]
    if len(differences) < ENOUGH:
        return math.nan
    return float(scipy.stats.wilcoxon(data).pvalue) if data else 1.0


def holm(values: pd.Series) -> pd.Series:
    """Holm's step-down adjustment of the p values that are there."""
    known = values.dropna().sort_values()
    factors = np.arange(len(known), 0, -1)
    adjusted = np.maximum.accumulate(np.minimum(1.0, known.to_numpy() * factors))
    return pd.Series(adjusted, index=known.index).reindex(values.index)


class Comparison:
    """One setting: its variants compared with each other and with the baseline.

    ``runs``, ``rounds`` and ``clients`` are the frames of the runs that are compared, ``every``
    has those in another precision as well. ``metric`` is the headline, ``second`` the figure beside
    it; ``sign`` is -1 where less of the metric is better.
    """

    def __init__(
        self, setting: Setting, runs: pd.DataFrame, rounds: pd.DataFrame, clients: pd.DataFrame,
        *, baseline: str, counts: pd.DataFrame | None,
    ) -> None:  # fmt: skip
        self.setting = setting
        self.counts = counts  # training examples by client and class, of one run
        self.every = runs, clients
        self.runs, self.rounds, self.clients = (
            frame[frame["compared"]] for frame in (runs, rounds, clients)
        )
        self.variants: list[str] = list(dict.fromkeys(self.runs["variant"]))
        names = self.runs.loc[self.runs["method"] == baseline, "variant"]
        self.baseline = min(names, key=lambda v: (v != method_name(baseline), len(v)), default="")
        asked = set(self.runs["metric"])
        known = [
            name for name in METRICS if self.runs[name].notna().all() and f"test_{name}" in clients
        ]
        self.metric = next(iter(asked)) if len(asked) == 1 and asked <= set(known) else "accuracy"
        self.second = second_metric(self.metric, known)
        self.sign = -1 if METRICS[self.metric].less_is_better else 1
        self.digits = 2 if METRICS[self.metric].percent else 4  # decimal places of the headline
        self.blocks: list[str] = sorted(self.runs["block"].unique())  # of any variant
        self.precision = dict(self.runs.groupby("variant")["precision"].first())

    @cached_property
    def shown(self) -> dict[str, str]:
        """Rows of the tables over settings, with their variant: one for each method.

        That is the variant with the method's defaults or its only one; its ablations are left to
        the details. Where neither is the case, every variant is a row of its own.
        """
        rows: dict[str, str] = {}
        for method, variants in self.runs.groupby("method", sort=False)["variant"].unique().items():
            name, names = method_name(str(method)), list(variants)
            chosen = name if name in names else names[0] if len(names) == 1 else ""
            rows |= {name: chosen} if chosen else {variant: variant for variant in names}
        return rows

    @cached_property
    def levels(self) -> pd.DataFrame:
        """Per variant: mean with interval, and figures over clients that were ever sampled."""
        by_variant = self.runs.groupby("variant")
        table = intervals(self.runs.pivot(columns="variant", values=self.metric))
        table["mean"] = by_variant[self.metric].mean()  # which tells ties from near ones
        best = "accuracy_best_validation" if self.metric == "accuracy" else "best_validation"
        table["best_validation"] = by_variant[best].mean()
        sampled = self.clients[self.clients["generation"] > 0]
        sampled = sampled if len(sampled) else self.clients
        over = sampled.groupby(["variant", "block"])[f"test_{self.metric}"]
        spread = {"sampled": over.mean(), "std": over.std(ddof=0), "p10": over.quantile(0.1),
                  "worst": over.max() if self.sign < 0 else over.min()}  # fmt: skip
        means = by_variant[["never_sampled", *METRICS, MAJORITY]].mean()
        table = table.join([pd.DataFrame(spread).groupby("variant").mean(), means])
        return table.reindex(self.variants)

    @cached_property
    def participants(self) -> pd.DataFrame:
        """Per variant: figures of the participants' means; empty if runs differ in their metric."""
        columns = [name for name in PARTICIPANTS if set(self.runs["metric"]) == {self.metric}]
        means = self.runs.groupby("variant")[columns].mean().reindex(self.variants)
        return means.dropna(how="all")

    def gaps(self, base: str) -> pd.DataFrame:
        """Every other variant less ``base``, for clients that both evaluated; none of no base.

        Rows are blocks and clients, columns variants.
        """
        known = self.clients.set_index(["block", "client", "variant"])[f"test_{self.metric}"]
        wide = known.unstack("variant").reindex(columns=self.variants)
        gaps = wide.sub(wide[base] if base else 0.0, axis=0)
        return gaps.drop(columns=base or self.variants).dropna(axis=1, how="all")

    @cached_property
    def paired(self) -> pd.DataFrame:
        """Per variant beside the baseline: interval over blocks, shares of clients, p.

        ``better`` and ``worse`` are percent of clients, all blocks together.
        """
        gaps = self.gaps(self.baseline)
        blocks = gaps.groupby("block").mean()
        pairs = intervals(blocks)
        improved, known = self.sign * gaps, gaps.count()
        pairs["better"] = 100 * (improved > 0).sum() / known
        pairs["worse"] = 100 * (improved < 0).sum() / known
        pairs["p"] = [signed_rank(blocks[variant].dropna()) for variant in pairs.index]
        pairs["values"] = [blocks[variant].dropna().tolist() for variant in pairs.index]
        sign = (pairs["low"] > 0).astype(int) - (pairs["high"] < 0).astype(int)
        pairs["sign"] = self.sign * sign
        return pairs

    @cached_property
    def ranked(self) -> list[str]:
        """The rows of ``shown`` by their means, the best first."""
        return sorted(self.shown, key=lambda r: -self.sign * self.levels["mean"][self.shown[r]])

    @cached_property
    def best(self) -> tuple[str, frozenset[str]]:
        """The row of ``shown`` with the best mean, and the rows not shown to differ from it.

        Not told: the interval of the paired difference holds zero. Empty where the best has a
        single block, of which nothing can be told.
        """
        top = self.ranked[0]
        if self.levels["blocks"][self.shown[top]] < 2:
            return "", frozenset()
        differences = intervals(self.gaps(self.shown[top]).groupby("block").mean())
        undecided = differences.index[(differences["low"] <= 0) & (differences["high"] >= 0)]
        return top, frozenset(row for row, variant in self.shown.items() if variant in undecided)

    @cached_property
    def course(self) -> pd.DataFrame:
        """The rounds with what was spent until then: ``floats`` and ``flops`` of all clients."""
        course = self.rounds.sort_values(["number", "round"])
        course = course.assign(
            floats=course["uplink_floats"] + course["downlink_floats"],
            flops=course["train_flops"], figure=course[f"test_{self.metric}_mean"],
        )  # fmt: skip
        spent = ["floats", "flops"]
        course[spent] = course.groupby("number")[spent].cumsum()
        return course.dropna(subset="figure")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Per variant: floats and GFLOPs of a client and round, and the figure at equal compute.

        Every variant gets the training FLOPs that the cheapest of its block spent in all rounds.
        """
        by_variant = self.runs.groupby("variant")
        costs = by_variant[["floats_up", "floats_down", "gflops"]].mean()
        costs["floats"] = costs["floats_up"] + costs["floats_down"]
        base = self.runs[self.runs["variant"] == self.baseline].set_index("block")["gflops"]
        times = self.runs["gflops"] / self.runs["block"].map(base.replace(0, np.nan))
        costs["relative"] = times.groupby(self.runs["variant"]).mean()
        total = self.rounds.groupby(["number", "block"])["train_flops"].sum(min_count=1)
        budget = total.groupby("block").min()
        course = self.course
        cheap = course[course["flops"] <= course["block"].map(budget) * (1 + 1e-9)]
        last = cheap.groupby("number")[["variant", "figure", "round"]].last().groupby("variant")
        costs[["equal_figure", "equal_round"]] = last[["figure", "round"]].mean()
        return costs.reindex(self.variants)

    def reached(self, target: float) -> pd.DataFrame:
        """Per variant: runs that reached a target; mean rounds, floats and FLOPs until then."""
        hit = self.course[self.sign * (self.course["figure"] - target) >= 0]
        first = hit.groupby("number").first().groupby("variant")
        means = first[["round", "floats", "flops"]].mean()
        return means.assign(blocks=first.size()).reindex(self.variants)


def compare(
    placed: Sequence[RunRecord], runs: pd.DataFrame, rounds: pd.DataFrame, clients: pd.DataFrame,
    baseline: str = "",
) -> list[Comparison]:  # fmt: skip
    """Compare the variants of every setting; raise UserError if ``baseline`` was not run.

    ``number`` in the frames is the place of a run in ``placed``. P values are adjusted over all
    comparisons of all settings.
    """
    methods = sorted(set(runs["method"]))
    if baseline and baseline not in methods:
        raise UserError(f"baseline: no run has method '{baseline}'; methods: {', '.join(methods)}")
    comparisons, baseline = list[Comparison](), baseline or BASELINE
    for slug in runs["setting_id"].unique():
        frames = [frame[frame["setting_id"] == slug] for frame in (runs, rounds, clients)]
        ours = [placed[number] for number in frames[0]["number"]]
        counts = next((run.counts for run in ours if run.counts is not None), None)
        comparisons.append(Comparison(ours[0].setting, *frames, counts=counts, baseline=baseline))
    together = pd.concat({i: one.paired["p"] for i, one in enumerate(comparisons)})
    adjusted = holm(together.astype(float))
    for i, one in enumerate(comparisons):
        one.paired["adjusted"] = adjusted[i] if len(one.paired) else []
    return comparisons


def longest(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the longest of settings that differ only in rounds, which share their first ones."""
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
        for place, row in enumerate(one.ranked):
            if one in counted or row not in ranks:
                ranks.setdefault(row, []).append(place / max(1, len(one.ranked) - 1))
    return sorted(ranks, key=lambda row: (float(np.mean(ranks[row])), row))


# --- the verdict ---------------------------------------------------------------------------------
# A method is called above or below the baseline only where the interval of its paired difference
# lies on one side of zero; none is called best. A setting of one block is in no count.

_NAMED = 3  # titles that a sentence lists
_AGAINST = method_name("lg_fedavg")  # the traffic of one header each way, the unit of traffic


def sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the verdict, at most five sentences and one for each of few settings of one block."""
    counted = longest(comparisons)
    results = gains(counted)
    base = next((one.baseline for one in comparisons if one.baseline), "")
    verdict = [_extent(comparisons, counted), *_single(counted, alone=len(comparisons) == 1)]
    if base and len(results):
        verdict += _beside(results, base)
    verdict.append(_limits(counted, len(results), base))
    return [sentence for sentence in verdict if sentence]


def _single(counted: Sequence[Comparison], *, alone: bool) -> list[str]:
    """Return a sentence for each setting of one block and few methods, if they are few."""
    single = [one for one in counted if len(one.blocks) == 1 and len(one.shown) <= _NAMED + 1]
    sentences = []
    for one in single if len(single) <= _NAMED else ():
        unit, gaps = " points" * METRICS[one.metric].percent, one.paired["mean"]
        ranked = [(row, one.shown[row]) for row in one.ranked]
        figures = ", ".join(f"{row} {one.levels['mean'][v]:.{one.digits}f}" for row, v in ranked)
        apart = {
            row: f"{size}{unit} {'above' if gaps[variant] > 0 else 'below'}"
            if float(size := f"{abs(gaps[variant]):.{one.digits}f}") else "equal"
            for row, variant in ranked if variant in gaps.index
        }  # fmt: skip
        several, title = len(apart) > 1, "" if alone else f"{one.setting.title}: "
        texts = [f"{row} {text}" if several else text for row, text in apart.items()]
        beside = f": {', '.join(texts)}{f' {one.baseline}' * several}" * bool(apart)
        sentences.append(f"{title}{figures}{beside} (one repetition, no interval).")
    return sentences


def gains(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Every method beside the baseline in every setting that has both in two blocks or more.

    Columns: method, setting, points (better is positive), sign (1 or -1 where the interval excludes
    zero, else 0), traffic (a multiple of LG-FedAvg's in the setting).
    """
    rows = [
        (row, one.setting.title, one.sign * one.paired["mean"][variant],
         int(one.paired["sign"][variant]),
         one.costs["floats"][variant] / (one.costs["floats"].get(_AGAINST) or math.nan))
        for one in comparisons
        for row, variant in one.shown.items()
        if one.paired["blocks"].get(variant, 0) > 1
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["method", "setting", "points", "sign", "traffic"])


def _extent(comparisons: Sequence[Comparison], counted: Sequence[Comparison]) -> str:
    runs = many(sum(len(one.every[0]) for one in comparisons), "run")
    methods = many(len({method for one in comparisons for method in one.runs["method"]}), "method")
    blocks = {int(count) for one in comparisons for count in one.levels["blocks"]}
    low, high = f"{min(blocks)} to " * (len(blocks) > 1), many(max(blocks), "block")
    shorter = "; ".join(one.setting.title for one in comparisons if one not in counted)
    apart = f"; not counted below, as the first rounds of longer settings: {shorter}"
    return (
        f"{runs} of {methods} in {many(len(comparisons), 'setting')}, {low}{high} (partition and "
        f"seed) a method{apart * bool(shorter)}."
    )


def _beside(results: pd.DataFrame, base: str) -> list[str]:
    """Say who is above the baseline, who is below it or neither, and what the first send."""
    several, by_method = results["setting"].nunique() > 1, results.groupby("method")
    named = f"{base} (each client alone)" if base == method_name(BASELINE) else base
    excludes = f"a {PERCENT} interval that excludes zero"
    above, below = _listed(1, results), _listed(-1, results)
    if above:
        wins = results.groupby("setting", sort=False)["sign"].max()
        nobody = list(wins.index[wins < 1])
        most = " (in brackets the largest difference, in points)" * several
        above = f"Above {named}, with {excludes}{most}: {above}"
        above += f"; no method in {_some(nobody)}" * bool(nobody)
    decided = by_method["sign"].any()
    neither = ", ".join(sorted(decided.index[~decided], key=str.casefold))
    texts = [f"below {base}, likewise: {below}"] * bool(below)
    texts += [f"no difference from {base} shown anywhere: {neither}"] * bool(neither)
    rest = "; ".join(texts)
    times = by_method["traffic"].median()[by_method["sign"].max() > 0].dropna()
    sent = ", ".join(
        f"{m} {x:.2g}" if x < 10 else f"{m} {x:,.0f}"
        for m, x in times.sort_values(kind="stable").items()
    )
    over = " (median over settings)" * several
    return [
        f"{above or f'No method is above {named} with {excludes}'}.",
        f"{rest[0].upper()}{rest[1:]}." if rest else "",
        f"Traffic per round of these methods, {_AGAINST} = 1{over}: {sent}." if sent else "",
    ]


def _limits(comparisons: Sequence[Comparison], compared: int, base: str) -> str:
    single = [one.setting.title for one in comparisons if len(one.blocks) < 2]
    few = [one.setting.title for one in comparisons if 2 <= len(one.blocks) < ENOUGH]
    mixed = [one.setting.title for one in comparisons if len(set(one.precision.values())) > 1]
    luck = round((1 - LEVEL) * compared)
    limits = {
        "gains are unknown, since the baseline was not run": not base,
        f"one block and so no interval: {_some(single)}": single,
        f"fewer than {ENOUGH} blocks, too few for a rank test: {_some(few)}": few,
        f"methods also differ in precision: {_some(mixed)}": mixed,
        f"about {luck} of the {compared} intervals would exclude zero by chance alone": luck,
    }
    sentence = "; ".join(text for text, holds in limits.items() if holds)
    return f"Limits: {sentence}." if sentence else ""


def _listed(sign: int, results: pd.DataFrame) -> str:
    """``FD in 3 of 5 settings (+4.3; below in 1), FML in 1 of 4 (+9.0)``, most settings first."""
    entries = []
    for method, rows in results.groupby("method"):
        decided = rows.loc[rows["sign"] == sign, "points"]
        if len(decided):
            most = max(decided, key=abs)
            other = int((rows["sign"] == -sign).sum())
            against = f"; {'below' if sign > 0 else 'above'} in {other}" * bool(other)
            points = f"{most:+.1f}".replace("-", "−")
            entries.append((-len(decided), -abs(most), method, len(rows), f"{points}{against}"))
    if results["setting"].nunique() == 1:
        return ", ".join(f"{method} {points}" for *_, method, _, points in sorted(entries))
    return ", ".join(
        f"{method} in {-count} of {of}{' settings' * (not place)} ({points})"
        for place, (count, _, method, of, points) in enumerate(sorted(entries))
    )


def _some(titles: Sequence[str]) -> str:
    """Return titles in one text, since they have commas; of many only the number."""
    return "; ".join(titles) if len(titles) <= _NAMED else f"{len(titles)} settings"


def many(count: int, name: str) -> str:
    """Return a count with its noun: ``1 block``, ``2 blocks``."""
    return f"{count} {name}{'' if count == 1 else 's'}"
