"""How figures look, and how they become files: the same bytes for the same numbers.

Colours of text, axes and page are placeholders in the drawing. A file of its own gets dark ink on
white; inside the page they are CSS variables, so that one drawing suits light and dark.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedhet.data.plot import style

INK, LINE, GRID, PAGE = "#1b1f24", "#868e99", "#dde1e7", "#fefefe"
_ON_PAGE = {INK: "currentColor", LINE: "var(--line)", GRID: "var(--grid)", PAGE: "none"}
# Each has a contrast of at least 3 to white and to the page's dark. The first is the baseline's.
SERIES = (
    "#7d858f", "#2f7fd6", "#d9730d", "#2c9a5b", "#d6453d", "#8e63ce", "#a0694b", "#d1589f",
    "#958a14", "#1698ad", "#6a961f",
)  # fmt: skip
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)))
_MARKS = "osD^vPX*"
WIDTH = 6.2  # inches
ACCURACY = "test accuracy, %"
Colours = Mapping[str, int]  # arm's name to the number of its look, the same in all figures
_FINE = re.compile(r"(\d\.\d{2})\d+")
_DPI = 150
_STYLE: Any = {
    "text.parse_math": False,  # a name may have a dollar sign
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9,
    "svg.fonttype": "none", "text.color": INK, "axes.labelcolor": INK, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "xtick.color": LINE, "ytick.color": LINE, "axes.edgecolor": LINE,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID,
    "grid.linewidth": 0.7, "axes.axisbelow": True, "axes.facecolor": PAGE,
    "figure.facecolor": PAGE, "legend.frameon": False, "legend.fontsize": 8.5,
    "lines.linewidth": 1.5, "path.simplify": True, "path.simplify_threshold": 0.2,
    "axes.titlesize": 9.5, "axes.titlelocation": "left", "legend.handlelength": 2.2,
}  # fmt: skip


_LEGEND_ROWS, _LEGEND_ROW = 4, 0.19  # rows that a figure has room for; inches of each further one
_LABEL = 24  # characters in a line beside a point


@dataclass(frozen=True)
class Picture:
    """A figure as text and bytes, or the reason why there is none."""

    name: str
    title: str
    caption: str
    svg: str = ""
    png: bytes = b""
    absent: str = ""


def absent(name: str, title: str, reason: str) -> Picture:
    """A figure that could not be drawn."""
    return Picture(name, title, "", absent=reason)


def picture(
    name: str, title: str, caption: str, draw: Callable[[Figure], None],
    size: tuple[float, float] = (WIDTH, 3.6),
) -> Picture:  # fmt: skip
    """Let ``draw`` fill a figure of ``size`` inches; ids in the SVG are made from ``name``."""
    with style(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        svg, png = saved(figure)
    return Picture(name, title, caption, svg, png)


def saved(figure: Figure) -> tuple[str, bytes]:
    """SVG and PNG, without a date or a version in them."""
    vector, pixels = io.StringIO(), io.BytesIO()
    figure.savefig(vector, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(pixels, format="png", metadata={"Software": None})
    return _compact(vector.getvalue()), pixels.getvalue()


def _compact(svg: str) -> str:
    """Without metadata and indentation, and coordinates to a hundredth of a point."""
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(?:d|x|y)="[^"]*"', lambda m: _FINE.sub(r"\1", m.group()), svg)
    return re.sub(r">\s+<", "><", svg).replace(" \n", "\n").strip() + "\n"


def inline(one: Picture) -> str:
    """The SVG as part of a page: ids of its own, the page's colours, a name for screen readers."""
    svg = one.svg[one.svg.index("<svg") :]
    for colour, name in _ON_PAGE.items():
        svg = svg.replace(colour, name)
    svg = re.sub(r'\bid="', f'id="{one.name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{one.name}-", svg).replace('href="#', f'href="#{one.name}-')
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    name = escape(one.title, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{name}"', 1).strip()


def look(index: int) -> dict[str, Any]:
    """Colour and dashes of the ``index``-th series."""
    dashes = _DASHES[index // len(SERIES) % len(_DASHES)]
    return {"color": SERIES[index % len(SERIES)], "linestyle": dashes}


def mark(index: int) -> str:
    """Marker of the ``index``-th series."""
    return _MARKS[index % len(_MARKS)]


def legend_below(figure: Figure, axes: Axes, order: Sequence[int] | None = None) -> None:
    """A legend under the plot, in columns that fit."""
    handles, labels = axes.get_legend_handles_labels()
    chosen = list(order) if order is not None else list(range(len(labels)))
    if len(labels) < 2 and not any(len(label) for label in labels):
        return
    widest = max((len(label) for label in labels), default=1)
    columns = max(1, min(4, len(labels), int(80 / (widest + 7))))
    more = -(-len(chosen) // columns) - _LEGEND_ROWS
    figure.set_figheight(figure.get_figheight() + max(0, more) * _LEGEND_ROW)
    figure.legend(
        [handles[i] for i in chosen], [labels[i] for i in chosen],
        loc="outside lower center", ncols=columns, columnspacing=1.4,
    )  # fmt: skip


def thin(count: int, most: int = 160) -> list[int]:
    """At most ``most`` evenly spread positions of ``count``, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def label_points(axes: Axes, points: Sequence[tuple[float, float, float, str]]) -> None:
    """Names beside circles, moved up where they would lie on each other; limits must be final.

    ``points`` are x, y, the circle's area in square points, and the name.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # only now is it known where the points are
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    frame = axes.get_window_extent(renderer)
    taken: list[Any] = []
    for y, x, area, name in sorted((y, x, area, name) for x, y, area, name in points):
        away = 3 + math.sqrt(area / math.pi)
        right = axes.transData.transform((x, y))[0] > frame.x0 + 0.7 * frame.width
        label = axes.annotate(
            fill(name, _LABEL, break_on_hyphens=False), (x, y),
            xytext=(-away if right else away, 3), textcoords="offset points",
            ha="right" if right else "left", fontsize=8,
            bbox={"pad": 0.4, "visible": False},
        )  # fmt: skip
        for _ in range(40):
            box = label.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken):
                break
            across, up = label.get_position()
            label.set_position((across, up + 2))
        taken.append(label.get_window_extent(renderer))
