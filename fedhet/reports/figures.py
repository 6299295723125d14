"""The figures of one setting that need nothing but the records of runs."""

import math

import numpy as np

from fedhet.data.inputs import noun
from fedhet.reports.comparison import Comparison, trained
from fedhet.reports.drawing import ACCURACY, Colours, Picture, absent, drawn, thin
from fedhet.reports.lines import Series, draw_boxes, draw_lines, tall_enough
from fedhet.reports.settings import Arm
from fedhet.reports.svg import Drawing, cut

_LEVELS = 8  # sizes of the dots of a partition
_WORDS = 60  # letters of what a record calls a norm
_CELL, _MOST = 9.0, 120  # pixels of a cell; rows and columns beyond which cells shrink


def of_setting(one: Comparison, colours: Colours) -> list[Picture]:
    """Figures of one setting."""
    made = [rounds(one, colours), _clients(one), _gains(one, colours)]
    made += [*_norms(one, colours), _partition(one)]
    return made


def rounds(one: Comparison, colours: Colours) -> Picture:
    """Mean accuracy over rounds."""
    name, title = f"rounds-{one.setting.slug}", "Accuracy over rounds"
    series = []
    for arm in one.arms:
        curves = [
            {r["round"]: r["test_accuracy_mean"] for r in run.evaluated} for run in arm.ordered()
        ]
        shared = sorted(set.intersection(*(set(curve) for curve in curves)))
        if not shared:  # blocks that were evaluated in other rounds
            continue
        chosen = [shared[i] for i in thin(len(shared))]
        points = [(float(r), float(np.mean([curve[r] for curve in curves]))) for r in chosen]
        series.append(Series(arm.name, colours[arm.name], points))
    if not series:
        return absent(name, title, "no method was evaluated in the same rounds of all blocks")
    caption = "Mean over all clients, mean over blocks."
    return drawn(
        name, title, caption, tall_enough(series),
        lambda panel: draw_lines(panel, series, ("round", ACCURACY)),
    )  # fmt: skip


def _clients(one: Comparison) -> Picture:
    rows = []
    for arm in one.arms:
        values = [value for run in arm.ordered() for value in trained(run)]
        if values:
            rows.append((arm.name, values))
    name, title = f"clients-{one.setting.slug}", "Distribution over clients"
    if not rows:
        return absent(name, title, "the server learned means alone (secure-sum)")
    never = max(level.never_sampled or 0.0 for level in one.levels)
    left_out = "" if not never else " Clients that were never sampled are not among them."
    caption = (
        "Clients of all blocks after the last round. Box: quartiles and median; line: 10th to 90th "
        f"percentile; cross: mean; dot: worst.{left_out}"
    )
    return drawn(
        name, title, caption, 46 + 18 * len(rows), lambda panel: draw_boxes(panel, rows, ACCURACY)
    )


def _gains(one: Comparison, colours: Colours) -> Picture:
    name, title = f"gains-{one.setting.slug}", "Who gains"
    pairs = [(arm, pair) for arm, pair in zip(one.arms, one.paired, strict=True) if pair]
    if not pairs:
        return absent(name, title, "no method shares a block with the baseline")
    base = one.baseline.name if one.baseline else ""
    series = []
    for arm, pair in pairs:
        values = np.sort(np.concatenate([np.asarray(own) for own in pair.clients]))[::-1]
        share = 100 * (np.arange(len(values)) + 0.5) / len(values)
        chosen = thin(len(values), 40)
        points = [(float(share[i]), float(values[i])) for i in chosen]
        series.append(Series(arm.name, colours[arm.name], points))
    caption = (
        f"Every client's accuracy less that of the same client under {base}, sorted within each "
        "method, clients of all blocks. A line is above zero for the share that gains, on it for "
        "the share that is equal, and below it for the share that loses."
    )
    labels = ("clients, % (best first)", f"points above {base}")
    return drawn(
        name, title, caption, tall_enough(series),
        lambda panel: draw_lines(panel, series, labels, zero=True, marks=False),
    )  # fmt: skip


def _norms(one: Comparison, colours: Colours) -> list[Picture]:
    """A figure for every norm that a method records, such as FedSSA's global header."""
    kinds: dict[str, list[Arm]] = {}
    for arm in one.arms:
        for key in dict.fromkeys(key for run in arm.ordered() for key in run.rounds[0]):
            if key.endswith("norm"):
                kinds.setdefault(key, []).append(arm)
    made = []
    for key, arms in kinds.items():
        series = []
        for arm in arms:
            alone = len({seed for _, seed in arm.blocks}) == len(arm.blocks)
            for block, run in zip(arm.blocks, arm.ordered(), strict=True):
                points = [(r["round"], r[key]) for r in run.rounds if r.get(key) is not None]
                if points:  # none in a record of before this norm was recorded
                    chosen = [points[i] for i in thin(len(points))]
                    partition = "" if alone else f"partition {block[0]}, "
                    label = f"{arm.name}, {partition}seed {block[1]}"
                    series.append(Series(label, colours[arm.name], chosen))
        if series:
            words = cut(key.replace("_", " "), _WORDS)
            made.append(_norm(f"{key}-{one.setting.slug}", words, series))
    return made


def _norm(name: str, words: str, series: list[Series]) -> Picture:
    caption = "L2 norm after every round; a line per block."
    title = words[:1].upper() + words[1:]
    return drawn(
        name, title, caption, tall_enough(series),
        lambda panel: draw_lines(panel, series, ("round", words), marks=False),
    )  # fmt: skip


def _partition(one: Comparison) -> Picture:
    name, title = f"partition-{one.setting.slug}", "Who holds what"
    run = next((r for arm in one.arms for r in arm.ordered() if r.counts), None)
    if run is None or run.counts is None:
        return absent(name, title, "no run of this setting has its partition.csv")
    counts = run.counts
    what = noun(str(one.setting.keys["dataset"]))
    held = [
        (row, label, images)
        for row, own in enumerate(counts.clients.values())
        for label, images in own.items()
        if images
    ]
    total = sum(images for _, _, images in held)
    caption = (
        f"Training {what} per client and class (area), seed {run.config.get('seed', 0)}; "
        f"{len(counts.clients):,} clients, {total:,} {what}, at most "
        f"{max((images for *_, images in held), default=0):,} of a class on one client."
    )
    names, clients = counts.classes, len(counts.clients)
    cell = min(_CELL * 2, (440 - 90) / max(clients, 8))
    tall = max(cell, 9.0 if len(names) <= 24 else min(cell, 5.0))

    def draw(panel: Drawing) -> None:
        _dots(panel, held, (90.0, 6.0, cell, tall))
        every = -(-len(names) // 24)
        for label in range(0, len(names), every):
            y = 6 + tall * (label + 0.5)
            panel.text(84, y + 3.5, cut(names[label], 15), "small", anchor="end", full=names[label])
        panel.text(90, 6 + tall * len(names) + 14, "clients, in order", "soft small")

    return drawn(name, title, caption, 6 + tall * len(names) + 22, draw)


def _dots(
    panel: Drawing, held: list[tuple[int, int, int]], place: tuple[float, float, float, float]
) -> None:
    """Dots in a few sizes, those of one size in one element."""
    left, top, cell, tall = place
    most = max((images for *_, images in held), default=1)
    sized: dict[int, list[tuple[float, float]]] = {}
    for row, label, images in held:
        level = max(1, math.ceil(_LEVELS * math.sqrt(images / most)))
        middle = (left + cell * (row + 0.5), top + tall * (label + 0.5))
        sized.setdefault(level, []).append(middle)
    for level, points in sorted(sized.items()):
        panel.dots(points, "s1", max(0.8, 0.95 * min(cell, tall * 1.6) * level / _LEVELS))
