"""The figures of one setting that need nothing but the records of runs."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedhet.data.inputs import noun
from fedhet.data.plot import draw_bubbles
from fedhet.reports.comparison import Comparison, final
from fedhet.reports.drawing import (
    ACCURACY,
    GRID,
    INK,
    LINE,
    WIDTH,
    Colours,
    Picture,
    absent,
    label_points,
    legend_below,
    look,
    picture,
    thin,
)
from fedhet.reports.settings import Arm
from fedhet.reports.statistics import course

_FEW_BANDS = 5  # more than that must be paler, since they lie on each other


def of_setting(one: Comparison, colours: Colours) -> list[Picture]:
    """Figures of one setting."""
    made = [_rounds(one, colours), _clients(one, colours), _trade_off(one, colours)]
    made += [_differences(one, colours), _norms(one, colours), _partition(one)]
    return made


def _rounds(one: Comparison, colours: Colours) -> Picture:
    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        alpha = 0.14 if len(one.arms) <= _FEW_BANDS else 0.07
        ends = []
        for arm in one.arms:
            curves = [{r["round"]: r["test_accuracy_mean"] for r in run.evaluated}
                      for run in arm.ordered()]  # fmt: skip
            shared = sorted(set.intersection(*(set(curve) for curve in curves)))
            if not shared:  # blocks that were evaluated in other rounds
                continue
            shared = [shared[i] for i in thin(len(shared))]
            values = np.array([[curve[r] for r in shared] for curve in curves])
            style = look(colours[arm.name])
            axes.plot(shared, values.mean(axis=0), label=arm.name, **style)
            if len(curves) > 1:
                band = (values.min(axis=0), values.max(axis=0))
                axes.fill_between(shared, *band, color=style["color"], alpha=alpha, linewidth=0)
            ends.append(values[:, -1].mean())
        axes.set(xlabel="round", ylabel=ACCURACY)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.01)
        legend_below(figure, axes, list(np.argsort(ends)[::-1]))

    caption = "Mean over all clients; line: mean over blocks, band: lowest to highest block."
    size = (WIDTH, 3.4 + 0.17 * (len(one.arms) / 4))
    name = f"rounds-{one.setting.slug}"
    return picture(name, "Accuracy over rounds", caption, draw, size)


def _clients(one: Comparison, colours: Colours) -> Picture:
    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, arm in enumerate(reversed(one.arms)):
            tests = [s.test for run in arm.ordered() for s in run.clients if s.test is not None]
            colour = look(colours[arm.name])["color"]
            line = {"color": colour, "linewidth": 1.2}
            axes.boxplot(
                [tests], positions=[place], orientation="horizontal", widths=0.6,
                patch_artist=True, showmeans=True, boxprops={"facecolor": colour + "30", **line},
                whiskerprops=line, capprops=line, medianprops={**line, "linewidth": 2},
                flierprops={"marker": "o", "markersize": 2.5, "markerfacecolor": colour,
                            "markeredgewidth": 0},
                meanprops={"marker": "+", "markeredgecolor": INK, "markersize": 8,
                           "markeredgewidth": 1.4},
            )  # fmt: skip
        axes.set_yticks(range(len(one.arms)), [arm.name for arm in reversed(one.arms)])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(ACCURACY)

    caption = (
        "Clients of all blocks after the last round. Box: quartiles and median; whiskers: up to "
        "1.5 times the box; +: mean."
    )
    size = (WIDTH, 0.9 + 0.34 * max(2, len(one.arms)))
    name = f"clients-{one.setting.slug}"
    return picture(name, "Clients", caption, draw, size)


def _trade_off(one: Comparison, colours: Colours) -> Picture:
    points = []
    for arm in one.arms:
        runs = arm.ordered()
        ends = [course(run.rounds)[-1] for run in runs]
        points.append(
            (
                float(np.mean([end.floats for end in ends])),
                float(np.mean([final(run) for run in runs])),
                float(np.mean([end.flops for end in ends])),
            )
        )

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        scale = 420 / (max(flops for _, _, flops in points) or 1.0)
        for arm, (floats, accuracy, flops) in zip(one.arms, points, strict=True):
            axes.scatter(
                floats, accuracy, s=scale * flops, alpha=0.55, label=arm.name,
                color=look(colours[arm.name])["color"], linewidths=0,
            )  # fmt: skip
            axes.scatter(floats, accuracy, s=6, color=INK, linewidths=0, zorder=3)
        sent = [floats for floats, _, _ in points if floats > 0]
        start = 10.0 ** np.floor(np.log10(min(sent))) if sent else 1.0
        axes.set_xscale("symlog", linthresh=start, linscale=0.4)
        axes.set_xlim(left=-0.25 * start)
        axes.margins(x=0.12, y=0.2)
        axes.set(xlabel="floats sent, both ways, all clients and rounds", ylabel=ACCURACY)
        named = zip(one.arms, points, strict=True)
        label_points(axes, [(x, y, scale * flops, arm.name) for arm, (x, y, flops) in named])

    low, high = (f(flops for _, _, flops in points) / 1e12 for f in (min, max))
    caption = (
        "Whole runs, means over blocks; the area of a circle is the training FLOPs "
        f"({low:,.3g} to {high:,.3g} TFLOPs). The axis is linear up to its first power of ten."
    )
    return picture(f"trade-off-{one.setting.slug}", "Trade-off", caption, draw, (WIDTH, 3.8))


def _differences(one: Comparison, colours: Colours) -> Picture:
    name, title = f"differences-{one.setting.slug}", "Paired differences per client"
    pairs = [(arm, pair) for arm, pair in zip(one.arms, one.paired, strict=True) if pair]
    if not pairs:
        return absent(name, title, "no method shares a block with the baseline")
    base = one.baseline.name if one.baseline else ""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for arm, pair in pairs:
            values = np.sort(np.concatenate([np.asarray(own) for own in pair.clients]))[::-1]
            share = 100 * (np.arange(len(values)) + 0.5) / len(values)
            chosen = thin(len(values))
            axes.plot(share[chosen], values[chosen], label=arm.name, **look(colours[arm.name]))
        axes.axhline(0, color=LINE, linewidth=1)
        axes.set(xlabel="clients, % (best first)", ylabel=f"points above {base}")
        axes.margins(x=0.01)
        legend_below(figure, axes)

    caption = (
        f"Every client's accuracy less that of the same client under {base}, sorted within each "
        "method, clients of all blocks. Where a line crosses zero is the share that improves."
    )
    size = (WIDTH, 3.4 + 0.17 * (len(pairs) / 4))
    return picture(name, title, caption, draw, size)


def _norms(one: Comparison, colours: Colours) -> Picture:
    name, title = f"norms-{one.setting.slug}", "Header norms"
    kinds: dict[str, list[Arm]] = {}
    for arm in one.arms:
        for key in dict.fromkeys(key for run in arm.ordered() for key in run.rounds[0]):
            if key.endswith("norm"):
                kinds.setdefault(key, []).append(arm)
    if not kinds:
        return absent(name, title, "no method of this setting records a norm (FedSSA does)")

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(kinds), squeeze=False)[0]
        for axes, (key, arms) in zip(panels, kinds.items(), strict=True):
            named: set[str] = set()
            for arm in arms:
                for run in arm.ordered():
                    points = [(r["round"], r[key]) for r in run.rounds if r.get(key) is not None]
                    if not points:  # a record of before this norm was recorded
                        continue
                    chosen = [points[i] for i in thin(len(points))]
                    label = None if arm.name in named else arm.name
                    named.add(arm.name)
                    xs, ys = zip(*chosen, strict=True)
                    axes.plot(xs, ys, label=label, alpha=0.8, **look(colours[arm.name]))
            axes.set(xlabel="round", ylabel=key.replace("_", " "))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylim(bottom=0)
        legend_below(figure, panels[0])

    caption = (
        "L2 norm of the global header after every round and of its longest row; a line per block."
    )
    return picture(name, title, caption, draw, (WIDTH, 2.9))


def _partition(one: Comparison) -> Picture:
    name, title = f"partition-{one.setting.slug}", "Who holds what"
    run = next((r for arm in one.arms for r in arm.ordered() if r.counts), None)
    if run is None or run.counts is None:
        return absent(name, title, "no run of this setting has its partition.csv")
    counts = run.counts
    table = np.zeros((len(counts.clients), len(counts.classes)), dtype=np.int64)
    for row, own in enumerate(counts.clients.values()):
        for label, images in own.items():
            table[row, label] = images
    clients, classes = table.shape
    margin = 1.5 + 0.06 * max(len(name) for name in counts.classes)
    cell = min(0.3, (WIDTH - margin) / max(clients, 8))
    tall = max(2.4, cell * classes + 1.0)
    what = noun(str(one.setting.keys["dataset"]))
    caption = (
        f"Training {what} per client and class (area), seed {run.config.get('seed', 0)}; "
        f"{len(counts.clients):,} clients, {int(table.sum()):,} {what}."
    )
    return picture(
        name, title, caption,
        lambda figure: draw_bubbles(figure, table, counts.classes, cell, (INK, GRID), what),
        (WIDTH, tall),
    )  # fmt: skip
