"""The tables of a report: numbers in a DataFrame, their text, and Markdown, LaTeX and CSV of it.

Anchors are made from the table's kind and the setting alone, so that a link to one stays right
when other runs are added.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller

import pandas as pd

from fedhet.config.schema import MAJORITY, METRICS
from fedhet.files import quoted
from fedhet.records.summary import RECENT
from fedhet.reports.comparison import ENOUGH, PARTICIPANTS, PERCENT, Comparison, in_order, many
from fedhet.reports.reading import plain

UNKNOWN = (
    "'-': the run was recorded by a version without this mean. It can be computed from such a "
    "record only where every client trained in every round."
)
Show = Callable[[float], str] | int  # makes the text of a number, or says its digits
Column = tuple[str, str, str, Show | None]
OTHER = "†"  # beside a figure in another precision
_TARGETS: dict[str, dict[object, tuple[float, ...]]] = {
    # Accuracies whose price the papers compare, in percent, by data set and clients.
    "cifar10": {0: (90.0,)},
    "cifar100": {10: (70.0, 50.0), 50: (60.0, 50.0), 0: (50.0,)},
}


class ReportTable:
    """A table whose rows are named by ``rows``; columns are added one by one.

    ``data`` has the numbers (for CSV and for sorting), ``shown`` the texts, ``about`` what each
    column is, ``links`` the anchors that headings lead to, ``ranks`` marked cells by row and column
    (``best`` or ``tied``).
    """

    def __init__(self, name: str, title: str, note: str, rows: Iterable[str], head: str = "method"):
        self.name, self.title, self.note = name, title, note
        self.shown = pd.DataFrame({head: list(rows)}, dtype=object)
        self.data = self.shown.copy()
        self.about = {head: "the method, with its own keys where they are not the default"}
        self.texts = {head}  # columns of words
        self.links: dict[str, str] = {}
        self.ranks: dict[tuple[int, str], str] = {}

    def add(self, title: str, about: str, values: Iterable[object], show: Show = 2) -> None:
        """Add a column of numbers."""
        column = pd.Series(list(values), dtype=float)
        write = (lambda value: f"{value:,.{show}f}") if isinstance(show, int) else show
        self.data[title] = column
        self.shown[title] = [write(v) if pd.notna(v) else "-" for v in column]
        self.about[title] = about

    def add_text(self, title: str, about: str, values: Iterable[str]) -> None:
        """Add a column of words."""
        self.data[title] = self.shown[title] = list(values)
        self.about[title] = about
        self.texts.add(title)

    def add_interval(
        self, title: str, about: str, found: pd.DataFrame, digits: int = 2, *, sign: bool
    ) -> None:
        """Add ``mean [low, high]``; ``found`` is as :func:`intervals` makes it, in our order."""
        form = f"{{:{'+' * sign},.{digits}f}}"
        self.add(title, about, found["mean"], form.format)
        for end in ("low", "high"):
            self.data[f"{title}, {end}"] = found[end].to_numpy(dtype=float)
        for i, (low, high) in enumerate(zip(found["low"], found["high"], strict=True)):
            if pd.notna(low):
                self.shown.loc[i, title] += f" [{form.format(low)}, {form.format(high)}]"


def overview(comparisons: Sequence[Comparison]) -> ReportTable:
    """Return the headline of every method in every setting, in the order of their mean rank."""
    rows = in_order(comparisons)
    table = ReportTable("overview", "Methods and settings", "", rows)
    for one in comparisons:
        title, level = one.setting.title, one.levels
        means = level["mean"].reindex([one.shown.get(row, "") for row in rows])
        table.add(title, one.setting.conditions, means, one.digits)
        table.links[title] = one.setting.slug
        half, (top, tied) = (level["high"] - level["low"]) / 2, one.best
        for row, variant in one.shown.items():
            text = table.shown.loc[i := rows.index(row), title]
            if pd.notna(half[variant]):
                text += f" ± {half[variant]:.{one.digits}f}"
            if one.second and pd.notna(second := level[one.second][variant]):
                text += f" | {second:.2f}"
            if one.precision[variant] != one.setting.keys["precision"]:
                text += OTHER
            table.shown.loc[i, title] = text
            table.ranks[i, title] = "best" if row == top else "tied" if row in tied else ""
    for name, usual, values in (
        ("blocks", "", [str(len(one.blocks)) for one in comparisons]),
        ("precision", "fp32", [str(one.setting.keys["precision"]) for one in comparisons]),
        ("metric", "accuracy", [said(one.metric) for one in comparisons]),
        ("second metric", "-", [said(one.second) for one in comparisons]),
    ):
        if set(values) != {usual}:
            table.shown.loc[len(table.shown)] = [name, *values]
    metrics = " or ".join(sorted({said(one.metric) for one in comparisons}))
    table.note = (
        f"Mean test {metrics} ± half the {PERCENT} interval (Student's t over blocks). Bold: the "
        "best mean; underlined: not shown to differ from it, as the interval of the paired "
        "difference over the same blocks contains zero. One block has neither interval nor mark. "
        "Methods by mean rank. Student's t is symmetric: with few blocks an end may lie beyond "
        "every value."
    )
    if any(one.second for one in comparisons):
        table.note += " After the bar: the mean of the second metric."
    if table.shown.map(lambda text: str(text).endswith(OTHER)).any(axis=None):
        table.note += f" {OTHER}: run in another precision than its column."
    return table


def of_setting(one: Comparison) -> list[ReportTable]:
    """All tables of a setting that have a row."""
    kinds = (_levels, _paired, _participants, _costs, _targets, _tuned, _others)
    return [table for kind in kinds if len((table := kind(one)).shown)]


def _table(
    one: Comparison, kind: str, title: str, note: str, rows: pd.DataFrame, *columns: Column
) -> ReportTable:
    """Return a table with the columns that ``rows`` has."""
    table = ReportTable(f"{kind}-{one.setting.slug}", title, note, rows.index)
    for heading, about, name, show in columns:
        if show is None:
            table.add_interval(heading, about, rows, one.digits, sign=kind == "paired")
        elif name in rows:
            table.add(heading, about, rows[name], show)
    return table


def _levels(one: Comparison) -> ReportTable:
    level, of, digits = one.levels, int(one.runs["federation"].max()), one.digits
    partitions, seeds = ({block.split("/")[i] for block in one.blocks} for i in (0, 1))
    dealt = 1 if one.setting.keys["partition"] == "file" else len(partitions)
    note = (
        f"Test {said(one.metric)}; Student's t, {PERCENT}, over {many(len(one.blocks), 'block')}: "
        f"{many(dealt, 'partition')}, {many(len(seeds), 'seed')}. "
        "The columns after 'never sampled' are over the clients that took part at least once."
    )
    if one.clients[f"test_{one.metric}"].isna().all():
        note += " The server learned means over clients only (secure-sum)."
    elif (have := one.clients.groupby("number")[f"test_{one.metric}"].count()).lt(of).any():
        note += f" Means are over the clients that have it: {have.min()} to {have.max()} of {of}."
    if one.metric not in {"accuracy", "balanced_accuracy"} or level[MAJORITY].isna().all():
        level = level.drop(columns=MAJORITY)
    return _table(
        one, "accuracy", said(one.metric).capitalize(), note, level,
        ("blocks", "pairs of partition and seed", "blocks", 0),
        (f"{one.metric} [{PERCENT}]", "mean over all clients after the last round", "", None),
        (said(one.second), "the same figure of another metric, mean over blocks", one.second, 2),
        ("commonest class",
         "what the commonest class of every client's training examples would get", MAJORITY, 2),
        ("at best validation", "in the round with the best validation metric", "best_validation",
         digits),
        ("ever sampled", "mean over the clients that took part at least once", "sampled", digits),
        ("never sampled", f"clients that never took part, of {of}", "never_sampled", 0),
        ("std", "standard deviation over clients", "std", digits),
        ("10th pct.", "10th percentile of clients", "p10", digits),
        ("worst", "worst client", "worst", digits),
    )  # fmt: skip


def _paired(one: Comparison) -> ReportTable:
    pairs, base = one.paired, one.baseline
    few = (pairs["blocks"] < ENOUGH).any()
    note = f"Less {base}, on the same clients of the same blocks; one block has no interval." + (
        f" Fewer than {ENOUGH} blocks are not tested." if few else
        f" With {ENOUGH} blocks the smallest p that a signed-rank test can give is 0.0625."
    )  # fmt: skip
    return _table(
        one, "paired", f"Paired differences to {base}", note,
        pairs if pairs["p"].notna().any() else pairs.drop(columns=["p", "adjusted"]),
        ("blocks", f"blocks shared with {base}", "blocks", 0),
        (f"difference [{PERCENT}]", "points, mean over blocks; Student's t over blocks", "", None),
        ("clients better, %", "share of clients that improve, all blocks together", "better", 1),
        ("clients worse, %", "share of clients that lose; the rest are equal", "worse", 1),
        ("p", "Wilcoxon signed-rank over blocks, two-sided", "p", _p_value),
        ("p, Holm", "adjusted over all comparisons of all settings of this report", "adjusted",
         _p_value),
    )  # fmt: skip


def _participants(one: Comparison) -> ReportTable:
    note = (
        "The papers' programs print the mean over a round's participants, right after their "
        "training. Its best round is chosen by the test figure, so it is no estimate of what to "
        f"expect. Means over blocks. {UNKNOWN}"
    )
    last, recent, best, best_round = PARTICIPANTS
    return _table(
        one, "participants", "By the papers' measure", note,
        one.participants.join(one.levels["mean"]),
        ("all clients", "mean over all clients after the last round", "mean", one.digits),
        ("participants, last round", "mean over those who trained in it", last, one.digits),
        (f"last {RECENT} rounds", f"mean of the last {RECENT} rounds' means", recent, one.digits),
        ("best round", "the best of all rounds' means", best, one.digits),
        ("which", "the best round, mean over blocks", best_round, 1),
    )  # fmt: skip


def _costs(one: Comparison) -> ReportTable:
    metric, base = said(one.metric), one.baseline or "the baseline"
    note = (
        "Means over blocks. Every method gets the training FLOPs that the cheapest one of the same "
        "block spent in all its rounds: the last evaluated round that it can afford."
    )
    return _table(
        one, "cost", f"Costs, and {metric} at equal compute", note, one.costs,
        ("floats up", "per client and round", "floats_up", 0),
        ("floats down", "per client and round", "floats_down", 0),
        ("GFLOPs", "training, per client and round", "gflops", 1),
        (f"x {base}", f"GFLOPs of {base} = 1", "relative", 2),
        (f"{metric} at equal compute", "when the cheapest method's training FLOPs are spent",
         "equal_figure", one.digits),
        ("after round", "the last one within that budget, mean over blocks", "equal_round", 1),
    )  # fmt: skip


def _targets(one: Comparison) -> ReportTable:
    known = _TARGETS.get(one.setting.data, {}) if one.metric == "accuracy" else {}
    targets = known.get(one.setting.keys["clients"], known.get(0, ()))
    note = "Means over the blocks that reached the target."
    rows = one.levels if targets else one.levels[:0]
    table = _table(one, "target", "Costs to a target accuracy", note, rows)
    for target in targets:
        hit, at = one.reached(target), f"to {target:g} %"
        about = f"first round whose mean accuracy is at least {target:g} %; (k/n): in k of n"
        table.add(f"rounds {at}", about, hit["round"], 1)
        shown = table.shown[f"rounds {at}"]
        table.shown[f"rounds {at}"] = [
            text if blocks == of else f"{text} ({blocks:g}/{of:g})" if blocks else "not reached"
            for text, blocks, of in zip(shown, hit["blocks"].fillna(0), rows["blocks"], strict=True)
        ]
        table.add(f"Mfloats {at}", "both ways, all clients", hit["floats"] / 1e6, 3)
        table.add(f"TFLOPs {at}", "training, all clients", hit["flops"] / 1e12, 2)
    return table


def _tuned(one: Comparison) -> ReportTable:
    keys = [key for key in one.setting.keys["tuned"] if key.replace("-", "_") in one.runs]
    note = "Keys that were searched for each method; they are not part of the setting."
    first = one.runs.groupby("variant").first().reindex(one.variants if keys else [])
    table = _table(one, "tuned", "Tuned", note, first)
    for key in keys:
        values = first[key.replace("-", "_")]
        table.add_text(key, "chosen by the validation metric", map(plain, values))
    return table


def _others(one: Comparison) -> ReportTable:
    """Other predictions of a method, such as its further inference models."""
    last = one.course.groupby("number").last()
    means = last.groupby("variant")[list(last.filter(regex="^test_accuracy_.+_mean$"))].mean()
    means = means.reindex(one.variants).stack().dropna().rename_axis(["variant", "kind"])
    rows = means.rename("other").reset_index("kind").join(one.levels["accuracy"])
    note = "Recorded by methods that can answer in more than one way."
    table = _table(one, "inference", "Other predictions", note, rows)
    kind = rows["kind"].str.extract("test_accuracy_(.+)_mean")[0]
    table.add_text("prediction", "what answers instead of the client's main prediction", kind)
    about = "mean over clients after the last round, mean over blocks, percent"
    table.add("accuracy", about, rows["other"])
    table.add("main prediction", "accuracy of what the client answers", rows["accuracy"])
    return table


def said(metric: str) -> str:
    """Return a metric in words."""
    if not metric:
        return "-"
    about = METRICS[metric]
    return f"{about.title} (less is better)" if about.less_is_better else about.title


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


# What Markdown would take for markup in a name; a bracket alone is none, nor "< 0.001".
_MARKUP = re.compile(r"[\\`*|~]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(")
_ENTITIES = ((re.compile(r"&(?=#?\w+;)"), "&amp;"), (re.compile(r"<(?=[a-zA-Z/!?])"), "&lt;"))
_RANKED = {"": "{}", "best": "**{}**", "tied": "<u>{}</u>"}
_LATEX = str.maketrans({
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "\n": " ", "−": "$-$",
})  # fmt: skip
_LATEX_RANKED = {"": "{}", "best": r"\textbf{{{}}}", "tied": r"\underline{{{}}}"}


def escaped(value: str) -> str:
    """Return a text on one line of Markdown, so that it shows as it is."""
    shown = _MARKUP.sub(r"\\\g<0>", " ".join(value.split()))
    for sign, entity in _ENTITIES:
        shown = sign.sub(entity, shown)
    return shown


def _marked(
    table: ReportTable, escape: Callable[[str], str], ranked: dict[str, str]
) -> pd.DataFrame:
    made = table.shown.map(lambda text: escape(str(text)))
    for (row, column), rank in table.ranks.items():
        made.loc[row, column] = ranked[rank].format(made.loc[row, column])
    return made


def to_markdown(
    table: ReportTable, level: int = 3, link: Callable[[str], str] = "#{}".format, *,
    bare: bool = False,
) -> str:  # fmt: skip
    """Return a heading with a stable anchor, the note, and the table; ``bare``: the table alone.

    ``link`` makes the address of a setting's details from their anchor.
    """
    marked = _marked(table, escaped, _RANKED)
    heads = [
        f"[{escaped(name)}]({link(table.links[name])})" if name in table.links else escaped(name)
        for name in marked.columns
    ]
    ruler = ["---" if name in table.texts else "---:" for name in marked.columns]
    lines = [f"| {' | '.join(row)} |" for row in (heads, *marked.itertuples(index=False))]
    lines.insert(1, f"|{'|'.join(ruler)}|")
    if bare:
        return "\n".join(lines)
    note = [escaped(table.note), ""] if table.note else []
    heading = f'{"#" * level} {escaped(table.title)} <a id="{table.name}"></a>'
    return "\n".join([heading, "", *note, *lines, ""])


def to_latex(table: ReportTable) -> str:
    """Return a float with booktabs rules; its label is ``tab:`` and the anchor."""
    tex = methodcaller("translate", _LATEX)
    marked = _marked(table, tex, _LATEX_RANKED).rename(columns=tex)
    text = marked.style.hide(axis="index").to_latex(
        position="ht", hrules=True, caption=tex(f"{table.title}. {table.note}"),
        label=f"tab:{table.name}",
        column_format="".join("l" if name in table.texts else "r" for name in table.shown),
    )  # fmt: skip
    return f"% needs \\usepackage{{booktabs}}\n{text}"


def to_csv(frame: pd.DataFrame) -> str:
    """Return numbers unrounded; missing ones are empty, and texts never begin like a formula."""
    texts = frame.rename(columns=quoted).map(
        lambda cell: quoted(cell) if isinstance(cell, str) else cell
    )
    return str(texts.to_csv(index=False, float_format="%.10g", lineterminator="\n"))
