"""The two pictures that a report opens with: a panel per setting, all methods in one order."""

from collections.abc import Sequence

import numpy as np

from fedhet.reports.comparison import Comparison, Paired, longest
from fedhet.reports.drawing import Picture, absent
from fedhet.reports.label_placement import beside_points
from fedhet.reports.svg import Drawing, Scale, cut, n, padded, plain, wide

COLUMNS = 3
_WIDTH, _LEFT, _TOP, _ROW = 320.0, 92.0, 38.0, 14.0
_TALL, _ZERO = 250.0, 46.0
_FAR = 2.5  # a row is off the scale beyond that many times the others' reach
_SURE = 3  # blocks of a setting in the picture for a first glance
_NAME = 22  # letters of a panel's row, before it is cut


def in_order(comparisons: Sequence[Comparison]) -> list[str]:
    """The rows of all settings by their mean rank, 0 the best and 1 the last of a setting.

    Of settings that differ in rounds alone the longest counts.
    """
    ranks: dict[str, list[float]] = {}
    counted = longest(comparisons)
    late = [one for one in comparisons if one not in counted]
    for one in [*counted, *late]:
        means = {name: one.levels[place].accuracy.mean for name, place in one.shown.items()}
        order = sorted(means, key=lambda name: -means[name])
        for place, name in enumerate(order):
            if one in counted or name not in ranks:
                ranks.setdefault(name, []).append(place / max(1, len(order) - 1))
    return sorted(ranks, key=lambda name: (float(np.mean(ranks[name])), name))


def shortened(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """What a first glance shows: the longest of the settings with three blocks or more, or all."""
    counted = longest(comparisons)
    return [one for one in counted if len(one.setting.blocks()) >= _SURE] or list(comparisons)


def differences(comparisons: Sequence[Comparison], name: str = "differences") -> Picture:
    """Paired differences to the baseline: interval, mean, blocks."""
    title = "Paired differences"
    compared = [one for one in comparisons if one.baseline is not None and any(one.paired)]
    if not compared:
        return absent(name, title, "no setting has the baseline and another method in one block")
    base = compared[0].baseline.name if compared[0].baseline else ""
    rows = [
        row for row in in_order(compared)
        if any(row in one.shown and one.paired[one.shown[row]] for one in compared)
    ]  # fmt: skip
    caption = (
        f"Points of test accuracy above {base}, client by client on the same blocks (partition and "
        "seed); methods in the order of their mean rank; every panel has a scale of its own. Dot: "
        "mean; line: 95 % interval (Student's t over blocks), blue above and orange below zero, "
        "grey where it holds zero: undecided; pale dots: blocks. A hollow dot is a single block, "
        "without an interval; an arrow points to a value off the scale; a method in grey was not "
        "run there."
    )
    panels = [_differences(one, rows) for one in compared]
    columns = min(COLUMNS, len(panels))
    return Picture(name, f"{title} to {base}", caption, panels, columns=columns)


def _differences(one: Comparison, rows: Sequence[str]) -> Drawing:
    own = {row: pair for row in rows if row in one.shown and (pair := one.paired[one.shown[row]])}
    bottom = _TOP + _ROW * len(rows)
    panel = Drawing(_WIDTH, bottom + 30, title=one.setting.title)
    _head(panel, one)
    x = Scale(*_reach(list(own.values())), _LEFT, _WIDTH - 10)
    panel.x_axis(x, _TOP - 2, bottom, sign=True)
    panel.line(x(0.0), _TOP - 4, x(0.0), bottom, "axis")
    base = one.baseline.name if one.baseline else ""
    label = f"points above {cut(base, _NAME)}"
    panel.text((_LEFT + _WIDTH) / 2, bottom + 26, label, "soft small", anchor="middle")
    for place, row in enumerate(rows):
        y = _TOP + _ROW * (place + 0.5)
        kind = "" if row in own else "soft faint"
        panel.text(_LEFT - 8, y + 4, cut(row, 16), kind, anchor="end", full=row)
        if row in own:
            _row(panel, x, y, own[row])
    return panel


def _row(panel: Drawing, x: Scale, y: float, pair: Paired) -> None:
    mean = pair.interval.mean
    tone = {1: 1, -1: 2, 0: 0}[pair.sign]
    if not x.low <= mean <= x.high:
        left = mean < x.low
        edge = x.start + 4 if left else x.end - 4
        tip = -5 if left else 5
        panel.add(f'<path class="f{tone}" d="M{n(edge)} {n(y - 4)}l{tip} 4l{-tip} 4z"/>')
        side = "" if left else "end"
        panel.text(
            edge + (5 if left else -5),
            y + 3.5,
            plain(round(mean, 1), sign=True),
            "small",
            anchor=side,
        )
        return
    inside = [value for value in pair.blocks if x.low <= value <= x.high]
    panel.dots([(x(value), y) for value in inside], f"s{tone} faint", 4)
    low, high = pair.interval.low, pair.interval.high
    if low is None or high is None:
        panel.mark(x(mean), y, "o", f"s{tone} f{tone} open", 3)
        return
    panel.line(x(max(low, x.low)), y, x(min(high, x.high)), y, f"whisker s{tone}")
    panel.mark(x(mean), y, "o", f"f{tone}", 3.6)


def _reach(pairs: Sequence[Paired]) -> tuple[float, float]:
    """The range of a panel: all intervals, but for rows far beyond the others."""
    ends = []
    for pair in pairs:
        known = [pair.interval.mean, pair.interval.low, pair.interval.high]
        ends.append([value for value in known if value is not None])
    sizes = sorted(max(abs(value) for value in own) for own in ends)
    usual = sizes[int(0.75 * (len(sizes) - 1))] * _FAR
    near = [value for own in ends if max(map(abs, own)) <= usual for value in own]
    near += [own[0] for own in ends if abs(own[0]) <= usual]
    return padded([0.0, *near], 0.06)


def _head(panel: Drawing, one: Comparison) -> None:
    panel.text(0, 13, cut(one.setting.title, 44), "head", full=one.setting.title)
    panel.text(0, 27, notes(one), "soft small")


def notes(one: Comparison) -> str:
    """Blocks of a setting and the precision it was run in, where that is not fp32."""
    blocks = len(one.setting.blocks())
    said = [f"{blocks} block{'' if blocks == 1 else 's'}"]
    if not one.setting.exact:
        said.append(str(one.setting.keys["precision"]))
    others = sorted({arm.precision for arm in one.arms if arm.precision})
    said += [f"some in {other}" for other in others]
    return ", ".join(said)


def traffic(comparisons: Sequence[Comparison]) -> Picture:
    """Accuracy against the floats that a client sends and gets in a round."""
    caption = (
        "Mean test accuracy against floats a client and round, both ways. The line is the "
        "frontier: nobody is more accurate with less traffic (in the mean; intervals are above). "
        "Methods that send nothing stand at 0; a triangle is far below, with its number."
    )
    panels = [_traffic(one) for one in comparisons]
    columns = min(COLUMNS, len(panels))
    return Picture("traffic", "Accuracy against traffic", caption, panels, columns=columns)


def _traffic(one: Comparison) -> Drawing:
    points = []
    for name, place in one.shown.items():
        cost = one.costs[place]
        floats = cost.floats_up + cost.floats_down
        points.append((floats, one.levels[place].accuracy.mean, name))
    panel = Drawing(_WIDTH, _TALL + 34, title=one.setting.title)
    _head(panel, one)
    floor = _floor([accuracy for _, accuracy, _ in points])
    y = Scale(*padded([v for _, v, _ in points if v >= floor], 0.07), _TALL, _TOP + 14)
    panel.y_axis(y, 30, _WIDTH)
    panel.text(0, _TOP + 4, "accuracy, %", "soft small")
    x = _log_axis(panel, [floats for floats, _, _ in points])
    spots = [
        (x(floats) if floats > 0 else _ZERO, y(value) if value >= floor else _TALL - 6, name)
        for floats, value, name in points
    ]
    front = frontier([(floats, value) for floats, value, _ in points])
    steps: list[tuple[float, float]] = []
    for place in front:
        px, py, _ = spots[place]
        steps += [(px, steps[-1][1]), (px, py)] if steps else [(px, py)]
    panel.path([*steps, (_WIDTH - 12, steps[-1][1])], "line s1 faint")
    names = []
    for place, ((px, py, name), (_, value, _)) in enumerate(zip(spots, points, strict=True)):
        below = value < floor
        panel.mark(px, py, "v" if below else "o", "f1" if place in front else "f0", 3.6)
        names.append(cut(name, _NAME) + (f" {value:.1f}" if below else ""))
    labels = beside_points(
        [(px, py) for px, py, _ in spots], [wide(name, 10) for name in names],
        (34, _TOP + 14, _WIDTH, _TALL - 2),
    )  # fmt: skip
    for (px, py, full), name, (lx, ly, anchor, far) in zip(spots, names, labels, strict=True):
        if far:
            panel.line(px, py, lx, ly - 3.5, "axis faint")
        panel.text(lx, ly, name, "small halo", anchor=anchor, full=full if full not in name else "")
    return panel


def _log_axis(panel: Drawing, floats: Sequence[float]) -> Scale:
    """Powers of ten, and a place for those that send nothing."""
    sent = [value for value in floats if value > 0] or [1.0, 10.0]
    low = 10.0 ** np.floor(np.log10(min(sent)))
    high = max(10.0 ** np.ceil(np.log10(max(sent))), 10 * low)
    x = Scale(float(low), float(high), 78, _WIDTH - 12, log=True)
    panel.x_axis(x, _TOP + 10, _TALL, label="floats a client and round")
    if len(sent) < len(floats):
        panel.line(_ZERO, _TOP + 10, _ZERO, _TALL, "grid")
        panel.text(_ZERO, _TALL + 12, "0", "soft small", anchor="middle")
    return x


def _floor(values: Sequence[float]) -> float:
    """What is below it lies further from the others than they reach themselves."""
    ordered = sorted(values)
    for place in range(min(2, len(ordered) - 3)):
        gap, reach = ordered[place + 1] - ordered[place], ordered[-1] - ordered[place + 1]
        if gap > reach:
            return ordered[place + 1]
    return ordered[0]


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other beats in both: less traffic and more accuracy."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    kept: list[int] = []
    for i in order:
        if not kept or points[i][1] > points[kept[-1]][1]:
            kept.append(i)
    return kept
