"""Make docs/results.md, docs/results/ and the panel of the README from the records in docs/data.

    python docs/make_results.py

What is made stands between two marks in each file; text outside the marks stays.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedhet.reports.comparison import Comparison, in_order, longest
from fedhet.reports.figures import BLUE, INK, ORANGE, drawn, rounds, standalone
from fedhet.reports.reading import plain, read_runs
from fedhet.reports.report import Runs
from fedhet.reports.tables import (
    PERCENT,
    UNKNOWN,
    ReportTable,
    escaped,
    of_setting,
    overview,
    to_markdown,
)

DOCS = Path(__file__).resolve().parent
BEGIN, END = "<!-- made by fedhet report -->", "<!-- end of what fedhet report made -->"
TITLES = {  # of the settings in docs/data/NAME; n100-t100-fp32 has those of two others
    "ag-news": "AG News, 10 clients", "ag-news-tuned": "AG News, 10 clients, tuned",
    "cifar10-n10": "CIFAR-10, 10 clients", "cifar10-n100": "CIFAR-10, 100 clients, T = 15",
    "cifar10-n100-as-published": "CIFAR-10, 100 clients, as published, T = 40",
    "cifar10-n100-t100": "CIFAR-10, 100 clients", "cifar100-n100": "CIFAR-100, 100 clients, T = 15",
    "cifar100-n10-as-published": "CIFAR-100, 10 clients, as published",
    "cifar100-n10-b64-as-published": "CIFAR-100, 10 clients, as published, B = 64",
    "cifar100-n100-as-published": "CIFAR-100, 100 clients, as published",
    "cifar100-n100-e10": "CIFAR-100, 100 clients, E = 10",
    "cifar100-n100-t100": "CIFAR-100, 100 clients",
    "cifar100-n100-t500": "CIFAR-100, 100 clients, T = 500", "digits": "Digits, 10 clients",
    "har": "HAR, 46 phones and watches", "har-tuned": "HAR, 46 phones and watches, T = 20, tuned",
    "heart": "Heart, 4 hospitals", "heart-tuned": "Heart, 4 hospitals, tuned",
    "office-caltech": "Office-Caltech, 6 sites",
}  # fmt: skip
CELL, ROW, LEFT, TOP, RIGHT = 40, 18.0, 100, 88, 46  # pixels of the panel


def signed(value: float) -> str:
    """Return a difference."""
    return f"{value:+,.2f}"


def main() -> None:
    """Write every file."""
    for path, text in content().items():
        path.write_text(text)


def content() -> dict[Path, str]:
    """Every file with its text; nothing is written."""
    found, titles = [], dict[str, str]()
    for folder in sorted((DOCS / "data").iterdir()):
        records, left_out = read_runs([folder])
        assert not left_out, left_out
        for run in records:
            run.name = f"{folder.name}/{run.name}"
            titles.setdefault(run.setting.slug, TITLES.get(folder.name, ""))
        found += records
    runs = Runs(found)
    assert not runs.left_out, runs.left_out
    for one in runs.comparisons:
        one.setting.title = titles[one.setting.slug]
    pages = {one.setting.slug: page_name(one.setting.title) for one in runs.comparisons}
    results = DOCS / "results"
    made = {
        results / "at-a-glance.svg": panel(runs.comparisons),
        results / "beside-the-papers.svg": beside_papers(runs.comparisons),
    }
    made[DOCS / "results.md"] = within(DOCS / "results.md", whole(runs, pages))
    board = results / "leaderboard.md"
    made[board] = within(board, leaderboard(runs, pages), "# Leaderboard\n\n")
    for one in runs.comparisons:
        path = results / f"{pages[one.setting.slug]}.md"
        (made[path.with_suffix(".svg")],) = rounds(one).files().values()
        made[path] = within(path, setting(one, path.stem), f"# {one.setting.title}\n\n")
    return made


def within(path: Path, text: str, head: str = "") -> str:
    """Return a file with a new part between the marks."""
    old = path.read_text("utf-8") if path.exists() else f"{head}{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{rest.partition(END)[2]}"


def page_name(title: str) -> str:
    """Return the file name of a setting's page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


HARMS = "at the authors' defaults"  # known to harm with few classes
TITLE = "Points of test accuracy above Standalone"
CAPTION = (
    "First line: Standalone (each client alone), in percent. Others: points of test accuracy above "
    "it, on the same clients and blocks. "
    f"Blue: above, orange: below, where the {PERCENT} interval excludes zero; grey: undecided."
)


def whole(runs: Runs, pages: dict[str, str]) -> str:
    """Verdict, panel and table."""
    table = overview(runs.comparisons)
    table.shown["method"] = table.shown["method"].replace("FedL2G", f"FedL2G ({HARMS})")
    lines = [*(f"- {escaped(sentence)}" for sentence in runs.verdict), ""]
    lines += ["![Points above Standalone](results/at-a-glance.svg)", "", CAPTION, ""]
    rows = to_markdown(table, link=lambda slug: f"results/{pages[slug]}.md", bare=True)
    return "\n".join([*lines, rows, "", escaped(table.note)])


def setting(one: Comparison, name: str) -> str:
    """Conditions, the curve over rounds, and all tables of a setting."""
    lines = [f"{escaped(one.setting.conditions)}.", ""]
    lines += ["All settings: [results.md](../results.md).", ""]
    lines += [f"![Accuracy over rounds]({name}.svg)", ""]
    lines += (
        [f"FedL2G is run {HARMS}, which were made for a hundred classes.", ""]
        if "FedL2G" in one.variants
        else []
    )
    made = [*of_setting(one), papers(one), precision(one)]
    return "\n".join([*lines, *(to_markdown(table, 2) for table in made if len(table.shown))])


def leaderboard(runs: Runs, pages: dict[str, str]) -> str:
    """Every method in every setting, by the headline, with its first block's command and record."""
    lines = [
        "Headline: mean test figure over all clients after the last round, mean over blocks. "
        f"Papers' measure: the best round's mean over the clients that trained in it. {UNKNOWN} "
        "Floats: a client and round, both ways. Command and record are "
        "those of the first block: the command makes the record again.",
        "", "| method | setting | headline | papers' measure | floats | command | record |",
        "|---|---|---:|---:|---:|---|---|",
    ]  # fmt: skip
    for one in runs.comparisons:
        means = one.levels["mean"].sort_values(ascending=one.sign < 0, kind="stable")
        for variant, mean in means.items():
            own = one.runs[one.runs["variant"] == variant].iloc[0]
            best = own["participants_best"]
            keys = re.search(r"\((.*)\)$", str(variant))  # of an ablation
            command = one.setting.command(own["method"], own["block"])
            command += f" {keys[1].replace(', ', ' ')}" if keys else ""
            tuned = str(own["tuned"]).split(",") if one.setting.keys["tuned"] else []
            command += "".join(f" {key}={plain(own[key.replace('-', '_')])}" for key in tuned)
            cells = [
                escaped(str(variant)),
                f"[{escaped(one.setting.title)}]({pages[one.setting.slug]}.md)",
                f"{mean:.{one.digits}f}",
                "-" if pd.isna(best) else f"{one.participants['participants_best'][variant]:.2f}",
                f"{one.costs['floats'][variant]:,.0f}",
                f"`{command}`", f"`docs/data/{own['run']}.run`",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def panel(comparisons: Sequence[Comparison]) -> str:
    """One line a method, one column a setting with intervals; a cell is points above Standalone."""
    shown = [one for one in longest(comparisons) if len(one.blocks) > 1]
    rows = sorted(in_order(shown), key=lambda row: row != "Standalone")
    size = (LEFT + CELL * len(shown) + RIGHT, TOP + ROW * len(rows) + 6)

    def draw(figure: Figure) -> None:
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, size[0]), ylim=(size[1], 0))
        ax.set_axis_off()
        ax.axhline(TOP + ROW + 1, color=INK, lw=0.6, alpha=0.4)
        for y, row in enumerate(rows):
            name = row if y else f"{row}, %"
            ax.text(LEFT - 6, _middle(y), name, ha="right", va="center", fontsize=12)
        for x, one in enumerate(shown):
            data, _, rest = one.setting.title.partition(", ")
            title = f"{data}, tuned" if rest.endswith("tuned") else data
            at = LEFT + CELL * (x + 0.5)
            ax.text(at - 4, TOP - 6, title, rotation=38, fontsize=11.5, ha="left", va="bottom")
            level = f"{one.levels['mean']['Standalone']:.1f}"
            ax.text(at, _middle(0), level, ha="center", va="center", fontsize=12)
            for y, row in enumerate(rows):
                if (variant := one.shown.get(row)) in one.paired.index:
                    _cell(ax, at, y, *one.paired.loc[variant, ["mean", "sign"]])

    return standalone(drawn("at-a-glance", size, draw, TITLE)) + "\n"


def _middle(row: int) -> float:
    return TOP + ROW * (row + 0.5) + (3 if row else 0)


def _cell(ax: Axes, at: float, row: int, points: float, sign: int) -> None:
    colour = {1: BLUE, -1: ORANGE}.get(sign)
    text = f"{round(points, 1) + 0.0:+.1f}".replace("-", "\u2212")
    if colour:
        corner = at - CELL / 2 + 1, _middle(row) - ROW / 2 + 1
        ax.add_patch(Rectangle(corner, CELL - 2, ROW - 2, color=colour, lw=0))
    ax.text(at, _middle(row), text, ha="center", va="center", fontsize=11.5,
            alpha=1 if colour else 0.65, color="white" if colour else INK,
            weight="bold" if colour else "normal")  # fmt: skip


def beside_papers(comparisons: Sequence[Comparison]) -> str:
    """Draw the papers' figures and ours, by both measures, with the papers' data and training."""
    folder = "cifar100-n100-as-published"
    (one,) = (c for c in comparisons if c.setting.title == TITLES[folder])
    content = yaml.safe_load((DOCS / "papers.yaml").read_text("utf-8"))
    table = next(paper for paper in content["tables"] if paper["name"] == "heterogeneous")
    theirs = {row["method"]: row["values"][-1] for row in table["rows"]}
    points = {}
    for method in ("standalone", "lg_fedavg", "fedproto", "fedssa", "fedmrl", "pfedes"):
        name = content["methods"][method]
        last, best = one.levels["mean"][name], one.participants["participants_best"][name]
        points[name] = (last, best, theirs[method])
    marks = {
        "all clients, last round": ("o", BLUE), "participants, best round": ("D", ORANGE),
        "paper": ("|", INK),
    }  # fmt: skip

    def draw(figure: Figure) -> None:
        ax = figure.add_axes((0.14, 0.2, 0.84, 0.66))
        for number, (text, (marker, colour)) in enumerate(marks.items()):
            values = [value[number] for value in points.values()]
            size = 260 if marker == "|" else 60
            ax.scatter(
                values, range(len(points)), size, colour, marker=marker, label=text, zorder=3
            )
        ax.set_yticks(range(len(points)), list(points), fontsize=12)
        ax.set(ylim=(len(points) - 0.5, -0.5), xlabel="test accuracy, percent")
        ax.grid(axis="x", alpha=0.3)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)

    title = "CIFAR-100, 100 clients: the papers' figures beside ours"
    return standalone(drawn("beside-the-papers", (640, 300), draw, title)) + "\n"


def papers(one: Comparison) -> ReportTable:
    """Return the papers' numbers beside ours."""
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
    names = dict(zip(one.runs["method"], one.runs["variant"], strict=True))
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
    table = ReportTable(
        f"papers-{one.setting.slug}", title, note, [variant for variant, *_ in rows]
    )
    theirs = pd.Series([value for _, value, _ in rows], dtype=float)
    ours = one.levels.loc[[variant for variant, *_ in rows]].reset_index()
    table.add("paper", "percent; '-': it failed to converge there", theirs)
    table.add_interval(f"ours [{PERCENT}]", "as in the table of accuracies", ours, sign=False)
    table.add("ours less paper", "points", ours["mean"] - theirs, signed)
    trained = one.participants.reindex([v for v, *_ in rows]).reset_index()
    if trained.notna().any(axis=None) and len(trained):
        for title, name in (("last 50", "last_50"), ("best round", "best")):
            about = "the participants' mean, right after their training, which papers print"
            if (column := f"participants_{name}") in trained:
                table.add(f"participants, {title}", about, trained[column])
    sources = [content["sources"][row["source"]] for *_, row in rows]
    said = [
        f"{s['title']}, arXiv {s['arxiv']}, {row['where']}"
        for s, (*_, row) in zip(sources, rows, strict=True)
    ]
    table.add_text("source", "paper, arXiv id and table", said)
    return table


def precision(one: Comparison) -> ReportTable:
    """Variants in fp32 and in a lower precision, on the blocks and clients that both have."""
    runs, clients = one.every
    full = "fp32"
    column = f"test_{one.metric}"
    clients = clients.assign(
        precision=clients["number"].map(dict(zip(runs["number"], runs["precision"], strict=True)))
    )
    sides = {
        cell: own.set_index(["block", "client"])[column]
        for cell, own in clients.groupby(["precision", "variant"], sort=False)
    }
    rows = []
    for (precision, variant), lower in sides.items():
        if precision == full or (full, variant) not in sides:
            continue
        found = pd.DataFrame({"left": lower, "right": sides[full, variant]}).dropna()
        found["difference"] = found["left"] - found["right"]
        if len(found):
            blocks = found.groupby("block").mean()
            chance = np.sqrt(
                found["difference"].groupby("block").agg(lambda d: d.var() / len(d)).mean()
            )
            largest = blocks["difference"][blocks["difference"].abs().idxmax()]
            rows.append((variant, precision, len(blocks), *blocks.mean()[["right", "left"]],
                         blocks["difference"].mean(), largest, chance))  # fmt: skip
    note = (
        "Two runs that differ in rounding drift apart: a block's difference is of the size of "
        "its standard error (s.e.) even where precision has no influence, and larger where clients "
        "share a model that drifted."
    )
    title = "Lower precision beside fp32"
    table = ReportTable(f"precision-{one.setting.slug}", title, note, [row[0] for row in rows])
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
