"""The figures of a report, drawn by matplotlib as SVG that follows the page's colours.

A figure is a list of panels, each an SVG of its own, so that a narrow page shows one beside or
below the other. Ink becomes ``currentColor``; a file of its own follows the reader's dark mode.
"""
# ruff: noqa: PLC0415  (torch and scikit-learn take seconds, and few reports draw models)

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedhet.data.inputs import noun
from fedhet.errors import Damaged, UserError, one_line
from fedhet.reports.comparison import Comparison, in_order, many
from fedhet.reports.reading import DEFAULTS, RunRecord, cut
from fedhet.reports.tables import said

if TYPE_CHECKING:
    from torch import Tensor

    from fedhet.export.predict import Personalised

INK = "#010101"  # stands for currentColor
BLUE, ORANGE = "#2b7bd1", "#c8640f"  # read well on white and on dark
HUES = (BLUE, ORANGE, "#2a9568", "#b04a9e", "#8a7a1c", "#d1495b", "#5b6ee1", "#4d8f97")
_RC: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.edgecolor": INK, "axes.linewidth": 0.6, "axes.spines.top": False,
    "axes.spines.right": False, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 3, "ytick.major.size": 3,
}  # fmt: skip
_DARK = "<style>svg{color:#1b1f24}@media(prefers-color-scheme:dark){svg{color:#e4e8ec}}</style>"
_PLACES = re.compile(r"(\d\.\d\d)\d+")
_TAG = re.compile(r"<[^>]*>")
_NOISE = re.compile(  # and the head
    r"\A.*?<svg [^>]*>|<metadata>.*?</metadata>|<!--.*?-->| id=\"[a-zA-Z0-9.]+_\d+\"", re.S
)
_WIDE = 440  # of a figure that stands alone
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
        """Return the panels as files of their own, by name without suffix."""
        return {
            f"{self.name}-{panel}" if panel else self.name: standalone(svg)
            for panel, svg in self.panels
        }


def standalone(svg: str) -> str:
    """Return an SVG as a file of its own, which follows the reader's dark mode."""
    return svg.replace(">", f">{_DARK}", 1)


def drawn(name: str, size: tuple[float, float], draw: Callable[[Figure], None], title: str) -> str:
    """Draw a figure of that size in pixels and return its SVG; ``name`` makes its ids unique."""
    with mpl.rc_context(_RC | {"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that our font does not have
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72)
        draw(figure)
        text = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    svg = _TAG.sub(lambda tag: _PLACES.sub(r"\1", tag[0]), _NOISE.sub("", text.getvalue()))
    svg = svg.replace(INK, "currentColor").replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{size[0]:g}" height="{size[1]:g}" viewBox="0 0 {size[0]:g} {size[1]:g}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    return head + svg.rstrip()


def _panel(
    name: str, draw: Callable[[Axes], None], size: tuple[float, float], title: str,
    edges: tuple[float, float, float, float],
) -> str:  # fmt: skip
    """Draw one pair of axes with margins in pixels: left, right, top, bottom."""
    (wide, high), (left, right, top, bottom) = size, edges
    place = (left / wide, bottom / high, 1 - (left + right) / wide, 1 - (top + bottom) / high)
    return drawn(name, size, lambda figure: draw(figure.add_axes(place)), title)


def _label(text: str, letters: int) -> str:
    return cut(one_line(text, None), letters)


def _finish(ax: Axes, x: str, y: str = "") -> None:
    ax.grid(color=INK, alpha=0.1, lw=0.6, axis="both" if y else "x")
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)


def differences(comparisons: Sequence[Comparison]) -> Picture:
    """Paired differences to the baseline: interval, mean, blocks; a panel per setting."""
    compared = [one for one in comparisons if len(one.paired)]
    if not compared:
        reason = "no block has both the baseline and another method"
        return Picture("differences", "Paired differences", absent=reason)
    known = {r for one in compared for r, v in one.shown.items() if v in one.paired.index}
    rows = [row for row in in_order(compared) if row in known]
    title = f"Paired differences to {compared[0].baseline}"
    caption = (
        f"Points above {compared[0].baseline}, client by client on the same blocks (partition and "
        "seed); methods by mean rank; each panel has its own scale. Dot: mean; line: 95 % interval "
        "(Student's t over blocks), blue above zero, orange below, grey where it holds zero; pale "
        "dots: blocks; number: mean. A hollow dot is one block, without an interval; a pale name: "
        "not run there."
    )
    size, edges = (330, 56 + 15.0 * len(rows)), (92, 52, 20, 36)

    def panel(one: Comparison) -> str:
        name, heading = f"differences-{one.setting.slug}", f"{title}, {one.setting.title}"
        return _panel(name, lambda ax: _draw_differences(ax, one, rows), size, heading, edges)

    panels = [(one.setting.slug, panel(one)) for one in compared]
    return Picture("differences", title, caption, panels)


def _draw_differences(ax: Axes, one: Comparison, rows: Sequence[str]) -> None:
    """Draw one setting; ``rows`` are keys of ``one.shown``. The scale holds all that is drawn."""
    pairs = one.paired.reindex([one.shown.get(row, "") for row in rows]).assign(y=range(len(rows)))
    known = pairs.dropna(subset="mean")
    styles = {1: to_rgba(BLUE), -1: to_rgba(ORANGE), 0: to_rgba(INK, 0.55)}
    colours = known["sign"].map(styles)
    head = _label(one.setting.title, 44)
    ax.figure.text(0, 1, head, fontsize=10.5, weight="bold", va="top")
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.axvline(0, color=INK, lw=0.8, alpha=0.6)
    blocks = known[["values", "y"]].explode("values").astype(float)
    ax.scatter(blocks["values"], blocks["y"], s=8, lw=0, alpha=0.35, c=colours[blocks.index])
    ax.hlines(known["y"], known["low"], known["high"], colours, lw=2)
    inside = colours.where(known["low"].notna(), "none")
    ax.scatter(known["mean"], known["y"], s=25, c=inside, edgecolors=colours)
    for mean, y, (*colour, _) in zip(known["mean"], known["y"], colours, strict=True):
        ax.text(1.02, y, f"{mean:+.{one.digits}f}".replace("-", "\u2212"), va="center",
                transform=ax.get_yaxis_transform(), color=colour, fontsize=8.5)  # fmt: skip
    ax.set_yticks(range(len(rows)), [_label(row, 16) for row in rows])
    for tick, mean in zip(ax.get_yticklabels(), pairs["mean"], strict=True):
        tick.set_alpha(0.35 if pd.isna(mean) else 1)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    precisions = " and ".join(sorted(set(one.precision.values())))
    odd = f", {precisions}" if precisions != DEFAULTS["precision"] else ""
    points = "points" if one.metric == "accuracy" else said(one.metric)
    _finish(ax, f"{points} above {one.baseline}, {many(len(one.blocks), 'block')}{odd}")


def of_setting(one: Comparison) -> list[Picture]:
    """Draw the figures of one setting."""
    return [rounds(one), _partition(one)]


def rounds(one: Comparison) -> Picture:
    """Return the headline over rounds: mean over all clients, mean over blocks."""
    name, title = f"rounds-{one.setting.slug}", f"{said(one.metric).capitalize()} over rounds"
    by_round = one.course.groupby(["variant", "round"])["figure"].agg(["mean", "count"])
    blocks = by_round.index.get_level_values(0).map(one.levels["blocks"])
    shared = by_round.loc[by_round["count"] == blocks, "mean"]  # evaluated in all blocks
    known = [variant for variant in one.variants if variant in shared.index]
    if not known:
        reason = "no method was evaluated in the same rounds of all blocks"
        return Picture(name, title, absent=reason)

    def draw(ax: Axes) -> None:
        lines: list[Any] = []
        for i, variant in enumerate(known):
            curve = shared[variant].sort_index()
            step = 1 + len(curve) // _POINTS
            curve = curve.iloc[sorted({*range(0, len(curve), step), len(curve) - 1})]
            colour, style = HUES[i % len(HUES)], ("-", "--", ":")[i // len(HUES) % 3]
            lines += ax.plot(curve.index, curve, style, color=colour, label=_label(variant, 22),
                             marker="" if len(curve) > 1 else "o")  # fmt: skip
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        _finish(ax, "round", f"test {said(one.metric)}")
        lines.sort(key=lambda line: -line.get_ydata()[-1])  # as they end, from the top
        ax.legend(handles=lines, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False,
                  fontsize=8.5, labelspacing=0.2, handlelength=1.6)  # fmt: skip

    size = (_WIDE, max(250.0, 11.5 * len(known) + 60))
    panel = _panel(name, draw, size, title, (44, 150, 12, 38))
    return Picture(name, title, "Mean over all clients, mean over blocks.", [("", panel)])


def _partition(one: Comparison) -> Picture:
    """Training examples per client and class, of the first run that has them."""
    name, title, counts = f"partition-{one.setting.slug}", "Who holds what", one.counts
    if counts is None or counts.empty:
        return Picture(name, title, absent="no run of this setting has its partition.csv")
    held, what = counts.to_numpy(), noun(str(one.setting.keys["dataset"]))
    clients, classes = held.shape
    caption = (
        f"Training {what} per client and class (shade); {clients:,} clients, {held.sum():,} "
        f"{what}, at most {held.max():,} of a class on one client."
    )

    def draw(ax: Axes) -> None:
        shades = LinearSegmentedColormap.from_list("held", [to_rgba(BLUE, 0.12), to_rgba(BLUE)])
        ax.imshow(np.ma.masked_equal(held.T, 0), shades, aspect="auto", interpolation="none",
                  vmin=0, vmax=max(1, held.max()))  # fmt: skip
        step = -(-classes // 24)
        names = [_label(str(each), 14) for each in counts.columns[::step]]
        ax.set_yticks(range(0, classes, step), names, fontsize=8.5)
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.set_xlabel("clients, in order", fontsize=9)

    high = 60 + max(9.0, min(18.0, 300 / classes)) * min(classes, 60)
    panel = _panel(name, draw, (_WIDE, high), title, (92, 10, 6, 26))
    return Picture(name, title, caption, [("", panel)])


# --- t-SNE of representations: needs clients' models and examples --------------------------------
# It is drawn for the first setting whose run folders still have the clients' states. States are
# opened as `fedhet export` opens them; torch is imported only then.

MOST_VARIANTS, MOST_CLIENTS, MOST_EXAMPLES = 4, 10, 1000
_TSNE, _TSNE_TITLE = "t-sne", "t-SNE of test representations"
Cloud = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]  # points, class, client


def t_sne(placed: Sequence[RunRecord], *, wanted: bool, trust: bool) -> Picture:
    """Draw the first setting that can be; ``trust`` imports code of others that a run names."""
    reason = "packed records have no states of clients" if wanted else "left out by --no-models"
    for title, runs in groupby(placed, key=lambda one: one.setting.title) if wanted else ():
        clouds: dict[str, Cloud] = {}
        for run in runs:
            if run.variant in clouds or len(clouds) == MOST_VARIANTS or run.folder is None:
                continue
            try:
                clouds[run.variant] = _cloud(run, trust=trust)
            except (UserError, Damaged, OSError) as error:
                reason = f"'{run.name}': {error}"
        if clouds:
            return _draw_clouds(title, clouds)
    return Picture(_TSNE, _TSNE_TITLE, absent=reason)


def _cloud(run: RunRecord, *, trust: bool) -> Cloud:
    """Representations (n, d) of a run's test examples, evenly spread, with class and client."""
    import torch

    from fedhet.config.load import build_config
    from fedhet.export.model import load_model
    from fedhet.files import check_id
    from fedhet.records.run_folder import RunFolder
    from fedhet.site.local_data import load_partition

    assert run.folder is not None
    folder = RunFolder(run.folder)
    config = build_config(folder.opened(trust=trust))
    if not trust:
        folder.check_reach(config)
    clients = run.clients.loc[run.clients["generation"] > 0, "client"].iloc[:MOST_CLIENTS]
    states = [folder.states(config) / check_id(client, "client") for client in clients]
    models = [load_model(state, trust=trust)[0] for state in states]
    federation = int(run.summary.get("clients") or len(run.clients))
    dataset, partition = load_partition(config, federation)
    points, classes = [], []
    for client, model in zip(clients, models, strict=True):
        if client not in partition.ids:
            raise UserError(f"the examples of client '{client}' are not on this machine")
        test = partition.clients[partition.ids.index(client)].test
        count = min(MOST_EXAMPLES // len(clients), len(test))
        chosen = test[np.linspace(0, len(test) - 1, count).round().astype(int)]
        examples = torch.from_numpy(np.ascontiguousarray(dataset.examples[chosen]))
        points.append(representations(model, examples))
        classes.append(dataset.labels[chosen])
    if len({cloud.shape[1] for cloud in points}) != 1:
        raise UserError("the clients' representations have different widths, or none were made")
    owners = np.repeat(np.arange(len(points)), [len(cloud) for cloud in points])
    return np.concatenate(points), np.concatenate(classes), owners


def representations(model: "Personalised", examples: "Tensor") -> NDArray[np.float32]:
    """Return the inputs of the inference header: (n, d) for stored examples; hooks stay."""
    import torch

    from fedhet.training.loop import EVALUATION_BATCH, autocast

    caught: dict[str, list[Tensor]] = {}

    def catch(name: str) -> Any:
        return lambda _module, inputs: caught.setdefault(name, []).append(inputs[0].float())

    for name, part in model.parts.items():
        if isinstance(head := getattr(part, "head", None), torch.nn.Module):
            head.register_forward_pre_hook(catch(name))
    with torch.inference_mode():
        for batch in torch.split(examples, EVALUATION_BATCH):
            with autocast(model.config, batch.device):
                model(model.prepare(batch))
    if not caught:
        raise UserError("the inference model has no header")
    return torch.cat(caught.get("model") or next(iter(caught.values()))).numpy()


def _draw_clouds(setting: str, clouds: dict[str, Cloud]) -> Picture:
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # sums over threads would differ from run to run
        planes = [
            TSNE(2, perplexity=max(2.0, min(30.0, (len(points) - 1) / 3)), init="pca",
                 random_state=0, n_jobs=1).fit_transform(points)
            for points, *_ in clouds.values()
        ]  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(clouds), 2, squeeze=False)
        for row, plane, (variant, (points, *groups)) in zip(
            axes, planes, clouds.items(), strict=True
        ):
            for ax, what, group in zip(row, ("by class", "by client"), groups, strict=True):
                for number, one in enumerate(np.unique(group)):
                    x, y = plane[group == one].T
                    ax.plot(x, y, ".", ms=4, mew=0, color=HUES[number % len(HUES)])
                ax.set(xticks=[], yticks=[])
                several = 1 < len(np.unique(group)) < len(group)
                score = f"{silhouette_score(points, group):.2f}" if several else "-"
                ax.set_title(f"{_label(variant, 24)}, {what}: silhouette {score}",
                             fontsize=9, loc="left")  # fmt: skip
        figure.subplots_adjust(0.01, 0.01, 0.99, 1 - 0.08 / len(clouds), 0.05, 0.12)

    points, _, clients = next(iter(clouds.values()))
    caption = (
        f"{setting}, {len(np.unique(clients))} clients, {len(points)} test examples. "
        "Representations are what the header takes; silhouettes are those of the representations, "
        "not of the picture."
    )
    svg = drawn(_TSNE, (560, 270 * len(clouds)), draw, _TSNE_TITLE)
    return Picture(_TSNE, _TSNE_TITLE, caption, [("", svg)])
