"""Bubble plot of a partition: one circle per client and class, its area the number of examples."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedhet.data.images import Indices
from fedhet.errors import UserError

_CELL_INCHES, _MIN_CELL, _MAX_SIDE = 0.34, 0.11, 22.0
_PANEL_CLIENTS, _PANEL_CLASSES, _MAX_PANELS = 50, 20, 4
_MAX_TICKS = 40
_MAX_VECTORS = 150
_GRID, _TEXT = "#e6e6e6", "#333333"
_BUBBLE: dict[str, Any] = {"color": "#2a78b5", "alpha": 0.85, "linewidths": 0}
_DPI = 150
# Settings of a process and of how figures are shown; to touch them chooses a backend.
_NOT_LOOKS = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}


def bubble_plot(counts: Indices, classes: Sequence[str], path: Path, what: str = "images") -> None:
    """Draw ``counts`` (N, C) int64, examples per client and class, into a file .png, .svg or .pdf.

    Clients are columns, classes are rows; many clients of few classes are wrapped into up to
    four panels. No global state of matplotlib is touched.

    Raises:
        UserError: the file cannot be written.

    """
    clients, num_classes = counts.shape
    columns = -(-clients // _panels(clients, num_classes))
    cell = float(np.clip(_MAX_SIDE / max(columns, num_classes), _MIN_CELL, _CELL_INCHES))
    margin = 1.8 + 0.075 * max(len(name) for name in classes)
    panels = _panels(clients, num_classes)
    size = (max(columns * cell, 2.4) + margin, panels * (num_classes * cell + 0.5) + 0.8)
    with style({}):
        figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw_bubbles(figure, counts, classes, cell, (_TEXT, _GRID), what)
        try:
            figure.savefig(path, format=path.suffix[1:], facecolor="white")
        except OSError as error:
            raise UserError(f"plot {path}: cannot write ({error.strerror or error})") from error


@contextmanager
def style(own: dict[str, Any]) -> Iterator[None]:
    """Draw by these settings and matplotlib's defaults alone, whatever ``matplotlibrc`` lies here.

    One in the working folder, which may be a stranger's, would hand every text to LaTeX.
    """
    looks: Any = {k: v for k, v in mpl.rcParamsDefault.items() if k not in _NOT_LOOKS}
    with mpl.rc_context(looks | own):
        yield


def draw_bubbles(  # noqa: PLR0913, PLR0917
    figure: Figure, counts: Indices, classes: Sequence[str], cell: float,
    colours: tuple[str, str], what: str = "images",
) -> None:  # fmt: skip
    """Fill a figure with the bubbles of ``counts`` (N, C); a cell is ``cell`` inches wide.

    ``colours`` are those of ink and lines; ``what`` is counted.
    """
    ink = colours[0]
    clients, num_classes = counts.shape
    panels = _panels(clients, num_classes)
    columns = -(-clients // panels)
    grid: list[Axes] = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
    largest = max(int(counts.max(initial=0)), 1)
    full_area = (0.92 * cell * 72) ** 2
    for panel, axes in enumerate(grid):
        first = panel * columns
        client, label = np.nonzero(counts[first : first + columns])
        areas = full_area * counts[first + client, label] / largest
        # As pixels where there are many: a vector file needs a path for every bubble.
        many = len(client) > _MAX_VECTORS
        axes.scatter(first + client, label, s=areas, zorder=2, rasterized=many, **_BUBBLE)
        _frame(axes, range(first, first + columns), clients, classes, cell, colours)
    grid[0].set_title(f"{clients:,} clients, {int(counts.sum()):,} {what}", loc="left", color=ink)
    grid[-1].set_xlabel("client", color=ink)
    _legend(grid[0], largest, full_area, what)


def _panels(clients: int, num_classes: int) -> int:
    if num_classes > _PANEL_CLASSES:
        return 1
    return min(_MAX_PANELS, -(-clients // _PANEL_CLIENTS))


def _frame(  # noqa: PLR0913
    axes: Axes, columns: range, clients: int, classes: Sequence[str], cell: float,
    colours: tuple[str, str],
) -> None:  # fmt: skip
    """Equal cells, a quiet grid, and labels thinned until they fit."""
    axes.set_xlim(columns.start - 0.6, columns.stop - 0.4)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.set_aspect("equal")
    step = _step(len(columns))
    ticks = [k for k in columns if k % step == 0 and k < clients]
    axes.set_xticks(ticks, [str(k) for k in ticks], fontsize=8)
    rows = range(0, len(classes), 1 if cell > 0.15 else 2)
    size = 8 if cell > 0.2 else 6
    axes.set_yticks(rows, [classes[s] for s in rows], fontsize=size, parse_math=False)
    axes.grid(color=colours[1], linewidth=0.7, zorder=0)
    axes.tick_params(length=0, colors=colours[0])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _step(columns: int) -> int:
    """Distance of the client labels: 1, 5, 10, 50, ..."""
    for step in (1, 5, 10, 50, 100, 500):
        if columns <= _MAX_TICKS * step:
            return step
    return 1000


def _legend(axes: Axes, largest: int, full_area: float, what: str) -> None:
    sizes = sorted({largest, max(largest // 3, 1), max(largest // 10, 1)})
    handles = [
        axes.scatter([], [], s=full_area * n / largest, label=f"{n:,}", **_BUBBLE) for n in sizes
    ]
    axes.legend(
        handles=handles,
        title=what,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        labelspacing=1.2,
        handletextpad=0.9,
    )
