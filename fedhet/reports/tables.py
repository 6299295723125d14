"""The tables of a report: numbers in a DataFrame, their text, and Markdown, LaTeX and CSV of it.

Anchors are made from the table's kind and the setting alone, so that a link to one stays right
when other runs are added.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from fedhet.config.schema import LOWER, METRICS
from fedhet.files import csv_text
from fedhet.reports.comparison import (
    ENOUGH,
    LEVEL,
    Comparison,
    across,
    in_order,
    variability,
)
from fedhet.reports.settings import at_default, exact, file_name

PERCENT = f"{100 * LEVEL:g} %"
WIDE, OTHER = "‡", "†"  # beside an interval that says nothing; beside another precision
_TARGETS: dict[
    str, dict[object, tuple[float, ...]]
] = {  # accuracies whose price the papers compare, in percent, by data set and clients
    "cifar10": {0: (90.0,)},
    "cifar100": {10: (70.0, 50.0), 50: (60.0, 50.0), 0: (50.0,)},
}


class Table:
    """A table whose rows are named by ``rows``; columns are added one by one.

    ``data`` has the numbers (for CSV and for sorting), ``shown`` the texts, ``about`` what each
    column is, ``links`` the anchors that headings lead to, ``ranks`` marked cells by row and column
    (``best`` or ``tied``).
    """

    def __init__(self, name: str, title: str, note: str, rows: Iterable[str], head: str = "method"):
        self.name, self.title, self.note = file_name(name), title, note
        self.shown = pd.DataFrame({head: list(rows)}, dtype=object)
        self.data = self.shown.copy()
        self.about = {head: "the method, with its own keys where they are not the default"}
        self.texts = {head}  # columns of words
        self.links: dict[str, str] = {}
        self.ranks: dict[tuple[int, str], str] = {}

    def __len__(self) -> int:
        return len(self.shown)

    def add(
        self, title: str, about: str, values: Sequence[object] | pd.Series,
        show: Callable[[float], str] | int = 2,
    ) -> None:  # fmt: skip
        """Add a column of numbers; ``show`` makes the text, or says the digits."""
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

    def add_interval(self, title: str, about: str, found: pd.DataFrame, *, sign: bool) -> None:
        """Add ``mean [low, high]``; ``found`` is as :func:`intervals` makes it, in our order."""
        form = "{:+,.2f}" if sign else "{:,.2f}"
        self.add(title, about, found["mean"], form.format)
        for end in ("low", "high"):
            self.data[f"{title}, {end}"] = found[end].to_numpy(dtype=float)
        for i, (low, high) in enumerate(zip(found["low"], found["high"], strict=True)):
            if pd.notna(low):
                ends = f" [{form.format(low)}, {form.format(high)}]"
                mark = f" {WIDE}" if not sign and high - low > 100 else ""
                self.shown.loc[i, title] += ends + mark


# --- all settings --------------------------------------------------------------------------------


def overview(comparisons: Sequence[Comparison]) -> Table:  # noqa: PLR0912
    """The headline of every method in every setting, in the order of their mean rank."""
    rows = in_order(comparisons)
    table = Table("overview", "Methods and settings", "", rows)
    marked = wide = beyond = False
    metrics = {one.metric for one in comparisons}
    for one in comparisons:
        title, level = one.setting.title, one.levels
        arms = [one.shown.get(row, "") for row in rows]
        table.add(title, one.setting.conditions, level["mean"].reindex(arms))
        table.links[title] = one.setting.slug
        top, tied = one.best
        for i, (row, arm) in enumerate(zip(rows, arms, strict=True)):
            if not arm:
                continue
            text, half = table.shown.loc[i, title], (level["high"] - level["low"])[arm] / 2
            if pd.notna(half):
                says_nothing = one.metric == "accuracy" and half > 50
                wide |= says_nothing
                beyond |= level["low"][arm] < 0 or level["high"][arm] > 100
                text = f"{text} ± {half:.2f}" + (f" {WIDE}" if says_nothing else "")
            if one.second and pd.notna(second := level[one.second][arm]):
                text += f" | {second:.2f}"
            if one.precision[arm] != one.setting.keys["precision"]:
                marked, text = True, text + OTHER
            table.shown.loc[i, title] = text
            table.ranks[i, title] = "best" if row == top else "tied" if row in tied else ""
    foot = {"blocks": [str(len(one.blocks)) for one in comparisons]}
    if marked or any(
        one.setting.keys["precision"] != at_default("precision") for one in comparisons
    ):
        foot["precision"] = [str(one.setting.keys["precision"]) for one in comparisons]
    if metrics != {"accuracy"}:
        foot["metric"] = [said(one.metric) for one in comparisons]
    if any(one.second for one in comparisons):
        foot["beside it"] = [said(one.second) for one in comparisons]
    for name, values in foot.items():
        table.shown.loc[len(table.shown)] = [name, *values]
    what = "Mean test accuracy in percent" if metrics == {"accuracy"} else "The mean test metric"
    table.note = (
        f"{what} ± half the {PERCENT} interval (Student's t over blocks). Bold: the best mean; "
        "underlined: not told from it, since the interval of the paired difference over the same "
        "blocks holds zero. One block has neither interval nor mark. Methods by mean rank."
    )
    if wide:
        table.note += (
            f" {WIDE}: an interval wider than 0 to 100 says nothing; more blocks are needed."
        )
    elif beyond and metrics == {"accuracy"}:
        table.note += " Student's t is symmetric: an end may lie where no accuracy is."
    if any(one.second for one in comparisons):
        table.note += " After the bar: the mean of the figure named below."
    if marked:
        table.note += f" {OTHER}: run in another precision than its column."
    return table


def across_settings(comparisons: Sequence[Comparison]) -> Table:
    """The test over settings: one difference each."""
    found = across(comparisons)
    note = (
        "One difference per setting, so that settings are the sample; of settings that differ in "
        f"rounds alone the longest. Fewer than {ENOUGH} settings are not tested."
    )
    table = Table("across", "Across settings", note, found.index)
    table.add("settings", "settings with this arm and the baseline", found["settings"], 0)
    table.add("better in", "settings with a positive mean difference", found["better"], 0)
    table.add("mean difference", "points, mean over settings", found["mean"], signed)
    if found["p"].notna().any():
        about = "Wilcoxon signed-rank over settings, adjusted over methods"
        table.add("p, Holm", about, found["adjusted"], p_value)
    return table


# --- one setting ---------------------------------------------------------------------------------


def of_setting(one: Comparison) -> list[Table]:
    """All tables of a setting that have a row."""
    made = [_levels(one), _paired(one), _costs(one), _targets(one), _tuned(one), _others(one)]
    return [table for table in made if len(table)]


def _table(one: Comparison, kind: str, title: str, note: str, rows: Iterable[str]) -> Table:
    return Table(f"{kind}-{one.setting.slug}", title, note, rows)


def _levels(one: Comparison) -> Table:
    level = one.levels
    none = sorted(set(one.failed) - set(one.arms))
    level = level.reindex([*one.arms, *none])
    level["blocks"] = level["blocks"].fillna(0)
    span = variability(one.setting, one.blocks)
    note = f"Test {said(one.metric)}; Student's t, {PERCENT}, {span}."
    if one.clients[f"test_{one.metric}"].isna().all():
        note += " The server learned means over clients only (secure-sum)."
    elif one.metric == "accuracy" and (level["high"] > 100).any():
        note += " Student's t is symmetric: an end may lie where no accuracy is."
    table = _table(one, "accuracy", said(one.metric).capitalize(), note, level.index)
    table.add("blocks", "pairs of partition and seed", level["blocks"], 0)
    for i, arm in enumerate(level.index):
        if arm in one.failed:
            table.shown.loc[i, "blocks"] += f" ({one.failed[arm]} failed)"
    about = "mean over all clients after the last round"
    table.add_interval(f"{one.metric} [{PERCENT}]", about, level, sign=False)
    for name in [one.second] if one.second else []:
        table.add(said(name), "the same figure of another metric, mean over blocks", level[name])
    if one.metric in {"accuracy", "balanced_accuracy"} and level["majority_accuracy"].notna().any():
        about = "what the commonest class of every client's training examples would get"
        table.add("commonest class", about, level["majority_accuracy"])
    about = "in the round with the best validation metric"
    table.add("at best validation", about, level["best_validation"])
    table.add(
        "ever sampled", "mean over the clients that took part at least once", level["sampled"]
    )
    never, of = level["never_sampled"], int(one.runs["federation"].max())
    table.add(
        "never sampled", "clients that never took part, mean over blocks, of all clients", never,
        lambda count: f"{count:g} of {of}" if count else "none",
    )  # fmt: skip
    table.add("std", "standard deviation over clients ever sampled, mean over blocks", level["std"])
    table.add(
        "10th pct.", "10th percentile of clients ever sampled, mean over blocks", level["p10"]
    )
    table.add("worst", "worst client ever sampled, mean over blocks", level["worst"])
    return table


def _paired(one: Comparison) -> Table:
    found, base = one.paired, one.baseline
    few = (found["blocks"] < ENOUGH).any()
    note = f"Less {base}, on the same clients of the same blocks; one block has no interval." + (
        f" Fewer than {ENOUGH} blocks are not tested." if few else
        f" With {ENOUGH} blocks the smallest p that a signed-rank test can give is 0.0625."
    )  # fmt: skip
    table = _table(one, "paired", f"Paired differences to {base}", note, found.index)
    table.add("blocks", f"blocks shared with {base}", found["blocks"], 0)
    about = "points, mean over blocks; Student's t over blocks"
    table.add_interval(f"difference [{PERCENT}]", about, found, sign=True)
    better = "share of clients that improve, all blocks together"
    table.add("clients better, %", better, found["better"], 1)
    table.add(
        "clients worse, %", "share of clients that lose; the rest are equal", found["worse"], 1
    )
    if found["p"].notna().any():
        table.add("p", "Wilcoxon signed-rank over blocks, two-sided", found["p"], p_value)
        about = "adjusted over all comparisons of all settings of this report"
        table.add("p, Holm", about, found["adjusted"], p_value)
    return table


def _costs(one: Comparison) -> Table:
    cost, base = one.costs, one.baseline or "the baseline"
    note = (
        "Means over blocks. Every method gets the training FLOPs that the cheapest one of the same "
        "block spent in all its rounds: the last evaluated round that it can afford."
    )
    title = f"Costs, and {said(one.metric)} at equal compute"
    table = _table(one, "cost", title, note, cost.index)
    table.add("floats up", "per client and round", cost["floats_up"], 0)
    table.add("floats down", "per client and round", cost["floats_down"], 0)
    table.add("GFLOPs", "training, per client and round", cost["gflops"], 1)
    table.add(f"x {base}", f"GFLOPs of {base} = 1", cost["relative"])
    about = "when the cheapest method's training FLOPs are spent"
    table.add(f"{said(one.metric)} at equal compute", about, cost["equal_figure"])
    about = "the last one within that budget, mean over blocks"
    table.add("after round", about, cost["equal_round"], 1)
    return table


def _targets(one: Comparison) -> Table:
    known = _TARGETS.get(one.setting.data, {}) if one.metric == "accuracy" else {}
    papers = known.get(one.setting.keys["clients"], known.get(0, ()))
    own = one.own_target
    targets = sorted({*papers, *([own] if own else [])}, reverse=True)
    note = "Means over the blocks that reached the target."
    if own:
        note += (
            f" The target of {own:g} % is what {one.baseline} ends with in its worst block, in "
            "whole percent."
        )
    title = "Costs to a target accuracy"
    table = _table(one, "target", title, note, one.arms if targets else [])
    count = one.levels["blocks"]
    for target in targets:
        hit = one.reached(target)
        at = f"to {target:g} %"
        about = f"first round whose mean accuracy is at least {target:g} %; (k/n): in k of n"
        table.add(f"rounds {at}", about, hit["round"], 1)
        for i, (blocks, of) in enumerate(zip(hit["blocks"].fillna(0), count, strict=True)):
            if blocks < of:
                text = f"{table.shown.loc[i, f'rounds {at}']} ({blocks:g}/{of:g})"
                table.shown.loc[i, f"rounds {at}"] = text if blocks else "not reached"
        table.add(f"Mfloats {at}", "both ways, all clients", hit["floats"] / 1e6, 3)
        table.add(f"TFLOPs {at}", "training, all clients", hit["flops"] / 1e12, 2)
    return table


def _tuned(one: Comparison) -> Table:
    keys = [key.replace("-", "_") for key in one.setting.keys["tuned"]]
    first = one.runs.groupby("arm").first().reindex(one.arms)
    note = "What was searched for each method, and is no part of the setting."
    table = _table(one, "tuned", "Tuned", note, one.arms if keys else [])
    chosen = [
        ", ".join(f"{key.replace('_', '-')} = {exact(row[key])}" for key in keys if key in row)
        for _, row in first.iterrows()
    ]
    table.add_text("chosen", "by the validation metric", chosen if keys else [])
    return table


def _others(one: Comparison) -> Table:
    """Other predictions of a method, such as its further inference models."""
    names = "|".join([*(name for name in METRICS if name != "accuracy"), "std", "p10", "min"])
    other = re.compile(rf"^test_(?!(?:accuracy_)?(?:{names})_)accuracy_(.+)_mean$")
    last = one.course.groupby("number").last()
    kinds = [(column, m[1]) for column in last.columns if (m := other.match(column))]
    means = last.groupby("arm")[[column for column, _ in kinds]].mean().reindex(one.arms)
    cells = [
        (arm, kind, means[column][arm])
        for arm in one.arms
        for column, kind in kinds
        if pd.notna(means[column][arm])
    ]
    note = "Recorded by methods that can answer in more than one way."
    table = _table(one, "inference", "Other predictions", note, [arm for arm, *_ in cells])
    about = "what answers instead of the headline's model"
    table.add_text("prediction", about, [kind for _, kind, _ in cells])
    about = "mean over clients after the last round, mean over blocks, percent"
    table.add("accuracy", about, [value for *_, value in cells])
    headline = one.levels["accuracy"]
    table.add("headline", "of the headline's model", [headline[arm] for arm, *_ in cells])
    return table


# --- texts ---------------------------------------------------------------------------------------


def said(metric: str) -> str:
    """A metric in words."""
    words = {"auroc": "AUROC", "ece": "ECE", "macro_f1": "macro F1", "": "-"}
    shown = words.get(metric, metric.replace("_", " "))
    return f"{shown} (less is better)" if metric in LOWER else shown


def signed(value: float) -> str:
    """A difference."""
    return f"{value:+,.2f}"


def p_value(p: float) -> str:
    """A p value as text."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


# What Markdown would take for markup in a name; a bracket alone is none, nor "< 0.001".
_MARKUP = re.compile(r"[\\`*|~]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(")
_ENTITIES = ((re.compile(r"&(?=#?\w+;)"), "&amp;"), (re.compile(r"<(?=[a-zA-Z/!?])"), "&lt;"))
_RANKED = {"": "{}", "best": "**{}**", "tied": "<u>{}</u>"}
_LATEX = str.maketrans({
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "\n": " ",
})  # fmt: skip
_LATEX_RANKED = {"": "{}", "best": r"\textbf{{{}}}", "tied": r"\underline{{{}}}"}


def escaped(value: str) -> str:
    """A text on one line of Markdown, so that it shows as it is."""
    shown = _MARKUP.sub(r"\\\g<0>", " ".join(value.split()))
    for sign, entity in _ENTITIES:
        shown = sign.sub(entity, shown)
    return shown


def _marked(table: Table, escape: Callable[[str], str], ranked: dict[str, str]) -> pd.DataFrame:
    """The texts, escaped, with the marks of ranks."""
    made = table.shown.map(lambda text: escape(str(text)))
    for (row, column), rank in table.ranks.items():
        made.loc[row, column] = ranked[rank].format(made.loc[row, column])
    return made


def to_markdown(
    table: Table, level: int = 3, link: Callable[[str], str] = "#{}".format, *, bare: bool = False
) -> str:
    """A heading with a stable anchor, the note, and the table; ``bare``: the table alone.

    ``link`` makes the address of a setting's details from their anchor.
    """
    made = _marked(table, escaped, _RANKED)
    heads = [escaped(name) for name in made.columns]
    heads = [
        f"[{head}]({link(table.links[name])})" if name in table.links else head
        for head, name in zip(heads, made.columns, strict=True)
    ]
    ruler = ["---" if name in table.texts else "---:" for name in made.columns]
    lines = [f"| {' | '.join(row)} |" for row in (heads, *made.itertuples(index=False))]
    lines.insert(1, f"|{'|'.join(ruler)}|")
    if bare:
        return "\n".join(lines)
    note = [escaped(table.note), ""] if table.note else []
    heading = f'{"#" * level} {escaped(table.title)} <a id="{table.name}"></a>'
    return "\n".join([heading, "", *note, *lines, ""])


def to_latex(table: Table) -> str:
    """A float with booktabs rules; its label is ``tab:`` and the anchor."""

    def tex(text: str) -> str:
        return text.translate(_LATEX).replace("−", "$-$")

    made = _marked(table, tex, _LATEX_RANKED).rename(columns=tex)
    layout = "".join("l" if name in table.texts else "r" for name in table.shown.columns)
    caption, label = f"{tex(table.title)}. {tex(table.note)}", f"tab:{table.name}"
    text: str = made.to_latex(
        index=False, escape=False, column_format=layout, caption=caption, label=label, position="ht"
    )
    return f"% needs \\usepackage{{booktabs}}\n{text}"


def to_csv(frame: pd.DataFrame) -> str:
    """Numbers without rounding for show; what is missing is empty, no text is a formula."""
    short = frame.map(lambda value: float(f"{value:.10g}") if isinstance(value, float) else value)
    cells = short.astype(object).where(frame.notna(), "")
    return csv_text([list(map(str, frame.columns)), *cells.itertuples(index=False)])
