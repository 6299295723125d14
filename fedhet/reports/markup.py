"""A table with cells that know their number and their text, and the ways to write one down."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedhet.files import csv_text
from fedhet.reports.names import file_name
from fedhet.reports.statistics import Interval


@dataclass(frozen=True)
class Cell:
    """What is shown, and what is sorted by and written to CSV (None: nothing is there)."""

    text: str
    value: float | str | None
    rank: str = ""  # "best" of its column, or "tied" with that


@dataclass(frozen=True)
class Column:
    """A heading with what it means; ``details`` is the anchor of a setting that it leads to."""

    title: str
    about: str
    numeric: bool = True
    details: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; ``note`` says how to read them, ``name`` becomes a file name."""

    name: str
    title: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", file_name(self.name))


def text(value: str) -> Cell:
    """A name."""
    return Cell(value, value)


def number(value: float | None, digits: int = 2, *, sign: bool = False) -> Cell:
    """A number, or a dash."""
    if value is None:
        return Cell("-", None)
    shown = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    return Cell(shown, float(f"{value:.10g}"))


def interval(found: Interval, *, sign: bool = False) -> Cell:
    """``mean [low, high]``."""
    mean = number(found.mean, sign=sign)
    if found.low is None or found.high is None:
        return mean
    low, high = (number(end, sign=sign).text for end in (found.low, found.high))
    return Cell(f"{mean.text} [{low}, {high}]", mean.value)


def p_value(p: float | None) -> str:
    """A p value as text."""
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


# What Markdown would take for markup in a name; a bracket alone is none, nor "< 0.001".
_MARKUP = re.compile(r"[\\`*|~]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(")
_HTML = {re.compile(r"&(?=#?\w+;)"): "&amp;", re.compile(r"<(?=[a-zA-Z/!?])"): "&lt;"}


def escaped(value: str) -> str:
    """A text on one line of Markdown, so that it shows as it is."""
    shown = _MARKUP.sub(r"\\\g<0>", " ".join(value.split()))
    for sign, entity in _HTML.items():
        shown = sign.sub(entity, shown)
    return shown


def to_markdown(table: Table, level: int = 3) -> str:
    """A heading with a stable anchor, the table, and its note."""
    anchor = f'<a id="{table.name}"></a>'
    heading = f"{'#' * level} {escaped(table.title)} {anchor}"
    note = [escaped(table.note), ""] if table.note else []
    return "\n".join([heading, "", *note, *markdown_rows(table, "#{}".format), ""])


def markdown_rows(table: Table, link: Callable[[str], str]) -> list[str]:
    """The table alone; ``link`` makes the address of a column's details from their anchor."""
    heads = [
        f"[{escaped(column.title)}]({link(column.details)})"
        if column.details
        else escaped(column.title)
        for column in table.columns
    ]
    ruler = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    body = [[_RANKED[cell.rank].format(escaped(cell.text)) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *body)]
    return [lines[0], ruler, *lines[1:]]


_RANKED = {"": "{}", "best": "**{}**", "tied": "<u>{}</u>"}
_TEX_RANKED = {"": "%s", "best": r"\textbf{%s}", "tied": r"\underline{%s}"}


def to_csv(table: Table) -> str:
    """Numbers without rounding for show; intervals and other texts as they are shown beside."""
    shown = [
        column.numeric and any(_more(row[i]) for row in table.rows)
        for i, column in enumerate(table.columns)
    ]
    titles: list[str] = []
    for column, twice in zip(table.columns, shown, strict=True):
        titles += [column.title, f"{column.title}, as shown"] if twice else [column.title]
    lines: list[list[object]] = [list(titles)]
    for row in table.rows:
        cells: list[object] = []
        for cell, column, twice in zip(row, table.columns, shown, strict=True):
            cells.append("" if cell.value is None else cell.value if column.numeric else cell.text)
            if twice:
                cells.append(cell.text)
        lines.append(cells)
    return csv_text(lines)


def _more(cell: Cell) -> bool:
    """Whether the text says more than the number."""
    return re.fullmatch(r"[-+]?[\d,]*\.?\d*|-", cell.text) is None


_LATEX = {
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def to_latex(table: Table) -> str:
    """A float with booktabs rules; its label is ``tab:`` and the anchor."""
    layout = "".join("r" if column.numeric else "l" for column in table.columns)
    head = " & ".join(_tex(column.title) for column in table.columns)
    body = [
        " & ".join(_TEX_RANKED[cell.rank] % _tex(cell.text) for cell in row) + r" \\"
        for row in table.rows
    ]
    caption = f"{_tex(table.title)}. {_tex(table.note)}"
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
            rf"\label{{tab:{table.name}}}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule",
            head + r" \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
        ]
    )  # fmt: skip


def _tex(value: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in value)
    for sign, tex in (("±", r"$\pm$"), ("†", r"$\dagger$"), ("−", "$-$")):
        escaped = escaped.replace(sign, tex)
    return escaped
