"""Figures that compare settings: accuracy over a key, and against the privacy that was spent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedhet.reports.comparison import Comparison, final
from fedhet.reports.drawing import (
    ACCURACY,
    WIDTH,
    Colours,
    Picture,
    absent,
    legend_below,
    look,
    mark,
    picture,
)
from fedhet.reports.runs import Run
from fedhet.reports.settings import Arm

Points = Mapping[str, Sequence[tuple[float, list[float]]]]  # arm's name: x, accuracy per block
_PRIVACY = ("dp-clip", "dp-epsilon", "dp-delta")


def over_settings(comparisons: Sequence[Comparison], colours: Colours) -> list[Picture]:
    """A curve for every numeric key in which settings differ while all else is the same."""
    made = []
    for key, group in _families(comparisons):
        points: dict[str, list[tuple[float, list[float]]]] = {}
        for one in group:
            for arm in one.arms:
                ends = [final(run) for run in arm.ordered()]
                points.setdefault(arm.name, []).append((float(one.setting.keys[key]), ends))
        first = min(group, key=lambda one: one.setting.slug).setting.slug
        made.append(_curves(f"curve-{key}-{first}", key, points, colours, group[0].setting.title))
    if not made:
        reason = (
            "no two settings differ in one numeric key alone (such as classes-per-client, alpha or "
            "fraction)"
        )
        made.append(absent("curves", "Non-IID and participation curves", reason))
    return made


def _families(comparisons: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    found: dict[tuple[str, str], list[Comparison]] = {}
    for one in comparisons:
        keys = one.setting.keys
        for key, value in keys.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = repr(sorted((k, v) for k, v in keys.items() if k != key))
                found.setdefault((key, rest), []).append(one)
    return [
        (key, group) for (key, _), group in found.items() if len(group) > 1 and key not in _PRIVACY
    ]


def over_own_keys(one: Comparison, colours: Colours) -> list[Picture]:
    """A curve for every numeric key of a method in which its arms differ alone."""
    made = []
    for method in dict.fromkeys(arm.method for arm in one.arms):
        arms = [arm for arm in one.arms if arm.method == method]
        values = {id(arm): _own_values(arm) for arm in arms}
        for key in sorted({key for arm in arms for key in arm.keys}):
            groups: dict[str, list[tuple[float, list[float]]]] = {}
            for arm in arms:
                value = values[id(arm)].get(key)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    rest = Arm(method, {k: v for k, v in arm.keys.items() if k != key}).name
                    ends = [final(run) for run in arm.ordered()]
                    groups.setdefault(rest, []).append((float(value), ends))
            groups = {name: points for name, points in groups.items() if len(points) > 1}
            if groups:
                own = {name: colours.get(name, i) for i, name in enumerate(groups)}
                name = f"curve-{key}-{method}-{one.setting.slug}"
                made.append(_curves(name, key, groups, own, one.setting.title))
    return made


def _own_values(arm: Arm) -> dict[str, Any]:
    """All of a method's own keys, as its first run has them."""
    return {**dict(arm.ordered()[0].config), **arm.keys}


def _curves(name: str, key: str, points: Points, colours: Colours, title: str) -> Picture:
    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for method, own in points.items():
            _errors(axes, sorted(own), method, colours[method])
        axes.set(xlabel=key.replace("-", " "), ylabel=ACCURACY)
        axes.margins(0.06)
        legend_below(figure, axes)

    caption = (
        f"Everything else as in: {title}. Mean over blocks after the last round; bars: lowest to "
        "highest block."
    )
    return picture(name, f"Accuracy against {key}", caption, draw, (WIDTH, 3.4))


def _errors(
    axes: Axes,
    points: Sequence[tuple[float, list[float]]],
    label: str,
    index: int,
    *,
    filled: bool = True,
) -> None:
    means = np.array([np.mean(ends) for _, ends in points])
    low = means - [min(ends) for _, ends in points]
    high = [max(ends) for _, ends in points] - means
    axes.errorbar(
        [x for x, _ in points], means, yerr=np.stack([low, high]), label=label, marker=mark(index),
        markersize=5, capsize=2.5, elinewidth=1, markerfacecolor=None if filled else "white",
        **look(index),
    )  # fmt: skip


def privacy(comparisons: Sequence[Comparison], colours: Colours) -> Picture:
    """Accuracy against the epsilon that a run spent."""
    title = "Accuracy against spent epsilon"
    points: dict[tuple[str, bool], list[tuple[float, list[float]]]] = {}
    for one in comparisons:
        for arm in one.arms:
            spent = [(e, final(run)) for run in arm.ordered() if (e := _spent_epsilon(run))]
            if spent:
                x = float(np.mean([e for e, _ in spent]))
                of_sum = all(_noise_of(run) == "sum" for run in arm.ordered())
                own = points.setdefault((arm.name, of_sum), [])
                own.append((x, [accuracy for _, accuracy in spent]))
    if not points:
        return absent("privacy", title, "no run has noise on its uploads (dp-clip, dp-epsilon)")

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for (method, of_sum), own in sorted(points.items(), key=lambda one: one[0][1]):
            label = f"{method}, noise for the sum" if of_sum else method
            _errors(axes, sorted(own), label, colours[method], filled=not of_sum)
        axes.set_xscale("log")
        axes.set(xlabel="spent epsilon of the client that spent most", ylabel=ACCURACY)
        axes.margins(0.06)
        legend_below(figure, axes)

    caption = "Mean over blocks after the last round; bars: lowest to highest block."
    if any(of_sum for _, of_sum in points):
        caption += (
            " Noise is each upload's own or, with hollow marks, the sum's, of which every client "
            "adds a share (secure-sum)."
        )
    return picture("privacy", title, caption, draw, (WIDTH, 3.4))


def _noise_of(run: Run) -> str:
    """What the noise of a run is on: an ``upload`` or the ``sum``."""
    return str((run.summary.get("privacy") or {}).get("noise_of", "upload"))


def _spent_epsilon(run: Run) -> float | None:
    """The largest epsilon that a client spent, from the summary; None without noise."""
    spent = (run.summary.get("privacy") or {}).get("epsilon_spent_max")
    return float(spent) if spent else None
