"""``fedhet report``: runs become tables, figures and one page that needs nothing else.

The same runs give the same bytes: nothing here knows the date, the machine or a path.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import Environment

from fedhet import plugins
from fedhet.errors import UserError
from fedhet.files import finite, write_text
from fedhet.reports.drawing import inline
from fedhet.reports.markup import escaped, to_csv, to_latex, to_markdown
from fedhet.reports.reading import own_names
from fedhet.reports.runs import pack
from fedhet.reports.sections import Report, build

PAGE_LIMIT = 2_000_000  # bytes of report.html
BEGIN, END = "<!-- fedhet report -->", "<!-- end of fedhet report -->"


def report(  # noqa: PLR0913
    places: Sequence[Path],
    out: Path,
    *,
    baseline: str = "",
    title: str = "fedhet report",
    records: Path | None = None,
    into: Path | None = None,
    models: bool = True,
    trust: bool = False,
) -> Report:
    """Read runs, compare them, write the folder ``out``; returns what was written.

    ``records`` asks for packed records of the runs in that folder; ``into`` names a Markdown file
    whose part between :data:`BEGIN` and :data:`END` is replaced by the tables. ``models`` False
    leaves out the figures that load the clients' models. ``trust``: code that runs name is
    imported, whoever made them; else of the runs that this user made only, and the rest is named.
    Raises UserError, in one line, before anything is written, if there is nothing to report.
    """
    before, after = _marked(into) if into is not None else ("", "")
    with plugins.guarded(lambda name: trust or name in own_names(places)) as guard:
        made = build(places, baseline=baseline, title=title, models=models)
    made = replace(made, refused=sorted(guard.refused))
    content: dict[str, str | bytes] = {}
    for table in made.tables():
        content[f"tables/{table.name}.csv"] = to_csv(table)
        content[f"tables/{table.name}.tex"] = to_latex(table)
    for picture in made.figures():
        if picture.svg:
            content[f"figures/{picture.name}.svg"] = picture.svg
            content[f"figures/{picture.name}.png"] = picture.png
    markdown = to_text(made)
    content["tables.md"] = f"# {made.title}\n\n{markdown}"
    content["report.html"] = to_page(made)
    for folder in (out / "tables", out / "figures", *([records] if records is not None else [])):
        with _writing(folder):  # all of them, before anything is written into one
            folder.mkdir(parents=True, exist_ok=True)
    if records is not None:
        with _writing(records):
            for run in made.runs:
                pack(run, records)
    with _writing(out):
        _place(content, out)
    if into is not None:
        with _writing(into):
            write_text(into, f"{before}{BEGIN}\n\n{markdown}\n{END}{after}")
    return made


def _place(content: Mapping[str, str | bytes], out: Path) -> None:
    """Replace the tables, figures and page of an earlier report, all or, on a full disk, none."""
    earlier = (out / "report.html").exists()
    with TemporaryDirectory(dir=out, prefix=".new-") as new:
        for name, value in content.items():
            path = Path(new, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(value.encode() if isinstance(value, str) else value)
        for name in content:
            Path(new, name).replace(out / name)
    if not earlier:
        return
    for folder, kinds in (("tables", (".csv", ".tex")), ("figures", (".svg", ".png"))):
        for path in (out / folder).iterdir():
            if path.suffix in kinds and f"{folder}/{path.name}" not in content:
                path.unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise UserError(f"'{where}' cannot be written: {error.strerror or error}") from error


def _marked(path: Path) -> tuple[str, str]:
    """What stands before and after the marked part of a Markdown file."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"into: '{path}' cannot be read: {error.strerror}") from error
    before, begin, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"into: '{path}' has no part between '{BEGIN}' and '{END}'")
    return before, after


def to_text(made: Report) -> str:
    """The tables as Markdown with stable anchors, and where the figures are or why not."""
    parts = [escaped(made.lead), ""]
    for section in made.sections:
        parts += [f'## {escaped(section.title)} <a id="{section.name}"></a>', ""]
        parts += [to_markdown(table) for table in section.tables]
        missing = [f"- {escaped(f'{p.title}: {p.absent}.')}" for p in section.figures if p.absent]
        if missing:
            parts += ["Figures that are absent:", "", *missing, ""]
        parts += [f"- {escaped(f'{name}: {value}')}" for name, value in section.facts]
    return "\n".join(parts).rstrip() + "\n"


def to_page(made: Report) -> str:
    """``report.html``; the largest drawings are left to the folder if it would be too big."""
    drawn = {picture.name: inline(picture) for picture in made.figures() if picture.svg}
    page = _render(made, drawn)
    while len(page.encode()) > PAGE_LIMIT and drawn:
        del drawn[max(drawn, key=lambda name: (len(drawn[name]), name))]
        page = _render(made, drawn)
    return page


def _render(made: Report, drawn: Mapping[str, str]) -> str:
    sections = [
        {
            "name": s.name, "title": s.title, "note": s.note, "tables": s.tables, "facts": s.facts,
            "figures": [
                {
                    "name": p.name, "title": p.title, "caption": p.caption,
                    "inline": drawn.get(p.name, ""),
                    "absent": f"Absent: {p.absent}." if p.absent
                    else f"Left to figures/{p.name}.svg, so that the page stays small.",
                }
                for p in s.figures
            ],
        }
        for s in made.sections
    ]  # fmt: skip
    source = files("fedhet.reports").joinpath("templates/report.html").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    data = json.dumps(finite(made.data), separators=(",", ":"), allow_nan=False)
    return environment.from_string(source).render(
        title=made.title, lead=made.lead, sections=sections, data=data.replace("<", "\\u003c")
    )
