"""Make docs/results.md, docs/results/ and the panel of the README from the records in docs/data.

    python docs/make_results.py

What is made stands between two marks in each file; text outside the marks stays.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from fedhet.reports.comparison import Comparison, both, in_order, longest
from fedhet.reports.figures import _DARK, BLUE, INK, ORANGE, drawn, rounds
from fedhet.reports.frame import Runs
from fedhet.reports.reading import read_runs
from fedhet.reports.tables import PERCENT, Table, escaped, of_setting, overview, signed, to_markdown

DOCS = Path(__file__).resolve().parent
BEGIN, END = "<!-- made by fedhet report -->", "<!-- end of what fedhet report made -->"
TITLES = {  # of the settings in docs/data/NAME
    "ag-news": "AG News, 10 clients", "ag-news-tuned": "AG News, 10 clients, tuned",
    "cifar10-n10": "CIFAR-10, 10 clients", "cifar10-n100": "CIFAR-10, 100 clients, T = 15",
    "cifar10-n100-t100": "CIFAR-10, 100 clients", "cifar100-n100": "CIFAR-100, 100 clients, T = 15",
    "cifar100-n100-t100": "CIFAR-100, 100 clients", "digits": "Digits, 10 clients",
    "har": "HAR, 46 phones and watches", "har-tuned": "HAR, 46 phones and watches, T = 20, tuned",
    "heart": "Heart, 4 hospitals", "heart-tuned": "Heart, 4 hospitals, tuned",
    "n100-t100-fp32": "{data}, 100 clients", "office-caltech": "Office-Caltech, 6 sites",
}  # fmt: skip
SHORT = (("10 clients", "10"), ("100 clients", "100"), ("46 phones and watches", ""),
         ("4 hospitals", ""), ("6 sites", ""), ("T = 20", ""))  # fmt: skip
CELL, ROW, LEFT, TOP = 38, 16.5, 84, 96  # pixels of the panel


def main() -> None:
    """Write every file."""
    for path, text in content().items():
        path.write_text(text)


def content() -> dict[Path, str]:
    """Every file with its text; nothing is written."""
    found = []
    for folder in sorted((DOCS / "data").iterdir()):
        records, left_out = read_runs([folder])
        assert not left_out, left_out
        found += [replace(run, title=TITLES[folder.name]) for run in records]
    runs = Runs(found)
    assert not runs.left_out, runs.left_out
    pages = {one.setting.slug: page_name(one.setting.title) for one in runs.comparisons}
    results, readme = DOCS / "results", DOCS.parent / "README.md"
    made = {results / "at-a-glance.svg": panel(runs.comparisons)}
    made[DOCS / "results.md"] = within(DOCS / "results.md", whole(runs, pages))
    for one in runs.comparisons:
        path = results / f"{pages[one.setting.slug]}.md"
        (made[path.with_suffix(".svg")],) = rounds(one).files().values()
        made[path] = within(path, setting(one, path.stem), f"# {one.setting.title}\n\n")
    if BEGIN in readme.read_text("utf-8"):
        image = "![Points above Standalone](docs/results/at-a-glance.svg)"
        made[readme] = within(readme, f"{image}\n\n{CAPTION}")
    return made


def within(path: Path, text: str, head: str = "") -> str:
    """Return a file with a new part between the marks."""
    old = path.read_text("utf-8") if path.exists() else f"{head}{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{rest.partition(END)[2]}"


def page_name(title: str) -> str:
    """The file name of a setting's page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


CAPTION = (
    "Points of test accuracy above Standalone (each client alone), on the same clients and blocks. "
    f"Blue: above, orange: below, where the {PERCENT} interval excludes zero; grey: undecided."
)


def whole(runs: Runs, pages: dict[str, str]) -> str:
    """Verdict, panel and table."""
    table = overview(runs.comparisons)
    lines = [*(f"- {escaped(sentence)}" for sentence in runs.verdict), ""]
    lines += ["![Points above Standalone](results/at-a-glance.svg)", "", CAPTION, ""]
    rows = to_markdown(table, link=lambda slug: f"results/{pages[slug]}.md", bare=True)
    return "\n".join([*lines, rows, "", escaped(table.note)])


def setting(one: Comparison, name: str) -> str:
    """Conditions, the curve over rounds, and all tables of a setting."""
    lines = [f"{escaped(one.setting.conditions)}.", ""]
    lines += ["All settings: [results.md](../results.md).", ""]
    lines += [f"![Accuracy over rounds]({name}.svg)", ""]
    made = [*of_setting(one), papers(one), precision(one)]
    return "\n".join([*lines, *(to_markdown(table, 2) for table in made if len(table))])


def panel(comparisons: Sequence[Comparison]) -> str:
    """One line a method, one column a setting with intervals; a cell is points above Standalone."""
    shown = [one for one in longest(comparisons) if len(one.blocks) > 1]
    rows = [row for row in in_order(shown) if row != "Standalone"]
    size = (LEFT + CELL * len(shown) + 56, TOP + ROW * len(rows) + 4)

    def draw(figure: Figure) -> None:
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, size[0]), ylim=(size[1], 0))
        ax.set_axis_off()
        for x, one in enumerate(shown):
            title = one.setting.title
            for long, short in SHORT:
                title = title.replace(f", {long}", f" {short}".rstrip())
            at = LEFT + CELL * (x + 0.5)
            ax.text(at - 4, TOP - 8, title, rotation=40, fontsize=9.5, ha="left", va="bottom")
        for y, row in enumerate(rows):
            middle = TOP + ROW * (y + 0.5)
            ax.text(LEFT - 6, middle, row, ha="right", va="center", fontsize=10.5)
            for x, one in enumerate(shown):
                arm = one.shown.get(row)
                if arm is None or arm not in one.paired.index:
                    continue
                mean, sign = one.paired.loc[arm, ["mean", "sign"]]
                colour = {1: BLUE, -1: ORANGE}.get(sign)
                corner = LEFT + CELL * x + 1, middle - ROW / 2 + 1
                if colour:
                    ax.add_patch(_box(corner, colour))
                ax.text(LEFT + CELL * (x + 0.5), middle, f"{mean:+.1f}", ha="center", va="center",
                        fontsize=10, alpha=1 if colour else 0.6, color="white" if colour else INK,
                        weight="bold" if colour else "normal")  # fmt: skip

    svg = drawn("at-a-glance", size, draw, "Points of test accuracy above Standalone")
    return svg.replace(">", f">{_DARK}", 1) + "\n"


def _box(corner: tuple[float, float], colour: str) -> object:
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    return Rectangle(corner, CELL - 2, ROW - 2, color=colour, lw=0)


def papers(one: Comparison) -> Table:
    """The papers' numbers beside ours."""
    content = yaml.safe_load((DOCS / "papers.yaml").read_text("utf-8"))
    keys = one.setting.keys
    where = {"data": one.setting.data, "clients": keys["clients"], "fraction": keys["fraction"]}
    held = (
        {int((row > 0).sum()) for row in one.counts.to_numpy()} if one.counts is not None else {0}
    )
    where["classes-per-client"] = held.pop() if len(held) == 1 else 0
    column = content["columns"].index(where) if where in content["columns"] else -1
    known = [
        (row, paper) for paper in content["tables"] for row in paper["rows"]
        if column >= 0 and paper["models"] == list(keys["models"])
    ]  # fmt: skip
    names = dict(zip(one.runs["method"], one.runs["arm"], strict=True))
    rows = [
        (one.shown[content["methods"][row["method"]]], row["values"][column], row)
        for row, _ in known
        if not row.get("keys") and content["methods"][row["method"]] in one.shown and names
    ]
    note = (
        f"The papers: {content['conditions']}. Here: E = {keys['local-epochs']}, "
        f"B = {keys['batch-size']}, T = {keys['rounds']}, each method's defaults. Where these "
        "differ, so may the numbers; the papers' single runs have no interval."
    )
    title = "Beside the papers"
    table = Table(f"papers-{one.setting.slug}", title, note, [arm for arm, *_ in rows])
    theirs = pd.Series([value for _, value, _ in rows], dtype=float)
    ours = one.levels.loc[[arm for arm, *_ in rows]].reset_index()
    table.add("paper", "percent; '-': it failed to converge there", theirs)
    table.add_interval(f"ours [{PERCENT}]", "as in the table of accuracies", ours, sign=False)
    table.add("ours less paper", "points", ours["mean"] - theirs, signed)
    sources = [content["sources"][row["source"]] for *_, row in rows]
    said = [
        f"{s['title']}, arXiv {s['arxiv']}, {row['where']}"
        for s, (*_, row) in zip(sources, rows, strict=True)
    ]
    table.add_text("source", "paper, arXiv id and table", said)
    return table


def precision(one: Comparison) -> Table:
    """Arms in fp32 and in a lower precision, on the blocks and clients that both have."""
    runs, clients = one.every
    full = "fp32"
    names = runs.get("precision", pd.Series(full, index=runs.index)).fillna(full)
    column = f"test_{one.metric}"
    clients = clients.assign(
        precision=clients["number"].map(dict(zip(runs["number"], names, strict=True)))
    )
    sides = {
        cell: own.set_index(["block", "client"])[column]
        for cell, own in clients.groupby(["precision", "arm"], sort=False)
    }
    rows = []
    for (precision, arm), lower in sides.items():
        if precision == full or (full, arm) not in sides:
            continue
        found = both(lower, sides[full, arm])
        if len(found):
            blocks = found.groupby("block").mean()
            chance = np.sqrt(
                found["difference"].groupby("block").agg(lambda d: d.var() / len(d)).mean()
            )
            largest = blocks["difference"][blocks["difference"].abs().idxmax()]
            rows.append((arm, precision, len(blocks), *blocks.mean()[["right", "left"]],
                         blocks["difference"].mean(), largest, chance))  # fmt: skip
    note = (
        "Two runs that differ in rounding drift apart: a block's difference is of the size of "
        "its standard error (s.e.) even where precision has no influence, and larger where clients "
        "share a model that drifted."
    )
    title = "Lower precision beside fp32"
    table = Table(f"precision-{one.setting.slug}", title, note, [row[0] for row in rows])
    table.add_text("precision", "the one beside fp32", [row[1] for row in rows])
    about = (
        ("blocks", "pairs of partition and seed that were run in both", 0),
        ("fp32", "mean on these blocks, of clients that both have", 2),
        ("lower", "the same in the other precision", 2),
        ("less fp32", "points, mean over these blocks", signed),
        ("largest", "the difference of the block where it is largest, points", signed),
        ("s.e.", "standard error of one block's difference over its clients, points", 2),
    )
    for place, (name, what, show) in enumerate(about, 2):
        table.add(name, what, [row[place] for row in rows], show)
    return table


if __name__ == "__main__":
    main()
