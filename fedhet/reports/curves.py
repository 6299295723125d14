"""Figures that compare settings: accuracy over a key, and against the privacy that was spent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedhet.reports.comparison import Comparison, final
from fedhet.reports.drawing import ACCURACY, Colours, Picture, drawn
from fedhet.reports.lines import Series, draw_lines, tall_enough
from fedhet.reports.runs import Run
from fedhet.reports.settings import Arm, Setting, at_default

Points = Mapping[str, Sequence[tuple[float, list[float]]]]  # arm's name: x, accuracy per block
_PRIVACY = ("dp-clip", "dp-epsilon", "dp-delta")
_SUM = ("secure-sum", "sum-min", "sum-threshold", "sum-owners", "sum-range", "sum-metrics")
_BARS = "Mean over blocks after the last round; bars: lowest to highest block."


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
        title = group[0].setting.conditions
        made.append(_curves(f"curve-{key}-{first}", key, points, colours, title))
    return made


def _families(comparisons: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    found: dict[tuple[str, str], list[Comparison]] = {}
    for one in comparisons:
        keys = one.setting.keys
        for key, value in keys.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = repr(sorted((k, v) for k, v in keys.items() if k not in {key, "precision"}))
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
                made.append(_curves(name, key, groups, own, one.setting.conditions))
    return made


def _own_values(arm: Arm) -> dict[str, Any]:
    """All of a method's own keys, as its first run has them."""
    return {**dict(arm.ordered()[0].config), **arm.keys}


def _curves(name: str, key: str, points: Points, colours: Colours, conditions: str) -> Picture:
    series = _series(points, colours)
    caption = f"Everything else as in: {conditions}. {_BARS}"
    return drawn(
        name, f"Accuracy against {key}", caption, tall_enough(series),
        lambda panel: draw_lines(panel, series, (key.replace("-", " "), ACCURACY)),
    )  # fmt: skip


def _series(points: Points, colours: Colours) -> list[Series]:
    return [_one_series(name, own, colours[name]) for name, own in points.items()]


def _one_series(name: str, own: Sequence[tuple[float, list[float]]], look: int) -> Series:
    ordered = sorted(own)
    means = [(x, float(np.mean(ends))) for x, ends in ordered]
    return Series(name, look, means, [(min(ends), max(ends)) for _, ends in ordered])


def privacy(comparisons: Sequence[Comparison], colours: Colours) -> list[Picture]:
    """Accuracy against the epsilon that a run spent, where there was noise.

    A figure for the settings in which all else is the same: one line joins no two data sets.
    """
    groups: dict[str, list[Comparison]] = {}
    for one in comparisons:
        groups.setdefault(_without_noise(one).slug, []).append(one)
    made = [_privacy(slug, group, colours) for slug, group in groups.items()]
    return [picture for picture in made if picture is not None]


def _without_noise(one: Comparison) -> Setting:
    """The setting as it is with neither noise nor sums, in full precision."""
    usual = {key: at_default(key) for key in (*_PRIVACY, *_SUM, "precision")}
    return Setting({**one.setting.keys, **usual}, [])


def _privacy(slug: str, comparisons: Sequence[Comparison], colours: Colours) -> Picture | None:
    """One such figure, with a line for each of two kinds of noise."""
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
        return None
    series = [
        _one_series(f"{name}, noise for the sum" if of_sum else name, own, colours[name])
        for (name, of_sum), own in sorted(points.items(), key=lambda one: one[0][1])
    ]
    labels = ("spent epsilon of the client that spent most", ACCURACY)
    caption = f"Everything else as in: {_without_noise(comparisons[0]).conditions}. {_BARS}"
    if any(of_sum for _, of_sum in points):
        caption += (
            " Noise is each upload's own or, where a line says so, the sum's, of which every "
            "client adds a share (secure-sum)."
        )
    return drawn(
        f"privacy-{slug}", "Accuracy against spent epsilon", caption, tall_enough(series),
        lambda panel: draw_lines(panel, series, labels, log=True),
    )  # fmt: skip


def _noise_of(run: Run) -> str:
    """What the noise of a run is on: an ``upload`` or the ``sum``."""
    return str((run.summary.get("privacy") or {}).get("noise_of", "upload"))


def _spent_epsilon(run: Run) -> float | None:
    """The largest epsilon that a client spent, from the summary; None without noise."""
    spent = (run.summary.get("privacy") or {}).get("epsilon_spent_max")
    return float(spent) if spent else None
