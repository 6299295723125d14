"""Bubble plot of a partition: one circle per client and class, its area the number of examples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedhet.data.inputs import Indices
from fedhet.errors import UserError

_PANEL_CLIENTS, _PANEL_CLASSES, _MAX_PANELS = 50, 20, 4
_BUBBLE: dict[str, Any] = {"color": "#2a78b5", "alpha": 0.85, "linewidths": 0}
# Settings of a process and of how figures are shown; to touch them chooses a backend.
_NOT_LOOKS = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}


def bubble_plot(counts: Indices, classes: Sequence[str], path: Path, what: str = "images") -> None:
    """Draw ``counts`` (N, C) int64, examples per client and class, into a file .png, .svg or .pdf.

    Clients are columns, classes are rows; many clients of few classes are wrapped into up to
    four panels. Only matplotlib's defaults count, and no global state of it is touched.

    Raises:
        UserError: the file cannot be written.

    """
    clients, labels = counts.shape
    wrapped = labels <= _PANEL_CLASSES
    panels = min(_MAX_PANELS, -(-clients // _PANEL_CLIENTS)) if wrapped else 1
    columns = -(-clients // panels)
    cell = float(np.clip(22 / max(columns, labels), 0.11, 0.34))  # inches
    margin = 1.8 + 0.075 * max(len(name) for name in classes)
    size = (max(columns * cell, 2.4) + margin, panels * (labels * cell + 0.5) + 0.8)
    largest, full_area = max(int(counts.max(initial=0)), 1), (0.92 * cell * 72) ** 2
    looks: Any = {k: v for k, v in mpl.rcParamsDefault.items() if k not in _NOT_LOOKS}
    with mpl.rc_context(looks):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        for panel, axes in enumerate(figure.subplots(panels, 1, squeeze=False)[:, 0]):
            first = panel * columns
            client, label = np.nonzero(counts[first : first + columns])
            areas = full_area * counts[first + client, label] / largest
            axes.scatter(first + client, label, s=areas, zorder=2, rasterized=True, **_BUBBLE)
            axes.set_xlim(first - 0.6, first + columns - 0.4)
            axes.set_ylim(labels - 0.4, -0.6)
            axes.set_aspect("equal")
            step = next((s for s in (1, 5, 10, 50, 100, 500) if columns <= 40 * s), 1000)
            ticks = [k for k in range(first, first + columns) if k % step == 0 and k < clients]
            axes.set_xticks(ticks, [str(k) for k in ticks], fontsize=8)
            rows = range(0, labels, 1 if cell > 0.15 else 2)
            axes.set_yticks(rows, [classes[s] for s in rows], fontsize=6, parse_math=False)
            axes.grid(color="#e6e6e6", linewidth=0.7, zorder=0)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            if not panel:
                title = f"{clients:,} clients, {int(counts.sum()):,} {what}"
                axes.set_title(title, loc="left")
                for count in sorted({largest, max(largest // 3, 1), max(largest // 10, 1)}):
                    share = full_area * count / largest
                    axes.scatter([], [], s=share, label=f"{count:,}", **_BUBBLE)
                axes.legend(title=what, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        axes.set_xlabel("client")
        try:
            figure.savefig(path, format=path.suffix[1:], facecolor="white")
        except OSError as error:
            raise UserError(f"plot {path}: cannot write ({error.strerror or error})") from error
