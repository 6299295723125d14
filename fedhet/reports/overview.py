"""What a report says over all settings: accuracy side by side, the test, lower precision."""

import json
from collections.abc import Sequence

from fedhet.reports.comparison import Comparison, pair
from fedhet.reports.markup import Cell, Column, Table, number, p_value, text
from fedhet.reports.settings import Arm
from fedhet.reports.statistics import ENOUGH, Interval, chance, holm, signed_rank
from fedhet.reports.tables import METHOD, PERCENT

_EXACT = "fp32"


def arm_names(comparisons: Sequence[Comparison]) -> list[str]:
    """The arms of all settings, each once, in the papers' order."""
    arms = sorted((arm for one in comparisons for arm in one.arms), key=lambda arm: arm.order)
    return list(dict.fromkeys(arm.name for arm in arms))


def tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Accuracy side by side, the test across settings, and lower precision beside fp32."""
    if len(comparisons) < 2:
        return []
    columns = [METHOD]
    columns += [Column(f"S{i}", one.setting.title) for i, one in enumerate(comparisons, start=1)]
    rows = []
    for name in arm_names(comparisons):
        row = [text(name)]
        for one in comparisons:
            own = [lv for arm, lv in zip(one.arms, one.levels, strict=True) if arm.name == name]
            row.append(_with_half(own[0].accuracy) if own else number(None))
        rows.append(row)
    legend = "; ".join(f"S{i}: {one.setting.title}" for i, one in enumerate(comparisons, start=1))
    note = f"Mean accuracy in percent, +- half the {PERCENT} t interval over blocks. {legend}."
    made = [
        Table("overview", "All settings", note, columns, rows),
        _across(comparisons),
        _precision(comparisons),
    ]
    return [table for table in made if table.rows]


def _with_half(found: Interval) -> Cell:
    mean = number(found.mean)
    half = found.half
    return mean if half is None else Cell(f"{mean.text} +- {half:.2f}", mean.value)


def across(comparisons: Sequence[Comparison]) -> dict[str, tuple[list[float], float | None]]:
    """Per arm the mean difference of every setting, and its signed-rank p, adjusted over arms.

    One number per setting, as for classifiers over data sets: settings are then the sample.
    Settings that differ in rounds or precision alone share partitions, seeds and their first
    rounds, so only one of them counts: that with the most rounds, then blocks, then fp32.
    """
    found: dict[str, dict[str, tuple[tuple[int, int, bool], float]]] = {}
    for one in comparisons:
        keys = one.setting.keys
        sample = _without(one, "rounds", "precision")
        for arm, paired in zip(one.arms, one.paired, strict=True):
            if paired is not None:
                rank = (keys["rounds"], len(paired.blocks), keys["precision"] == _EXACT)
                of_arm = found.setdefault(arm.name, {})
                if sample not in of_arm or rank > of_arm[sample][0]:
                    of_arm[sample] = rank, paired.difference.mean
    values = {
        name: [mean for _, mean in found[name].values()]
        for name in arm_names(comparisons)
        if name in found
    }
    adjusted = holm([signed_rank(own) for own in values.values()])
    return {name: (own, p) for (name, own), p in zip(values.items(), adjusted, strict=True)}


def _without(one: Comparison, *names: str) -> str:
    rest = {key: value for key, value in one.setting.keys.items() if key not in names}
    return json.dumps(rest, sort_keys=True, default=str)


def _across(comparisons: Sequence[Comparison]) -> Table:
    columns = [
        METHOD,
        Column("settings", "in which it can be compared with the baseline"),
        Column("better in", "settings with a positive mean difference"),
        Column("mean difference", "points, mean over settings"),
        Column("p, Holm", "Wilcoxon signed-rank over settings, adjusted over methods"),
    ]
    rows = []
    for name, (values, p) in across(comparisons).items():
        few = len(values) < ENOUGH
        rows.append(
            [
                text(name), number(float(len(values)), 0),
                number(float(sum(value > 0 for value in values)), 0),
                number(sum(values) / len(values), sign=True),
                Cell("descriptive", None) if few else Cell(p_value(p), p),
            ]
        )  # fmt: skip
    note = (
        "One difference per setting, so that settings are the sample; of settings that differ in "
        "rounds or precision alone the one with the most rounds, then blocks, then fp32. "
        f"Fewer than {ENOUGH} settings are described and not tested."
    )
    return Table("across", "Across settings", note, columns, rows)


def _precision(comparisons: Sequence[Comparison]) -> Table:
    """Arms that were run in fp32 and in another precision, on the blocks that both have."""
    columns = [
        METHOD,
        Column("setting", "all but the precision", False),
        Column("precision", "the one beside fp32", False),
        Column("blocks", "pairs of partition and seed that were run in both"),
        Column("fp32", "mean test accuracy on these blocks, of clients that both have, percent"),
        Column("lower", "the same in the other precision"),
        Column("less fp32", "points, mean over these blocks"),
        Column("largest", "the difference of the block where it is largest, points"),
        Column("s.e.", "standard error of one block's difference over its clients, points"),
    ]
    exact: dict[tuple[str, str], tuple[Comparison, Arm]] = {}
    for one in comparisons:
        if one.setting.keys["precision"] == _EXACT:
            exact |= {(_without(one, "precision"), arm.name): (one, arm) for arm in one.arms}
    rows = []
    for one in comparisons:
        if one.setting.keys["precision"] == _EXACT:
            continue
        for arm in one.arms:
            found = exact.get((_without(one, "precision"), arm.name))
            if found is None:
                continue
            where, other = found
            paired = pair(arm, other)
            if paired is None:
                continue
            rows.append(
                [
                    text(arm.name), text(where.setting.title),
                    text(str(one.setting.keys["precision"])),
                    number(float(len(paired.blocks)), 0),
                    number(paired.baseline), number(paired.accuracy),
                    number(paired.difference.mean, sign=True),
                    number(max(paired.blocks, key=abs), sign=True), number(chance(paired.clients)),
                ]
            )  # fmt: skip
    note = (
        "The same cells in fp32 and in a lower precision: what the lower one changes. Two runs "
        "that differ in rounding alone drift apart: a block's difference is of the size of its "
        "standard error (s.e.) even where precision has no influence, and larger where clients "
        "share a model that drifted."
    )
    return Table("precision", "Lower precision beside fp32", note, columns, rows)
