"""What a report says over all settings: one table, the test across them, lower precision."""

from collections.abc import Sequence

from fedhet.reports.comparison import Comparison, Paired, longest, pair
from fedhet.reports.markup import Cell, Column, Table, number, p_value, text
from fedhet.reports.panels import in_order
from fedhet.reports.settings import Arm, Setting
from fedhet.reports.statistics import ENOUGH, Interval, chance, holm, signed_rank
from fedhet.reports.tables import METHOD, PERCENT, WIDE, beyond, says_nothing

_MARK = "†"  # beside what was run in another precision than its column


def arm_names(comparisons: Sequence[Comparison]) -> list[str]:
    """The arms of all settings, each once, in the papers' order."""
    arms = sorted((arm for one in comparisons for arm in one.arms), key=lambda arm: arm.order)
    return list(dict.fromkeys(arm.name for arm in arms))


def tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Methods by settings, and with several settings the test across them."""
    made = [overview(comparisons)]
    if len(comparisons) > 1:
        made.append(_across(comparisons))
    return [table for table in made if table.rows]


def overview(comparisons: Sequence[Comparison]) -> Table:
    """Mean accuracy of every method in every setting, in the order of their mean rank."""
    columns = [METHOD]
    columns += [
        Column(one.setting.title, one.setting.conditions, details=one.setting.slug)
        for one in comparisons
    ]
    rows = [
        [text(name), *[_cell(one, name) for one in comparisons]] for name in in_order(comparisons)
    ]
    blocks = [Cell(str(len(one.setting.blocks())), None) for one in comparisons]
    rows.append([text("blocks"), *blocks])
    precisions = [Cell(str(one.setting.keys["precision"]), None) for one in comparisons]
    marked = any(arm.precision for one in comparisons for arm in one.arms)
    if marked or any(not one.setting.exact for one in comparisons):
        rows.append([text("precision"), *precisions])
    drawn = [
        one.levels[place].accuracy for one in comparisons for place in one.shown.values()
    ]  # fmt: skip
    note = (
        f"Mean test accuracy in percent ± half the {PERCENT} interval (Student's t over blocks). "
        "Bold: the highest mean; underlined: not told from it, since the interval of the paired "
        "difference over the same blocks holds zero. That depends on how steady the difference is "
        "from block to block: a lower mean may be underlined where a higher one is not. With one "
        "block there is neither interval nor mark. Methods by mean rank."
        + beyond(drawn)
        + (f" {_MARK}: run in another precision than its column." if marked else "")
    )
    return Table("overview", "Methods and settings", note, columns, rows)


def _cell(one: Comparison, name: str) -> Cell:
    place = one.shown.get(name)
    if place is None:
        return number(None)
    top, tied = one.best
    rank = "best" if name == top else "tied" if name in tied else ""
    shown = _with_half(one.levels[place].accuracy)
    mark = _MARK if one.arms[place].precision else ""
    return Cell(shown.text + mark, shown.value, rank)


def _with_half(found: Interval) -> Cell:
    mean = number(found.mean)
    half = found.half
    if half is None:
        return mean
    mark = f" {WIDE}" if says_nothing(found) else ""
    return Cell(f"{mean.text} ± {half:.2f}{mark}", mean.value)


def across(comparisons: Sequence[Comparison]) -> dict[str, tuple[list[float], float | None]]:
    """Per arm the mean difference of every setting, and its signed-rank p, adjusted over arms.

    One number per setting, as for classifiers over data sets: settings are then the sample.
    Of settings that differ in rounds alone the longest that has the arm counts.
    """
    values: dict[str, list[float]] = {}
    for name in arm_names(comparisons):
        having = [one for one in comparisons if any(_pairs(one, name))]
        own = [pair.interval.mean for one in longest(having) for pair in _pairs(one, name)]
        if own:
            values[name] = own
    adjusted = holm([signed_rank(own) for own in values.values()])
    return {name: (own, p) for (name, own), p in zip(values.items(), adjusted, strict=True)}


def _pairs(one: Comparison, name: str) -> list[Paired]:
    """The arm of that name beside the baseline, if it can be."""
    both = zip(one.arms, one.paired, strict=True)
    return [pair for arm, pair in both if pair is not None and arm.name == name]


def _across(comparisons: Sequence[Comparison]) -> Table:
    found = across(comparisons)
    tested = any(len(values) >= ENOUGH for values, _ in found.values())
    columns = [
        METHOD,
        Column("settings", "in which it can be compared with the baseline"),
        Column("better in", "settings with a positive mean difference"),
        Column("mean difference", "points, mean over settings"),
    ]
    if tested:
        columns.append(
            Column("p, Holm", "Wilcoxon signed-rank over settings, adjusted over methods")
        )
    rows = []
    for name, (values, p) in found.items():
        row = [
            text(name), number(float(len(values)), 0),
            number(float(sum(value > 0 for value in values)), 0),
            number(sum(values) / len(values), sign=True),
        ]  # fmt: skip
        rows.append([*row, Cell(p_value(p), p)] if tested else row)
    note = (
        "One difference per setting, so that settings are the sample; of settings that differ in "
        "rounds alone the longest. "
        f"Fewer than {ENOUGH} settings are described and not tested."
    )
    return Table("across", "Across settings", note, columns, rows)


def precision(one: Comparison) -> Table:
    """Arms of a setting in fp32 and in another precision, on the blocks that both have."""
    columns = [
        METHOD,
        Column("precision", "the one beside fp32", False),
        Column("blocks", "pairs of partition and seed that were run in both"),
        Column("fp32", "mean test accuracy on these blocks, of clients that both have, percent"),
        Column("lower", "the same in the other precision"),
        Column("less fp32", "points, mean over these blocks"),
        Column("largest", "the difference of the block where it is largest, points"),
        Column("s.e.", "standard error of one block's difference over its clients, points"),
    ]
    of = [one.setting, *one.setting.variants]
    exact = {arm.name: arm for setting in of if setting.exact for arm in _own(setting)}
    rows = []
    for setting in of:
        for arm in [] if setting.exact else _own(setting):
            paired = pair(arm, exact[arm.name]) if arm.name in exact else None
            if paired is None:
                continue
            rows.append(
                [
                    text(arm.name), text(str(setting.keys["precision"])),
                    number(float(len(paired.blocks)), 0),
                    number(paired.baseline), number(paired.accuracy),
                    number(paired.interval.mean, sign=True),
                    number(max(paired.blocks, key=abs), sign=True), number(chance(paired.clients)),
                ]
            )  # fmt: skip
    note = (
        "The same cells in fp32 and in a lower precision: what the lower one changes. Two runs "
        "that differ in rounding alone drift apart: a block's difference is of the size of its "
        "standard error (s.e.) even where precision has no influence, and larger where clients "
        "share a model that drifted."
    )
    name = f"precision-{one.setting.slug}"
    return Table(name, "Lower precision beside fp32", note, columns, rows)


def _own(setting: Setting) -> list[Arm]:
    """The arms that were run in the setting's own precision."""
    return [arm for arm in setting.arms if arm.runs and not arm.precision]
