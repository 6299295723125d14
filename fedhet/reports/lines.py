"""Lines with the name at the end of each, and rows of boxes: figures of a setting are of these."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedhet.reports.drawing import WIDTH
from fedhet.reports.svg import Drawing, Scale, apart, cut, hue, mark, n, padded, wide

_LETTERS, _PLOT = 44, 300.0  # of a name; pixels beside the names
_TOP, _LEFT = 26.0, 40.0


@dataclass(frozen=True)
class Series:
    """A named line; ``look`` numbers its colour and mark, ``spread`` is low and high at each x."""

    name: str
    look: int
    points: Sequence[tuple[float, float]]
    spread: Sequence[tuple[float, float]] = ()


def draw_lines(
    panel: Drawing, series: Sequence[Series], labels: tuple[str, str], *,
    log: bool = False, zero: bool = False, marks: bool = True,
) -> None:  # fmt: skip
    """Lines on axes whose range is that of the data; names stand at their right ends.

    ``labels`` are those of x and y; ``zero`` draws a line at y = 0.
    """
    room = max(wide(cut(one.name, _LETTERS), 10) for one in series) + 22
    panel.width = max(WIDTH, _LEFT + _PLOT + room)
    right, bottom = panel.width - room, panel.height - 32
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    ys += [end for one in series for pair in one.spread for end in pair]
    low, high = (min(xs), max(xs))
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    x, y = (
        Scale(low, high, _LEFT, right, log),
        Scale(*padded([*ys, *([0.0] if zero else [])]), bottom, _TOP),
    )
    panel.x_axis(x, _TOP, bottom, label=labels[0])
    panel.y_axis(y, _LEFT, right, label=labels[1])
    if zero:
        panel.line(_LEFT, y(0.0), right, y(0.0), "axis")
    ends = [y(one.points[-1][1]) for one in series]
    slots = apart(ends, 11, _TOP, bottom)
    for one, end, slot in zip(series, ends, slots, strict=True):
        tone = hue(one.look)
        panel.add(f'<g class="series"><title>{_plain(one.name)}</title>')
        places = [(x(a), y(b)) for a, b in one.points]
        for (px, _), (bottom_end, top_end) in zip(places, one.spread, strict=False):
            panel.line(px, y(bottom_end), px, y(top_end), f"line faint s{tone}")
        panel.path(places, f"line s{tone}")
        if marks:
            step = max(1, len(places) // 4)
            for px, py in places[one.look % step :: step]:
                panel.mark(px, py, mark(one.look), f"f{tone}", 3)
        last = places[-1][0]
        panel.path([(last, end), (right + 4, slot), (right + 8, slot)], f"line faint s{tone}")
        panel.mark(right + 12, slot, mark(one.look), f"f{tone}", 3)
        panel.text(right + 19, slot + 3.5, cut(one.name, _LETTERS), "small", full=one.name)
        panel.add("</g>")


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def draw_boxes(
    panel: Drawing, rows: Sequence[tuple[str, Sequence[float]]], label: str, row: float = 18
) -> None:
    """A box for every row: quartiles and median, whiskers to the 10th and 90th percentile.

    A cross is the mean, a dot the lowest.
    """
    left = max(wide(cut(name, _LETTERS)) for name, _ in rows) + 10
    panel.width = max(WIDTH, left + _PLOT)
    bottom = 10 + row * len(rows)
    x = Scale(
        *padded([value for _, values in rows for value in values], 0.03), left, panel.width - 8
    )
    panel.x_axis(x, 6, bottom, label=label)
    for place, (name, values) in enumerate(rows):
        y = 10 + row * (place + 0.5)
        panel.text(left - 8, y + 4, cut(name, _LETTERS), anchor="end", full=name)
        p10, q1, middle, q3, p90 = (float(v) for v in np.percentile(values, [10, 25, 50, 75, 90]))
        panel.line(x(p10), y, x(p90), y, "axis")
        panel.add(
            f'<path class="f1 faint" d="M{n(x(q1))} {n(y - 5)}H{n(x(q3))}V{n(y + 5)}H{n(x(q1))}z"/>'
        )
        panel.line(x(middle), y - 5, x(middle), y + 5, "whisker s1")
        panel.mark(x(float(np.mean(values))), y, "P", "ink", 3)
        panel.mark(x(min(values)), y, "o", "f2", 2)


def tall_enough(names: Sequence[object]) -> float:
    """Height at which every line's name has room."""
    return max(280.0, 13.0 * len(names) + 66)
