"""``fedhet report``: runs become one page that needs nothing else, tables, figures and documents.

The same runs give the same bytes: nothing here knows the date, the machine or a path.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedhet import plugins
from fedhet.errors import UserError, one_line
from fedhet.files import plain_path, write_text
from fedhet.reports import documents, frame
from fedhet.reports.markup import escaped, to_csv, to_latex, to_markdown
from fedhet.reports.page import to_page
from fedhet.reports.reading import own_names
from fedhet.reports.runs import numbered, pack
from fedhet.reports.sections import Report, build

FORMATS = ("md", "csv", "latex", "svg", "parquet")
USUAL = FORMATS[:-1]
BEGIN, END = "<!-- fedhet report -->", "<!-- end of fedhet report -->"
_MADE = (("tables", (".csv", ".tex")), ("figures", (".svg", ".png")))  # .png: of earlier versions
_BESIDE = ("tables.md", "runs.csv", "runs.parquet")  # the page
_OWN = re.compile(r"((tables|figures)/)?[a-zA-Z0-9_-]+\.[a-z]+")


def report(  # noqa: PLR0913
    places: Sequence[Path],
    out: Path | None = None,
    *,
    formats: Collection[str] = USUAL,
    baseline: str = "",
    title: str = "fedhet report",
    records: Path | None = None,
    into: Path | None = None,
    docs: Path | None = None,
    models: bool = True,
    trust: bool = False,
) -> Report:
    """Read runs, compare them, write the folder ``out``; returns what was written.

    Beside the page stands what ``formats`` names (of :data:`FORMATS`). ``records`` asks for packed
    records of the runs in that folder; ``into`` names a Markdown file whose part between
    :data:`BEGIN` and :data:`END` is replaced by the tables; in the folder ``docs`` the pages of
    :mod:`fedhet.reports.documents` are written anew. ``models`` False leaves out the figures that
    load the clients' models. ``trust``: code that runs name is imported, whoever made them; else of
    the runs that this user made only, and the rest is named. Raises UserError, in one line, before
    anything is written, if there is nothing to report.
    """
    if out is None and docs is None:
        raise UserError(
            "--out: give the folder of the report, or --docs the folder of its documents"
        )
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise UserError(f"--format: '{unknown[0]}' is not allowed: {', '.join(FORMATS)}")
    if out is not None:
        _check_apart(out, places)
    before, after = documents.around(into, BEGIN, END) if into is not None else ("", "")
    with plugins.guarded(lambda name: trust or name in own_names(places)) as guard:
        made = build(places, baseline=baseline, title=title, models=models)
        content = _content(made, formats) if out is not None else {}
        pages = documents.written(made, docs) if docs is not None else {}
    made = replace(made, refused=sorted(guard.refused))
    folders = [*([out / "tables", out / "figures"] if out else []), *([records] if records else [])]
    for folder in [*folders, *([docs / "results"] if docs else [])]:
        with _writing(folder):  # all of them, before anything is written into one
            folder.mkdir(parents=True, exist_ok=True)
    if records is not None:
        with _writing(records):
            for run in numbered(made.runs):
                pack(run, records)
    if out is not None:
        with _writing(out):
            _place(content, out)
    if into is not None:
        with _writing(into):
            write_text(into, documents.joined(before, f"{BEGIN}\n\n{to_text(made)}\n{END}", after))
    if docs is not None:
        with _writing(docs):
            documents.place(pages, docs)
    return made


def _check_apart(out: Path, places: Sequence[Path]) -> None:
    """UserError if the report would lie among what it reads, or in another run's folder."""
    holds_runs = any(
        any(out.glob(name)) for name in ("config.yaml", "*/config.yaml", "sweeps/*/sweep.json")
    )
    if holds_runs or plain_path(out).resolve() in {plain_path(one).resolve() for one in places}:
        raise UserError(f"--out: '{out}' is a folder of runs: give the report a folder of its own")


def _content(made: Report, formats: Collection[str]) -> dict[str, str | bytes]:
    page, linked = to_page(made)
    content: dict[str, str | bytes] = {"report.html": page}
    for picture in made.figures():
        if picture.panels and ("svg" in formats or picture.name in linked):
            content[f"figures/{picture.name}.svg"] = picture.svg
    for table in made.tables():
        if "csv" in formats:
            content[f"tables/{table.name}.csv"] = to_csv(table)
        if "latex" in formats:
            content[f"tables/{table.name}.tex"] = to_latex(table)
    if "md" in formats:
        content["tables.md"] = f"# {made.title}\n\n{to_text(made)}"
    if "csv" in formats:
        content["runs.csv"] = frame.to_csv(frame.run_table(made.comparisons))
    if "parquet" in formats:
        content["runs.parquet"] = frame.to_parquet(frame.run_table(made.comparisons))
    return content


def _place(content: Mapping[str, str | bytes], out: Path) -> None:
    """Replace the tables, figures and page of an earlier report, all or, on a full disk, none."""
    if odd := [name for name in content if not _OWN.fullmatch(name)]:
        raise UserError(
            f"--out: '{one_line(odd[0], 100)}' is not allowed as a file of a report, whose names "
            "have letters, digits, '-' and '_': leave out the run whose record says it"
        )
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
    for folder, kinds in _MADE:
        for path in (out / folder).iterdir():
            if path.suffix in kinds and f"{folder}/{path.name}" not in content:
                path.unlink()
    for name in _BESIDE:
        if name not in content:
            (out / name).unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise UserError(f"'{where}' cannot be written: {error.strerror or error}") from error


def to_text(made: Report) -> str:
    """Verdict and tables as Markdown with stable anchors, and which figures are absent and why."""
    parts = [f"- {escaped(sentence)}" for sentence in made.verdict]
    parts += ["", escaped(made.lead), ""]
    for section in (made.whole, *made.sections):
        if not section.full():
            continue
        parts += [f'## {escaped(section.title)} <a id="{section.name}"></a>', ""]
        parts += [escaped(section.note), ""] if section.note else []
        parts += (
            [*(f"    {command}" for command in section.commands), ""] if section.commands else []
        )
        parts += [to_markdown(table) for table in section.tables]
        parts += [f"- {escaped(f'{name}: {value}')}" for name, value in section.facts]
    missing = [f"- {escaped(f'{p.title}: {p.absent}.')}" for p in made.figures() if p.absent]
    if missing:
        parts += ["", "Figures that are absent:", "", *missing, ""]
    return "\n".join(parts).rstrip() + "\n"
