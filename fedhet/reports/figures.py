"""The figures of a report, drawn by matplotlib as SVG that follows the page's colours.

A figure is a list of panels, each an SVG of its own, so that a narrow page shows one beside or
below the other. Ink becomes ``currentColor``; a file of its own follows the reader's dark mode.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedhet.data.inputs import noun
from fedhet.errors import one_line
from fedhet.reports.comparison import Comparison, in_order
from fedhet.reports.settings import IN_NO_SETTING, at_default, cut, file_name, method_name
from fedhet.reports.tables import said

INK = "#010101"  # stands for currentColor
BLUE, ORANGE = "#2b7bd1", "#c8640f"  # read well on white and on dark
HUES = (BLUE, ORANGE, "#2a9568", "#b04a9e", "#8a7a1c", "#d1495b", "#5b6ee1", "#4d8f97")
_RC: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.edgecolor": INK, "axes.linewidth": 0.6, "axes.spines.top": False,
    "axes.spines.right": False, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 3, "ytick.major.size": 3, "lines.linewidth": 1.5, "path.simplify": True,
    "axes.unicode_minus": True,
}  # fmt: skip
_DARK = "<style>svg{color:#1b1f24}@media(prefers-color-scheme:dark){svg{color:#e4e8ec}}</style>"
_PLACES = re.compile(r"(\d\.\d\d)\d+")
_HEAD = re.compile(r"<svg [^>]*>")
_IDS = re.compile(r' id="[a-zA-Z0-9.]+_\d+"')
_NOISE = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->|<\?xml[^>]*>|<!DOCTYPE[^>]*>", re.S)
_WIDTH, _LEFT, _ROW = 330, 92, 15.0  # pixels of a small panel, its names, a row
_WIDE = 470  # of a figure that stands alone
_FAR = 2.5  # a row is off the scale beyond that many times the reach of most others
_POINTS = 60  # of a line


@dataclass(frozen=True)
class Picture:
    """A figure of panels (title and SVG); ``absent`` says why there is none."""

    name: str
    title: str
    caption: str = ""
    panels: Sequence[tuple[str, str]] = field(default=(), repr=False)
    absent: str = ""

    def files(self) -> dict[str, str]:
        """The panels as files of their own, by name without suffix."""
        names = [f"{self.name}-{panel}" if panel else self.name for panel, _ in self.panels]
        files = [svg.replace(">", f">{_DARK}", 1) for _, svg in self.panels]
        return dict(zip(map(file_name, names), files, strict=True))

    def _repr_html_(self) -> str:
        """Show the panels in a notebook."""
        return "".join(f'<div style="max-width:40rem">{svg}</div>' for _, svg in self.panels)


def drawn(name: str, size: tuple[float, float], draw: Callable[[Figure], None], title: str) -> str:
    """Draw a figure of that size in pixels and return its SVG; ``name`` makes its ids unique."""
    with mpl.rc_context(_RC | {"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that our font does not have
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72)
        draw(figure)
        text = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    svg = _IDS.sub("", _PLACES.sub(r"\1", _NOISE.sub("", text.getvalue())))
    svg = svg.replace(INK, "currentColor").replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{size[0]:g}" height="{size[1]:g}" viewBox="0 0 {size[0]:g} {size[1]:g}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    return _HEAD.sub(lambda _: head, svg, count=1).strip()


def _panel(
    name: str, draw: Callable[[Axes], None], size: tuple[float, float], title: str,
    edges: tuple[float, float, float, float],
) -> str:  # fmt: skip
    """Draw one pair of axes with margins in pixels: left, right, top, bottom."""
    (wide, high), (left, right, top, bottom) = size, edges
    place = (left / wide, bottom / high, 1 - (left + right) / wide, 1 - (top + bottom) / high)
    return drawn(name, size, lambda figure: draw(figure.add_axes(place)), title)


def label(text: str, letters: int = 40) -> str:
    """A name on one printable line, shortened."""
    return cut(one_line(text, None), letters)


def _finish(
    ax: Axes, x: str, y: str = "", ends: Sequence[tuple[str, float, float, str]] = ()
) -> None:
    """Add grid, labels, and names beside the axes: ``ends`` are (name, x, y, colour).

    A thin line joins each name to its point; names are moved apart.
    """
    ax.grid(color=INK, alpha=0.1, lw=0.6, axis="both" if y else "x")
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)
    if not ends:
        return
    height = ax.get_window_extent().height
    step = min(10.5 / height, 1 / len(ends))
    to_axes = ax.transData + ax.transAxes.inverted()
    places = sorted((*to_axes.transform((px, py))[::-1], name, c) for name, px, py, c in ends)
    slots: list[float] = []
    for y_end, *_ in places:
        slots.append(max(y_end, slots[-1] + step if slots else step / 2))
    for i in reversed(range(len(slots))):
        slots[i] = min(slots[i], slots[i + 1] - step if i + 1 < len(slots) else 1 - step / 2)
    for (y_end, x_end, name, colour), slot in zip(places, slots, strict=True):
        ax.plot([x_end, 1.05], [y_end, slot], transform=ax.transAxes, color=colour, lw=0.5,
                alpha=0.45, clip_on=False)  # fmt: skip
        ax.text(1.06, slot, label(name, 26), transform=ax.transAxes, fontsize=8.5, va="center",
                color=colour)  # fmt: skip


def _alone(
    name: str, title: str, caption: str, draw: Callable[[Axes], None], lines: int
) -> Picture:
    """A figure of one panel with the names of ``lines`` lines at the right."""
    size = (_WIDE, max(250.0, 11.5 * lines + 60))
    name = file_name(name)
    return Picture(name, title, caption, [("", _panel(name, draw, size, title, (46, 150, 12, 38)))])


# --- all settings --------------------------------------------------------------------------------


def _panels(
    name: str, title: str, caption: str, comparisons: Sequence[Comparison],
    draw: Callable[[Axes, Comparison], None], high: float, right: float,
) -> Picture:  # fmt: skip
    """A panel per setting, each headed by its title."""
    made = []
    for one in comparisons:

        def fill(ax: Axes, one: Comparison = one) -> None:
            head = label(one.setting.title, 44)
            ax.figure.text(0, 1, head, fontsize=10.5, weight="bold", va="top")
            draw(ax, one)

        edges = (_LEFT if right < _LEFT else 40, right, 20, 36)
        at, heading = f"{name}-{one.setting.slug}", f"{title}, {one.setting.title}"
        made.append((one.setting.slug, _panel(at, fill, (_WIDTH, high), heading, edges)))
    return Picture(name, title, caption, made)


def differences(comparisons: Sequence[Comparison]) -> Picture:
    """Paired differences to the baseline: interval, mean, blocks; a panel per setting."""
    compared = [one for one in comparisons if len(one.paired)]
    if not compared:
        reason = "no setting has the baseline and another method in one block"
        return Picture("differences", "Paired differences", absent=reason)
    known = {row for one in compared for row, arm in one.shown.items() if arm in one.paired.index}
    rows = [row for row in in_order(compared) if row in known]
    title = f"Paired differences to {compared[0].baseline}"
    caption = (
        f"Points above {compared[0].baseline}, client by client on the same blocks (partition and "
        "seed); methods by mean rank; each panel has its own scale. Dot: mean; line: 95 % interval "
        "(Student's t over blocks), blue above zero, orange below, grey where it holds zero; pale "
        "dots: blocks. A hollow dot is one block, without an interval; a number at the edge is "
        "off the scale; a pale name was not run there."
    )
    return _panels(
        "differences", title, caption, compared,
        lambda ax, one: draw_differences(ax, one, rows), 56 + _ROW * len(rows), 12,
    )  # fmt: skip


def draw_differences(ax: Axes, one: Comparison, rows: Sequence[str]) -> None:
    """Draw one setting; ``rows`` are keys of ``one.shown``."""
    pairs = one.paired.reindex([one.shown.get(row, "") for row in rows])
    low, high = _reach(pairs)
    ax.set(xlim=(low, high), ylim=(len(rows) - 0.4, -0.6))
    ax.axvline(0, color=INK, lw=0.8, alpha=0.6)
    for y, (_, pair) in enumerate(pairs.iterrows()):
        if pd.isna(mean := pair["mean"]):
            continue
        colour = {1: BLUE, -1: ORANGE}.get(int(pair["sign"]), INK)
        soft, known = 1.0 if pair["sign"] else 0.55, pd.notna(pair["low"])
        if not low <= mean <= high:
            at, side, text = (
                (low, "left", f"◂ {mean:+.1f}") if mean < low else (high, "right", f"{mean:+.1f} ▸")
            )
            ax.text(at, y, text, ha=side, va="center", color=colour, fontsize=8.5)
            continue
        inside = [value for value in pair["values"] if low <= value <= high]
        ax.plot(inside, [y] * len(inside), ".", ms=4, color=colour, alpha=0.35, mew=0)
        if known:
            ends = np.clip([pair["low"], pair["high"]], low, high)
            ax.plot(ends, [y, y], color=colour, lw=2, alpha=soft, solid_capstyle="round")
        ax.plot(mean, y, "o", ms=5, mfc=colour if known else "none", mec=colour, alpha=soft)
    ax.set_yticks(range(len(rows)), [label(row, 16) for row in rows])
    for tick, mean in zip(ax.get_yticklabels(), pairs["mean"], strict=True):
        tick.set_alpha(0.35 if pd.isna(mean) else 1)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    precisions = " and ".join(sorted(set(one.precision.values())))
    odd = f", {precisions}" if precisions != str(at_default("precision")) else ""
    points = "points" if one.metric == "accuracy" else said(one.metric)
    plural = "" if len(one.blocks) == 1 else "s"
    _finish(ax, f"{points} above {one.baseline}, {len(one.blocks)} block{plural}{odd}")


def _reach(pairs: pd.DataFrame) -> tuple[float, float]:
    """The range of a panel: all intervals, but for rows far beyond the others."""
    ends = pairs[["mean", "low", "high"]].astype(float).dropna(how="all")
    sizes = ends.abs().max(axis=1)
    usual = sizes.quantile(0.75, interpolation="lower") * _FAR
    near = [0.0, *ends[sizes <= usual].stack(), *ends["mean"][ends["mean"].abs() <= usual]]
    pad = 0.06 * (max(near) - min(near)) or 1.0
    return min(near) - pad, max(near) + pad


def traffic(comparisons: Sequence[Comparison]) -> Picture:
    """The headline against the floats that a client sends and gets in a round."""
    caption = (
        "Mean test metric against floats a client and round, both ways. The line is the frontier: "
        "no method is better with less traffic, in the mean. Methods that send nothing stand at 0; "
        "a triangle is far below, with its number."
    )
    high = max(230.0, 60 + 11.5 * max(len(one.shown) for one in comparisons))
    title = "Accuracy against traffic"
    return _panels("traffic", title, caption, comparisons, draw_traffic, high, 106)


def draw_traffic(ax: Axes, one: Comparison) -> None:
    """Draw one setting."""
    arms = list(one.shown.values())
    points = pd.DataFrame({"floats": one.costs["floats"], "value": one.levels["mean"]}).loc[arms]
    points.index = list(one.shown)
    sent = points["floats"][points["floats"] > 0]
    zero = 10 ** (np.floor(np.log10(sent.min())) - 1) if len(sent) else 0.1
    points["x"] = points["floats"].clip(lower=zero)
    ordered = points.sort_values(["x", "value"], ascending=[True, one.sign < 0])
    better = one.sign * ordered["value"]
    front = ordered[better > better.cummax().shift(fill_value=-math.inf)]
    usual = points["value"].sort_values()
    # A value is far below if it lies further from the others than they reach themselves.
    gaps = [
        i
        for i in range(min(2, len(usual) - 3))
        if usual.diff().iloc[i + 1] > np.ptp(usual[i + 1 :])
    ]
    floor = usual.iloc[gaps[0] + 1] if gaps and one.sign > 0 else -math.inf
    above = usual[usual >= floor]
    pad = 0.07 * np.ptp(above) or 1.0
    low = above.min() - pad * (2.2 if gaps else 1)
    right = max(sent.max() if len(sent) else 1.0, 10 * zero) * 2
    ax.set(xscale="log", xlim=(zero / 2, right), ylim=(low, above.max() + pad))
    steps = [*front["value"], front["value"].iloc[-1]]
    ax.step([*front["x"], right], steps, where="post", color=BLUE, alpha=0.5, lw=1)
    ends = []
    for row, point in points.iterrows():
        colour = BLUE if row in front.index else INK
        far = point["value"] < floor
        y = low + 0.5 * pad if far else point["value"]
        ax.plot(point["x"], y, "v" if far else "o", ms=5, mew=0, color=colour, alpha=0.8)
        name = f"{cut(row, 15)} {point['value']:.1f}" if far else row
        ends.append((name, point["x"], y, colour))
    powers = 10.0 ** np.arange(np.log10(zero) + (len(sent) > 0), np.floor(np.log10(right)) + 1)
    ticks = {p: EngFormatter(sep="")(p) for p in powers[:: 1 + len(powers) // 6]}
    if len(sent) < len(points):
        ticks[zero] = "0"
    ax.minorticks_off()
    ax.set_xticks(list(ticks), list(ticks.values()))
    _finish(ax, "floats a client and round", " ", ends)


def curves(comparisons: Sequence[Comparison]) -> list[Picture]:
    """A figure for every numeric key in which arms or settings differ while all else is the same.

    Beside these the epsilon that runs with noise spent.
    """
    runs = pd.concat([one.runs.assign(y=one.runs[one.metric]) for one in comparisons])
    keys = list(runs.columns[list(runs.columns).index("processor") + 1 : -1])
    keys = [key for key in keys if key.replace("_", "-") not in IN_NO_SETTING]
    made = []
    for key in [*keys, "epsilon"]:
        x = pd.to_numeric(runs[key], errors="coerce")
        if x.nunique() < 2 or runs[key].map(type).eq(bool).any():
            continue
        private = [name for name in keys if name.startswith(("dp_", "sum_"))] * (key == "epsilon")
        rest = runs[[name for name in keys if name not in {key, "precision", *private}]].astype(str)
        groups = pd.util.hash_pandas_object(rest, index=False)
        varied = x.groupby(groups).transform("nunique") > 1
        if varied.any():
            own = runs.assign(x=x, group=groups)[varied & x.notna()]
            made.append(_curve(key, own))
    return made


def _curve(key: str, points: pd.DataFrame) -> Picture:
    """Lines over x, one for all that is the same: mean over blocks, bars over all blocks."""
    by = ["group", "x"]
    table = points.groupby(by, sort=False)["y"].agg(["mean", "min", "max"])
    first = points.groupby("group", sort=False)[["method", "setting"]].first()
    several = first["setting"].nunique() > 1
    names = first["method"].map(method_name) + (", " + first["setting"] if several else "")

    def draw(ax: Axes) -> None:
        ends = []
        for i, group in enumerate(first.index):
            own, colour = table.loc[group].sort_index(), HUES[i % len(HUES)]
            ax.plot(own.index, own["mean"], "o-", ms=4, color=colour)
            ax.vlines(own.index, own["min"], own["max"], color=colour, alpha=0.5, lw=1)
            ends.append((names[group], own.index[-1], own["mean"].iloc[-1], colour))
        _finish(ax, key.replace("_", " "), "test metric", ends)

    caption = "Mean over blocks after the last round; bars: lowest to highest block."
    title = f"Accuracy against {'spent epsilon' if key == 'epsilon' else key.replace('_', '-')}"
    return _alone(f"curve-{key}", title, caption, draw, len(first))


# --- one setting ---------------------------------------------------------------------------------


def of_setting(one: Comparison) -> list[Picture]:
    """Figures of one setting."""
    return [rounds(one), _clients(one), _partition(one)]


def rounds(one: Comparison) -> Picture:
    """The headline over rounds: mean over all clients, mean over blocks."""
    name, title = f"rounds-{one.setting.slug}", f"{said(one.metric).capitalize()} over rounds"
    by_round = one.course.groupby(["arm", "round"])["figure"].agg(["mean", "count"])
    blocks = by_round.index.get_level_values(0).map(one.levels["blocks"])
    shared = by_round.loc[by_round["count"] == blocks, "mean"]  # evaluated in all blocks
    known = [arm for arm in one.arms if arm in shared.index]
    if not known:
        reason = "no method was evaluated in the same rounds of all blocks"
        return Picture(file_name(name), title, absent=reason)

    def draw(ax: Axes) -> None:
        ends = []
        for i, arm in enumerate(known):
            own = shared[arm].sort_index()
            own = own.iloc[sorted({*range(0, len(own), 1 + len(own) // _POINTS), len(own) - 1})]
            colour, style = HUES[i % len(HUES)], ("-", "--", ":")[i // len(HUES) % 3]
            ax.plot(own.index, own, style, color=colour, marker="" if len(own) > 1 else "o")
            ends.append((arm, own.index[-1], own.iloc[-1], colour))
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        _finish(ax, "round", f"test {said(one.metric)}", ends)

    return _alone(name, title, "Mean over all clients, mean over blocks.", draw, len(known))


def _clients(one: Comparison) -> Picture:
    name, title = f"clients-{one.setting.slug}", "Distribution over clients"
    own = one.clients[one.clients["generation"] > 0]
    own = own if len(own) else one.clients
    by_arm = own.dropna(subset=f"test_{one.metric}").groupby("arm")[f"test_{one.metric}"]
    values = {arm: by_arm.get_group(arm) for arm in one.arms if arm in by_arm.groups}
    if not values:
        reason = "the server learned means over clients only (secure-sum)"
        return Picture(file_name(name), title, absent=reason)

    def draw(ax: Axes) -> None:
        ink = {"color": INK, "linewidth": 0.9}
        ax.boxplot(
            list(values.values()), orientation="horizontal", whis=(10, 90), showfliers=False,
            showmeans=True, widths=0.6, boxprops=ink, whiskerprops=ink, showcaps=False,
            medianprops={"color": BLUE, "linewidth": 2},
            meanprops={"marker": "P", "markerfacecolor": INK, "markeredgewidth": 0},
        )  # fmt: skip
        worst = [found.max() if one.sign < 0 else found.min() for found in values.values()]
        ax.plot(worst, range(1, len(values) + 1), ".", color=ORANGE, ms=5)
        ax.set_yticks(range(1, len(values) + 1), [label(arm, 26) for arm in values], fontsize=9)
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        _finish(ax, f"test {said(one.metric)}")

    caption = (
        "Clients that were ever sampled, of all blocks, after the last round. Box: quartiles and "
        "median; line: 10th to 90th percentile; cross: mean; dot: worst."
    )
    size = (_WIDE, 50.0 + 17 * len(values))
    panel = _panel(name, draw, size, title, (150, 12, 8, 38))
    return Picture(file_name(name), title, caption, [("", panel)])


def _partition(one: Comparison) -> Picture:
    """Training examples per client and class, of the first run that has them."""
    name, title = f"partition-{one.setting.slug}", "Who holds what"
    if one.counts is None or one.counts.empty:
        reason = "no run of this setting has its partition.csv"
        return Picture(file_name(name), title, absent=reason)
    counts, what = one.counts, noun(str(one.setting.keys["dataset"]))
    held = counts.to_numpy()
    row, column = np.nonzero(held)
    caption = (
        f"Training {what} per client and class (area); {len(counts):,} clients, {held.sum():,} "
        f"{what}, at most {held.max():,} of a class on one client."
    )
    step = -(-counts.shape[1] // 24)
    high = 60 + max(9.0, min(18.0, 300 / counts.shape[1])) * min(counts.shape[1], 60)

    def draw(ax: Axes) -> None:
        cell = min(330 / max(len(counts), 8), (high - 60) / counts.shape[1] * 1.3)
        area = 0.9 * cell**2 * held[row, column] / max(1, held.max())
        ax.scatter(row, column, s=np.maximum(area, 1), color=BLUE, linewidths=0)
        names = [label(str(each), 14) for each in counts.columns[::step]]
        ax.set_yticks(range(0, counts.shape[1], step), names, fontsize=8.5)
        ax.set(xlim=(-0.7, len(counts) - 0.3), ylim=(counts.shape[1] - 0.3, -0.7))
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.set_xlabel("clients, in order", fontsize=9)

    panel = _panel(name, draw, (_WIDE, high), title, (100, 10, 6, 26))
    return Picture(file_name(name), title, caption, [("", panel)])
