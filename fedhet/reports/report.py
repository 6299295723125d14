"""``fedhet report``: make one self-contained page, tables and figures of runs.

The same runs give the same bytes: no output has a date, a machine's name or a path.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import Environment

from fedhet.data.inputs import noun
from fedhet.errors import UserError
from fedhet.files import plain_path
from fedhet.reports import figures, model_figures, tables
from fedhet.reports.comparison import BASELINE, Comparison
from fedhet.reports.figures import Picture
from fedhet.reports.frame import Runs
from fedhet.reports.reading import pack, read_runs, sweep_indexes
from fedhet.reports.settings import method_name
from fedhet.reports.tables import ReportTable, escaped, to_csv, to_latex, to_markdown

FORMATS = ("md", "csv", "latex", "svg")
_MADE = ("tables/*.csv", "tables/*.tex", "figures/*.svg", "tables.md", "runs.csv")


@dataclass(frozen=True)
class Section:
    """A part of the page and of ``tables.md``: one setting, or all settings together."""

    name: str
    title: str
    note: str = ""
    command: str = ""
    tables: Sequence[ReportTable] = ()
    figures: Sequence[Picture] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class Report:
    """The content of a report: all settings together, then the details of each."""

    def __init__(self, runs: Runs, title: str, notes: Sequence[str], *, models: bool, trust: bool):
        self.runs, self.title = runs, title
        comparisons = runs.comparisons
        nouns = {noun(str(one.setting.keys["dataset"])) for one in comparisons}
        what = nouns.pop() if len(nouns) == 1 else "examples"
        self.lead = " ".join(
            [f"Every client's own model on its own test {what}, right after its local training, "
             "averaged over all clients.", *(f"{note}." for note in notes)]
        )  # fmt: skip
        self.whole = Section(
            "all", "All settings", tables=[tables.overview(comparisons)],
            figures=[figures.differences(comparisons), figures.traffic(comparisons)],
        )  # fmt: skip
        self.sections = [_section(one) for one in comparisons]
        drawn = [model_figures.t_sne(runs.placed, wanted=models, trust=trust)]
        self.sections.append(Section("models", "Representations", figures=drawn))
        self.sections.append(_about(runs))

    @cached_property
    def tables(self) -> list[ReportTable]:
        """Of all sections."""
        return [table for one in (self.whole, *self.sections) for table in one.tables]

    @cached_property
    def figures(self) -> list[Picture]:
        """Of all sections."""
        return [figure for one in (self.whole, *self.sections) for figure in one.figures]

    @property
    def absent(self) -> dict[str, str]:
        """Figures that could not be drawn, and why."""
        return {figure.title: figure.absent for figure in self.figures if figure.absent}


def report(  # noqa: PLR0913
    places: Sequence[Path],
    out: Path,
    *,
    formats: Collection[str] = FORMATS,
    baseline: str = "",
    title: str = "fedhet report",
    records: Path | None = None,
    models: bool = True,
    trust: bool = False,
) -> Report:
    """Read runs, compare them, write the folder ``out``; return what was written.

    Beside the page stands what ``formats`` names (of :data:`FORMATS`). ``records`` asks for packed
    records of the runs in that folder. ``models`` False leaves out the figures that load the
    clients' models; ``trust`` imports code of others that those need. Raise UserError before
    anything is written if there is nothing to report.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        raise UserError(f"--format: '{unknown[0]}' is not allowed: {', '.join(FORMATS)}")
    _check_apart(out, places)
    runs = Runs(*read_runs(places), baseline)
    notes = [
        f"{index.sweep}: {index.note}"
        for place in places for index in sweep_indexes(place) if index.note
    ]  # fmt: skip
    made = Report(runs, title, list(dict.fromkeys(notes)), models=models, trust=trust)
    try:
        _place(_content(made, formats), out)
        if records is not None:
            records.mkdir(parents=True, exist_ok=True)
            pack((one.run for one in runs.placed), records)
    except OSError as error:
        where = error.filename or out
        raise UserError(f"'{where}' cannot be written: {error.strerror or error}") from error
    return made


def _section(one: Comparison) -> Section:
    setting, first = one.setting, one.runs.iloc[0]
    return Section(
        setting.slug, setting.title, f"{setting.conditions}.",
        setting.command(first["method"], first["block"]),
        tables.of_setting(one), figures.of_setting(one),
    )  # fmt: skip


def _about(runs: Runs) -> Section:
    frame = runs.frame()
    bases = [one.baseline for one in runs.comparisons]
    environments = [one.run.environment for one in runs.placed]
    names, head = [one.name for one in runs.left_out], "run folder or record"
    missing = ReportTable("left-out", "Runs that are left out", "", names, head)
    missing.add_text("why it is left out", "first reason", [one.reason for one in runs.left_out])
    facts = {
        "runs": f"{len(frame)}, a line each in runs.csv, with their hashes",
        "baseline": _some(bases, f"none: {method_name(BASELINE)} was not run"),
        "fedhet": _some(frame["fedhet_version"]), "torch": _some(frame["torch_version"]),
        "commits": _some(frame["git_commit"]), "processors": _some(frame["processor"]),
        "GPUs": _some(gpu for one in environments for gpu in one.get("cuda") or ["none"]),
    }  # fmt: skip
    return Section("about", "About these figures", tables=[missing] * bool(names), facts=facts)


def _some(values: Iterable[object], otherwise: str = "not recorded") -> str:
    return "; ".join(sorted({v for v in values if isinstance(v, str) and v})) or otherwise


# --- page ----------------------------------------------------------------------------------------


def to_page(made: Report) -> str:
    """Return the page, with all figures in it."""
    source = files("fedhet.reports").joinpath("templates/report.html").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(made=made, verdict=made.runs.verdict)


def to_text(made: Report) -> str:
    """Verdict and tables as Markdown with stable anchors, and which figures are absent and why."""
    parts = [f"# {escaped(made.title)}", ""]
    parts += [*(f"- {escaped(sentence)}" for sentence in made.runs.verdict), ""]
    parts += [escaped(made.lead), ""]
    for section in (made.whole, *made.sections):
        if not section.tables and not section.facts:
            continue
        parts += [f'## {escaped(section.title)} <a id="{section.name}"></a>', ""]
        parts += [escaped(section.note), ""] if section.note else []
        parts += [f"    {section.command}", ""] if section.command else []
        parts += [to_markdown(table) for table in section.tables]
        parts += [f"- {escaped(f'{name}: {value}')}" for name, value in section.facts.items()]
    if made.absent:
        missing = (f"- {escaped(f'{title}: {why}.')}" for title, why in made.absent.items())
        parts += ["", "Figures that are absent:", "", *missing, ""]
    return "\n".join(parts).rstrip() + "\n"


# --- files ---------------------------------------------------------------------------------------


def _check_apart(out: Path, places: Sequence[Path]) -> None:
    """Raise UserError if the report would lie in a folder of runs, or in a file."""
    if out.is_file():
        raise UserError(f"--out: '{out}' is a file: choose a folder for the report")
    names = ("config.yaml", "*/config.yaml", "sweeps/*/sweep.json")
    holds_runs = any(any(out.glob(name)) for name in names)
    if holds_runs or plain_path(out).resolve() in {plain_path(one).resolve() for one in places}:
        raise UserError(f"--out: '{out}' is a folder of runs: choose another folder for the report")


def _content(made: Report, formats: Collection[str]) -> dict[str, str]:
    """Return the files of a report, named by kinds of tables and :attr:`Setting.slug`."""
    content = {"report.html": to_page(made)}
    for figure in made.figures:
        if "svg" in formats:
            content |= {f"figures/{name}.svg": svg for name, svg in figure.files().items()}
    for table in made.tables:
        if "csv" in formats:
            content[f"tables/{table.name}.csv"] = to_csv(table.data)
        if "latex" in formats:
            content[f"tables/{table.name}.tex"] = to_latex(table)
    if "md" in formats:
        content["tables.md"] = to_text(made)
    if "csv" in formats:
        content["runs.csv"] = to_csv(made.runs.frame())
    return content


def _place(content: Mapping[str, str], out: Path) -> None:
    """Replace the files of an earlier report, all or, on a full disk, none."""
    for folder in (out / "tables", out / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    earlier = {
        path for pattern in _MADE for path in out.glob(pattern) if (out / "report.html").exists()
    }
    with TemporaryDirectory(dir=out, prefix=".new-") as new:
        for name, text in content.items():
            path = Path(new, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for name in content:
            Path(new, name).replace(out / name)
    for path in earlier - {out / name for name in content}:
        path.unlink()
