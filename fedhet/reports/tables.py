"""The tables of a report.

Anchors are made from the table's kind and the setting alone, so that a link to one stays right
when other runs are added.
"""

import re
from collections.abc import Sequence

from fedhet.reports.comparison import Comparison
from fedhet.reports.markup import Cell, Column, Table, interval, number, p_value, text
from fedhet.reports.names import plain
from fedhet.reports.papers import conditions
from fedhet.reports.settings import Arm
from fedhet.reports.statistics import ENOUGH, LEVEL, Interval
from fedhet.reports.validity import means_alone

METHOD = Column("method", "the method, with its own keys where they are not the default", False)
PERCENT = f"{100 * LEVEL:g} %"
WIDE = "‡"  # beside an interval that says nothing


def of_setting(one: Comparison) -> list[Table]:
    """All tables of one setting."""
    made = [_accuracy(one), _paired(one), _cost(one), _targets(one), _printed(one), _tuned(one),
            _others(one)]  # fmt: skip
    return [table for table in made if table.rows]


def _table(
    kind: str, title: str, note: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]],
    one: Comparison,
) -> Table:  # fmt: skip
    return Table(f"{kind}-{one.setting.slug}", title, note, columns, rows)


def _blocks(arm: Arm) -> Cell:
    failed = f" ({len(arm.failed)} failed)" if arm.failed else ""
    return Cell(f"{len(arm.runs)}{failed}", float(len(arm.runs)))


def _accuracy(one: Comparison) -> Table:
    columns = [
        METHOD,
        Column("blocks", "pairs of partition and seed"),
        Column(f"accuracy [{PERCENT}]", "mean over all clients after the last round, percent"),
        Column("at best validation", "accuracy of the round with the best validation accuracy"),
        Column("ever sampled", "mean over the clients that took part at least once"),
        Column("never sampled", "clients that never took part, mean over blocks, of all clients"),
        Column("std", "standard deviation over clients ever sampled, mean over blocks"),
        Column("10th pct.", "10th percentile of clients ever sampled, mean over blocks"),
        Column("worst", "worst client ever sampled, mean over blocks"),
    ]
    clients = one.setting.federation
    rows = [
        [
            text(arm.name), _blocks(arm), _marked(own.accuracy), number(own.best_validation),
            number(own.sampled), _never(own.never_sampled, clients), number(own.std),
            number(own.p10), number(own.worst),
        ]
        for arm, own in zip(one.arms, one.levels, strict=True)
    ]  # fmt: skip
    failed = [arm for arm in one.setting.arms if not arm.runs]
    rows += [
        [text(arm.name), Cell(f"0 ({len(arm.failed)} failed)", 0.0), *[number(None)] * 7]
        for arm in failed
    ]
    note = f"Test accuracy in percent; Student's t, {PERCENT}, {one.setting.variability()}."
    note += beyond([own.accuracy for own in one.levels])
    if any(means_alone(run.summary) for arm in one.arms for run in arm.ordered()):
        note += (
            " Of a run with secure-sum the server knows the mean over the last round's clients "
            "alone: neither spread nor percentiles."
        )
    return _table("accuracy", "Accuracy", note, columns, rows, one)


def _marked(found: Interval) -> Cell:
    shown = interval(found)
    return Cell(f"{shown.text} {WIDE}", shown.value) if says_nothing(found) else shown


def says_nothing(found: Interval) -> bool:
    """Whether the interval of an accuracy is wider than all that an accuracy can be."""
    return found.half is not None and found.half > 50


def beyond(found: Sequence[Interval]) -> str:
    """A sentence on intervals of accuracies that reach where no accuracy is; else nothing."""
    if any(says_nothing(one) for one in found):
        return (
            f" {WIDE}: an interval wider than 0 to 100 says nothing: two blocks are too few where "
            "they differ this much."
        )
    if any(one.beyond(0.0, 100.0) for one in found):
        return " Student's t is symmetric: an end may lie where no accuracy is, such as above 100."
    return ""


def _never(clients: float | None, of: int) -> Cell:
    """How many never took part: clients, not percent; None where nobody knows."""
    if clients is None:
        return number(None)
    return Cell(f"{clients:g} of {of}" if clients else "none", clients)


def _paired(one: Comparison) -> Table:
    base = one.baseline.name if one.baseline else ""
    pairs = [(arm, pair) for arm, pair in zip(one.arms, one.paired, strict=True) if pair]
    tested = any(not pair.descriptive for _, pair in pairs)
    columns = [
        METHOD,
        Column("blocks", f"blocks shared with {base}"),
        Column(f"difference [{PERCENT}]", "points, mean over blocks; Student's t over blocks"),
        Column("bootstrap", f"{PERCENT} of a two-level bootstrap: blocks, then clients within"),
        Column("clients better, %", "share of clients that improve, all blocks together"),
        Column("clients worse, %", "share of clients that lose; the rest are equal"),
    ]
    if tested:
        columns += [
            Column("p", "Wilcoxon signed-rank over blocks, two-sided"),
            Column("p, Holm", "adjusted over all comparisons of all settings of this report"),
        ]
    rows = []
    for arm, pair in pairs:
        row = [
            text(arm.name), number(float(len(pair.blocks)), 0),
            interval(pair.interval, sign=True), _ends(pair.bootstrap),
            number(pair.improved, 1), number(pair.lost, 1),
        ]  # fmt: skip
        tests = [Cell(p_value(p), p) for p in (pair.p, pair.adjusted)]
        rows.append([*row, *tests] if tested else row)
    few = any(pair.descriptive for _, pair in pairs)
    note = f"Less {base}, on the same clients of the same blocks; one block has no interval." + (
        f" Fewer than {ENOUGH} blocks are descriptive: no rank test." if few else
        f" With {ENOUGH} blocks the smallest p that a signed-rank test can give is 0.0625."
    )  # fmt: skip
    return _table("paired", f"Paired differences to {base}", note, columns, rows, one)


def _ends(found: Interval) -> Cell:
    if found.low is None or found.high is None:
        return number(None)
    return Cell(f"[{found.low:+.2f}, {found.high:+.2f}]", None)


def _cost(one: Comparison) -> Table:
    base = one.baseline.name if one.baseline else "the baseline"
    columns = [
        METHOD,
        Column("floats up", "per client and round"),
        Column("floats down", "per client and round"),
        Column("GFLOPs", "training, per client and round"),
        Column(f"x {base}", f"GFLOPs of {base} = 1"),
        Column("accuracy at equal compute", "when the cheapest method's training FLOPs are spent"),
        Column("after round", "the last one within that budget, mean over blocks"),
    ]
    rows = [
        [
            text(arm.name), number(cost.floats_up, 0), number(cost.floats_down, 0),
            number(cost.gflops, 1), number(cost.relative), number(cost.equal_accuracy),
            number(cost.equal_round, 1),
        ]
        for arm, cost in zip(one.arms, one.costs, strict=True)
    ]  # fmt: skip
    note = (
        "Means over blocks. Every method gets the training FLOPs that the cheapest one of the same "
        "block spent in all its rounds; accuracy is that of the last evaluated round it can afford."
    )
    return _table("cost", "Costs, and accuracy at equal compute", note, columns, rows, one)


def _targets(one: Comparison) -> Table:
    columns = [METHOD]
    targets = one.targets()
    for target in targets:
        reached = f"first round whose mean accuracy is at least {target:g} %; (k/n): in k of n"
        columns += [
            Column(f"rounds to {target:g} %", reached),
            Column(f"Mfloats to {target:g} %", "both ways, all clients"),
            Column(f"TFLOPs to {target:g} %", "training, all clients"),
        ]
    rows = []
    for arm in one.arms if targets else []:
        row = [text(arm.name)]
        for target in targets:
            hit = one.reached(arm, target)
            rounds = number(hit.rounds, 1)
            if hit.blocks and hit.blocks < hit.of:
                rounds = Cell(f"{rounds.text} ({hit.blocks}/{hit.of})", rounds.value)
            row += [
                rounds if hit.blocks else Cell("not reached", None),
                number(None if hit.floats is None else hit.floats / 1e6, 3),
                number(None if hit.gflops is None else hit.gflops / 1e3, 2),
            ]
        rows.append(row)
    note = "Means over the blocks that reached the target. "
    if one.baseline and one.own_target in targets:
        note += (
            f"The target of {one.own_target:g} % is what {one.baseline.name} ends with in its "
            "worst block, in whole percent"
        )
        note += "; the others are the papers'." if len(targets) > 1 else "."
    else:
        note += "The targets are the papers'."
    return _table("target", "Costs to a target accuracy", note, columns, rows, one)


def _printed(one: Comparison) -> Table:
    columns = [
        METHOD,
        Column("paper", "the paper's number, percent; '-': it failed to converge there"),
        Column(f"ours [{PERCENT}]", "as in the table of accuracies"),
        Column("ours less paper", "points"),
        Column("in our interval", "whether the paper's number lies in our interval", False),
        Column("paper's order", "1: highest among the methods of this table; none for ablations"),
        Column("our order", "1: highest among the methods of this table; none for ablations"),
        Column("source", "paper, arXiv id and table", False),
    ]
    found = [
        (arm, own.accuracy, one.printed(arm)) for arm, own in zip(one.arms, one.levels, strict=True)
    ]
    known = [(arm, ours, theirs) for arm, ours, theirs in found if theirs is not None]
    our_order = _order([None if arm.keys else ours.mean for arm, ours, _ in known])
    their_order = _order([None if arm.keys else theirs.accuracy for arm, _, theirs in known])
    rows = []
    for (arm, ours, theirs), mine, other in zip(known, our_order, their_order, strict=True):
        holds = None if theirs.accuracy is None else ours.holds(theirs.accuracy)
        gap = None if theirs.accuracy is None else ours.mean - theirs.accuracy
        row_name = f"{arm.name}: {theirs.row}" if theirs.row else arm.name
        rows.append(
            [
                text(row_name), number(theirs.accuracy), interval(ours), number(gap, sign=True),
                Cell({None: "-", True: "yes", False: "no"}[holds], str(holds)),
                number(other, 0), number(mine, 0), text(theirs.source),
            ]
        )  # fmt: skip
    keys = one.setting.keys
    note = (
        f"The papers: {conditions()}. Here: E = {keys['local-epochs']}, "
        f"B = {keys['batch-size']}, lr = {plain(keys['lr'])}, T = {keys['rounds']}, each method's "
        f"defaults, {', '.join(keys['tuned']) or 'nothing'} tuned. Where these differ, so may the "
        "numbers; the papers' single runs have no interval of their own."
    )
    return _table("papers", "Beside the papers", note, columns, rows, one)


def _tuned(one: Comparison) -> Table:
    columns = [METHOD, Column("chosen", "by validation accuracy", numeric=False)]
    chosen = [
        (arm, ", ".join(f"{key} = {plain(own)}" for key, own in arm.searched.items()))
        for arm in one.arms
    ]
    rows = [[text(arm.name), text(said)] for arm, said in chosen if said]
    note = "What was searched for each method, and is no part of the setting."
    return _table("tuned", "Tuned", note, columns, rows, one)


def _order(values: Sequence[float | None]) -> list[float | None]:
    """Ranks, 1 for the highest; equal numbers share the better rank."""
    known = sorted((v for v in values if v is not None), reverse=True)
    return [None if v is None else float(known.index(v) + 1) for v in values]


_OTHER = re.compile(r"^test_accuracy_(?!mean$|std$|p10$|min$)(.+)_mean$")


def _others(one: Comparison) -> Table:
    """Further predictions that a method records, such as its other inference models."""
    columns = [
        METHOD,
        Column("prediction", "what answers instead of the headline's model", False),
        Column("accuracy", "mean over clients after the last round, mean over blocks, percent"),
        Column("headline", "accuracy of the headline's model"),
    ]
    rows = []
    for arm, own in zip(one.arms, one.levels, strict=True):
        last = [run.evaluated[-1] for run in arm.ordered()]
        kinds = [m.group(1) for key in last[0] if (m := _OTHER.match(key))]
        for kind in kinds:
            values = [record.get(f"test_accuracy_{kind}_mean") for record in last]
            known = [value for value in values if value is not None]
            mean = sum(known) / len(known) if known else None
            rows.append([text(arm.name), text(kind), number(mean), number(own.accuracy.mean)])
    note = "Recorded by methods that can answer in more than one way."
    return _table("inference", "Other predictions", note, columns, rows, one)
